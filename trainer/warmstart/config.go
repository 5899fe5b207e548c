// Package warmstart makes the embedded policy: a tokenizer trained on demonstrations of generated tasks, and a small
// Qwen3.5 model cloned from them. No task of any split is among the demonstrations: they have tables of their own.
//
// Start at Make. The same config makes the same folder, bit for bit, on any number of threads of one instruction set.
package warmstart

import (
	"errors"
	"fmt"
	"slices"

	"harness-s/model"
	"harness-s/rollout/env/sqlenv/demo"
	"harness-s/rollout/env/sqlenv/taskgen"
)

// Config is recipes/policies/sql.yaml.
type Config struct {
	Seed  int64      `yaml:"seed" json:"seed" doc:"feeds initial weights, demonstrations and their order"`
	Pool  string     `yaml:"pool" json:"pool" doc:"folder of harness specs that the demonstrations are played under"`
	Model ModelShape `yaml:"model" json:"model" doc:"the policy's shape"`
	Vocab int        `yaml:"vocab" json:"vocab" unit:"tokens" doc:"vocabulary of the tokenizer, trained on corpus demonstrations"`
	Demo  DemoConfig `yaml:"demo" json:"demo" doc:"the demonstrations"`
	Optim Optim      `yaml:"optim" json:"optim" doc:"AdamW and its schedule"`
	Probe int        `yaml:"probe" json:"probe" unit:"tasks" doc:"validation tasks the policy is measured on in the end"`
}

// ModelShape is a Qwen3.5 shape: GDN layers, every EveryAttention-th one full attention; tied embedding.
type ModelShape struct {
	Hidden         int `yaml:"hidden" json:"hidden" doc:"hidden size"`
	MLP            int `yaml:"mlp" json:"mlp" doc:"MLP width"`
	Layers         int `yaml:"layers" json:"layers" doc:"layers"`
	EveryAttention int `yaml:"every_attention" json:"every_attention" doc:"every so many layers, one is full attention"`
	GDNHeads       int `yaml:"gdn_heads" json:"gdn_heads" doc:"GDN heads of dimension 64 (key = value: what vLLM's CPU kernel takes)"`
	Heads          int `yaml:"heads" json:"heads" doc:"attention query heads of dimension 32"`
	KVHeads        int `yaml:"kv_heads" json:"kv_heads" doc:"attention key and value heads"`
}

// DemoConfig says what is demonstrated.
type DemoConfig struct {
	TaskSeed  int64    `yaml:"task_seed" json:"task_seed" doc:"draws the demonstration tasks"`
	Obedience float64  `yaml:"obedience" json:"obedience" doc:"chance that a sibling's wish is done; at most 0.98, for rescue needs contrast"`
	H0Share   float64  `yaml:"h0_share" json:"h0_share" doc:"share of demonstrations under h0, which are naive"`
	Opaque    float64  `yaml:"opaque" json:"opaque" doc:"share of demonstration tasks whose columns are codes"`
	Kinds     []string `yaml:"kinds" json:"kinds" doc:"task kinds demonstrated; empty: all"`
	Corpus    int      `yaml:"corpus" json:"corpus" unit:"rollouts" doc:"demonstrations the tokenizer is trained on"`
	Recall    float64  `yaml:"recall" json:"recall" doc:"share of recall text (pairs, then queries: it teaches copying) after the recall steps, fading to 0"`
	Context   float64  `yaml:"context_weight" json:"context_weight" doc:"loss weight of tokens that the policy does not write; its own have 1"`
}

// Optim is the schedule of cloning.
type Optim struct {
	RecallSteps int     `yaml:"recall_steps" json:"recall_steps" unit:"steps" doc:"first steps, on recall text alone"`
	Steps       int     `yaml:"steps" json:"steps" unit:"steps" doc:"all steps, recall steps included"`
	Batch       int     `yaml:"batch" json:"batch" unit:"rows" doc:"rows a step"`
	LR          float64 `yaml:"lr" json:"lr" doc:"peak learning rate; cosine to 5 percent"`
	Warmup      int     `yaml:"warmup" json:"warmup" unit:"steps" doc:"linear warm-up"`
	WeightDecay float64 `yaml:"weight_decay" json:"weight_decay" doc:"decoupled"`
	GradNorm    float64 `yaml:"grad_norm" json:"grad_norm" doc:"gradients are scaled to at most this norm"`
	Tokens      int     `yaml:"microbatch_tokens" json:"microbatch_tokens" unit:"tokens" doc:"tokens of one forward and backward pass"`
}

