// Package llmtest is a scripted chat endpoint for tests. It answers well, and badly in the ways that endpoints and models
// do.
//
// Start at New. Bad lists the bad answers by name.
package llmtest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// Question is a request as the server got it.
type Question struct {
	N        int // from 0, in order of arrival
	Model    string
	Messages []Message
	Format   string // type of response_format, "" without one
	Auth     string // Authorization header
	Fields   map[string]json.RawMessage
}

// Message is one turn of it.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Text is all of its messages.
func (q Question) Text() string {
	var b strings.Builder
	for _, m := range q.Messages {
		fmt.Fprintf(&b, "[%s] %s\n", m.Role, m.Content)
	}
	return b.String()
}

// Answer writes one HTTP response.
type Answer func(w http.ResponseWriter, r *http.Request, q Question)

// Server is a running endpoint. URL ends with /v1.
type Server struct {
	URL string

	answer func(Question) Answer
	closed chan struct{}

	mu   sync.Mutex
	seen []Question
}

// New answers by a script, one answer a request in order of arrival; the last one stands for all that follow. It ends with
// the test.
func New(t testing.TB, script ...Answer) *Server {
	t.Helper()
	if len(script) == 0 {
		t.Fatal("llmtest: a script needs an answer")
	}
	return NewFunc(t, func(q Question) Answer { return script[min(q.N, len(script)-1)] })
}

// NewFunc answers by what is asked; f is called from several goroutines.
func NewFunc(t testing.TB, f func(Question) Answer) *Server {
	t.Helper()
	s := &Server{answer: f, closed: make(chan struct{})}
	h := httptest.NewServer(s)
	t.Cleanup(func() {
		close(s.closed)
		h.Close()
	})
	s.URL = h.URL + "/v1"
	return s
}

// Questions are the requests so far.
func (s *Server) Questions() []Question {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Question(nil), s.seen...)
}

const maxQuestion = 16 << 20

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	data, err := io.ReadAll(io.LimitReader(r.Body, maxQuestion))
	q := Question{Auth: r.Header.Get("Authorization")}
	var body struct {
		Model    string                `json:"model"`
		Messages []Message             `json:"messages"`
		Format   struct{ Type string } `json:"response_format"`
	}
	if err != nil || json.Unmarshal(data, &body) != nil || json.Unmarshal(data, &q.Fields) != nil ||
		r.Method != http.MethodPost || r.URL.Path != "/v1/chat/completions" {
		http.Error(w, "no chat completion: "+r.Method+" "+r.URL.Path, http.StatusNotFound)
		return
	}
	q.Model, q.Messages, q.Format = body.Model, body.Messages, body.Format.Type
	s.mu.Lock()
	q.N = len(s.seen)
	s.seen = append(s.seen, q)
	s.mu.Unlock()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() { // what stalls ends with the server
		select {
		case <-s.closed:
			cancel()
		case <-stop:
		}
	}()
	s.answer(q)(w, r.WithContext(ctx), q)
}
