package trainer

import (
	"encoding/binary"
	"hash/fnv"
	"math/rand/v2"

	"harness-s/rollout"
)

// rng is a generator of its own for each purpose and number, so that a resumed run draws what the
// uninterrupted one drew without any generator state in the checkpoint.
func rng(seed int64, purpose string, numbers ...int) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(purpose))
	for _, n := range numbers {
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(n)))
	}
	return rand.New(rand.NewPCG(uint64(seed), h.Sum64()))
}

// sampler deals training tasks: each epoch is a fresh permutation. Its only state is how many were dealt.
type sampler struct {
	seed  int64
	tasks []rollout.Task
	epoch int // of order; -1 before the first
	order []int
}

func newSampler(seed int64, tasks []rollout.Task) *sampler {
	return &sampler{seed: seed, tasks: tasks, epoch: -1}
}

// at is the n-th task dealt.
func (s *sampler) at(n int) rollout.Task {
	epoch := n / len(s.tasks)
	if epoch != s.epoch {
		s.epoch, s.order = epoch, rng(s.seed, "tasks", epoch).Perm(len(s.tasks))
	}
	return s.tasks[s.order[n%len(s.tasks)]]
}

// next deals n tasks after the first dealt ones. A task appears once a step: a second one in the same step
// (a step across two epochs, or more tasks a step than there are) is passed over.
func (s *sampler) next(dealt, n int) (tasks []rollout.Task, dealtNow int) {
	seen := map[string]bool{}
	for len(tasks) < min(n, len(s.tasks)) {
		t := s.at(dealt)
		dealt++
		if !seen[t.ID] {
			seen[t.ID] = true
			tasks = append(tasks, t)
		}
	}
	return tasks, dealt
}
