package trainer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"harness-s/internal/testutil"
	"harness-s/rollout/harness"
	"harness-s/router/evolve"
	"harness-s/router/llm/llmtest"
)

// evolveConfig is a small evolution with the shipped policy, from H0 alone.
func evolveConfig(policy, root string) Config {
	c := Default()
	c.Model.Path, c.Pool.Path = policy, filepath.Join(root, "recipes", "pools", "sql")
	c.Data.Train, c.Data.Validation, c.Data.Test = 100, 8, 4
	c.Rollout.MaxTurns, c.Rollout.MaxTokens, c.Rollout.MaxContext = 6, 96, 640
	c.Evolve.Generations, c.Evolve.Tasks, c.Evolve.Pool, c.Evolve.Children = 2, 24, 9, 1
	return c
}

// shippedPolicy is the folder of the policy in recipes; without it the test is skipped.
func shippedPolicy(t *testing.T) (policy, root string) {
	t.Helper()
	root = testutil.Root(t)
	policy = filepath.Join(root, "recipes", "policies", "sql")
	if _, err := os.Stat(filepath.Join(policy, "config.json")); err != nil {
		t.Skip("no policy in recipes/policies: run make policy")
	}
	return policy, root
}

// frozenFiles are what an evolution must give again bit for bit.
func frozenFiles(t *testing.T, dir string) map[string]string {
	t.Helper()
	paths, _ := filepath.Glob(filepath.Join(dir, "pool", "*"))
	for _, name := range []string{evolve.LineageName, evolve.MatrixName, evolve.RejectedName, evolve.LabelsName, "config.yaml"} {
		paths = append(paths, filepath.Join(dir, name))
	}
	out := map[string]string{}
	for _, p := range paths {
		data, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		rel, _ := filepath.Rel(dir, p)
		out[rel] = string(data)
	}
	return out
}

func sameEvolution(t *testing.T, want, got string) {
	t.Helper()
	a, b := frozenFiles(t, want), frozenFiles(t, got)
	for name := range a {
		if a[name] != b[name] {
			t.Errorf("%s differs:\n%s", name, firstDifference(a[name], b[name]))
		}
	}
	if len(a) != len(b) {
		t.Errorf("%d files, want %d", len(b), len(a))
	}
	sameRollouts(t, want, got)
	if a, b := steadySummary(t, want), steadySummary(t, got); a != b {
		t.Errorf("summary %s, want %s", b, a)
	}
}

// interrupter ends ctx once so many lines of progress were written.
type interrupter struct {
	left   int
	cancel context.CancelFunc
}

func (i *interrupter) Write(p []byte) (int, error) {
	if i.left--; i.left == 0 {
		i.cancel()
	}
	return len(p), nil
}

func TestEvolveInterruptAndResume(t *testing.T) {
	policy, root := shippedPolicy(t)
	cfg := evolveConfig(policy, root)
	whole, dir := filepath.Join(t.TempDir(), "whole"), filepath.Join(t.TempDir(), "run")
	sum, err := Evolve(t.Context(), cfg, EvolveOptions{RunDir: whole})
	if err != nil {
		t.Fatal(err)
	}
	if sum.ValidChildren < 2 || sum.JointCoverage < sum.H0Coverage {
		t.Errorf("summary %+v", sum)
	}
	for lines, resume := 1, false; ; lines, resume = lines+1, true {
		ctx, cancel := context.WithCancel(t.Context())
		_, err := Evolve(ctx, cfg, EvolveOptions{RunDir: dir, Resume: resume, Out: &interrupter{lines, cancel}})
		cancel()
		if err == nil {
			break
		}
		if !errors.Is(err, ErrInterrupted) || !errors.Is(err, context.Canceled) {
			t.Fatalf("interrupted after %d lines: %v", lines, err)
		}
		if lines > 50 {
			t.Fatal("it never ends")
		}
	}
	sameEvolution(t, whole, dir)
	if _, err := harness.LoadPool(filepath.Join(dir, "pool")); err != nil {
		t.Error(err)
	}

	for set, says := range map[string]string{"seed=2": "seed", "evolve.tasks=9": "evolve.tasks", "data.train=200": "data.train"} {
		if _, err := Evolve(t.Context(), cfg, EvolveOptions{RunDir: dir, Resume: true, Set: []string{set}}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("resumed with %s: %v", set, err)
		}
	}
	if _, err := Evolve(t.Context(), cfg, EvolveOptions{RunDir: dir}); err == nil || !strings.Contains(err.Error(), "--resume") {
		t.Errorf("a second run in the folder: %v", err)
	}
	more, err := Evolve(t.Context(), cfg, EvolveOptions{RunDir: dir, Resume: true, Set: []string{"evolve.generations=3"}})
	if err != nil || more.Generations < sum.Generations || more.ValidChildren < sum.ValidChildren {
		t.Errorf("one more generation: %+v, %v", more, err)
	}
}

