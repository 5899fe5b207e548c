// Package llm asks an OpenAI-compatible chat endpoint for structured answers. The endpoint and what it says are not
// trusted: replies are bounded, decoded strictly and checked, and what cannot be repaired within a few attempts is an
// error that the caller counts.
//
// Start at AskJSON.
package llm

import (
	"encoding/json"
	"time"
)

// Options name an endpoint. The key is read from an environment variable, never from a config file.
type Options struct {
	URL         string        // base URL with /v1, e.g. http://127.0.0.1:8000/v1
	Model       string        // as the server names it
	KeyVariable string        // environment variable with the bearer key; empty: none is sent
	Timeout     time.Duration // of one request, first byte to last; 0: 2 minutes
	Retries     int           // fresh tries after 429, 5xx, a cut or stalled reply; 0: none
	MaxTokens   int           // of one reply; 0: 2048
	Temperature float64
	Concurrency int     // requests at once; 0: 4
	Budget      *Budget // shared between clients; nil: no limit
}

// Message is one turn of a chat.
type Message struct {
	Role    string `json:"role"` // system | user | assistant
	Content string `json:"content"`
}

// Request is one question.
type Request struct {
	Messages []Message
	Schema   json.RawMessage // JSON schema of the answer, sent as response_format where the server takes it; nil: free text
	Seed     int64
}

// Reply is one answer.
type Reply struct {
	Text         string
	PromptTokens int
	ReplyTokens  int
}

// Budget bounds what several clients may spend together. A zero limit is none.
type Budget struct {
	Calls  int // requests
	Tokens int // prompt and reply tokens as the servers count them
}
