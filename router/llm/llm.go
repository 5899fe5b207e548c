// Package llm asks an OpenAI-compatible chat endpoint for structured answers. The endpoint and what it says are not
// trusted: replies are bounded, decoded strictly and checked, and what cannot be repaired within a few attempts is an
// error that the caller counts.
//
// Start at AskJSON. Text that a model or an environment wrote goes into a request through Quote.
package llm

import (
	"context"
	"crypto/sha256"
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

	// Sleep waits before a retry, or returns the reason why ctx ended; nil: real time. Tests pass a clock of their own.
	Sleep func(ctx context.Context, d time.Duration) error
}

// Message is one turn of a chat.
type Message struct {
	Role    string `json:"role"` // system | user | assistant
	Content string `json:"content"`
}

// Request is one question.
type Request struct {
	Messages []Message       `json:"messages"`
	Schema   json.RawMessage `json:"schema,omitempty"` // JSON schema of the answer, sent as response_format where the server takes it; nil: free text
	Seed     int64           `json:"seed"`             // of the server's sampling, and of the jitter between retries
}

func (r Request) sum() [sha256.Size]byte {
	raw, err := json.Marshal(r)
	if err != nil { // only a schema that is no JSON, which no server takes
		panic("llm: the schema of a request is no JSON: " + err.Error())
	}
	return sha256.Sum256(raw)
}

// Reply is one answer. Where the server does not say what it counted, the token numbers are estimates from above.
type Reply struct {
	Text         string
	PromptTokens int
	ReplyTokens  int
	Cut          bool // it ended at Options.MaxTokens
	Refused      bool // the server marked it as a refusal; Text says why
}
