package trainer

import (
	"errors"
	"math"

	"harness-s/rollout/harness"
	"harness-s/router/evolve"
)

// EvolveConfig is the `evolve` section. The paper publishes none of these numbers; ours are chosen for small policies.
type EvolveConfig struct {
	Base        string          `yaml:"base" doc:"file of the base harness; empty: h0 of pool.path"`
	Generations int             `yaml:"generations" doc:"rounds of parents and children"`
	Tasks       int             `yaml:"tasks" unit:"tasks" doc:"fresh training tasks a generation, the same for each parent"`
	Failures    int             `yaml:"failures" unit:"rollouts" doc:"failed attempts of one parent that are analysed, spread over tasks; 0: all"`
	Validation  int             `yaml:"validation" unit:"tasks" doc:"validation tasks every harness is measured on; 0: all"`
	Attempts    int             `yaml:"attempts" unit:"rollouts" doc:"attempts at each validation task, with the same seeds under every harness; at least 3"`
	Parents     int             `yaml:"parents" unit:"harnesses" doc:"parents of the next generation: the set that together solves most validation tasks"`
	Directions  int             `yaml:"directions" doc:"repair directions of a parent and generation"`
	Children    int             `yaml:"children" unit:"harnesses" doc:"valid children wanted of a direction and parent"`
	Pool        int             `yaml:"pool" unit:"harnesses" doc:"siblings in the pool at most"`
	Control     bool            `yaml:"control" doc:"at the end give H0 as many attempts as the whole pool had: what more attempts alone would have solved"`
	MaxBytes    int             `yaml:"max_bytes" unit:"bytes" doc:"of a child, as YAML"`
	Analyst     string          `yaml:"analyst" doc:"who finds what failed: embedded (rules for the SQL environment) or llm"`
	Editor      string          `yaml:"editor" doc:"who changes the harness: embedded (typed edits for the SQL environment) or llm"`
	Budget      EvolveBudget    `yaml:"budget" doc:"what an evolution may cost; 0: no limit. At a limit it ends in order, with what is there"`
	LLM         EvolveLLMConfig `yaml:"llm" doc:"the language model of analyst and editor: any OpenAI-compatible endpoint"`
}

// EvolveBudget is the `evolve.budget` section.
type EvolveBudget struct {
	Rollouts int `yaml:"rollouts" unit:"rollouts" doc:"attempts of the policy, validation included"`
	Calls    int `yaml:"calls" unit:"requests" doc:"requests to the language model"`
	Tokens   int `yaml:"tokens" unit:"tokens" doc:"its prompt and reply tokens, as the server counts them"`
}

// EvolveLLMConfig is the `evolve.llm` section.
type EvolveLLMConfig struct {
	URL         string  `yaml:"url" doc:"base URL with /v1, e.g. http://127.0.0.1:8000/v1"`
	Model       string  `yaml:"model" doc:"as the server names it"`
	KeyVariable string  `yaml:"key_variable" doc:"environment variable with the bearer key; empty: none is sent"`
	TimeoutS    int     `yaml:"timeout_s" unit:"seconds" doc:"of one request"`
	Retries     int     `yaml:"retries" doc:"fresh tries after 429, 5xx, a cut or stalled reply"`
	MaxTokens   int     `yaml:"max_tokens" unit:"tokens" doc:"of one reply"`
	Temperature float64 `yaml:"temperature" doc:"of its sampling"`
	Concurrency int     `yaml:"concurrency" unit:"requests" doc:"requests at once"`
}

// Makers of analyses and edits.
const (
	MakerEmbedded = "embedded"
	MakerLLM      = "llm"
)

func defaultEvolve() EvolveConfig {
	return EvolveConfig{
		Generations: 3, Tasks: 64, Failures: 64, Attempts: 3, Parents: 3, Directions: 4, Children: 2, Pool: 24, MaxBytes: 16 << 10,
		Analyst: MakerEmbedded, Editor: MakerEmbedded,
		LLM: EvolveLLMConfig{TimeoutS: 120, Retries: 3, MaxTokens: 2048, Temperature: 0.7, Concurrency: 4},
	}
}

func (c EvolveConfig) validate() error {
	bounds := []intBounds{
		{"generations", c.Generations, 1, 1000},
		{"tasks", c.Tasks, 1, 1 << 16},
		{"failures", c.Failures, 0, 1 << 20},
		{"validation", c.Validation, 0, 1 << 20},
		{"attempts", c.Attempts, evolve.MinAttempts, 1024},
		{"parents", c.Parents, 1, harness.MaxPool},
		{"directions", c.Directions, 1, 64},
		{"children", c.Children, 1, 64},
		{"pool", c.Pool, 1, harness.MaxPool - 1},
		{"max_bytes", c.MaxBytes, 256, harness.MaxFileBytes},
		{"budget.rollouts", c.Budget.Rollouts, 0, 1 << 30},
		{"budget.calls", c.Budget.Calls, 0, 1 << 30},
		{"budget.tokens", c.Budget.Tokens, 0, math.MaxInt32},
	}
	bounds = append(bounds, llmBounds(c.LLM.TimeoutS, c.LLM.Retries, c.LLM.MaxTokens, c.LLM.Concurrency)...)
	if err := checkInts("evolve.", bounds); err != nil {
		return err
	}
	if err := checkFloats("evolve.", llmTemperature(c.LLM.Temperature)); err != nil {
		return err
	}
	makers := []string{MakerEmbedded, MakerLLM}
	if err := checkChoices("evolve.", []choice{{"analyst", c.Analyst, makers}, {"editor", c.Editor, makers}}); err != nil {
		return err
	}
	if c.Analyst != MakerLLM && c.Editor != MakerLLM {
		return nil
	}
	if c.LLM.URL == "" || c.LLM.Model == "" {
		return errors.New("evolve.llm: url and model must be set where evolve.analyst or evolve.editor is llm")
	}
	return nil
}
