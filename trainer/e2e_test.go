package trainer

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"harness-s/internal/testutil"
	"harness-s/kernels"
	"harness-s/model"
	"harness-s/model/chat"
	"harness-s/model/tokenizer"
)

// randomPolicy writes a Hugging Face folder with a tiny random model and a tokenizer to match.
func randomPolicy(dir string) error {
	tok, err := tokenizer.Train(slices.Values([]string{"Use the tools to answer.", "execute_sql commit_final_answer query answers"}), 300, chat.AddedTokens())
	if err != nil {
		return err
	}
	be, err := kernels.NewCPU(1)
	if err != nil {
		return err
	}
	defer be.Close()
	cfg := tinyModel()
	cfg.Vocab, cfg.MaxPosition = tok.VocabSize(), 512
	m, err := model.New(cfg, be, 3, model.Options{})
	if err != nil {
		return err
	}
	defer m.Close()
	if err := m.Save(dir, model.SaveOptions{}); err != nil {
		return err
	}
	return tok.WriteFiles(dir, tokenizer.Config{EOS: chat.EOS, Pad: chat.Pad, MaxLength: cfg.MaxPosition})
}

// realConfig is a run of a few rollouts through every real part: HTTP, server, tokenizer, harnesses, SQL. The
// temperature is not 1, and the loss (minus the ratio) moves the weights in every step, whatever the rewards are.
func realConfig(policy, root string) Config {
	c := Default()
	c.Backend = "cpu" // the sampler's own: log-probs have the same bits
	c.Model.Path, c.Pool.Path = policy, filepath.Join(root, "recipes", "pools", "sql")
	c.Rollout.N, c.Rollout.Tasks, c.Rescue.K, c.Budget.Rollouts = 2, 3, 2, 24
	c.Rollout.MaxTokens, c.Rollout.MaxContext, c.Rollout.MaxTurns, c.Rollout.Concurrency = 8, 500, 2, 8
	c.Data.Validation, c.Data.Test, c.Router.Attempts, c.Router.Tasks, c.Eval.Tasks = 2, 3, 1, 1, 2
	c.Eval.Ends, c.Eval.K, c.Eval.Every = []string{"h0", "routed"}, 2, 2
	c.Rollout.Temperature, c.Optim.LR, c.Mismatch.MaxAbs, c.Mismatch.Probe = 0.7, 1e-3, 5e-5, 5e-5
	c.Loss.Name, c.Loss.Expression = "expression", "-exp(logp - old_logp)"
	return c
}

// shippedConfig is realConfig with room for the shipped policy to work, and the loss it is trained with.
func shippedConfig(policy, root string) Config {
	c := realConfig(policy, root)
	c.Rollout.N, c.Rollout.Tasks, c.Rescue.K, c.Budget.Rollouts = 4, 4, 3, 84
	c.Rollout.MaxTokens, c.Rollout.MaxContext, c.Rollout.MaxTurns = 96, 640, 6
	c.Rollout.Concurrency, c.Rollout.Temperature = 32, 1
	c.Loss = Default().Loss
	return c
}

func realRig(t *testing.T, policy string) *rig {
	g := newRig(t)
	g.cfg, g.build = realConfig(policy, testutil.Root(t)), Build
	return g
}

// The whole loop with nothing faked. A random policy solves nothing, so that every group fails, is rescued and
// stays constant: what is tested is that all parts fit, and that the log-probs that came over HTTP have the bits of
// the trainer's own, at a temperature that is not 1 and under weights that change.
func TestRealParts(t *testing.T) {
	policy := filepath.Join(t.TempDir(), "policy")
	if err := randomPolicy(policy); err != nil {
		t.Fatal(err)
	}
	g := realRig(t, policy)
	sum := g.must(t)
	if sum.Rollouts != 24 || sum.RescueRate != 1 || sum.RescuedShare != 0 {
		t.Errorf("summary %+v", sum)
	}
	for _, m := range g.lines(t)[1:] {
		for _, name := range []string{"errors/env", "errors/server", "errors/parse", "errors/nonfinite", "perf/mfu"} {
			if _, there := m[name]; !there {
				t.Errorf("step %v: no metric %s", m["step"], name)
			}
		}
		if m["errors/env"]+m["errors/server"]+m["group/dropped"] != 0 {
			t.Errorf("step %v: broken attempts: %v", m["step"], m)
		}
		if d, ok := m["mismatch/max_abs"]; !ok || d != 0 || !(m["policy/grad_norm"] > 0) {
			t.Errorf("step %v: mismatch/max_abs %g (there: %t), gradient norm %g; want 0, and an update", m["step"], d, ok, m["policy/grad_norm"])
		}
	}
	for _, r := range g.records(t, "step_000001.jsonl.zst") {
		if err := r.Validate(); err != nil {
			t.Errorf("rollout %s: %v", r.ID, err)
		}
		if len(r.Rows) == 0 || r.HarnessHash == "" || r.PolicyVersion != 0 {
			t.Errorf("rollout %s: %d rows, harness %q, version %d", r.ID, len(r.Rows), r.HarnessHash, r.PolicyVersion)
		}
	}
	weightFilesAlone(t, g.dir)
	again := realRig(t, policy)
	again.must(t)
	sameRun(t, g.dir, again.dir)

	res, err := Eval(context.Background(), EvalOptions{RunDir: g.dir, Harness: []string{"h0"}, K: 2, Split: "test"})
	if err != nil {
		t.Fatal(err)
	}
	if res.Scores["h0"].Tasks != 2 {
		t.Errorf("eval of the run: %+v", res.Scores)
	}
}

