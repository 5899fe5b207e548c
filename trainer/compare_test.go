package trainer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"harness-s/internal/strictyaml"
	"harness-s/internal/testutil"
	"harness-s/rollout"
)

// comparison is a small one over the fakes; stopAt ends ctx at that call of Collect.
type comparison struct {
	o      CompareOptions
	calls  atomic.Int64
	stopAt int64
	stop   context.CancelFunc
}

func newComparison(t *testing.T, parallel int) *comparison {
	t.Helper()
	root := t.TempDir()
	pool, err := fakePool()
	if err != nil {
		t.Fatal(err)
	}
	if err := pool.Save(filepath.Join(root, "pool")); err != nil {
		t.Fatal(err)
	}
	cfg := fakeConfig()
	cfg.Pool.Path, cfg.Budget.Rollouts, cfg.Eval.Every, cfg.Backend = filepath.Join(root, "pool"), 400, 2, "cpu"
	base := filepath.Join(root, "base.yaml")
	if err := os.WriteFile(base, strictyaml.Encode(cfg), 0o644); err != nil {
		t.Fatal(err)
	}
	c := &comparison{}
	c.o = CompareOptions{Dir: filepath.Join(root, "out"), Build: c.build, Plan: ComparePlan{
		Base: base, Seeds: []int64{1, 2}, Parallel: parallel, Reference: "grpo", Arms: []Arm{
			{Name: "grpo", Set: []string{"rescue.mode=off"}},
			{Name: "adaptive", Set: []string{"rescue.mode=routed", "router.refresh=2"}},
			{Name: "frozen-best", Frozen: "best"},
		}}}
	return c
}

// build wires the fakes; the pool and the weights are those that a run names.
func (c *comparison) build(_ context.Context, cfg Config, from Sources) (Parts, error) {
	p, learner, w, err := fakeParts(cfg, from.Model)
	w.weights = learner
	w.before = func([]rollout.Job) error {
		if c.calls.Add(1) == c.stopAt {
			c.stop()
		}
		return nil
	}
	return p, err
}

func (c *comparison) must(t *testing.T) Comparison {
	t.Helper()
	r, err := Compare(context.Background(), c.o)
	if err != nil {
		t.Fatal(err)
	}
	return steady(r)
}

// steady leaves out what a repeat does not give again, and where it was made.
func steady(c Comparison) Comparison {
	c.WallS, c.Plan = 0, ComparePlan{}
	for _, bySeed := range c.Arms {
		for seed, r := range bySeed {
			r.WallS = 0
			bySeed[seed] = r
		}
	}
	return c
}

func sameComparison(t *testing.T, want, got Comparison, wantDir, gotDir string) {
	t.Helper()
	if !reflect.DeepEqual(want, got) {
		a, _ := json.MarshalIndent(want, "", " ")
		b, _ := json.MarshalIndent(got, "", " ")
		t.Errorf("the comparisons differ:\n%s", firstDifference(string(a), string(b)))
	}
	for _, run := range []string{"grpo/seed-1", "grpo/seed-2", "adaptive/seed-1", "adaptive/seed-2"} {
		sameRun(t, filepath.Join(wantDir, run), filepath.Join(gotDir, run))
	}
}

func TestCompareSideBySideIsOneAfterTheOther(t *testing.T) {
	serial, side := newComparison(t, 1), newComparison(t, 4)
	want, got := serial.must(t), side.must(t)
	sameComparison(t, want, got, serial.o.Dir, side.o.Dir)
	if want.Runs != 4 || want.Done != 4 {
		t.Errorf("%d of %d runs", want.Done, want.Runs)
	}
	r := want.Arms["adaptive"]["1"]
	first := r.Curve[0]
	if r.After["rank3"].Tasks != 8 || first != (Point{0, r.Before["h0"].Avg}) || r.Curve[len(r.Curve)-1].Rollouts != r.Rollouts {
		t.Errorf("after %v, curve %v", r.After, r.Curve)
	}
	if r.RouterRollouts == 0 || want.Arms["grpo"]["1"].RouterRollouts != 0 || r.MeasureRollouts == 0 {
		t.Errorf("router rollouts %d and %d, measuring %d", r.RouterRollouts, want.Arms["grpo"]["1"].RouterRollouts, r.MeasureRollouts)
	}
	frozen := want.Arms["frozen-best"]["1"]
	if frozen.Rollouts != 0 || len(frozen.After) != 2 || !reflect.DeepEqual(frozen.After["best"], r.Before["best"]) {
		t.Errorf("frozen %+v", frozen)
	}
}

func TestCompareGoesOnWhereItStopped(t *testing.T) {
	whole := newComparison(t, 1)
	want := whole.must(t)
	calls := whole.calls.Load()
	cut := newComparison(t, 1)
	for _, part := range []int64{5, 3, 2} { // somewhere late, in the middle, early: of the calls the whole takes
		ctx, cancel := context.WithCancel(context.Background())
		cut.calls.Store(0)
		cut.stopAt, cut.stop = calls/part, cancel
		_, err := Compare(ctx, cut.o)
		cancel()
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("stopped at call %d of %d: %v", calls/part, calls, err)
		}
	}
	cut.calls.Store(0)
	cut.stopAt = 0
	got := cut.must(t)
	if n := cut.calls.Load(); n >= calls/2 {
		t.Errorf("the last try made %d of %d calls: done runs were made again", n, calls)
	}
	sameComparison(t, want, got, whole.o.Dir, cut.o.Dir)
	cut.calls.Store(0)
	cut.must(t)
	if n := cut.calls.Load(); n != 0 {
		t.Errorf("a comparison that is done made %d calls", n)
	}
}

