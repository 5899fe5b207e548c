package policy

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
)

// PauseMode says what Pause does with requests in flight.
type PauseMode string

const (
	PauseAbort PauseMode = "abort" // they end with what they have, finish reason abort
	PauseWait  PauseMode = "wait"  // they run to their end first
	PauseKeep  PauseMode = "keep"  // they freeze and go on after Resume
)

// Pause stops the engine; requests that arrive meanwhile wait for Resume. With PauseWait it returns when all that
// had arrived before has ended.
func (e *Engine) Pause(ctx context.Context, mode PauseMode) error {
	drained := make(chan error, 1)
	err := e.do(ctx, func() error {
		e.hold = true
		e.paused.Store(true)
		switch mode {
		case PauseAbort:
			held := e.held // they came after the pause: they wait for Resume
			e.held = nil
			e.abort(func(*sample) bool { return true })
			e.held = held
			e.frozen = true
		case PauseKeep:
			e.frozen = true
		}
		if e.frozen {
			drained <- nil
		} else {
			e.drained = append(e.drained, drained)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return await(ctx, drained)
}

// Abort ends requests by id, or all of them when ids is nil; each keeps what it has, finish reason abort.
func (e *Engine) Abort(ctx context.Context, ids []string) error {
	return e.do(ctx, func() error {
		e.abort(func(s *sample) bool { return ids == nil || slices.Contains(ids, s.job.id) })
		return nil
	})
}

// finishDrain completes a Pause(PauseWait) once nothing is left.
func (e *Engine) finishDrain() {
	if !e.hold || e.frozen || len(e.running)+len(e.waiting) > 0 {
		return
	}
	e.frozen = true
	e.releaseDrained(nil)
}

func (e *Engine) releaseDrained(err error) {
	for _, d := range e.drained {
		d <- err
	}
	e.drained = nil
}

// Resume undoes Pause; it does nothing when not paused.
func (e *Engine) Resume(ctx context.Context) error {
	return e.do(ctx, func() error {
		e.hold, e.frozen = false, false
		e.paused.Store(false)
		e.waiting = append(e.waiting, e.held...)
		e.held = nil
		e.releaseDrained(errors.New("resumed before the requests in flight had ended"))
		return nil
	})
}

// Paused says that Pause has been called.
func (e *Engine) Paused() bool { return e.paused.Load() }

// ResetPrefixCache forgets kept prefixes. With running, sequences in flight are computed anew; without, false is
// returned and nothing done while there are any.
func (e *Engine) ResetPrefixCache(ctx context.Context, running bool) (bool, error) {
	done := false // read only after do has returned without error: the closure may outlive a canceled ctx
	err := e.do(ctx, func() error {
		if len(e.running) > 0 && !running {
			return nil
		}
		e.forget()
		done = true
		return nil
	})
	return err == nil && done, err
}

// forget drops every cached state; what runs is queued again with its context.
func (e *Engine) forget() {
	running := e.running
	e.running = nil
	e.requeue(running)
	e.dec.Reset()
}

// ReloadWeights loads a Hugging Face folder between two steps. Sequences in flight go on under the new weights,
// their states computed anew. After an error the old weights serve on.
func (e *Engine) ReloadWeights(ctx context.Context, dir string) error {
	if e.opt.Reload == nil {
		return fmt.Errorf("reload_weights: %w", ErrUnsupported)
	}
	return e.do(ctx, func() error {
		if err := e.opt.Reload(dir); err != nil {
			return fmt.Errorf("reload_weights: %w; the old weights serve on", err)
		}
		e.forget()
		return nil
	})
}

// SetVersion names the weights from the next step on.
func (e *Engine) SetVersion(ctx context.Context, version string) error {
	return e.do(ctx, func() error {
		e.version.Store(&version)
		return nil
	})
}

// Version is the name of the current weights, "default" at first.
func (e *Engine) Version() string { return *e.version.Load() }

// Score is the log-prob of each id given the ones before it, at temperature 1; entry 0 is meaningless. It runs between
// two steps, also while paused, so that new weights can be probed before they serve.
func (e *Engine) Score(ctx context.Context, ids []int32) ([]float32, error) {
	if e.opt.Score == nil {
		return nil, fmt.Errorf("scoring a prompt: %w", ErrUnsupported)
	}
	var got []float32
	err := e.do(ctx, func() error {
		var err error
		got, err = e.opt.Score(ids)
		return err
	})
	if err != nil {
		return nil, err
	}
	for i, v := range got[1:] {
		if f := float64(v); math.IsNaN(f) || math.IsInf(f, 0) {
			return nil, fmt.Errorf("scored token %d has log-prob %v: the weights or the context give no distribution", i+1, v)
		}
	}
	return got, nil
}
