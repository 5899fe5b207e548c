package trainer

import (
	"fmt"

	"harness-s/kernels"
	"harness-s/trainer/config"
	"harness-s/trainer/loss"
)

// Config is a run: one YAML file. recipes/reference.yaml is Default with comments, and a test keeps it so.
type Config struct {
	Seed       int64            `yaml:"seed" doc:"feeds all randomness: the same seed gives the same run"`
	Backend    string           `yaml:"backend" doc:"where training computes: cuda, cpu, sim (the CUDA path on simulated devices), or auto: cuda where there is a GPU"`
	Devices    int              `yaml:"devices" unit:"devices" doc:"GPUs of each node that share the training: optimizer and gradients divided between all of them, data parallel"`
	Threads    int              `yaml:"threads" unit:"threads" doc:"CPU threads; 0: all cores. Results do not depend on it"`
	Model      ModelConfig      `yaml:"model" doc:"the policy"`
	Data       DataConfig       `yaml:"data" doc:"the tasks"`
	Pool       PoolConfig       `yaml:"pool" doc:"the harnesses"`
	Rollout    RolloutConfig    `yaml:"rollout" doc:"attempts"`
	Rescue     RescueConfig     `yaml:"rescue" doc:"what happens when every attempt of a base group fails"`
	Router     RouterConfig     `yaml:"router" doc:"how siblings are chosen"`
	Loss       loss.Config      `yaml:"loss" doc:"the objective"`
	Optim      OptimConfig      `yaml:"optim" doc:"AdamW and its schedule"`
	Budget     BudgetConfig     `yaml:"budget" doc:"when to stop; runs are compared at equal budget.rollouts"`
	Eval       EvalConfig       `yaml:"eval" doc:"evaluation on held-out tasks"`
	Checkpoint CheckpointConfig `yaml:"checkpoint" doc:"what a crash or Ctrl-C leaves to resume from"`
	Evolve     EvolveConfig     `yaml:"evolve" doc:"how harness-s evolve makes a pool; training does not read it"`
	Mismatch   MismatchConfig   `yaml:"mismatch" doc:"gates on trainer and rollout server disagreeing; 0 switches a gate off"`
}

// ModelConfig is the `model` section.
type ModelConfig struct {
	Path      string `yaml:"path" doc:"Hugging Face folder of the policy: Qwen3.5 architecture, with tokenizer.json"`
	DType     string `yaml:"dtype" doc:"storage on a device: fp32, or bf16 with fp32 sums and master weights; cpu computes in fp32"`
	Recompute bool   `yaml:"recompute" doc:"compute activations again in the backward pass instead of keeping them: less memory, same bits"`
	Offload   bool   `yaml:"offload" doc:"keep master weights and Adam moments in host memory and update there: less device memory, slower"`
	Thinking  bool   `yaml:"thinking" doc:"let the policy think before each turn, as its chat template does"`
}

// DataConfig is the `data` section.
type DataConfig struct {
	Path       string `yaml:"path" doc:"official DBBench rows (JSON lines); empty: generated SQL tasks"`
	Train      int    `yaml:"train" unit:"tasks" doc:"generated tasks to train on"`
	Validation int    `yaml:"validation" unit:"tasks" doc:"generated tasks the router is calibrated on"`
	Test       int    `yaml:"test" unit:"tasks" doc:"generated tasks for evaluation; schemas of the three splits are disjoint"`
	TaskSeed   int64  `yaml:"task_seed" doc:"draws the generated tasks; apart from seed, so that runs share tasks"`
}

// PoolConfig is the `pool` section.
type PoolConfig struct {
	Path string `yaml:"path" doc:"folder of harness specs: h0.yaml and its siblings, frozen for the run"`
}

// RolloutConfig is the `rollout` section.
type RolloutConfig struct {
	N           int     `yaml:"n" unit:"rollouts" doc:"base attempts at one task: the group. The paper publishes none; ours is 8"`
	Tasks       int     `yaml:"tasks" unit:"tasks" doc:"tasks a step"`
	Temperature float64 `yaml:"temperature" doc:"of sampling; log-probs on both sides are taken at it"`
	MaxTurns    int     `yaml:"max_turns" unit:"turns" doc:"policy turns of one attempt; a harness may lower it"`
	MaxTokens   int     `yaml:"max_tokens" unit:"tokens" doc:"policy tokens of one turn"`
	MaxContext  int     `yaml:"max_context" unit:"tokens" doc:"longest row, prompt included"`
	Concurrency int     `yaml:"concurrency" unit:"rollouts" doc:"attempts at work at once"`
	Retries     int     `yaml:"retries" doc:"fresh tries of a broken attempt (server or environment fault) before it is dropped"`
	DeadlineS   int     `yaml:"deadline_s" unit:"seconds" doc:"an attempt that takes longer is broken"`
	Endpoint    string  `yaml:"endpoint" doc:"URL of a vLLM server, its key in HARNESS_S_API_KEY; empty: the embedded server, in this process"`
}