func TestCompareRefusesOtherSettings(t *testing.T) {
	c := newComparison(t, 2)
	c.o.Plan.Seeds = []int64{1}
	c.must(t)
	refused := func(want string) {
		t.Helper()
		c.calls.Store(0)
		if _, err := Compare(context.Background(), c.o); err == nil || !strings.Contains(err.Error(), want) || c.calls.Load() != 0 {
			t.Errorf("error %v after %d calls, want one with %q and none", err, c.calls.Load(), want)
		}
	}
	c.o.Plan.Set = []string{"optim.lr=0.2"}
	refused("(optim.lr)")
	c.o.Plan.Set = []string{"threads=1", "rollout.concurrency=3"} // change no result
	c.must(t)
	c.o.Plan.Set = nil
	cfg, err := c.o.Plan.config(nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(cfg.Pool.Path, "sibling3.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), "}} 3", "}} three", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	refused("the harnesses in the pool")
}

func TestComparePlanErrors(t *testing.T) {
	c := newComparison(t, 1)
	dir := t.TempDir()
	for text, want := range map[string]string{
		"base: b.yaml\nseeds: [1]\narms: [{name: a}]\nmore: 1":                     "more",
		"seeds: [1]\narms: [{name: a}]":                                            "base",
		"base: b.yaml\nseeds: [1, 1]\narms: [{name: a}]":                           "twice",
		"base: b.yaml\narms: [{name: a}]":                                          "seeds",
		"base: b.yaml\nseeds: [1]\narms: [{name: a}, {name: a}]":                   "twice",
		"base: b.yaml\nseeds: [1]\narms: [{name: ../a}]":                           "../a",
		"base: b.yaml\nseeds: [1]\narms: [{name: a, frozen: h0}]":                  "routed or best",
		"base: b.yaml\nseeds: [1]\narms: [{name: a, frozen: best, set: [seed=1]}]": "as it is",
		"base: b.yaml\nseeds: [1]\nreference: b\narms: [{name: a}]":                "no arm",
		"base: b.yaml\nseeds: [1]\nparallel: -1\narms: [{name: a}]":                "parallel",
		"base: b.yaml\nseeds: [1]\narms: []":                                       "arms",
	} {
		path := filepath.Join(dir, "c.yaml")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadComparePlan(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", text, err, want)
		}
	}
	for _, set := range []string{"budget.rollouts=800", "data.test=4", "model.path=x", "eval.k=1", "seed=9", "rollout.nonsense=1", "rescue.mode=best"} {
		key, _, _ := strings.Cut(set, "=")
		if _, err := c.o.Plan.config(&Arm{Name: "a", Set: []string{set}}, 1); err == nil || !strings.Contains(err.Error(), key) || !strings.Contains(err.Error(), "arm a") {
			t.Errorf("%s: error %v, want one that names arm and key", set, err)
		}
	}
	if _, err := c.o.Plan.Only([]string{"none"}); err == nil {
		t.Error("an unknown arm was taken")
	}
}

