package trainer

import (
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"harness-s/internal/strictyaml"
	"harness-s/internal/testutil"
	"harness-s/trainer/config"
)

var update = flag.Bool("update", false, "rewrite generated files")

func TestReference(t *testing.T) {
	path := filepath.Join(testutil.Root(t), "recipes", "reference.yaml")
	if *update {
		if err := os.WriteFile(path, Reference(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(data) != string(Reference()) {
		t.Errorf("%s is not what trainer.Reference gives; run: go test ./trainer -run TestReference -update", path)
	}
	var c Config
	if err := config.Parse(path, data, &c); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(c, Default()) {
		t.Errorf("the reference reads as something else than the defaults: %v", config.Diff(c, Default()))
	}
	if err := c.Validate(); err != nil {
		t.Errorf("the defaults are not valid: %v", err)
	}
}

// The defaults that are part of the method, not of a recipe.
func TestDefaults(t *testing.T) {
	c := Default()
	got := []any{c.Rollout.N, c.Rescue.K, c.Rescue.Mode, c.Loss.Name, c.Loss.EtaMinus, c.Loss.EtaPlus, c.Loss.Eps, c.Loss.Old,
		c.Optim.LR, c.Optim.Minibatches, c.Optim.Epochs, c.Rollout.Temperature}
	want := []any{8, 8, ModeRouted, "grpo", 0.2, 0.28, 1e-6, "recompute", 1e-6, 2, 1, 1.0}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("defaults %v, want %v", got, want)
	}
}

// Every recipe in the tree is a valid config, or a comparison of configs.
func TestRecipes(t *testing.T) {
	paths, _ := filepath.Glob(filepath.Join(testutil.Root(t), "recipes", "*.yaml"))
	for _, p := range paths {
		var err error
		if strings.HasPrefix(filepath.Base(p), "compare") {
			_, err = LoadComparePlan(p)
		} else {
			_, err = LoadConfig(p, nil)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

func TestEveryKeyIsDocumented(t *testing.T) {
	var walk func(prefix string, v reflect.Type)
	walk = func(prefix string, v reflect.Type) {
		for i := range v.NumField() {
			f := v.Field(i)
			if f.Tag.Get("doc") == "" {
				t.Errorf("%s%s has no doc tag", prefix, f.Tag.Get("yaml"))
			}
			if f.Type.Kind() == reflect.Struct {
				walk(prefix+f.Tag.Get("yaml")+".", f.Type)
			}
		}
	}
	walk("", reflect.TypeFor[Config]())
}

func TestResolvedConfigReadsBack(t *testing.T) {
	c := fakeConfig()
	c.Data.Path = "a: b # c\n"
	c.Optim.LR = 1e-6
	c.Eval.Ends = []string{"h0"}
	got := Default()
	if err := config.Parse("x", strictyaml.Encode(c), &got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(c, got) {
		t.Errorf("differs in %v", config.Diff(c, got))
	}
}

func TestLoadConfigErrors(t *testing.T) {
	for text, want := range map[string]string{
		"sed: 1\n":                               ":1:1: unknown key \"sed\"",
		"rollout:\n  n: 1.5\n":                   ":2:6: rollout.n: want a whole number",
		"rollout:\n  n: eight\n":                 "rollout.n: want a whole number",
		"rollout:\n  n: 1\n":                     "rollout.n: 1 is outside 2..1024",
		"seed: 1\nseed: 2\n":                     "twice",
		"backend: tpu\n":                         "backend: \"tpu\": want one of auto, cpu, sim, cuda",
		"rescue:\n  mode: maybe\n":               "rescue.mode",
		"budget:\n  rollouts: 7\n":               "budget.rollouts: 7 does not pay",
		"optim:\n  lr: .nan\n":                   "optim.lr: want a finite number",
		"optim:\n  minibatches: 0\n":             "optim.minibatches",
		"rollout:\n  temperature: 0\n":           "rollout.temperature",
		"loss:\n  eta_minus: 2\n":                "loss.eta_minus",
		"loss:\n  name: nope\n":                  "no loss \"nope\"",
		"rescue:\n  mode: repeat\n  repeat: 3\n": "rescue.repeat",
		"rescue:\n  fixed: look\n":               "rescue.fixed",
		"rollout:\n  max_tokens: 5000\n":         "rollout.max_tokens",
		"eval:\n  split: train\n":                "eval.split",
		"model:\n  path: ''\n":                   "model.path: must be set",
		"a: [1\n":                                "not valid YAML",
	} {
		path := filepath.Join(t.TempDir(), "c.yaml")
		os.WriteFile(path, []byte(text), 0o644)
		if _, err := LoadConfig(path, nil); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: error %v, want %q and the path", text, err, want)
		}
	}
	if _, err := LoadConfig(filepath.Join(t.TempDir(), "none.yaml"), nil); err == nil {
		t.Error("a missing file must be an error")
	}
}

func TestSet(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	os.WriteFile(path, []byte("optim:\n  lr: 3e-4\n  warmup: 5\n"), 0o644)
	c, err := LoadConfig(path, []string{"seed=7", "rescue.mode=off", "data.path=12 rows.jsonl", "optim.lr=1e-5", "eval.ends=h0,routed", "eval.before=false"})
	if err != nil {
		t.Fatal(err)
	}
	if c.Seed != 7 || c.Rescue.Mode != "off" || c.Data.Path != "12 rows.jsonl" || c.Optim.LR != 1e-5 || c.Optim.Warmup != 5 ||
		!reflect.DeepEqual(c.Eval.Ends, []string{"h0", "routed"}) || c.Eval.Before {
		t.Errorf("overrides came out as %+v", c)
	}
	for set, want := range map[string]string{
		"seed":             "want key=value",
		"sed=1":            "no key sed",
		"optim.rate=1":     "no key optim.rate; known here: lr",
		"optim=1":          "is a section",
		"seed.x=1":         "seed has no keys",
		"seed=1.5":         "want a whole number",
		"optim.lr=fast":    "want a finite number",
		"eval.before=yes!": "want true or false",
		"rollout.n=1":      "rollout.n",
	} {
		if _, err := LoadConfig(path, []string{set}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--set %s: error %v, want %q", set, err, want)
		}
	}
}
