package evolve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"harness-s/internal/strictyaml"
	"harness-s/router/llm"
)

// maxFaults is how many requests to the analyst or the editor may fail in a row. One that fails costs its answer; when all
// do, something is wrong with the endpoint, and the evolution stops to be resumed.
const maxFaults = 3

// asked keeps how the requests went.
type asked struct {
	mu      sync.Mutex
	row     int // faults in a row
	faults  int
	last    error            // the last fault
	pending map[string]error // faults that are not in the journal yet
	reached bool             // since the last settle somebody answered, usably or not
	out     bool             // a request was refused for the limits as they are
}

// answer is what a request came to, as the journal keeps it.
type answer[T any] struct {
	Value T      `json:"value,omitempty"`
	Fault string `json:"fault,omitempty"`
	// Refused: the request was not made, or not to its end, for these limits. A run resumed with larger ones goes on after this
	// generation.
	Refused *Limit `json:"refused,omitempty"`
}

// ask makes one request to the analyst or the editor, or reads back what it gave. ok is false when it failed and the
// evolution goes on without its answer: from settle on, for a stopped run asks again. It may be called from several goroutines.
func ask[T any](ctx context.Context, e *engine, key string, do func() (T, error)) (v T, ok bool, err error) {
	if raw, done := e.journal.get(key); done {
		return readAnswer[T](e, key, raw)
	}
	if e.usedUp() {
		return v, false, keepAnswer(e, key, answer[T]{Refused: &e.Limit})
	}
	v, err = guarded(key, do)
	switch {
	case err == nil:
		e.asked.mu.Lock()
		e.asked.row, e.asked.reached = 0, true
		e.asked.mu.Unlock()
		if err := keepAnswer(e, key, answer[T]{Value: v}); err != nil {
			return v, false, err
		}
		raw, _ := e.journal.get(key)
		return readAnswer[T](e, key, raw) // it goes on as it will be read back
	case ctx.Err() != nil:
		return v, false, ctx.Err()
	case errors.Is(err, llm.ErrBudget) || e.usedUp():
		return v, false, keepAnswer(e, key, answer[T]{Refused: &e.Limit})
	}
	return v, false, e.fault(key, err)
}

// keepAnswer makes an answer durable. A refusal is errBudget as well.
func keepAnswer[T any](e *engine, key string, a answer[T]) error {
	raw, err := strictyaml.Marshal(a)
	if err != nil {
		return fmt.Errorf("journal: %s: %w", key, err)
	}
	if err := e.journal.put(e.Meter, entry{Key: key, Value: raw}); err != nil {
		return err
	}
	if a.Refused != nil {
		return e.refuse(*a.Refused)
	}
	return nil
}

// refuse is errBudget. It ends the evolution unless the limits were raised since.
func (e *engine) refuse(then Limit) error {
	raised := func(then, now int) bool { return then > 0 && (now == 0 || now > then) }
	if !raised(then.Calls, e.Limit.Calls) && !raised(then.Tokens, e.Limit.Tokens) {
		e.asked.mu.Lock()
		e.asked.out = true
		e.asked.mu.Unlock()
	}
	return errBudget
}

func readAnswer[T any](e *engine, key string, raw json.RawMessage) (v T, ok bool, err error) {
	var a answer[T]
	if err := json.Unmarshal(raw, &a); err != nil {
		return v, false, fmt.Errorf("journal: %s: %w", key, err)
	}
	switch {
	case a.Refused != nil:
		return v, false, e.refuse(*a.Refused)
	case a.Fault != "":
		e.asked.mu.Lock()
		defer e.asked.mu.Unlock()
		e.asked.faults++
		e.asked.last = errors.New(a.Fault)
		return v, false, nil
	}
	return a.Value, true, nil
}

// fault notes a failed request; its error says that too many came in a row.
func (e *engine) fault(key string, err error) error {
	a := &e.asked
	a.mu.Lock()
	defer a.mu.Unlock()
	a.row++
	a.faults++
	a.last = err
	a.reached = a.reached || errors.Is(err, llm.ErrAnswer)
	if a.row >= maxFaults {
		return fmt.Errorf("%d requests failed in a row; mend what is wrong, then resume; the last, %s: %w", a.row, key, err)
	}
	if a.pending == nil {
		a.pending = map[string]error{}
	}
	a.pending[key] = err
	e.Progress.Note("a request failed, " + key + ": " + err.Error())
	return nil
}

// errUnanswered says that of several requests none was answered.
var errUnanswered = errors.New("no request was answered")

// settle makes the faults since the last one durable: what follows rests on their having no answer. Where nobody answered
// at all the endpoint is down or turns everything away, and a generation would be used up for nothing: that is an error,
// and a resumed run asks again.
func (e *engine) settle() error {
	a := &e.asked
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.pending) > 0 && !a.reached {
		return fmt.Errorf("%w; mend what is wrong, then resume; the last fault: %w", errUnanswered, a.last)
	}
	a.reached = false
	for key, err := range a.pending {
		raw, e1 := strictyaml.Marshal(answer[any]{Fault: err.Error()})
		if e1 == nil {
			e1 = e.journal.put(e.Meter, entry{Key: key, Value: raw})
		}
		if e1 != nil {
			return e1
		}
	}
	a.pending = nil
	return nil
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