// The recipes load, and every arm of them is a config.
func TestCompareRecipes(t *testing.T) {
	t.Chdir(testutil.Root(t))
	for _, path := range []string{"recipes/compare.yaml", "recipes/compare-full.yaml", "recipes/quickstart.yaml"} {
		p, err := LoadComparePlan(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range p.Arms {
			c, err := p.config(&a, p.Seeds[0])
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			if a.Frozen == "" && !slices.Contains(a.Set, "rescue.mode="+c.Rescue.Mode) {
				t.Errorf("%s: arm %s has mode %s and sets %v", path, a.Name, c.Rescue.Mode, a.Set)
			}
		}
		if len(p.Seeds) < 3 {
			t.Errorf("%s: seeds %v", path, p.Seeds)
		}
		if path == "recipes/quickstart.yaml" {
			continue
		}
		// The paper's controls, none left out.
		var have []string
		for _, a := range p.Arms {
			c, err := p.config(&a, p.Seeds[0])
			if err != nil {
				t.Fatal(err)
			}
			name := c.Rescue.Mode
			if a.Frozen != "" {
				name = "frozen " + a.Frozen
			} else if name == ModeRouted {
				name = fmt.Sprintf("%s %s, re-anchoring %t", name, c.Router.Profiles, c.Router.Refresh > 0)
			}
			have = append(have, name)
		}
		slices.Sort(have)
		want := []string{"frozen best", "frozen routed", ModeMixture, ModeOff, ModePrefix, ModeRandom, ModeRepeat, ModeResample, "routed adaptive, re-anchoring true", "routed fixed, re-anchoring false"}
		if slices.Sort(want); !slices.Equal(have, want) {
			t.Errorf("%s: arms %q, want %q", path, have, want)
		}
	}
}

// Four steps of 30, 30, 30 and 10 rollouts: by where they start, they lie in the thirds 1, 1, 2, 3 (at 0, 30, 60, 90 of 100).
func TestCompareStages(t *testing.T) {
	path := filepath.Join(t.TempDir(), "metrics.jsonl")
	text := `{"step":0,"rollouts/router":56,"rollouts/eval":24,"eval/avg@3/h0":0.5}
{"step":1,"rollouts/train":30,"rescue/groups":4,"rescue/success":0.25,"group/base":10,"group/contrast":0.1,"tokens/policy":100,"tokens/effective":10,"policy/lr":null}
{"step":2,"rollouts/train":30,"rescue/groups":2,"rescue/success":1,"group/base":10,"group/contrast":0.3,"tokens/policy":100,"tokens/effective":30,"rollouts/eval":24,"eval/avg@3/h0":0.6}
{"step":3,"rollouts/train":30,"group/base":10,"group/contrast":0.5,"tokens/policy":100,"tokens/effective":50,"rollouts/router":56}
{"step":4,"rollouts/train":10,"rescue/groups":1,"rescue/success":1,"group/base":2,"group/contrast":1,"tokens/policy":20,"tokens/effective":20}
`
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	var r Result
	if err := r.readMetrics(path); err != nil {
		t.Fatal(err)
	}
	if want := [Stages]Share{{Of: 6, Count: 3}, {}, {Of: 1, Count: 1}}; r.Rescue != want {
		t.Errorf("rescue by stage %+v, want %+v", r.Rescue, want)
	}
	if !math.IsNaN(r.Rescue[1].Value()) || r.Rescue[0].Value() != 0.5 {
		t.Errorf("values %v %v", r.Rescue[1].Value(), r.Rescue[0].Value())
	}
	if r.Contrast != (Share{Of: 32, Count: 11}) || r.Tokens != (Share{Of: 320, Count: 110}) {
		t.Errorf("contrast %+v, tokens %+v", r.Contrast, r.Tokens)
	}
	if r.RouterRollouts != 112 || r.EvalRollouts != 48 || !reflect.DeepEqual(r.Curve, []Point{{60, 0.6}}) {
		t.Errorf("router %d, eval %d, curve %v", r.RouterRollouts, r.EvalRollouts, r.Curve)
	}
	if err := (&Result{}).readMetrics(path + ".gone"); err == nil {
		t.Error("a run without metrics was taken")
	}
}

// By hand: of two values the standard error is half their distance, and t is 12.706: 0.90 and 0.94 give 0.92 ± 0.254.
func TestCompareTable(t *testing.T) {
	res := func(h0, best float64, stage Share) Result {
		r := Result{AfterChoice: Choice{H0Share: 0.25}, Rescue: [Stages]Share{stage, {}, {}}}
		r.Rollouts, r.Steps, r.WallS = 400, 5, 10
		r.Before = map[string]Score{"h0": {K: 3, Avg: 0.5}}
		r.After = map[string]Score{"h0": {K: 3, Avg: h0, Pass: 1}, "best": {K: 3, Avg: best}}
		return r
	}
	c := Comparison{Runs: 4, Done: 4, WallS: 40, Plan: ComparePlan{Seeds: []int64{1, 2}, Reference: "grpo", Arms: []Arm{
		{Name: "grpo", Label: "GRPO | plain"}, {Name: "routed"}, {Name: "frozen", Frozen: "best"}, {Name: "later"}}},
		Arms: map[string]map[string]Result{
			"grpo":   {"1": res(0.5, 0.7, Share{}), "2": res(0.6, 0.7, Share{})},
			"routed": {"1": res(0.90, 0.8, Share{Of: 4, Count: 2}), "2": res(0.94, 0.8, Share{})},
			"frozen": {"1": res(0.5, 0.75, Share{}), "2": res(0.5, 0.75, Share{})},
		}}
	var b strings.Builder
	if err := c.Table(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| GRPO \\| plain | 0.550 ± 0.635 | 1.000 ± 0.000 | – | 0.700 ± 0.000 |",
		"| routed | 0.920 ± 0.254 | 1.000 ± 0.000 | 0.370 ± 0.381 |", // differences 0.40 and 0.34
		"| frozen | 0.500 ± 0.000 | 1.000 ± 0.000 | – | 0.750 ± 0.000 |",
		"| routed | 0.500 | – | – |", // rescue success of the one seed that rescued
		"| routed | 400 | 5 | 0 | 0 | 0 | 10 |",
		"| routed | 0.500 ± 0.000 | 0.920 ± 0.254 | – | – | – | – | – | – | 0.000 ± 0.000 | 0.250 ± 0.000 |",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "later") {
		t.Error("an arm without a run has a row")
	}
	if e := NewEstimate([]float64{1, 2, 3}); e.Mean != 2 || math.Abs(e.Half-4.303/math.Sqrt(3)) > 1e-12 {
		t.Errorf("%+v", e)
	}
}
