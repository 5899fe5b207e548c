package trainer

import (
	"fmt"
	"math"
	"testing"

	"harness-s/rollout"
	"harness-s/trainer/loss"
)

// rec makes a record whose rows have the given masks; reward decides success.
func rec(id string, reward float64, masks ...[]uint8) *rollout.Record {
	r := &rollout.Record{ID: id, Task: "t", Reward: reward, Success: reward > 0, Status: rollout.Completed}
	for _, m := range masks {
		row := rollout.Row{Mask: m, Tokens: make([]int32, len(m)), Logprobs: make([]float32, len(m))}
		for i := range m {
			row.Tokens[i] = int32(i)
		}
		r.Rows = append(r.Rows, row)
	}
	return r
}

func testGroups() []group {
	long := []uint8{0, 0, 1, 1, 0, 1, 0, 0} // trailing context is cut
	groups := []group{
		{records: []*rollout.Record{rec("a0", 1, long, []uint8{0, 1}), rec("a1", 0, []uint8{0, 1, 1})}},
		{records: []*rollout.Record{rec("b0", 0, []uint8{0, 1}), rec("b1", 0, []uint8{0, 1})}}, // constant
		{records: []*rollout.Record{rec("c0", 1, []uint8{0, 1}), rec("c1", 0, []uint8{0, 0})}},
	}
	est, _ := loss.Estimator("grpo")
	setAdvantages(groups, est, 1e-6)
	return groups
}

func TestPackCountsBeforeDropping(t *testing.T) {
	l, _ := loss.New(loss.DefaultConfig())
	m := pack(testGroups(), l, 1, 100, 1)[0]
	if want := (loss.Norm{Rollouts: 6, Tokens: 4 + 2 + 1 + 1 + 1 + 0, Live: 4, LiveTok: 7}); m.norm != want {
		t.Errorf("counts %+v, want %+v", m.norm, want)
	}
	var ids []string
	for _, rows := range m.micro {
		for _, r := range rows {
			ids = append(ids, fmt.Sprint(r.id, len(r.tokens)))
		}
	}
	if got, want := fmt.Sprint(ids), "[a06 a02 a13 c02]"; got != want {
		t.Errorf("live rows %s, want %s", got, want)
	}
	if m.rollouts[0].Tokens != 4 {
		t.Errorf("the rollout of two rows has %d policy tokens, want 4 over both", m.rollouts[0].Tokens)
	}
}

func TestPackKeepsToTheBudget(t *testing.T) {
	token, _ := loss.New(loss.DefaultConfig())
	c := loss.DefaultConfig()
	c.Name = "gspo"
	sequence, _ := loss.New(c)
	for _, tc := range []struct {
		l      loss.Loss
		budget int
		want   string
	}{
		{token, 100, "[[6 2 3 2]]"},
		{token, 8, "[[6 2] [3 2]]"},
		{token, 4, "[[6] [2] [3] [2]]"},
		{sequence, 4, "[[6 2] [3] [2]]"}, // a rollout's rows stay together
	} {
		var sizes [][]int
		for _, rows := range pack(testGroups(), tc.l, 1, tc.budget, 1)[0].micro {
			var s []int
			for _, r := range rows {
				s = append(s, len(r.tokens))
			}
			sizes = append(sizes, s)
		}
		if got := fmt.Sprint(sizes); got != tc.want {
			t.Errorf("%s, budget %d: %s, want %s", tc.l.Name, tc.budget, got, tc.want)
		}
	}
}

func TestDealSpreadsLiveGroups(t *testing.T) {
	l, _ := loss.New(loss.DefaultConfig())
	batches := pack(testGroups(), l, 2, 100, 1)
	if len(batches[0].micro) != 1 || len(batches[1].micro) != 1 {
		t.Errorf("of two live groups, the minibatches got %d and %d", len(batches[0].micro), len(batches[1].micro))
	}
	total := batches[0].norm.Rollouts + batches[1].norm.Rollouts
	if total != 6 {
		t.Errorf("%d rollouts dealt, want 6", total)
	}
}