// evolve.editor: llm asks its endpoint: one that nobody listens at stops the evolution, and what was done before is kept. A key
// that is not there is said before anything begins.
func TestEvolveLLMEndpoint(t *testing.T) {
	policy, root := shippedPolicy(t)
	cfg := evolveConfig(policy, root)
	cfg.Evolve.Generations, cfg.Evolve.Tasks, cfg.Evolve.Validation = 1, 16, 2
	cfg.Evolve.Editor, cfg.Evolve.LLM.URL, cfg.Evolve.LLM.Model, cfg.Evolve.LLM.Retries = MakerLLM, "http://127.0.0.1:1/v1", "m", 0
	dir := filepath.Join(t.TempDir(), "run")
	if _, err := Evolve(t.Context(), cfg, EvolveOptions{RunDir: dir}); err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("nobody listens: %v", err)
	}
	if !exists(filepath.Join(dir, "rollouts", "train_1.jsonl.zst")) {
		t.Error("the rollouts made before are gone")
	}
	cfg.Evolve.LLM.KeyVariable = "HARNESS_S_TEST_NO_SUCH_KEY"
	none := filepath.Join(t.TempDir(), "none")
	if _, err := Evolve(t.Context(), cfg, EvolveOptions{RunDir: none}); err == nil || !strings.Contains(err.Error(), "HARNESS_S_TEST_NO_SUCH_KEY") || exists(none) {
		t.Errorf("no key: %v; a folder is left: %v", err, exists(none))
	}
}

