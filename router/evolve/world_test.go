package evolve

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"harness-s/model/chat"
	"harness-s/rollout"
	"harness-s/rollout/harness"
)

// A small world: a task needs one of four cares, or none. A harness whose prompt names the care solves the task with a
// chance; H0 names none. A care costs a little of every other care's success, so that harnesses complement each other.
var cares = []string{"alpha", "beta", "gamma", "delta"}

func worldTasks(split string, n int) []rollout.Task {
	out := make([]rollout.Task, n)
	for i := range out {
		kind := "plain"
		if i%5 < 4 {
			kind = cares[i%5]
		}
		out[i] = rollout.Task{
			ID: fmt.Sprintf("%s-%d", split, i), Env: "world", Kind: kind, Split: split,
			Vars: map[string]string{"question": fmt.Sprintf("What is the weight of zork%d in the vorpal%d table?", i, i)},
		}
	}
	return out
}

func worldSecrets(t rollout.Task) []string {
	var n int
	fmt.Sscanf(t.ID[strings.Index(t.ID, "-")+1:], "%d", &n)
	return []string{fmt.Sprintf("vorpal%d", n), fmt.Sprintf("zork%d", n), fmt.Sprint(100000 + n), "weight"}
}

func worldTools() []chat.Tool {
	return []chat.Tool{{Name: "look", Description: "Look at a thing.", Parameters: []byte(`{"type":"object","properties":{"at":{"type":"string"}}}`)}}
}

// world is Actor, Analyst, Editor and Meter at once, with hooks.
type world struct {
	mu      sync.Mutex
	calls   int                                // of anything
	before  func(call int) error               // may fail or panic; nil: nothing
	broken  func(j rollout.Job) rollout.Status // "": the attempt goes well
	edit    func(p *harness.Spec, d Direction, n, attempt int, problems []string) ([]Candidate, error)
	label   func([]Label) []Label
	directs func([]Direction) []Direction
	price   int // requests of one edit or analysis
	spent   int
	jobs    map[string]int // attempts made by id
}

func newWorld() *world { return &world{jobs: map[string]int{}} }

func (w *world) enter() error {
	w.mu.Lock()
	w.calls++
	n := w.calls
	w.mu.Unlock()
	if w.before != nil {
		return w.before(n)
	}
	return nil
}

func (w *world) called() int         { w.mu.Lock(); defer w.mu.Unlock(); return w.calls }
func (w *world) Spent() (int, int)   { w.mu.Lock(); defer w.mu.Unlock(); return w.spent, 10 * w.spent }
func (w *world) Charge(calls, _ int) { w.mu.Lock(); defer w.mu.Unlock(); w.spent += calls }
func (w *world) pay()                { w.Charge(w.price, 0) }

func chance(parts ...any) float64 {
	h := fnv.New64a()
	fmt.Fprint(h, parts...)
	return float64(h.Sum64()%1000) / 1000
}

