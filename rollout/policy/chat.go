package policy

import (
	"encoding/json"
	"net/http"

	"harness-s/model/chat"
)

// Chat renders conversations and reads what the policy wrote.
type Chat interface {
	// Render is the prompt up to where the assistant's turn begins.
	Render(messages []chat.Message, tools []chat.Tool, thinking bool) ([]int32, error)
	// Parse splits an assistant's text into content, reasoning and calls.
	Parse(text string) chat.Message
	// Stop is the ids that end a turn.
	Stop() []int32
}

type chatBody struct {
	Model    string            `json:"model"`
	Messages []json.RawMessage `json:"messages"`
}

func (s *Server) render(body *chatBody) ([]int32, error) { return nil, ErrUnsupported }

func (s *Server) chat(w http.ResponseWriter, r *http.Request) error { return ErrUnsupported }