// RescueConfig is the `rescue` section.
type RescueConfig struct {
	Mode   string `yaml:"mode" doc:"off, routed, or a control: resample, random, repeat, fixed, mixture, prefix; see docs/rescue.md"`
	K      int    `yaml:"k" unit:"rollouts" doc:"rescue attempts; routed and random use K distinct siblings"`
	Repeat int    `yaml:"repeat" unit:"siblings" doc:"mode repeat: this many siblings, K/repeat attempts each"`
	Fixed  string `yaml:"fixed" doc:"mode fixed: id of the sibling; empty: the best on validation tasks at the start"`
}

// OptimConfig is the `optim` section.
type OptimConfig struct {
	LR            float64 `yaml:"lr" doc:"peak learning rate; 1e-6 suits full-size models"`
	Schedule      string  `yaml:"schedule" doc:"constant or cosine, over the rollout budget, after the warm-up"`
	Warmup        int     `yaml:"warmup" unit:"updates" doc:"linear warm-up"`
	MinLR         float64 `yaml:"min_lr" doc:"where cosine ends, as a fraction of lr"`
	Beta1         float64 `yaml:"beta1" doc:"AdamW"`
	Beta2         float64 `yaml:"beta2" doc:"AdamW"`
	Eps           float64 `yaml:"eps" doc:"AdamW"`
	WeightDecay   float64 `yaml:"weight_decay" doc:"AdamW, decoupled; matrices only"`
	GradNorm      float64 `yaml:"grad_norm" doc:"clip the global gradient norm to this; 0: no clip"`
	Minibatches   int     `yaml:"minibatches" doc:"updates a step and epoch"`
	Epochs        int     `yaml:"epochs" doc:"passes over a step's rollouts"`
	MicrobatchTok int     `yaml:"microbatch_tokens" unit:"tokens" doc:"rows computed at once; memory only, the gradient is that of the whole minibatch"`
}

// BudgetConfig is the `budget` section.
type BudgetConfig struct {
	Rollouts int `yaml:"rollouts" unit:"rollouts" doc:"training attempts in all, replaced ones included"`
	Steps    int `yaml:"steps" unit:"steps" doc:"at most so many steps; 0: as the rollouts allow"`
}

// EvalConfig is the `eval` section.
type EvalConfig struct {
	Every  int      `yaml:"every" unit:"steps" doc:"evaluate under H0 every so many steps; 0: only before and after"`
	K      int      `yaml:"k" unit:"rollouts" doc:"attempts at each task, for pass@k and avg@k"`
	Tasks  int      `yaml:"tasks" unit:"tasks" doc:"test tasks used; 0: all"`
	Ends   []string `yaml:"ends" doc:"what is evaluated before and after training: h0, siblings, ids; by the router routed (its first), rank2, rank3, ..., best (the sibling best on validation)"`
	Split  string   `yaml:"split" doc:"test or val"`
	Before bool     `yaml:"before" doc:"evaluate before training"`
	After  bool     `yaml:"after" doc:"evaluate after training"`
}

// CheckpointConfig is the `checkpoint` section.
type CheckpointConfig struct {
	Every int `yaml:"every" unit:"steps" doc:"write a checkpoint every so many steps, and at the end"`
	Keep  int `yaml:"keep" unit:"checkpoints" doc:"keep the last so many; 0: all"`
}

// MismatchConfig is the `mismatch` section.
type MismatchConfig struct {
	KL     float64 `yaml:"kl" unit:"nats" doc:"mean k3 estimate of KL(server || trainer) over a step's policy tokens"`
	MaxAbs float64 `yaml:"max_abs" unit:"nats" doc:"greatest log-prob difference of one token"`
	Probe  float64 `yaml:"probe" unit:"nats" doc:"greatest difference on the probe row after weights went to the server"`
}