// weightFilesAlone checks that a checkpoint's *.safetensors are the weights and nothing else: vLLM loads every one of them.
func weightFilesAlone(t *testing.T, dir string) {
	t.Helper()
	checkpoints, _ := filepath.Glob(filepath.Join(dir, "checkpoints", "step_*"))
	if len(checkpoints) == 0 {
		t.Fatal("the run left no checkpoint")
	}
	for _, c := range checkpoints {
		files, _ := filepath.Glob(filepath.Join(c, "*.safetensors"))
		if len(files) != 1 || filepath.Base(files[0]) != "model.safetensors" {
			t.Errorf("%s holds %v, want model.safetensors alone", c, files)
		}
		if _, err := os.Stat(filepath.Join(c, optimizerName)); err != nil {
			t.Error(err)
		}
	}
}

func TestRealPartsRefuseBadInput(t *testing.T) {
	policy := filepath.Join(t.TempDir(), "policy")
	if err := randomPolicy(policy); err != nil {
		t.Fatal(err)
	}
	truncated := filepath.Join(t.TempDir(), "truncated")
	os.CopyFS(truncated, os.DirFS(policy))
	os.Truncate(filepath.Join(truncated, "model.safetensors"), 1000)
	for want, edit := range map[string]func(*Config){
		"model.path":          func(c *Config) { c.Model.Path = "nowhere" },
		"truncated":           func(c *Config) { c.Model.Path = truncated },
		"pool.path":           func(c *Config) { c.Pool.Path = "nowhere" },
		"rescue.k":            func(c *Config) { c.Rescue.K = 900 },
		"data.path":           func(c *Config) { c.Data.Path = "nowhere.jsonl" },
		"eval.ends":           func(c *Config) { c.Eval.Ends = []string{"nobody"} },
		"rollout.max_context": func(c *Config) { c.Rollout.MaxContext = 5000 },
		"rollout.endpoint":    func(c *Config) { c.Rollout.Endpoint = "http://127.0.0.1:1" },
		"cuda":                func(c *Config) { c.Backend = "cuda" },
	} {
		g := realRig(t, policy)
		edit(&g.cfg)
		if _, err := g.run(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v", want, err)
		}
		if _, err := os.Stat(filepath.Join(g.dir, "config.yaml")); err == nil {
			t.Errorf("%s: the folder is taken though nothing started", want)
		}
	}
}

// Official rows run through the same loop.
func TestRealPartsOnDBBenchRows(t *testing.T) {
	shared, ok := testutil.SharedDir(t)
	if !ok {
		t.Skip("no reference data beside the repository")
	}
	rows, _ := filepath.Glob(filepath.Join(shared, "data", "dbbench", "*.jsonl"))
	if len(rows) == 0 {
		t.Skip("no DBBench rows beside the repository")
	}
	policy := filepath.Join(t.TempDir(), "policy")
	if err := randomPolicy(policy); err != nil {
		t.Fatal(err)
	}
	g := realRig(t, policy)
	g.cfg.Data.Path, g.cfg.Rollout.MaxContext = rows[0], 512
	g.must(t)
	for _, r := range g.records(t, "step_000001.jsonl.zst") {
		if r.Env != "dbbench" || r.Status.Broken() {
			t.Errorf("rollout %s: environment %q, status %s %s", r.ID, r.Env, r.Status, r.Error)
		}
	}
}
