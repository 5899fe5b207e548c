package trainer

import (
	"fmt"
	"slices"
	"strings"

	"harness-s/rollout/harness"
	"harness-s/router"
)

// RouterConfig is the `router` section. The paper publishes neither its voters nor how their rankings are made into one; what
// stands here is ours (docs/router.md).
type RouterConfig struct {
	Kind      string          `yaml:"kind" doc:"rule: success on validation tasks of the same kind; vote: several voters over behaviour profiles; see docs/router.md"`
	Attempts  int             `yaml:"attempts" unit:"rollouts" doc:"validation attempts for each sibling and task"`
	Tasks     int             `yaml:"tasks" unit:"tasks" doc:"validation tasks measured at the start; 0: all"`
	Refresh   int             `yaml:"refresh" unit:"steps" doc:"measure again every so many steps (re-anchoring); 0: only at the start"`
	Budget    int             `yaml:"budget" unit:"rollouts" doc:"of one measurement after the first, which then takes some of the tasks, others each time; 0: no limit"`
	Profiles  string          `yaml:"profiles" doc:"vote: adaptive, or fixed to keep the behaviour profiles of the start when statistics are measured again"`
	Voters    []string        `yaml:"voters" doc:"vote: any of rule, bound, profile, similar, and language models: llm:MODEL, or llm:MODEL@URL for an endpoint of its own"`
	Aggregate string          `yaml:"aggregate" doc:"vote: how rankings become one: borda, mean_rank, reciprocal, or kemeny (pools of at most 16)"`
	Quorum    int             `yaml:"quorum" unit:"ballots" doc:"vote: with fewer that count the validation rule decides"`
	Grouper   string          `yaml:"grouper" doc:"vote: who groups traces into profiles: embedded, or llm:MODEL"`
	LLM       RouterLLMConfig `yaml:"llm" doc:"the endpoint of voters and grouper that are language models: any OpenAI-compatible one"`
}

// RouterLLMConfig is the `router.llm` section.
type RouterLLMConfig struct {
	URL         string  `yaml:"url" doc:"base URL with /v1, e.g. http://127.0.0.1:8000/v1"`
	KeyVariable string  `yaml:"key_variable" doc:"environment variable with the bearer key; empty: none is sent"`
	TimeoutS    int     `yaml:"timeout_s" unit:"seconds" doc:"of one request"`
	Retries     int     `yaml:"retries" doc:"fresh tries after 429, 5xx, a cut or stalled reply"`
	MaxTokens   int     `yaml:"max_tokens" unit:"tokens" doc:"of one reply"`
	Temperature float64 `yaml:"temperature" doc:"of its sampling"`
	Concurrency int     `yaml:"concurrency" unit:"requests" doc:"requests at once, a model"`
	Calls       int     `yaml:"calls" unit:"requests" doc:"limit of one process; what is over it is a dropped ballot; 0: none"`
}

// Kinds of router and of profiles.
const (
	RouterRule = "rule"
	RouterVote = "vote"

	ProfilesAdaptive = "adaptive"
	ProfilesFixed    = "fixed"
)

func defaultRouter() RouterConfig {
	return RouterConfig{
		Kind: RouterRule, Attempts: 2, Profiles: ProfilesAdaptive,
		Voters: []string{"rule", "bound", "profile", "similar"}, Aggregate: router.Borda, Quorum: 2, Grouper: MakerEmbedded,
		LLM: RouterLLMConfig{TimeoutS: 60, Retries: 2, MaxTokens: 2048, Concurrency: 8},
	}
}

func (c RouterConfig) validate() error {
	bounds := []intBounds{
		{"attempts", c.Attempts, 1, 1024},
		{"tasks", c.Tasks, 0, 1 << 20},
		{"refresh", c.Refresh, 0, 1 << 30},
		{"budget", c.Budget, 0, 1 << 30},
		{"quorum", c.Quorum, 1, harness.MaxPool},
		{"llm.calls", c.LLM.Calls, 0, 1 << 30},
	}
	bounds = append(bounds, llmBounds(c.LLM.TimeoutS, c.LLM.Retries, c.LLM.MaxTokens, c.LLM.Concurrency)...)
	if err := checkInts("router.", bounds); err != nil {
		return err
	}
	if err := checkFloats("router.", llmTemperature(c.LLM.Temperature)); err != nil {
		return err
	}
	if err := checkChoices("router.", []choice{
		{"kind", c.Kind, []string{RouterRule, RouterVote}},
		{"profiles", c.Profiles, []string{ProfilesAdaptive, ProfilesFixed}},
		{"aggregate", c.Aggregate, router.Aggregations},
	}); err != nil {
		return err
	}
	return c.validateVoters()
}

func (c RouterConfig) validateVoters() error {
	if len(c.Voters) == 0 || len(c.Voters) > maxVoters {
		return fmt.Errorf("router.voters: %d of them; want 1 to %d", len(c.Voters), maxVoters)
	}
	for i, name := range c.Voters {
		if slices.Contains(c.Voters[:i], name) {
			return fmt.Errorf("router.voters: %q stands twice", name)
		}
		if _, ok := router.Embedded[name]; ok {
			continue
		}
		if err := c.checkModel(name); err != nil {
			return fmt.Errorf("router.voters: %w", err)
		}
	}
	if c.Quorum > len(c.Voters) {
		return fmt.Errorf("router.quorum: %d ballots of %d voters", c.Quorum, len(c.Voters))
	}
	if c.Grouper == MakerEmbedded {
		return nil
	}
	if err := c.checkModel(c.Grouper); err != nil {
		return fmt.Errorf("router.grouper: %w", err)
	}
	return nil
}

// maxVoters bounds router.voters.
const maxVoters = 32

// checkModel checks the name of a language model that votes or groups.
func (c RouterConfig) checkModel(name string) error {
	model, url, ok := modelOf(name)
	if !ok || model == "" {
		return fmt.Errorf("%q: want one of %s, or llm:MODEL", name, strings.Join(router.EmbeddedNames(), ", "))
	}
	if url == "" && c.LLM.URL == "" {
		return fmt.Errorf("%q: set router.llm.url, or write llm:MODEL@URL", name)
	}
	return nil
}

// modelOf takes llm:MODEL or llm:MODEL@URL apart.
func modelOf(name string) (model, url string, ok bool) {
	rest, ok := strings.CutPrefix(name, "llm:")
	if i := strings.LastIndex(rest, "@http"); i >= 0 {
		return rest[:i], rest[i+1:], ok
	}
	return rest, "", ok
}