func (w *world) Collect(ctx context.Context, jobs []rollout.Job, ended func(int)) ([]*rollout.Record, error) {
	if err := w.enter(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	out := make([]*rollout.Record, len(jobs))
	for i, j := range jobs {
		if strings.Contains(j.Spec.Prompt.System, "CRASH") {
			return nil, errors.New("the spec cannot be rendered")
		}
		out[i] = w.attempt(j)
		if ended != nil {
			ended(i + 1)
		}
	}
	return out, nil
}

func (w *world) attempt(j rollout.Job) *rollout.Record {
	seed := rollout.Seed(1, j.Phase, j.Step, j.Task.ID, j.Attempt, 0)
	r := &rollout.Record{
		ID: rollout.ID(j.Phase, j.Step, j.Task.ID, j.Spec.ID, j.Attempt), Step: j.Step, Phase: j.Phase, Task: j.Task.ID, TaskKind: j.Task.Kind,
		Harness: j.Spec.ID, HarnessHash: j.Spec.Hash(), Attempt: j.Attempt, Seed: seed, Status: rollout.Completed,
		Turns: []rollout.Turn{{Role: "assistant", Text: "done"}},
	}
	w.mu.Lock()
	w.jobs[r.ID]++
	w.mu.Unlock()
	system := j.Spec.Prompt.System
	named := 0
	for _, c := range cares {
		if strings.Contains(system, c) {
			named++
		}
	}
	p := 0.9 - 0.15*float64(named)
	if j.Task.Kind != "plain" && !strings.Contains(system, j.Task.Kind) {
		p = 0
	}
	r.Success = chance(seed) < p
	switch {
	case w.broken != nil && w.broken(j) != "":
		r.Status, r.Success, r.Error = w.broken(j), false, "the server went away"
	case strings.Contains(system, "STUCK"):
		r.Status, r.Success, r.Error = rollout.Deadline, false, "took too long"
	case strings.Contains(system, "HUGE"):
		r.Status, r.Success, r.Turns = rollout.TokenLimit, false, nil
	}
	if r.Success {
		r.Reward = 1
	}
	return r
}

func (w *world) Label(_ context.Context, _ *harness.Spec, failed []*rollout.Record) ([]Label, error) {
	if err := w.enter(); err != nil {
		return nil, err
	}
	w.pay()
	var out []Label
	for _, r := range failed {
		if r.TaskKind != "plain" {
			out = append(out, Label{Rollout: r.ID, Task: r.Task, Kind: r.TaskKind, Cause: "no-" + r.TaskKind, Why: "It took no care.", Facts: map[string]string{"care": r.TaskKind}})
		}
	}
	if w.label != nil {
		out = w.label(out)
	}
	return out, nil
}

func (w *world) Directions(_ context.Context, _ *harness.Spec, labels []Label, max int) ([]Direction, error) {
	if err := w.enter(); err != nil {
		return nil, err
	}
	w.pay()
	by := map[string]*Direction{}
	var names []string
	for _, l := range labels {
		if by[l.Cause] == nil {
			by[l.Cause] = &Direction{ID: l.Cause, Description: "takes no care of " + l.Facts["care"], Facts: l.Facts}
			names = append(names, l.Cause)
		}
		by[l.Cause].Evidence = append(by[l.Cause].Evidence, l.Rollout)
	}
	slices.Sort(names)
	var out []Direction
	for _, n := range names {
		out = append(out, *by[n])
	}
	if w.directs != nil {
		out = w.directs(out)
	}
	return out[:min(max, len(out))], nil
}

// Edit says the care, in as many ways as there are children.
func (w *world) Edit(_ context.Context, parent *harness.Spec, d Direction, n, attempt int, problems []string) ([]Candidate, error) {
	if err := w.enter(); err != nil {
		return nil, err
	}
	w.pay()
	if w.edit != nil {
		return w.edit(parent, d, n, attempt, problems)
	}
	var out []Candidate
	for k := range n {
		out = append(out, say(parent, fmt.Sprintf("Mind %s%s", d.Facts["care"], strings.Repeat("!", k+attempt))))
	}
	return out, nil
}

// say is a candidate with one more sentence in its system prompt.
func say(parent *harness.Spec, sentence string) Candidate {
	s := *parent
	s.Prompt.System += " " + sentence
	return Candidate{Spec: &s, Manifest: Manifest{Components: []string{"prompt"}, Changes: []string{"says: " + sentence}, Why: "it failed", Expect: "it works"}}
}

func worldBase() *harness.Spec {
	return &harness.Spec{ID: harness.BaseID, Prompt: harness.Prompt{System: "Use the tool.", User: "{{question}}"}}
}

func worldOptions(dir string, w *world) Options {
	return Options{
		Dir: dir, Seed: 7, Base: worldBase(), Tools: worldTools(), Train: worldTasks("train", 60), Validation: worldTasks("val", 10), Secrets: worldSecrets,
		Size:  Size{Generations: 3, Tasks: 15, Attempts: 3, Directions: 3, Children: 2, Parents: 2, Pool: 40, MaxBytes: 4096},
		Actor: w, Analyst: w, Editor: w, Meter: w, Chunk: 50,
	}
}

func mustRun(t *testing.T, o Options) Summary {
	t.Helper()
	s, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// frozen are the files of an evolution that a repeat must give again bit for bit, by name.
func frozen(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	specs, err := filepath.Glob(filepath.Join(dir, PoolName, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(specs, filepath.Join(dir, LineageName), filepath.Join(dir, MatrixName), filepath.Join(dir, RejectedName), filepath.Join(dir, LabelsName)) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		out[strings.TrimPrefix(path, dir)] = string(data)
	}
	return out
}

func sameFrozen(t *testing.T, want, got map[string]string) {
	t.Helper()
	for name, a := range want {
		if b, ok := got[name]; !ok || a != b {
			t.Errorf("%s differs from the uninterrupted run's (there: %v)", name, ok)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d files, want %d", len(got), len(want))
	}
}

func lineage(t *testing.T, dir string) Lineage {
	t.Helper()
	l, err := ReadLineage(filepath.Join(dir, LineageName))
	if err != nil {
		t.Fatal(err)
	}
	return l
}
