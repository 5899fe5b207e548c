package trainer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"harness-s/internal/nodes"
	"harness-s/rollout"
)

// rig runs the loop over fakes, and lets a test reach into them.
type rig struct {
	cfg    Config
	dir    string
	resume bool
	set    []string
	out    bytes.Buffer
	ctx    context.Context
	reach  func(*table, *world)
	build  Builder // nil: the fakes
	nodes  nodes.Place
	world  *world
	table  *table
}

func newRig(t *testing.T) *rig {
	return &rig{cfg: fakeConfig(), dir: filepath.Join(t.TempDir(), "run"), ctx: context.Background()}
}

func (g *rig) run() (Summary, error) {
	return Train(g.ctx, g.cfg, Options{RunDir: g.dir, Resume: g.resume, Set: g.set, Out: &g.out, Nodes: g.nodes,
		Build: func(ctx context.Context, c Config, from Sources) (Parts, error) {
			if g.build != nil {
				return g.build(ctx, c, from)
			}
			p, learner, w, err := fakeParts(c, from.Model)
			g.table, g.world = learner, w
			if g.reach != nil {
				g.reach(learner, w)
			}
			return p, err
		}})
}

func (g *rig) must(t *testing.T) Summary {
	t.Helper()
	s, err := g.run()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// lines reads metrics.jsonl.
func (g *rig) lines(t *testing.T) []metrics {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(g.dir, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var out []metrics
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		var m metrics
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		out = append(out, m)
	}
	return out
}

func (g *rig) records(t *testing.T, name string) []*rollout.Record {
	t.Helper()
	var out []*rollout.Record
	_, torn, err := rollout.ReadRecords(filepath.Join(g.dir, "rollouts", name), func(r *rollout.Record) error {
		out = append(out, r)
		return nil
	})
	if err != nil || torn {
		t.Fatalf("%s: torn %t, %v", name, torn, err)
	}
	return out
}

// With rescue the policy learns what H0 almost never shows; without, it does not within the budget.
func TestRescueTeachesTheBasePolicy(t *testing.T) {
	gain := map[string]float64{}
	for _, mode := range []string{ModeRouted, ModeOff} {
		g := newRig(t)
		g.cfg.Rescue.Mode = mode
		s := g.must(t)
		gain[mode] = s.After["h0"].Avg - s.Before["h0"].Avg
		if s.Rollouts > g.cfg.Budget.Rollouts || s.Rollouts <= g.cfg.Budget.Rollouts-g.cfg.Rollout.N {
			t.Errorf("%s: %d rollouts of a budget of %d", mode, s.Rollouts, g.cfg.Budget.Rollouts)
		}
		if mode == ModeRouted && (s.RescueRate <= 0 || s.RescuedShare <= 0) {
			t.Errorf("rescue rate %g, rescued share %g", s.RescueRate, s.RescuedShare)
		}
	}
	if gain[ModeRouted] < 0.5 {
		t.Errorf("routed gained %g under H0, want at least 0.5", gain[ModeRouted])
	}
	if gain[ModeOff] > gain[ModeRouted]-0.2 {
		t.Errorf("off gained %g, routed %g: the fake world does not need rescue", gain[ModeOff], gain[ModeRouted])
	}
}

func TestFirstUpdateHasRatioOne(t *testing.T) {
	g := newRig(t)
	g.cfg.Budget.Rollouts, g.cfg.Optim.Minibatches = 200, 1
	g.must(t)
	seen := false
	for _, m := range g.lines(t)[1:] {
		if m["policy/ppo_kl"] != 0 || m["policy/clip_low"] != 0 || m["policy/clip_high"] != 0 {
			t.Errorf("step %v: ppo_kl %g: the first update of a step must have ratio 1", m["step"], m["policy/ppo_kl"])
		}
		if m["policy/grad_norm"] > 0 {
			seen = true
			if m["policy/ratio_max"] != 1 {
				t.Errorf("step %v: greatest ratio %g", m["step"], m["policy/ratio_max"])
			}
		}
	}
	if !seen {
		t.Error("no step had an update")
	}
}

func TestEveryMode(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			g := newRig(t)
			g.cfg.Rescue.Mode, g.cfg.Budget.Rollouts = mode, 200
			s := g.must(t)
			checkRescueJobs(t, g)
			attempts := 0 // replaced and rescue attempts are paid for like all others; measuring and evaluating are not
			for _, j := range g.world.jobs {
				attempts += int(toFloat(j.Phase == "train" || j.Phase == "rescue"))
			}
			if s.Rollouts != attempts || attempts > g.cfg.Budget.Rollouts || attempts <= g.cfg.Budget.Rollouts-g.cfg.Rollout.N {
				t.Errorf("%d rollouts counted, %d made, the budget is %d", s.Rollouts, attempts, g.cfg.Budget.Rollouts)
			}
			if m := g.lines(t); len(m) != s.Steps+1 {
				t.Errorf("%d metric lines for %d steps", len(m), s.Steps)
			}
		})
	}
}

