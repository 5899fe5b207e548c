// Package harness holds harness specs: the prompt, tools, memory and rules that surround a policy while it works on
// a task. A spec is data (one YAML file), never code.
//
// Start at Spec. Load and LoadPool read files strictly; Spec.Messages and Spec.Offer turn a spec and a task into
// what the policy sees; rollout.Run applies the memory and the rules. Nothing in a spec can run a task action on
// the policy's behalf: rules add text, or keep a call from running.
package harness

import (
	"harness-s/internal/strictyaml"
)

// BaseID is the id of the base harness H0 of every pool.
const BaseID = "h0"

// Spec is one harness. The identity of a harness is its content (Hash); id, parent and direction are labels.
type Spec struct {
	ID        string `yaml:"id" json:"-"`                  // also the file's name without .yaml
	Parent    string `yaml:"parent,omitempty" json:"-"`    // id it was derived from; empty for h0 alone
	Direction string `yaml:"direction,omitempty" json:"-"` // the root cause it repairs, for people and the router
	Prompt    Prompt `yaml:"prompt" json:"prompt"`
	Tools     []Tool `yaml:"tools,omitempty" json:"tools,omitempty"` // empty: everything the environment offers
	Memory    Memory `yaml:"memory,omitempty" json:"memory,omitzero"`
	Rules     Rules  `yaml:"rules,omitempty" json:"rules,omitzero"`

	doc *strictyaml.Doc // where each value stood; nil for a spec built in code
}

// Prompt is what the policy reads before its first turn.
type Prompt struct {
	System  string `yaml:"system,omitempty" json:"system,omitempty"`     // may use {{variable}}
	FewShot []Shot `yaml:"few_shot,omitempty" json:"few_shot,omitempty"` // example turns between system and user
	User    string `yaml:"user" json:"user"`                             // the task; {{variable}} of the task, e.g. {{question}}

	ToolsBlock string `yaml:"tools_block,omitempty" json:"tools_block,omitempty"` // full | none: whether the prompt describes the tools
}

// Tools blocks.
const (
	ToolsFull = "full" // the prompt describes the tools offered, as the policy's chat template does. The default
	ToolsNone = "none" // it does not: for a policy that has learned them, where their some hundred tokens would be most of the prompt
)

// Shot is one example turn. An example conversation starts with user and ends with assistant.
type Shot struct {
	Role    string     `yaml:"role" json:"role"` // user | assistant | tool
	Content string     `yaml:"content,omitempty" json:"content,omitempty"`
	Calls   []ShotCall `yaml:"calls,omitempty" json:"calls,omitempty"` // assistant only
}

// ShotCall is a tool call in an example turn.
type ShotCall struct {
	Name      string             `yaml:"name" json:"name"`
	Arguments []strictyaml.Field `yaml:"arguments,omitempty" json:"arguments,omitempty"`
}

// Tool offers one tool of the environment, perhaps described in other words.
type Tool struct {
	Name        string `yaml:"name" json:"name"`
	Description string `yaml:"description,omitempty" json:"description,omitempty"` // empty: the environment's
	Arguments   []Arg  `yaml:"arguments,omitempty" json:"arguments,omitempty"`     // only those that change
}

// Arg re-describes or hides one argument of a tool. A required argument cannot be hidden.
type Arg struct {
	Name        string `yaml:"name" json:"name"`
	Description string `yaml:"description,omitempty" json:"description,omitempty"`
	Hide        bool   `yaml:"hide,omitempty" json:"hide,omitempty"`
}

// Memory modes.
const (
	MemoryAll   = "all"    // the context only grows; one row a rollout. The default
	MemoryLastK = "last_k" // observations older than the last Keep are replaced by a short mark
	MemoryNotes = "notes"  // turns older than the last Keep are dropped; lines the policy began with "note:" stay
)

// Memory says what of the history the next turn sees.
type Memory struct {
	Mode                string `yaml:"mode,omitempty" json:"mode,omitempty"`                                   // all | last_k | notes
	Keep                int    `yaml:"keep,omitempty" json:"keep,omitempty"`                                   // last_k: observations; notes: turns
	MaxObservationChars int    `yaml:"max_observation_chars,omitempty" json:"max_observation_chars,omitempty"` // longer ones are cut; 0: no cut
}

// Rules is the closed list of execution rules; a nil rule is off. A new rule is a new field with omitempty, so that
// hashes of specs without it stay as they are.
type Rules struct {
	MaxTurns           *MaxTurns `yaml:"max_turns,omitempty" json:"max_turns,omitempty"`
	NudgeBeforeLimit   *Nudge    `yaml:"nudge_before_limit,omitempty" json:"nudge_before_limit,omitempty"`
	VerifyBeforeFinish *Verify   `yaml:"verify_before_finish,omitempty" json:"verify_before_finish,omitempty"`
	RefuseRepeat       *TextRule `yaml:"refuse_repeat,omitempty" json:"refuse_repeat,omitempty"`
	SchemaOnError      *TextRule `yaml:"schema_on_error,omitempty" json:"schema_on_error,omitempty"`
	FormatRepair       *TextRule `yaml:"format_repair,omitempty" json:"format_repair,omitempty"`
	EmptyHint          *TextRule `yaml:"empty_hint,omitempty" json:"empty_hint,omitempty"`
	TruncatedHint      *TextRule `yaml:"truncated_hint,omitempty" json:"truncated_hint,omitempty"`
}

// MaxTurns ends the attempt after Turns policy turns. It can lower the run's own limit, not raise it.
type MaxTurns struct {
	Turns int `yaml:"turns" json:"turns"`
}

// Nudge appends Text to the reply that leaves Turns turns to go.
type Nudge struct {
	Turns int    `yaml:"turns" json:"turns"`
	Text  string `yaml:"text" json:"text"`
}

// Verify answers the first call of Tool with Text instead of running it; later calls run.
type Verify struct {
	Tool string `yaml:"tool" json:"tool"`
	Text string `yaml:"text" json:"text"`
}

// TextRule is a rule whose only setting is the text it says:
//   - refuse_repeat: answer to a call that already ran, with no change run since, instead of running it
//   - schema_on_error: put before the task's catalogue, which follows a failed call's observation
//   - format_repair: added after a turn without a call, or with one that could not be read
//   - empty_hint: added after a selection that returned no rows
//   - truncated_hint: added after an observation that was cut
type TextRule struct {
	Text string `yaml:"text" json:"text"`
}
