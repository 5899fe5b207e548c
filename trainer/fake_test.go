package trainer

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"harness-s/kernels"
	"harness-s/model"
	"harness-s/rollout"
	"harness-s/rollout/harness"
)

// The fakes are a whole small world, so that the loop's tests can see learning: a task is a token, a harness is
// a token, an attempt is the row [harness, task, answer], and the answer is right when it is the task's own.
// The policy is a table: the logits of the answer are the sum of the rows of the tokens before it.
const (
	vocab     = 16
	firstTask = 8 // tokens 8..15 are tasks; token 0 is H0, tokens 1..7 siblings
	fakeTasks = vocab - firstTask
)

// answerOf is the right answer to a task token.
func answerOf(task int32) int32 { return task % 4 }

// table is the policy's weights. It is the fake Learner.
type table struct {
	w, g, m, v []float32 // [vocab, vocab]
	kept       model.Batch
	temp       float64
	poison     func(call int) bool // makes a Forward return NaN; for tests
	calls      int
	full       func() bool // whether the disk is full; for tests
}

// newTable starts where the method is needed: under H0 (token 0) and the tasks alone the right answers are
// rare; each sibling's row lifts two of the four answers.
func newTable() *table {
	n := vocab * vocab
	t := &table{w: make([]float32, n), g: make([]float32, n), m: make([]float32, n), v: make([]float32, n)}
	for a := range 4 {
		for v := 4; v < vocab; v++ {
			t.w[0*vocab+v] = -4
		}
		t.w[0*vocab+a] = -2
		t.w[0*vocab+5] = 3 // H0's wrong habit
	}
	for s := 1; s < firstTask; s++ {
		for v := 4; v < vocab; v++ {
			t.w[s*vocab+v] = -4
		}
		t.w[s*vocab+s%4] = 1
		t.w[s*vocab+(s+1)%4] = 1
	}
	return t
}

// logits of the token after prefix.
func (t *table) logits(prefix []int32, temp float64) []float64 {
	z := make([]float64, vocab)
	for _, p := range prefix {
		for v := range z {
			z[v] += float64(t.w[int(p)*vocab+v]) / temp
		}
	}
	return z
}

// softmax gives probabilities and the log of their normaliser.
func softmax(z []float64) (p []float64, lse float64) {
	top := math.Inf(-1)
	for _, x := range z {
		top = math.Max(top, x)
	}
	sum := 0.0
	p = make([]float64, len(z))
	for v, x := range z {
		p[v] = math.Exp(x - top)
		sum += p[v]
	}
	for v := range p {
		p[v] /= sum
	}
	return p, top + math.Log(sum)
}

func (t *table) each(b model.Batch, f func(at int, prefix []int32)) {
	for r := range b.Rows() {
		start, end := int(b.Cu[r]), int(b.Cu[r+1])
		for i := start + 1; i < end; i++ {
			if b.Want == nil || b.Want[i] {
				f(i, b.Tokens[start:i])
			}
		}
	}
}

func (t *table) Forward(b model.Batch, o model.ForwardOptions) (model.Stats, error) {
	s := model.Stats{Logp: make([]float32, len(b.Tokens)), Entropy: make([]float32, len(b.Tokens))}
	t.calls++
	t.each(b, func(i int, prefix []int32) {
		z := t.logits(prefix, float64(o.Temperature))
		p, lse := softmax(z)
		s.Logp[i] = float32(math.Min(0, z[b.Tokens[i]]-lse))
		for v := range p {
			s.Entropy[i] -= float32(p[v] * math.Log(p[v]))
		}
		if t.poison != nil && t.poison(t.calls) {
			s.Logp[i] = float32(math.NaN())
		}
	})
	if o.Grad {
		t.kept, t.temp = b, float64(o.Temperature)
	}
	return s, nil
}

func (t *table) Backward(coef []float32) error {
	t.each(t.kept, func(i int, prefix []int32) {
		if coef[i] == 0 {
			return
		}
		p, _ := softmax(t.logits(prefix, t.temp))
		for v := range p {
			d := -p[v]
			if int32(v) == t.kept.Tokens[i] {
				d++
			}
			for _, q := range prefix {
				t.g[int(q)*vocab+v] += float32(float64(coef[i]) * d / t.temp)
			}
		}
	})
	return nil
}