// Default is every key's default. Data and model paths have none.
func Default() Config {
	return Config{
		Seed: 1, Backend: kernels.Auto, Devices: 1,
		Model:   ModelConfig{Path: "recipes/policies/sql", DType: "fp32"},
		Data:    DataConfig{Train: 2000, Validation: 64, Test: 64, TaskSeed: 1},
		Pool:    PoolConfig{Path: "recipes/pools/sql"},
		Rollout: RolloutConfig{N: 8, Tasks: 16, Temperature: 1, MaxTurns: 8, MaxTokens: 256, MaxContext: 4096, Concurrency: 64, Retries: 2, DeadlineS: 600},
		Rescue:  RescueConfig{Mode: "routed", K: 8, Repeat: 2},
		Router:  defaultRouter(),
		Loss:    loss.DefaultConfig(),
		Optim: OptimConfig{LR: 1e-6, Schedule: "constant", MinLR: 0.1, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8,
			GradNorm: 1, Minibatches: 2, Epochs: 1, MicrobatchTok: 8192},
		Budget:     BudgetConfig{Rollouts: 4000},
		Eval:       EvalConfig{K: 3, Ends: []string{"h0", "siblings", "routed"}, Split: "test", Before: true, After: true},
		Checkpoint: CheckpointConfig{Every: 1, Keep: 2},
		Evolve:     defaultEvolve(),
		Mismatch:   MismatchConfig{KL: 0.05, Probe: 0.3},
	}
}

// LoadConfig reads a config file over the defaults, applies overrides (a.b=c) and checks the whole.
func LoadConfig(path string, overrides []string) (Config, error) {
	c := Default()
	if err := config.Read(path, overrides, &c); err != nil {
		return Config{}, err
	}
	if err := c.Validate(); err != nil {
		return Config{}, fmt.Errorf("config %s: %w", path, err)
	}
	return c, nil
}

// Modes of rescue.
const (
	ModeOff      = "off"
	ModeResample = "resample"
	ModeRandom   = "random"
	ModeRepeat   = "repeat"
	ModeFixed    = "fixed"
	ModeMixture  = "mixture"
	ModePrefix   = "prefix"
	ModeRouted   = "routed"
)

var modes = []string{ModeOff, ModeResample, ModeRandom, ModeRepeat, ModeFixed, ModeMixture, ModePrefix, ModeRouted}