// checkRescueJobs checks which harnesses rescued each failed group.
func checkRescueJobs(t *testing.T, g *rig) {
	t.Helper()
	groups := map[string][]rollout.Job{}
	for _, j := range g.world.jobs {
		if j.Phase == "rescue" {
			id := rollout.GroupID(j.Step, j.Task.ID)
			groups[id] = append(groups[id], j)
		}
	}
	mode, k := g.cfg.Rescue.Mode, g.cfg.Rescue.K
	if (len(groups) == 0) != (mode == ModeOff || mode == ModeMixture) {
		t.Fatalf("%d groups were rescued", len(groups))
	}
	distinct := map[string]int{ModeRouted: k, ModeRandom: k, ModeRepeat: g.cfg.Rescue.Repeat, ModeFixed: 1, ModeResample: 1, ModePrefix: k}
	for id, jobs := range groups {
		hashes := map[string]bool{}
		for i, j := range jobs {
			hashes[j.Spec.Hash()] = true
			if j.Attempt != g.cfg.Rollout.N+i {
				t.Errorf("%s: rescue attempt %d has number %d", id, i, j.Attempt)
			}
			if isBase := harnessToken(j.Spec) == 0; isBase != (mode == ModeResample || mode == ModePrefix) {
				t.Errorf("%s: rescued under %s", id, j.Spec.ID)
			}
		}
		if len(jobs) != k || len(hashes) != distinct[mode] {
			t.Errorf("%s: %d attempts under %d harnesses, want %d under %d", id, len(jobs), len(hashes), k, distinct[mode])
		}
	}
}

func TestBrokenAttemptsAreDroppedAndNotRescued(t *testing.T) {
	g := newRig(t)
	g.cfg.Budget.Rollouts = 200
	g.reach = func(_ *table, w *world) {
		w.broken = func(j rollout.Job) rollout.Status {
			if j.Phase == "train" && j.Attempt == 3 {
				return rollout.ServerError
			}
			if j.Phase == "eval" && j.Attempt == 0 {
				return rollout.EnvError
			}
			return ""
		}
	}
	s := g.must(t)
	for _, j := range g.world.jobs {
		if j.Phase == "rescue" {
			t.Fatalf("group %s has a dropped attempt and was rescued", rollout.GroupID(j.Step, j.Task.ID))
		}
	}
	h0 := s.Before["h0"]
	if len(h0.Broken) != 8 || h0.Tasks != 8 || h0.Avg > 2./3 {
		t.Errorf("broken attempts in evaluation must count as failures and be listed: %+v", h0)
	}
	if m := g.lines(t)[1]; m["group/dropped"] != 8 || m["errors/server"] != 8 {
		t.Errorf("dropped %g, server errors %g, want 8 of each", m["group/dropped"], m["errors/server"])
	}
}