func (t *table) Score(batches []model.Batch, o model.ForwardOptions) ([]model.Stats, error) {
	var out []model.Stats
	for _, b := range batches {
		s, err := t.Forward(b, o)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

func (t *table) Accumulate(batches []model.Batch, o model.ForwardOptions, grad func(int, model.Stats) ([]float32, error)) error {
	o.Grad = true
	for i, b := range batches {
		s, err := t.Forward(b, o)
		if err != nil {
			return err
		}
		coef, err := grad(i, s)
		if err != nil {
			return err
		}
		if coef == nil {
			continue
		}
		if err := t.Backward(coef); err != nil {
			return err
		}
	}
	return nil
}

func (t *table) ZeroGrad() { clear(t.g) }

func (t *table) GradStats() (norm float64, bad int, err error) {
	for _, g := range t.g {
		norm += float64(g) * float64(g)
		if notFinite(float64(g)) {
			bad++
		}
	}
	return math.Sqrt(norm), bad, nil
}

func (t *table) Update(p kernels.AdamWParams) error {
	c1 := 1 - math.Pow(float64(p.Beta1), float64(p.Step))
	c2 := 1 - math.Pow(float64(p.Beta2), float64(p.Step))
	for i, g := range t.g {
		g *= p.GradScale
		t.m[i] = p.Beta1*t.m[i] + (1-p.Beta1)*g
		t.v[i] = p.Beta2*t.v[i] + (1-p.Beta2)*g*g
		t.w[i] -= p.LR * float32(float64(t.m[i])/c1/(math.Sqrt(float64(t.v[i])/c2)+float64(p.Eps)))
	}
	return nil
}

const fakeWeights = "model.safetensors"

func (t *table) WriteWeights(dir string) error {
	return writeFloats(filepath.Join(dir, fakeWeights), t.w)
}
func (t *table) WriteOptimizer(path string) error {
	if t.full != nil && t.full() {
		return &os.PathError{Op: "write", Path: path, Err: syscall.ENOSPC}
	}
	return writeFloats(path, append(append([]float32{}, t.m...), t.v...))
}
func (t *table) DeviceBytes() int64 { return 0 }

func (t *table) ReadOptimizer(path string) error {
	x, err := readFloats(path, 2*len(t.w))
	if err == nil {
		copy(t.m, x)
		copy(t.v, x[len(t.w):])
	}
	return err
}

func writeFloats(path string, x []float32) error {
	b, err := binary.Append(nil, binary.LittleEndian, x)
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o644)
}

func readFloats(path string, n int) ([]float32, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	x := make([]float32, n)
	_, err = binary.Decode(b, binary.LittleEndian, x)
	return x, err
}

// world is the rollout side: Actor and Server over its own copy of the weights, taken over in Sync.
type world struct {
	mu      sync.Mutex
	seed    int64
	weights *table
	version int
	deaf    bool                               // ignores Sync
	skew    float32                            // added to reported log-probs
	broken  func(j rollout.Job) rollout.Status // "" where the attempt goes well
	before  func(jobs []rollout.Job) error     // called by Collect first
	jobs    []rollout.Job                      // all that were asked for
}

func (w *world) Sync(_ context.Context, dir string, version int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.deaf && version > 0 {
		return nil
	}
	x, err := readFloats(filepath.Join(dir, fakeWeights), vocab*vocab)
	if err != nil {
		return err
	}
	w.weights, w.version = &table{w: x}, version
	return nil
}

func (w *world) Score(_ context.Context, tokens []int32) ([]float32, error) {
	var b model.Batch
	b.Add(tokens, nil)
	s, err := w.weights.Forward(b, model.ForwardOptions{Temperature: 1})
	return s.Logp, err
}

func (w *world) Collect(ctx context.Context, jobs []rollout.Job, _ func(int)) ([]*rollout.Record, error) {
	if w.before != nil {
		if err := w.before(jobs); err != nil {
			return nil, err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.jobs = append(w.jobs, jobs...)
	out := make([]*rollout.Record, len(jobs))
	for i, j := range jobs {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		out[i] = w.attempt(j)
	}
	return out, nil
}

func (w *world) attempt(j rollout.Job) *rollout.Record {
	phase := j.Phase
	if phase == "rescue" {
		phase = "train"
	}
	seed := rollout.Seed(w.seed, phase, j.Step, j.Task.ID, j.Attempt, 0)
	rec := &rollout.Record{
		ID: rollout.ID(j.Phase, j.Step, j.Task.ID, j.Spec.ID, j.Attempt), Step: j.Step, Group: rollout.GroupID(j.Step, j.Task.ID),
		Task: j.Task.ID, TaskKind: j.Task.Kind, Env: "fake", Harness: j.Spec.ID, HarnessHash: j.Spec.Hash(), Phase: j.Phase,
		Attempt: j.Attempt, Seed: seed, PolicyVersion: w.version, Status: rollout.Completed,
	}
	if w.broken != nil {
		if s := w.broken(j); s != "" {
			rec.Status = s
			return rec
		}
	}
	task := j.Task.Data.(int32)
	prefix := []int32{harnessToken(j.Spec), task}
	z := w.weights.logits(prefix, 1)
	p, lse := softmax(z)
	u := rng(seed, "sample").Float64()
	answer := 0
	for u -= p[0]; u > 0 && answer < vocab-1; u -= p[answer] {
		answer++
	}
	rec.Success = int32(answer) == answerOf(task)
	rec.Reward = toFloat(rec.Success)
	rec.Rows = []rollout.Row{{
		Tokens: append(prefix, int32(answer)), Mask: []uint8{0, 0, 1},
		Logprobs: []float32{0, 0, float32(math.Min(0, z[answer]-lse)) - w.skew}, TurnBounds: [][2]int{{2, 3}},
	}}
	rec.Usage = rollout.Usage{PromptTokens: 2, PolicyTokens: 1}
	return rec
}

// harnessToken is 0 for H0 and its prefixed variants, and the number in a sibling's id otherwise.
func harnessToken(s *harness.Spec) int32 {
	var n int32
	fmt.Sscanf(s.ID, "sibling%d", &n)
	return n
}

// fakeRouter ranks siblings by their success on validation tasks.
type fakeRouter struct {
	Rank []string `json:"rank"`
	At   int      `json:"at"`
}

type plainRouter fakeRouter

func (r *fakeRouter) MarshalJSON() ([]byte, error)    { return json.Marshal((*plainRouter)(r)) }
func (r *fakeRouter) UnmarshalJSON(data []byte) error { return json.Unmarshal(data, (*plainRouter)(r)) }

func (r *fakeRouter) Observe(_ context.Context, step int, _ []rollout.Task, records []*rollout.Record) error {
	wins := map[string]int{}
	for _, rec := range records {
		if rec.Harness != harness.BaseID {
			wins[rec.Harness] += int(toFloat(rec.Success))
		}
	}
	r.At, r.Rank = step, nil
	for len(wins) > 0 {
		best := ""
		for _, id := range slices.Sorted(maps.Keys(wins)) {
			if best == "" || wins[id] > wins[best] {
				best = id
			}
		}
		delete(wins, best)
		r.Rank = append(r.Rank, best)
	}
	return nil
}

func (r *fakeRouter) TopK(_ context.Context, _ rollout.Task, k int) ([]string, error) {
	if len(r.Rank) < k {
		return nil, fmt.Errorf("%d siblings measured, %d asked for", len(r.Rank), k)
	}
	return r.Rank[:k], nil
}

func (r *fakeRouter) Prepare(context.Context, []rollout.Task) error { return nil }
func (r *fakeRouter) Tally() map[string]float64                     { return nil }

func (r *fakeRouter) Files() (map[string][]byte, error) {
	data, err := json.Marshal(r)
	return map[string][]byte{"stats": data}, err
}

// Ranking is the siblings as they rank, then H0.
func (r *fakeRouter) Ranking(context.Context, rollout.Task) ([]string, error) {
	return append(slices.Clone(r.Rank), harness.BaseID), nil
}

func (r *fakeRouter) Best() (string, error) {
	if len(r.Rank) == 0 {
		return "", errors.New("no siblings measured")
	}
	return r.Rank[0], nil
}

// fakeTask makes the i-th task of a split. All splits share the eight task tokens.
func fakeTask(split string, i int) rollout.Task {
	token := int32(firstTask + i%fakeTasks)
	return rollout.Task{ID: fmt.Sprintf("%s%d", split, i), Env: "fake", Kind: fmt.Sprint("kind", token%4), Split: split, Data: token}
}

func fakePool() (*harness.Pool, error) {
	specs := []*harness.Spec{{ID: harness.BaseID, Prompt: harness.Prompt{User: "{{question}}"}}}
	for i := 1; i < firstTask; i++ {
		specs = append(specs, &harness.Spec{ID: fmt.Sprintf("sibling%d", i), Parent: harness.BaseID, Direction: "answer",
			Prompt: harness.Prompt{User: fmt.Sprint("{{question}} ", i)}})
	}
	return harness.NewPool(specs)
}

// fakeParts wires the fakes. Weights come from `from` when a checkpoint is there.
func fakeParts(c Config, from string) (Parts, *table, *world, error) {
	learner, w := newTable(), &world{seed: c.Seed}
	if x, err := readFloats(filepath.Join(from, fakeWeights), vocab*vocab); err == nil {
		learner.w = x
	}
	pool, err := fakePool()
	if err != nil {
		return Parts{}, nil, nil, err
	}
	p := Parts{Learner: learner, Actor: w, Server: w, Router: &fakeRouter{}, Pool: pool}
	for i := range 40 {
		p.Tasks.Train = append(p.Tasks.Train, fakeTask("train", i))
	}
	for i := range 8 {
		p.Tasks.Validation = append(p.Tasks.Validation, fakeTask("val", i))
		p.Tasks.Test = append(p.Tasks.Test, fakeTask("test", i))
	}
	return p, learner, w, nil
}

// fakeConfig is small and learns fast.
func fakeConfig() Config {
	c := Default()
	c.Model.Path = "none"
	c.Rollout.Tasks, c.Rescue.K, c.Budget.Rollouts = 8, 4, 2400
	c.Optim.LR = 0.1
	c.Eval.K = 3
	return c
}
