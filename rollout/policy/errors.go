package policy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// apiError is an answer in vLLM's error envelope.
type apiError struct {
	status  int
	kind    string // "Bad Request" for the shape of a body, "BadRequestError" for values
	message string
	param   string // "" = null
}

func (e *apiError) Error() string { return e.message }

// badShape is a body that does not have the form of the request.
func badShape(param, message string) *apiError {
	return &apiError{http.StatusBadRequest, "Bad Request", message, param}
}

// validation is badShape in the words of vLLM's validator.
func validation(kind, loc, msg, input string) *apiError {
	return badShape(loc, fmt.Sprintf("1 validation error:\n  {'type': '%s', 'loc': '%s', 'msg': '%s', 'input': '%s'}", kind, loc, msg, input))
}

// badValue is a field whose value cannot be served.
func badValue(param, format string, args ...any) *apiError {
	return &apiError{http.StatusBadRequest, "BadRequestError", fmt.Sprintf(format, args...), param}
}

// badParam is badValue with the parameter named at the end, as vLLM does.
func badParam(param, value, format string, args ...any) *apiError {
	return badValue(param, "%s (parameter=%s, value=%s)", fmt.Sprintf(format, args...), param, value)
}

// unsupported refuses a field that would change what is sampled and that this server does not implement.
func unsupported(param string) *apiError {
	return badValue(param, "%s is not supported by this server; leave it out", param)
}

// noTokenizer answers text where the model folder has no tokenizer.
func noTokenizer(param string) *apiError {
	return badValue(param, "the model folder has no tokenizer.json: this server takes and gives token ids only")
}

// asAPIError is the answer for an error of the engine.
func asAPIError(err error) *apiError {
	var e *apiError
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, ErrQueueFull), errors.Is(err, ErrClosed):
		return &apiError{http.StatusServiceUnavailable, "ServiceUnavailableError", err.Error(), ""}
	case errors.Is(err, ErrUnsupported):
		return &apiError{http.StatusNotImplemented, "NotImplementedError", err.Error(), ""}
	case errors.Is(err, ErrEngineDead):
		first, _, _ := strings.Cut(err.Error(), "\n") // the stack is for the log
		return &apiError{http.StatusInternalServerError, "InternalServerError", first, ""}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return &apiError{499, "ClientClosedRequest", "the client has gone", ""}
	}
	return &apiError{http.StatusInternalServerError, "InternalServerError", err.Error(), ""}
}

func (e *apiError) append(b []byte) []byte {
	b = append(b, `{"error":{"message":`...)
	b = appendString(b, e.message)
	b = append(b, `,"type":`...)
	b = appendString(b, e.kind)
	b = append(b, `,"param":`...)
	if e.param == "" {
		b = append(b, "null"...)
	} else {
		b = appendString(b, e.param)
	}
	b = append(b, `,"code":`...)
	b = appendInt(b, e.status)
	return append(b, "}}"...)
}
