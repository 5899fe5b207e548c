// Package chat renders conversations into Qwen3.5's turn, tool and tool-call format and parses what a policy
// writes back. Token sequences only grow: nothing the policy sampled is ever rendered again.
package chat

import "encoding/json"

// Tool is a function offered to the policy.
type Tool struct {
	Name        string          `json:"name" yaml:"name"`
	Description string          `json:"description" yaml:"description"`
	Parameters  json.RawMessage `json:"parameters" yaml:"-"` // JSON schema (type object), key order kept
}

// Arg is one argument of a call, in the order written. Value is JSON.
type Arg struct {
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value"`
}

// ToolCall is one call the policy wrote.
type ToolCall struct {
	Name string `json:"name"`
	Args []Arg  `json:"args"`
}

// Message is one turn of a conversation.
type Message struct {
	Role      string // system | user | assistant | tool
	Content   string
	Reasoning string // assistant only
	Calls     []ToolCall
}