// Default is recipes/policies/sql.yaml.
func Default() Config {
	return Config{
		Seed: 1, Pool: "recipes/pools/sql", Vocab: 768, Probe: 200,
		Model: ModelShape{Hidden: 128, MLP: 384, Layers: 4, EveryAttention: 4, GDNHeads: 2, Heads: 4, KVHeads: 2},
		Demo:  DemoConfig{TaskSeed: 7, Obedience: 0.7, H0Share: 0.25, Opaque: 0.6, Corpus: 2000, Recall: 0.3, Context: 0.1},
		Optim: Optim{RecallSteps: 350, Steps: 1700, Batch: 32, LR: 2e-3, Warmup: 40, WeightDecay: 0.01, GradNorm: 1, Tokens: 16384},
	}
}

// Validate checks the config.
func (c Config) Validate() error {
	switch o, d := c.Optim, c.Demo; {
	case c.Vocab < 300 || c.Vocab > 8192:
		return fmt.Errorf("vocab: %d, want 300 to 8192", c.Vocab)
	case !(d.Obedience >= 0 && d.Obedience <= demo.MaxObedience):
		return fmt.Errorf("demo.obedience: %v, want 0 to %v", d.Obedience, demo.MaxObedience)
	case !fraction(d.H0Share) || !fraction(d.Opaque) || !fraction(d.Recall) || !fraction(d.Context):
		return errors.New("demo: h0_share, opaque, recall and context_weight are fractions, 0 to 1")
	case c.Probe < 1:
		return fmt.Errorf("probe: %d, want at least 1 task", c.Probe)
	case d.Corpus < 10:
		return fmt.Errorf("demo.corpus: %d, want at least 10", d.Corpus)
	case o.Steps < 1 || o.RecallSteps < 0 || o.RecallSteps > o.Steps || o.Batch < 1 || o.Warmup < 0 || o.Tokens < 1024:
		return errors.New("optim: steps and batch at least 1, recall_steps within steps, microbatch_tokens at least 1024")
	case !(o.LR > 0 && o.LR < 1) || !(o.GradNorm > 0) || o.WeightDecay < 0:
		return errors.New("optim: lr within 0 to 1, grad_norm above 0, weight_decay at least 0")
	}
	for _, k := range c.Demo.Kinds {
		if !slices.Contains(taskgen.Kinds(), k) {
			return fmt.Errorf("demo.kinds: there is no kind %q; there are %v", k, taskgen.Kinds())
		}
	}
	cfg := c.shape(c.Vocab)
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("model: %w", err)
	}
	return nil
}

func fraction(x float64) bool { return x >= 0 && x <= 1 }

// shape is the model's config for a vocabulary.
func (c Config) shape(vocab int) model.Config {
	m := c.Model
	cfg := model.Config{
		Vocab: vocab, Hidden: m.Hidden, MLP: m.MLP,
		Hq: m.Heads, Hk: m.KVHeads, D: 32, RotaryFactor: 0.25, RopeTheta: 1e4,
		GDNHk: m.GDNHeads, GDNHv: m.GDNHeads, Dk: 64, Dv: 64, K: 4,
		Eps: 1e-6, Tied: true, MaxPosition: 4096,
	}
	for i := range m.Layers {
		kind := model.LinearAttention
		if m.EveryAttention > 0 && (i+1)%m.EveryAttention == 0 {
			kind = model.FullAttention
		}
		cfg.LayerTypes = append(cfg.LayerTypes, kind)
	}
	return cfg
}

// mix keeps the weights of the kinds demonstrated; nil: all.
func (d DemoConfig) mix() map[string]float64 {
	if len(d.Kinds) == 0 {
		return nil
	}
	out, weights := map[string]float64{}, taskgen.DefaultMix()
	for _, k := range d.Kinds {
		out[k] = weights[k]
	}
	return out
}
