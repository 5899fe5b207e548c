package vllm

import (
	"encoding/json"
	"fmt"
	"net/http"

	"harness-s/rollout"
)

// StatusError is an HTTP answer other than 200.
type StatusError struct {
	Method, URL string
	Status      int
	Type, Param string // of vLLM's error envelope, "" when the body was something else
	Message     string
	intact      bool // a failed reload that left the old weights serving
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("%s %s: %d %s: %s", e.Method, e.URL, e.Status, http.StatusText(e.Status), e.Message)
}

// Unwrap blames the server for all but refusals of the request itself.
func (e *StatusError) Unwrap() error {
	switch e.Status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusUnprocessableEntity, http.StatusRequestEntityTooLarge,
		http.StatusUnauthorized, http.StatusForbidden, http.StatusMethodNotAllowed:
		return nil
	}
	return rollout.ErrServer
}

// serverError is an error that wraps rollout.ErrServer.
func serverError(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{rollout.ErrServer}, args...)...)
}

const maxMessage = 2000

// statusError reads the body of a failed call: the envelope {"error":{...}}, {"detail":...}, {"error":"..."} or text.
func statusError(method, url string, resp *http.Response, body []byte) *StatusError {
	e := &StatusError{Method: method, URL: url, Status: resp.StatusCode, intact: resp.Header.Get("X-Weights-Intact") == "true"}
	var env struct {
		Error  json.RawMessage `json:"error"`
		Detail json.RawMessage `json:"detail"`
	}
	var inner struct {
		Message, Type string
		Param         *string
	}
	json.Unmarshal(body, &env)
	switch {
	case len(env.Error) > 0 && json.Unmarshal(env.Error, &inner) == nil:
		e.Message, e.Type = inner.Message, inner.Type
		if inner.Param != nil {
			e.Param = *inner.Param
		}
	case len(env.Error) > 0:
		e.Message = string(env.Error)
	case len(env.Detail) > 0:
		e.Message = string(env.Detail)
	default:
		e.Message = string(body)
	}
	if len(e.Message) > maxMessage {
		e.Message = e.Message[:maxMessage] + "..."
	}
	return e
}

// lostError is a connection that could not be made or broke; the request may be sent again.
type lostError struct{ err error }

func (e *lostError) Error() string   { return e.err.Error() }
func (e *lostError) Unwrap() []error { return []error{e.err, rollout.ErrServer} }
