package evolve

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// maxFaults is how many requests to the analyst or the editor may fail in a row. One that fails costs its answer; when all
// do, something is wrong with the endpoint, and the evolution stops to be resumed.
const maxFaults = 3

// asked keeps how the requests went.
type asked struct {
	mu     sync.Mutex
	faults int   // in a row
	last   error // the last fault
}

// answer is what a request came to, as the journal keeps it.
type answer[T any] struct {
	Value   T      `json:"value"`
	Fault   string `json:"fault,omitempty"`
	Refused bool   `json:"refused,omitempty"` // the budget was used up: a run resumed with a larger one goes on after this generation
}

// ask makes one request to the analyst or the editor, or reads back what it gave. ok is false when it failed and the
// evolution goes on without its answer. It may be called from several goroutines.
func ask[T any](ctx context.Context, e *engine, key string, do func() (T, error)) (v T, ok bool, err error) {
	a, err := unit(e.journal, e.Meter, key, func() (answer[T], error) {
		if e.usedUp() {
			return answer[T]{Refused: true}, nil
		}
		v, err := guarded(key, do)
		switch {
		case err == nil:
			return answer[T]{Value: v}, nil
		case ctx.Err() != nil:
			return answer[T]{}, ctx.Err()
		case e.usedUp():
			return answer[T]{Refused: true}, nil
		case e.fault(err) >= maxFaults:
			return answer[T]{}, fmt.Errorf("%d requests failed in a row; the last: %w", maxFaults, err)
		}
		return answer[T]{Fault: err.Error()}, nil
	})
	if err == nil && a.Refused {
		err = errBudget
	}
	if err != nil {
		return v, false, err
	}
	if a.Fault != "" {
		e.asked.mu.Lock()
		e.asked.last = errors.New(a.Fault)
		e.asked.mu.Unlock()
		return v, false, nil
	}
	e.asked.mu.Lock()
	e.asked.faults = 0
	e.asked.mu.Unlock()
	return a.Value, true, nil
}

// fault counts one and returns how many came in a row.
func (e *engine) fault(err error) int {
	e.asked.mu.Lock()
	defer e.asked.mu.Unlock()
	e.asked.faults++
	e.asked.last = err
	e.Progress.Note("a request failed: " + err.Error())
	return e.asked.faults
}

// usedUp says whether a limit on requests or tokens is reached.
func (e *engine) usedUp() bool {
	calls, tokens := e.Meter.Spent()
	return e.Limit.Calls > 0 && calls >= e.Limit.Calls || e.Limit.Tokens > 0 && tokens >= e.Limit.Tokens
}

// guarded turns a panic of an analyst or editor into an error: they work on what a model wrote.
func guarded[T any](key string, do func() (T, error)) (v T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s panicked: %v", key, p)
		}
	}()
	return do()
}
