package llm

import (
	"encoding/json"
	"net/http"
	"strings"
)

// dialect is what a server does not take of a request. Servers say so with 400 and more or less clear words. What was left
// out is remembered only when the request without it went well: a 400 may mean anything else, such as a prompt that is too
// long.
type dialect struct {
	format        int  // 0: json_schema, 1: json_object, 2: no response_format
	newTokens     bool // max_completion_tokens in the place of max_tokens
	noTemperature bool
	noSeed        bool
}

const formats = 2

// learn keeps a dialect that the server took.
func (c *Client) learn(d dialect) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := &c.dialect
	k.format = max(k.format, d.format)
	k.newTokens = k.newTokens || d.newTokens
	k.noTemperature = k.noTemperature || d.noTemperature
	k.noSeed = k.noSeed || d.noSeed
}

// without is the dialect to try after a fault; false when the fault is of another kind or nothing is left to leave out.
// Every step leaves out one thing more, so that there are few.
func (d dialect) without(f *fault, r Request) (dialect, bool) {
	if f.status != http.StatusBadRequest && f.status != http.StatusUnprocessableEntity {
		return d, false
	}
	says := func(word string) bool { return strings.Contains(f.text, word) }
	switch {
	case !d.newTokens && says("max_completion_tokens"):
		d.newTokens = true
	case !d.noTemperature && says("temperature"):
		d.noTemperature = true
	case !d.noSeed && says("seed"):
		d.noSeed = true
	case r.Schema != nil && d.format < formats:
		d.format++
	default:
		return d, false
	}
	return d, true
}

// chatRequest is the body of POST /v1/chat/completions.
type chatRequest struct {
	Model               string          `json:"model"`
	Messages            []Message       `json:"messages"`
	MaxTokens           int             `json:"max_tokens,omitempty"`
	MaxCompletionTokens int             `json:"max_completion_tokens,omitempty"`
	Temperature         *float64        `json:"temperature,omitempty"`
	Seed                *int64          `json:"seed,omitempty"`
	ResponseFormat      *responseFormat `json:"response_format,omitempty"`
}

type responseFormat struct {
	Type       string      `json:"type"`
	JSONSchema *jsonSchema `json:"json_schema,omitempty"`
}

type jsonSchema struct {
	Name   string          `json:"name"`
	Schema json.RawMessage `json:"schema"`
}

// body writes the request as the dialect has it.
func (c *Client) body(r Request, d dialect) ([]byte, error) {
	q := chatRequest{Model: c.opt.Model, Messages: r.Messages}
	if d.newTokens {
		q.MaxCompletionTokens = c.opt.MaxTokens
	} else {
		q.MaxTokens = c.opt.MaxTokens
	}
	if !d.noTemperature {
		q.Temperature = &c.opt.Temperature
	}
	if !d.noSeed {
		seed := r.Seed & (1<<31 - 1) // some servers take 32 bits only
		q.Seed = &seed
	}
	switch {
	case r.Schema == nil:
	case d.format == 0:
		q.ResponseFormat = &responseFormat{Type: "json_schema", JSONSchema: &jsonSchema{Name: "answer", Schema: r.Schema}}
	case d.format == 1:
		q.ResponseFormat = &responseFormat{Type: "json_object"}
	}
	return json.Marshal(q)
}