// Validate checks every range and what keys ask of each other. The error names the key and the mend.
func (c Config) Validate() error {
	for _, check := range []func() error{
		c.validateCounts, c.validateChoices, c.validateOptim, c.validateCross, c.Loss.Validate, c.Router.validate, c.Evolve.validate,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	_, err := loss.New(c.Loss)
	return err
}

func (c Config) validateCounts() error {
	return checkInts("", []intBounds{
		{"threads", c.Threads, 0, 1024},
		{"devices", c.Devices, 1, 64},
		{"rollout.n", c.Rollout.N, 2, 1024},
		{"rollout.tasks", c.Rollout.Tasks, 1, 1 << 16},
		{"rollout.max_turns", c.Rollout.MaxTurns, 1, 1000},
		{"rollout.max_tokens", c.Rollout.MaxTokens, 1, 1 << 20},
		{"rollout.max_context", c.Rollout.MaxContext, 2, 1 << 24},
		{"rollout.concurrency", c.Rollout.Concurrency, 1, 1 << 14},
		{"rollout.retries", c.Rollout.Retries, 0, 100},
		{"rollout.deadline_s", c.Rollout.DeadlineS, 1, 1 << 20},
		{"rescue.k", c.Rescue.K, 2, 1024},
		{"rescue.repeat", c.Rescue.Repeat, 1, 1024},
		{"optim.warmup", c.Optim.Warmup, 0, 1 << 30},
		{"optim.minibatches", c.Optim.Minibatches, 1, 1024},
		{"optim.epochs", c.Optim.Epochs, 1, 1024},
		{"optim.microbatch_tokens", c.Optim.MicrobatchTok, 1, 1 << 28},
		{"budget.rollouts", c.Budget.Rollouts, 1, 1 << 30},
		{"budget.steps", c.Budget.Steps, 0, 1 << 30},
		{"eval.every", c.Eval.Every, 0, 1 << 30},
		{"eval.k", c.Eval.K, 1, 1024},
		{"eval.tasks", c.Eval.Tasks, 0, 1 << 20},
		{"checkpoint.every", c.Checkpoint.Every, 1, 1 << 30},
		{"checkpoint.keep", c.Checkpoint.Keep, 0, 1 << 20},
		{"data.train", c.Data.Train, 1, 1 << 20},
		{"data.validation", c.Data.Validation, 1, 1 << 20},
		{"data.test", c.Data.Test, 1, 1 << 20},
	})
}

func (c Config) validateChoices() error {
	if err := checkChoices("", []choice{
		{"backend", c.Backend, []string{kernels.Auto, "cpu", "sim", "cuda"}},
		{"model.dtype", c.Model.DType, []string{"fp32", "bf16"}},
		{"rescue.mode", c.Rescue.Mode, modes},
		{"optim.schedule", c.Optim.Schedule, []string{"constant", "cosine"}},
		{"eval.split", c.Eval.Split, []string{"test", "val"}},
	}); err != nil {
		return err
	}
	for _, e := range c.Eval.Ends {
		if e == "" {
			return fmt.Errorf("eval.ends: an empty name; want h0, siblings, routed or the id of a harness")
		}
	}
	for key, path := range map[string]string{"model.path": c.Model.Path, "pool.path": c.Pool.Path} {
		if path == "" {
			return fmt.Errorf("%s: must be set", key)
		}
	}
	return nil
}

func (c Config) validateOptim() error {
	o := c.Optim
	return checkFloats("", []floatBounds{
		{"rollout.temperature", c.Rollout.Temperature, 0.01, 10},
		{"optim.lr", o.LR, 0, 1},
		{"optim.min_lr", o.MinLR, 0, 1},
		{"optim.beta1", o.Beta1, 0, 0.9999999},
		{"optim.beta2", o.Beta2, 0, 0.9999999},
		{"optim.eps", o.Eps, 1e-30, 1},
		{"optim.weight_decay", o.WeightDecay, 0, 100},
		{"optim.grad_norm", o.GradNorm, 0, 1e30},
		{"mismatch.kl", c.Mismatch.KL, 0, 1e30},
		{"mismatch.max_abs", c.Mismatch.MaxAbs, 0, 1e30},
		{"mismatch.probe", c.Mismatch.Probe, 0, 1e30},
	})
}

func (c Config) validateCross() error {
	if need := c.Rollout.N; c.Budget.Rollouts < need {
		return fmt.Errorf("budget.rollouts: %d does not pay for one group of rollout.n = %d", c.Budget.Rollouts, need)
	}
	if c.Rollout.MaxTokens >= c.Rollout.MaxContext {
		return fmt.Errorf("rollout.max_tokens: %d leaves no room for a prompt in rollout.max_context = %d", c.Rollout.MaxTokens, c.Rollout.MaxContext)
	}
	if c.Rescue.Mode == ModeRepeat && (c.Rescue.Repeat > c.Rescue.K || c.Rescue.K%c.Rescue.Repeat != 0) {
		return fmt.Errorf("rescue.repeat: %d siblings do not share rescue.k = %d attempts evenly", c.Rescue.Repeat, c.Rescue.K)
	}
	if c.Rescue.Fixed != "" && c.Rescue.Mode != ModeFixed {
		return fmt.Errorf("rescue.fixed: goes with rescue.mode: fixed, the mode is %s", c.Rescue.Mode)
	}
	if c.Optim.Epochs > 1 && c.Loss.Name == "grpo" && c.Loss.EtaPlus == 0 && c.Loss.EtaMinus == 0 {
		return fmt.Errorf("optim.epochs: %d passes with loss.eta_minus = loss.eta_plus = 0 learn nothing after the first", c.Optim.Epochs)
	}
	return nil
}

// Siblings is how many distinct siblings the mode needs of the pool.
func (r RescueConfig) Siblings() int {
	switch r.Mode {
	case ModeRandom, ModeRouted:
		return r.K
	case ModeRepeat:
		return r.Repeat
	case ModeFixed, ModeMixture:
		return 1
	}
	return 0
}

// Reference is recipes/reference.yaml.
func Reference() []byte {
	head := "# Every key of a run config with its default, unit and meaning. Generated from trainer.Default by\n" +
		"# `go test ./trainer -run TestReference -update`; a config needs only the keys it changes.\n" +
		"# --set a.b=c overrides a key on the command line. Secrets come from the environment only.\n\n"
	return append([]byte(head), config.Reference(Default())...)
}
