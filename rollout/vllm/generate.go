package vllm

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v5"

	"harness-s/rollout"
)

const (
	firstWait = 50 * time.Millisecond
	maxWait   = 2 * time.Second
	repeats   = 1 // of a request that got a wrong answer or a 500: a persistent fault must not be hammered
)

// Generate samples a continuation. A request carries its seed, so sending it again asks for the same sample and is
// safe: it is repeated, with growing waits, when a connection failed or the server was too busy (429, 503), and once
// after any other fault of the server, on another server if there is one.
func (c *Client) Generate(ctx context.Context, r rollout.Request) (rollout.Reply, error) {
	if err := c.checkRequest(r); err != nil {
		return rollout.Reply{}, err
	}
	wait := &backoff.ExponentialBackOff{InitialInterval: firstWait, MaxInterval: maxWait, Multiplier: 2, RandomizationFactor: 0.5}
	faults := 0
	op := func() (rollout.Reply, error) {
		s, err := c.pick(r.RolloutID, time.Now())
		if err != nil {
			return rollout.Reply{}, backoff.Permanent(err)
		}
		reply, err := c.once(ctx, s, r, faults)
		switch {
		case err == nil:
			return reply, nil
		case ctx.Err() != nil, !errors.Is(err, rollout.ErrServer):
			return rollout.Reply{}, backoff.Permanent(err)
		}
		s.downUntil.Store(time.Now().Add(downFor).UnixNano())
		if !transient(err) {
			if faults++; faults > repeats {
				return rollout.Reply{}, backoff.Permanent(err)
			}
		}
		return rollout.Reply{}, err
	}
	return backoff.Retry(ctx, op, backoff.WithBackOff(wait), backoff.WithMaxTries(uint(c.opt.Attempts)), backoff.WithMaxElapsedTime(0))
}

// transient says that the server did not take the request, or that the connection broke.
func transient(err error) bool {
	var lost *lostError
	var status *StatusError
	return errors.As(err, &lost) ||
		errors.As(err, &status) && (status.Status == http.StatusServiceUnavailable || status.Status == http.StatusTooManyRequests)
}

func (c *Client) checkRequest(r rollout.Request) error {
	switch {
	case len(r.Prompt) == 0:
		return errors.New("vllm client: empty prompt")
	case r.MaxTokens < 1:
		return errors.New("vllm client: max tokens must be at least 1")
	case !(r.Temperature >= 0):
		return errors.New("vllm client: temperature must not be negative")
	}
	return nil
}

// once sends the request to one server in the dialect it speaks.
func (c *Client) once(ctx context.Context, s *server, r rollout.Request, fault int) (rollout.Reply, error) {
	s.inFlight.Add(1)
	defer s.inFlight.Add(-1)
	before := s.weights.Load()
	salt := "v" + strconv.FormatInt(before, 10)
	if fault > 0 { // a poisoned prefix cache must not answer again
		salt += "-" + strconv.FormatUint(c.salt.Add(1), 10)
	}
	var out *sampled
	var err error
	if !s.completions.Load() {
		out, err = c.viaGenerate(ctx, s, r, salt)
		if absent(err) {
			s.completions.Store(true)
		}
	}
	if s.completions.Load() {
		out, err = c.viaCompletions(ctx, s, r, salt)
	}
	if err != nil {
		return rollout.Reply{}, err
	}
	if err := out.check(c.opt.Model, r); err != nil {
		return rollout.Reply{}, serverError("%s: %w", s.base, err)
	}
	version := before // a version set while the request ran sampled only its end: the older one counts
	if v, ok := out.version(); ok {
		version = v
	}
	return rollout.Reply{Tokens: out.tokens, Logprobs: out.logprobs, FinishReason: out.finish,
		PolicyVersion: int(max(version, 0)), CachedTokens: out.cached}, nil
}

// absent says that a server does not have /inference/v1/generate, as opposed to not having the model.
func absent(err error) bool {
	var e *StatusError
	if !errors.As(err, &e) {
		return false
	}
	switch e.Status {
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return e.Param != "model"
	case http.StatusForbidden:
		return true
	}
	return false
}