func TestGates(t *testing.T) {
	for name, tc := range map[string]struct {
		reach func(*table, *world)
		want  string
	}{
		"server that ignores weights": {func(_ *table, w *world) { w.deaf = true }, "probe row has log-prob"},
		"log-probs that are off":      {func(_ *table, w *world) { w.skew = 0.5 }, "mismatch/kl"},
	} {
		g := newRig(t)
		g.cfg.Mismatch.Probe = 1e-4
		g.reach = tc.reach
		_, err := g.run()
		if !errors.Is(err, ErrMismatch) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNonFiniteSkipsTheUpdate(t *testing.T) {
	g := newRig(t)
	g.cfg.Budget.Rollouts, g.cfg.Mismatch.KL, g.cfg.Mismatch.Probe = 100, 0, 0
	g.reach = func(l *table, _ *world) { l.poison = func(int) bool { return true } }
	g.must(t)
	m := g.lines(t)[1]
	if m["errors/nonfinite"] == 0 {
		t.Fatal("no minibatch was counted as not finite")
	}
	for i, w := range newTable().w {
		if g.table.w[i] != w {
			t.Fatal("a skipped update changed weights")
		}
	}
	dumps, _ := filepath.Glob(filepath.Join(g.dir, "nonfinite", "*.json"))
	if len(dumps) == 0 {
		t.Fatal("nothing was dumped")
	}
	data, _ := os.ReadFile(dumps[0])
	var d dump
	if err := json.Unmarshal(data, &d); err != nil || len(d.Rows) == 0 || d.Loss != "NaN" {
		t.Errorf("dump: %v, %d rows, loss %q", err, len(d.Rows), d.Loss)
	}
}

func TestCtrlCThenResume(t *testing.T) {
	whole := newRig(t)
	whole.cfg.Budget.Rollouts, whole.cfg.Eval.Every, whole.cfg.Router.Refresh = 600, 3, 2
	whole.must(t)

	cut := newRig(t)
	cut.cfg = whole.cfg
	cut.cfg.Checkpoint.Every = 100 // the checkpoint is the one Ctrl-C makes
	ctx, cancel := context.WithCancel(context.Background())
	cut.ctx = ctx
	cut.reach = func(_ *table, w *world) {
		w.before = func(jobs []rollout.Job) error {
			if jobs[0].Step == 4 && jobs[0].Phase == "rescue" {
				cancel()
			}
			return nil
		}
	}
	if _, err := cut.run(); !errors.Is(err, ErrInterrupted) || !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v, want ErrInterrupted", err)
	}
	if _, err := os.Stat(filepath.Join(cut.dir, "checkpoints", "step_3", stateName)); err != nil {
		t.Fatal(err)
	}
	cut.resume, cut.ctx, cut.reach = true, context.Background(), nil
	cut.must(t)
	sameRun(t, whole.dir, cut.dir)
}

func TestResumeRefusals(t *testing.T) {
	g := newRig(t)
	g.cfg.Budget.Rollouts = 100
	g.must(t)
	if _, err := g.run(); err == nil || !strings.Contains(err.Error(), "--resume") {
		t.Errorf("a used folder: %v", err)
	}
	g.resume, g.set = true, []string{"seed=2"}
	if _, err := g.run(); err == nil || !strings.Contains(err.Error(), "seed: the run has another value") {
		t.Errorf("another seed: %v", err)
	}
	g.set = nil
	g.cfg.Seed = 2 // a config file edited since: the folder's counts, and the difference is told
	g.out.Reset()
	g.must(t)
	if !strings.Contains(g.out.String(), "differs from the given one in seed") {
		t.Errorf("output of the resumed run: %s", g.out.String())
	}
	steps, _ := filepath.Glob(filepath.Join(g.dir, "checkpoints", "step_*"))
	last := steps[len(steps)-1]
	os.WriteFile(filepath.Join(last, stateName), []byte(`{"step":`), 0o644)
	if _, err := g.run(); err == nil || !strings.Contains(err.Error(), stateName) || !strings.Contains(err.Error(), "remove") {
		t.Errorf("a truncated state: %v", err)
	}
}

// A finished run resumed with a larger budget goes on.
func TestResumeWithMoreBudget(t *testing.T) {
	whole := newRig(t)
	whole.cfg.Budget.Rollouts, whole.cfg.Rescue.Mode = 512, ModeOff
	whole.must(t)
	g := newRig(t)
	g.cfg = whole.cfg
	g.cfg.Budget.Rollouts = 256
	g.must(t)
	g.set, g.resume = []string{"budget.rollouts=512"}, true
	g.must(t)
	sameRun(t, whole.dir, g.dir)
}

func (g *rig) builder() Builder {
	return func(_ context.Context, c Config, from Sources) (Parts, error) {
		p, learner, w, err := fakeParts(c, from.Model)
		w.weights = learner
		g.world = w
		p.Learner = nil
		return p, err
	}
}

// The eval command on a finished run gives the scores of the run's own closing evaluation.
func TestEvalOfARun(t *testing.T) {
	g := newRig(t)
	g.cfg.Budget.Rollouts = 400
	sum := g.must(t)
	res, err := Eval(context.Background(), EvalOptions{RunDir: g.dir, Build: g.builder(), Harness: []string{"h0", "siblings", "routed"}, K: 3, Split: "test"})
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(res.Scores, sum.After) {
		t.Errorf("scores %+v, the run's closing evaluation has %+v", res.Scores, sum.After)
	}
	if res.Step != sum.Steps || !strings.Contains(res.Model, "step_") {
		t.Errorf("evaluated %s as step %d", res.Model, res.Step)
	}
	for _, j := range g.world.jobs {
		if j.Phase != "eval" {
			t.Fatalf("a %s job: the run's router state should do", j.Phase)
		}
	}
}

func TestEvalOfAConfig(t *testing.T) {
	g := newRig(t)
	res, err := Eval(context.Background(), EvalOptions{Config: g.cfg, Build: g.builder(), Harness: []string{"routed"}, K: 2, Split: "val"})
	if err != nil {
		t.Fatal(err)
	}
	if s := res.Scores["routed"]; len(res.Scores) != 1 || s.K != 2 || s.Tasks != 8 {
		t.Errorf("scores %+v", res.Scores)
	}
	for _, o := range []EvalOptions{
		{Config: g.cfg, Harness: []string{"nope"}, K: 1, Split: "test"},
		{Config: g.cfg, Harness: []string{"h0"}, K: 1, Split: "train"},
		{Config: g.cfg, K: 1, Split: "test"},
		{Config: g.cfg, Harness: []string{"h0"}, K: -1, Split: "test"},
		{RunDir: t.TempDir(), Harness: []string{"h0"}, K: 1, Split: "test"},
	} {
		o.Build = g.builder()
		if _, err := Eval(context.Background(), o); err == nil {
			t.Errorf("%+v: no error", o.Harness)
		}
	}
}

// The micro-batch budget changes memory, not one bit of the result.
func TestMicrobatchesDoNotChangeTheRun(t *testing.T) {
	a := newRig(t)
	a.cfg.Budget.Rollouts = 300
	a.must(t)
	b := newRig(t)
	b.cfg = a.cfg
	b.cfg.Optim.MicrobatchTok = 7 // two rows of three tokens
	b.must(t)
	sameRollouts(t, a.dir, b.dir)
	sameWeights(t, a.dir, b.dir)
}

// A disk that fills up stops the run with an error that says so, and leaves what resumes to the same bits.
func TestFullDiskThenResume(t *testing.T) {
	whole := newRig(t)
	whole.cfg.Budget.Rollouts = 400
	whole.must(t)
	g := newRig(t)
	g.cfg = whole.cfg
	writes := 0
	g.reach = func(l *table, _ *world) { l.full = func() bool { writes++; return writes == 3 } }
	_, err := g.run()
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "step_2") {
		t.Fatalf("error %v, want one that names the checkpoint and the full disk", err)
	}
	left, _ := filepath.Glob(filepath.Join(g.dir, "checkpoints", ".*"))
	if len(left) != 0 {
		t.Errorf("half a checkpoint is left: %v", left)
	}
	g.resume, g.reach = true, nil
	g.must(t)
	sameRun(t, whole.dir, g.dir)
}