func TestFailedIsTheBinaryOutcome(t *testing.T) {
	shaped := rec("x", 0.3)
	shaped.Success = false
	for _, tc := range []struct {
		g    group
		want bool
	}{
		{group{records: []*rollout.Record{rec("a", 0), rec("b", 0)}}, true},
		{group{records: []*rollout.Record{shaped, rec("b", 0)}}, true}, // shaped rewards differ, all failed
		{group{records: []*rollout.Record{rec("a", 1), rec("b", 1)}}, false},
		{group{records: []*rollout.Record{rec("a", 0)}, dropped: 1}, false},
		{group{dropped: 8}, false},
	} {
		if got := tc.g.failed(); got != tc.want {
			t.Errorf("%+v: failed %t, want %t", tc.g, got, tc.want)
		}
	}
}

func TestLearningRate(t *testing.T) {
	o := Default().Optim
	o.LR, o.Warmup, o.MinLR = 1, 4, 0.1
	for update, want := range map[int]float64{0: 0.2, 3: 0.8, 4: 1, 100: 1} {
		if got := learningRate(o, update, 0.5); math.Abs(got-want) > 1e-12 {
			t.Errorf("update %d: %g, want %g", update, got, want)
		}
	}
	o.Schedule = "cosine"
	for progress, want := range map[float64]float64{0: 1, 0.5: 0.55, 1: 0.1, 1.2: 0.1} {
		if got := learningRate(o, 100, progress); math.Abs(got-want) > 1e-12 {
			t.Errorf("progress %g: %g, want %g", progress, got, want)
		}
	}
}

func TestSamplerDealsEveryTaskOnceAnEpoch(t *testing.T) {
	var tasks []rollout.Task
	for i := range 10 {
		tasks = append(tasks, fakeTask("train", i))
	}
	s := newSampler(5, tasks)
	dealt := 0
	for range 20 {
		var got []rollout.Task
		before := dealt
		got, dealt = s.next(before, 4)
		again, _ := newSampler(5, tasks).next(before, 4) // a resumed sampler
		seen := map[string]bool{}
		for i, task := range got {
			if seen[task.ID] {
				t.Fatalf("task %s twice in a step", task.ID)
			}
			seen[task.ID] = true
			if again[i].ID != task.ID {
				t.Fatalf("resumed at %d the sampler deals %s, not %s", before, again[i].ID, task.ID)
			}
		}
		if len(got) != 4 {
			t.Fatalf("%d tasks, want 4", len(got))
		}
	}
	if got, _ := s.next(dealt, 100); len(got) != 10 {
		t.Errorf("asked for more than there are: %d", len(got))
	}
}

// A broken attempt is no training row: it has no part in the rewards' mean, and its rows are not trained on. A failed
// one is both.
func TestBrokenIsNoRow(t *testing.T) {
	task := rollout.Task{ID: "t"}
	won, failed, broken := rec("won", 1, []uint8{0, 1}), rec("failed", 0, []uint8{0, 1}), rec("broken", 0, []uint8{0, 1})
	for _, status := range []rollout.Status{rollout.ServerError, rollout.EnvError, rollout.Deadline} {
		broken.Status = status
		groups := intoGroups([]rollout.Task{task}, []*rollout.Record{won, broken, failed})
		if groups[0].dropped != 1 {
			t.Errorf("%s: %d attempts dropped, want 1", status, groups[0].dropped)
		}
		est, _ := loss.Estimator("grpo")
		setAdvantages(groups, est, 1e-6)
		l, _ := loss.New(loss.DefaultConfig())
		m := pack(groups, l, 1, 100, 1)[0]
		if got := fmt.Sprintln(m.rollouts, m.norm.Rollouts, m.micro[0][0].id, m.micro[0][1].id); got != "[{1 1} {-1 1}] 2 won failed\n" {
			t.Errorf("%s: %s", status, got)
		}
	}
}
