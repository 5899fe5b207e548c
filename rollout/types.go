// Package rollout runs a policy through tasks under a harness and records what happened.
//
// Start at Run (one attempt) and Collect (many). Environments live in rollout/env, harness specs in
// rollout/harness, the policy client in rollout/vllm, the embedded policy server in rollout/policy.
package rollout

import (
	"context"
	"encoding/json"

	"harness-s/model/chat"
)

// Task is one problem of an environment. It is immutable and may be shared by many attempts.
type Task struct {
	ID    string            // unique within the environment and split
	Env   string            // environment name
	Kind  string            // task kind, for tables and the router ("count", "update", ...)
	Split string            // train | val | test
	Vars  map[string]string // template variables a harness prompt may use ("question", ...)
	Data  any               // the environment's own payload
}

// Observation is what the environment answers to a call.
type Observation struct {
	Text  string // shown to the policy
	Done  bool   // the episode is over
	Error bool   // the call failed (a bad statement, an unknown tool): the policy may repair it
	Kind  string // what was run, for rules: select | change | catalogue | answer | ""
	Rows  int    // rows returned or changed, -1 when not known
}

// Grade is the outcome of an episode.
type Grade struct {
	Reward  float64        `json:"reward"`
	Success bool           `json:"success"`
	Detail  map[string]any `json:"detail,omitempty"`
}

// Environment opens tasks.
type Environment interface {
	Name() string
	Tier() string // fidelity, printed with every result: "sqlite", "mysql", ...
	Tools() []chat.Tool
	// Open starts one attempt. An error is a fault of the environment, never a failed attempt.
	Open(ctx context.Context, t Task) (Session, error)
}

// Secretive is an Environment that says which texts give one of its tasks away: the answer, the names and contents of what
// the task is about. No evolved harness may hold any. Texts that many tasks share are no secret and may be among them.
type Secretive interface {
	Secrets(t Task) []string
}

// Session is one attempt at a task, used by one goroutine.
type Session interface {
	// Act runs one tool call. Whatever the policy wrote wrong comes back as an Observation; an error is a
	// fault of the environment.
	Act(ctx context.Context, call chat.ToolCall) (Observation, error)
	// Catalogue describes the task's tables, for the rule that appends the schema after an error.
	Catalogue() string
	Grade(ctx context.Context) (Grade, error)
	Close() error
}

// Request is one generation.
type Request struct {
	RolloutID   string // for prefix affinity and logs
	Prompt      []int32
	MaxTokens   int
	Temperature float64
	Seed        int64
	Stop        []int32 // token ids that end the turn (kept in Tokens)
}

// Reply is what the policy sampled. Tokens and Logprobs have the same length.
type Reply struct {
	Tokens        []int32
	Logprobs      []float32
	FinishReason  string // stop | length
	PolicyVersion int    // weight version that sampled it
	CachedTokens  int
}

// Policy samples tokens. rollout/vllm implements it over HTTP; tests script it.
// An error wraps ErrServer when the server is to blame.
type Policy interface {
	Generate(ctx context.Context, r Request) (Reply, error)
}

// Status says how an attempt ended.
type Status string

const (
	Completed   Status = "completed"
	TurnLimit   Status = "turn_limit"
	TokenLimit  Status = "token_limit"
	EnvError    Status = "env_error"
	ServerError Status = "server_error"
	Deadline    Status = "deadline"
)

// Broken says that the attempt says nothing about the policy: it is retried, then dropped, never trained on.
func (s Status) Broken() bool { return s == EnvError || s == ServerError || s == Deadline }

// Row is one token sequence to train on. Mask[t] is 1 where the policy sampled token t; Logprobs[t] is the
// sampler's log-prob there and 0 elsewhere (null in JSON).
type Row struct {
	Tokens     []int32   `json:"tokens"`
	Mask       []uint8   `json:"mask"`
	Logprobs   []float32 `json:"logprobs"`
	TurnBounds [][2]int  `json:"turn_bounds"` // [start, end) of each policy turn
}

// Turn is one exchange, for people and for analysis; training reads Rows alone.
type Turn struct {
	Role        string          `json:"role"` // assistant | tool | user
	Text        string          `json:"text"`
	Calls       []chat.ToolCall `json:"calls,omitempty"`
	Observation string          `json:"observation,omitempty"`
	Refused     string          `json:"refused,omitempty"` // the rule that kept a call from running
	GenerateMS  float64         `json:"generate_ms,omitempty"`
	ActMS       float64         `json:"act_ms,omitempty"`
}

// Usage counts tokens of one rollout.
type Usage struct {
	PromptTokens int `json:"prompt_tokens"` // first prompt of each row
	PolicyTokens int `json:"policy_tokens"`
	CachedTokens int `json:"cached_tokens"`
	ParseErrors  int `json:"parse_errors"`
	Rewrites     int `json:"rewrites"` // rows begun because memory rules rewrote the context
}

// Record is one rollout: one JSON object a line in the run folder (design.md section 5).
type Record struct {
	ID            string          `json:"id"`
	Step          int             `json:"step"`
	Group         string          `json:"group"` // (step, task), given by the trainer
	Task          string          `json:"task"`
	TaskKind      string          `json:"task_kind"`
	Env           string          `json:"env"`
	Harness       string          `json:"harness"`
	HarnessHash   string          `json:"harness_hash"`
	Phase         string          `json:"phase"` // train | rescue | eval | anchor | evolve
	Attempt       int             `json:"attempt"`
	Seed          int64           `json:"seed"`
	PolicyVersion int             `json:"policy_version"`
	Rows          []Row           `json:"rows"`
	Turns         []Turn          `json:"turns"`
	Reward        float64         `json:"reward"`
	Success       bool            `json:"success"`
	Status        Status          `json:"status"`
	Error         string          `json:"error,omitempty"`
	Usage         Usage           `json:"usage"`
	Grader        json.RawMessage `json:"grader,omitempty"`
	WallMS        float64         `json:"wall_ms"`
	Advantage     *float64        `json:"advantage,omitempty"` // within its retained group; absent for evaluation and replaced attempts
	Replaced      bool            `json:"replaced,omitempty"`  // a base attempt whose group was rescued: counted, never trained on
}