// With a language model as editor, its requests and tokens are counted, and a resume makes none of them again.
func TestEvolveLLMEditor(t *testing.T) {
	policy, root := shippedPolicy(t)
	server := llmtest.NewFunc(t, func(llmtest.Question) llmtest.Answer {
		return llmtest.JSON(map[string]any{"candidates": []any{map[string]any{
			"prompt":  map[string]any{"system": "Use the tools to answer. Look up the schema first.", "user": "{{question}}", "tools_block": "none"},
			"changes": []string{"It says to look up the schema."}, "why": "It guesses names.", "expect": "Unknown columns.",
		}}})
	})
	cfg := evolveConfig(policy, root)
	cfg.Evolve.Generations, cfg.Evolve.Tasks, cfg.Evolve.Validation = 1, 24, 4
	cfg.Evolve.Editor, cfg.Evolve.LLM.URL, cfg.Evolve.LLM.Model = MakerLLM, server.URL, "m"
	dir := filepath.Join(t.TempDir(), "run")
	first, err := Evolve(t.Context(), cfg, EvolveOptions{RunDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	asked := len(server.Questions())
	if first.ValidChildren != 1 || first.Calls != asked || asked == 0 || first.Tokens == 0 || first.Rejected[evolve.SameContent] == 0 {
		t.Errorf("%d questions; summary %+v", asked, first)
	}
	again, err := Evolve(t.Context(), cfg, EvolveOptions{RunDir: dir, Resume: true})
	if err != nil || len(server.Questions()) != asked || again.Calls != first.Calls || again.Tokens != first.Tokens {
		t.Errorf("resumed: %d questions more, %+v, %v", len(server.Questions())-asked, again, err)
	}
}

// evolve.base: any harness can be the H0 of an evolution, under that id, and a resume uses the folder's copy of it.
func TestEvolveBase(t *testing.T) {
	policy, root := shippedPolicy(t)
	cfg := evolveConfig(policy, root)
	cfg.Evolve.Generations, cfg.Evolve.Tasks, cfg.Evolve.Validation, cfg.Evolve.Pool = 1, 8, 2, 1
	own := filepath.Join(t.TempDir(), "mine.yaml")
	text := "id: mine\nparent: h0\ndirection: \"x\"\nprompt:\n  system: \"Use the tools to answer. Count with COUNT(*).\"\n  user: \"{{question}}\"\n  tools_block: none\n"
	if err := os.WriteFile(own, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cfg.Evolve.Base = own
	dir := filepath.Join(t.TempDir(), "run")
	for _, resume := range []bool{false, true} {
		if _, err := Evolve(t.Context(), cfg, EvolveOptions{RunDir: dir, Resume: resume}); err != nil {
			t.Fatal(err)
		}
		pool, err := harness.LoadPool(filepath.Join(dir, "pool"))
		if err != nil {
			t.Fatal(err)
		}
		if base := pool.Base(); !strings.Contains(base.Prompt.System, "COUNT") || base.Parent != "" || base.Direction != "" {
			t.Errorf("base %+v", base)
		}
		if err := os.RemoveAll(own); err != nil {
			t.Fatal(err)
		}
	}
}

// A training run's folder is not an evolution's, and nothing is left of an evolution that could not begin.
func TestEvolveRefuses(t *testing.T) {
	policy, root := shippedPolicy(t)
	for says, spoil := range map[string]func(*Config){
		"evolve.attempts":        func(c *Config) { c.Evolve.Attempts = 2 },
		"evolve.analyst":         func(c *Config) { c.Evolve.Analyst = "oracle" },
		"evolve.llm":             func(c *Config) { c.Evolve.Editor = MakerLLM },
		"evolve.base":            func(c *Config) { c.Evolve.Base = filepath.Join(root, "nowhere.yaml") },
		"evolve.budget.rollouts": func(c *Config) { c.Evolve.Budget.Rollouts = 10 },
		"fresh training tasks":   func(c *Config) { c.Evolve.Tasks = 51 },
		"model.path":             func(c *Config) { c.Model.Path = filepath.Join(root, "nowhere") },
	} {
		cfg := evolveConfig(policy, root)
		spoil(&cfg)
		dir := filepath.Join(t.TempDir(), "run")
		if _, err := Evolve(t.Context(), cfg, EvolveOptions{RunDir: dir}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s: a folder is left", says)
		}
	}
	g := newRig(t)
	g.must(t)
	if _, err := Evolve(t.Context(), evolveConfig(policy, root), EvolveOptions{RunDir: g.dir, Resume: true}); err == nil || !strings.Contains(err.Error(), "no evolution") {
		t.Errorf("resumed in a training run's folder: %v", err)
	}
	if err := os.WriteFile(filepath.Join(g.dir, evolve.JournalName), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	g.resume = true
	if _, err := g.run(); err == nil || !strings.Contains(err.Error(), "holds an evolution") {
		t.Errorf("a training resumed in an evolution's folder: %v", err)
	}
}

// evolveKind is a child process that evolves.
const evolveKind = "evolve"

func childEvolve(dir string) int {
	_, err := os.Stat(filepath.Join(dir, "config.yaml"))
	_, err = Evolve(context.Background(), evolveConfig(os.Getenv(childWith), os.Getenv(childRoot)), EvolveOptions{RunDir: dir, Resume: err == nil})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// An evolution killed at random moments ends in the same bits as one never killed.
func TestEvolveKillAndResume(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	policy, root := shippedPolicy(t)
	t.Setenv(childRoot, root)
	t.Setenv(childWith, policy)
	whole := filepath.Join(t.TempDir(), "whole")
	began := time.Now()
	if _, err := Evolve(t.Context(), evolveConfig(policy, root), EvolveOptions{RunDir: whole}); err != nil {
		t.Fatal(err)
	}
	span := time.Since(began)
	dir := filepath.Join(t.TempDir(), "run")
	rng := rand.New(rand.NewPCG(5, 9))
	killed, begun := 0, 0 // begun: killed behind the first record
	for try := 1; ; try++ {
		if childUntil(t, evolveKind, dir, time.Duration(rng.Float64()*float64(span)*(0.3+0.2*float64(try)))) {
			if begun > 0 {
				break
			}
			span = span * 2 / 3 // it shows nothing unless it was killed at work
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		} else if killed++; exists(filepath.Join(dir, "rollouts", "validate_0.jsonl.zst")) {
			begun++
		}
		if try > 100 {
			t.Fatal("it never ends")
		}
	}
	t.Logf("killed %d times, %d of them at work", killed, begun)
	sameEvolution(t, whole, dir)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
