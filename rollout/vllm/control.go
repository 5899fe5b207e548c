package vllm

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"harness-s/rollout"
)

// Health asks every server whether its engine lives.
func (c *Client) Health(ctx context.Context) error { return c.each(ctx, c.health) }

func (c *Client) health(ctx context.Context, s *server) error {
	return c.control(ctx, s, "GET", "/health", nil, nil)
}

// ModelInfo is one entry of /v1/models.
type ModelInfo struct {
	ID          string `json:"id"`
	MaxModelLen int    `json:"max_model_len"`
}

// Models lists what the first server serves.
func (c *Client) Models(ctx context.Context) ([]ModelInfo, error) { return c.models(ctx, c.servers[0]) }

func (c *Client) models(ctx context.Context, s *server) ([]ModelInfo, error) {
	var list struct{ Data []ModelInfo }
	err := c.control(ctx, s, "GET", "/v1/models", nil, &list)
	return list.Data, err
}

// Pause stops every server; mode is abort, wait or keep.
func (c *Client) Pause(ctx context.Context, mode string) error {
	return c.each(ctx, func(ctx context.Context, s *server) error { return c.pause(ctx, s, mode) })
}

func (c *Client) pause(ctx context.Context, s *server, mode string) error {
	return c.control(ctx, s, "POST", "/pause?mode="+url.QueryEscape(mode), nil, nil)
}

// Resume undoes Pause on every server.
func (c *Client) Resume(ctx context.Context) error { return c.each(ctx, c.resume) }

func (c *Client) resume(ctx context.Context, s *server) error {
	return c.control(ctx, s, "POST", "/resume", nil, nil)
}

// ResetPrefixCache drops kept prefixes on every server, running requests included.
func (c *Client) ResetPrefixCache(ctx context.Context) error {
	return c.each(ctx, func(ctx context.Context, s *server) error {
		return c.control(ctx, s, "POST", "/reset_prefix_cache?reset_running_requests=true", nil, nil)
	})
}

// WeightVersion is the version every server reports; an error when they differ.
func (c *Client) WeightVersion(ctx context.Context) (string, error) {
	got := make([]string, len(c.servers))
	err := c.each(ctx, func(ctx context.Context, s *server) error {
		var v struct {
			Version string `json:"weight_version"`
		}
		err := c.control(ctx, s, "GET", "/weight_info", nil, &v)
		got[slices.Index(c.servers, s)] = v.Version
		return err
	})
	if err != nil {
		return "", err
	}
	for i, v := range got {
		if v != got[0] {
			return "", serverError("weight versions differ: %s has %q, %s has %q", c.servers[0].base, got[0], c.servers[i].base, v)
		}
	}
	return got[0], nil
}

// Sync makes every server load the Hugging Face folder dir as weight version version: pause, reload, name the
// version, resume. dir must be readable by the servers, and new for each version. A server whose reload failed is
// resumed only if it is known to have good weights again; otherwise it stays paused and is not used any more.
func (c *Client) Sync(ctx context.Context, dir string, version int) error {
	c.syncing.Lock()
	defer c.syncing.Unlock()
	errs := make([]error, len(c.servers))
	c.each(ctx, func(ctx context.Context, s *server) error {
		errs[slices.Index(c.servers, s)] = c.syncOne(ctx, s, dir, version)
		return nil // one server's failure must not cancel the others half-way
	})
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("sync of weights %d from %s: %w", version, dir, err)
	}
	c.good = dir
	return nil
}

const resumeTimeout = 30 * time.Second

func (c *Client) syncOne(ctx context.Context, s *server, dir string, version int) (err error) {
	usable := !s.broken.Load()
	defer func() {
		if !usable {
			s.broken.Store(true)
			return
		}
		// Even when ctx has ended: a server left paused would hold every request for ever.
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), resumeTimeout)
		defer cancel()
		err = errors.Join(err, c.resume(late, s))
	}()
	if err := c.pause(ctx, s, c.opt.PauseMode); err != nil {
		return err
	}
	usable = false // until the weights are known to be good
	if err := c.reload(ctx, s, dir); err != nil {
		usable = c.recover(ctx, s, err)
		return err
	}
	usable = true
	s.broken.Store(false)
	if err := c.setVersion(ctx, s, version); err != nil {
		return err
	}
	// The salt of later requests already parts them from old prefixes; this frees their room.
	return c.control(ctx, s, "POST", "/reset_prefix_cache?reset_running_requests=true", nil, nil)
}

// recover says whether a server has good weights after a failed reload: it said so itself, or it could load the
// last good folder again.
func (c *Client) recover(ctx context.Context, s *server, cause error) bool {
	var status *StatusError
	if errors.As(cause, &status) && status.intact {
		return true
	}
	if c.good == "" {
		return false
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.opt.AdminTimeout)
	defer cancel()
	return c.reload(late, s, c.good) == nil
}

func (c *Client) reload(ctx context.Context, s *server, dir string) error {
	return c.control(ctx, s, "POST", "/collective_rpc",
		map[string]any{"method": "reload_weights", "kwargs": map[string]string{"weights_path": dir}}, nil)
}

func (c *Client) setVersion(ctx context.Context, s *server, version int) error {
	err := c.control(ctx, s, "POST", "/update_weight_version", map[string]string{"new_version": strconv.Itoa(version)}, nil)
	var status *StatusError
	if errors.As(err, &status) && status.Status == 404 {
		err = nil // older servers have no versions; the client's own count serves
	}
	if err == nil {
		s.weights.Store(int64(version))
	}
	return err
}

// ReloadWeights is Sync without the pause and without its care for what a failed reload leaves.
func (c *Client) ReloadWeights(ctx context.Context, dir string, version int) error {
	return c.each(ctx, func(ctx context.Context, s *server) error {
		if err := c.reload(ctx, s, dir); err != nil {
			return err
		}
		return c.setVersion(ctx, s, version)
	})
}

// Score is the log-prob of each token given those before it, at temperature 1; entry 0 is 0. Every server is
// asked, and the first one's answer returned; it is for probing weights after a Sync.
func (c *Client) Score(ctx context.Context, tokens []int32) ([]float32, error) {
	all, err := c.ScoreEach(ctx, tokens)
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// ScoreEach is Score on every server, in the order of Options.URLs.
func (c *Client) ScoreEach(ctx context.Context, tokens []int32) ([][]float32, error) {
	out := make([][]float32, len(c.servers))
	err := c.each(ctx, func(ctx context.Context, s *server) (err error) {
		out[slices.Index(c.servers, s)], err = c.scoreOn(ctx, s, tokens)
		return err
	})
	return out, err
}

// scoreOn echoes the prompt with its log-probs: both vLLM and the embedded server do. The salt is new each time,
// because vLLM's prompt log-probs may be stale on a cached prefix.
func (c *Client) scoreOn(ctx context.Context, s *server, tokens []int32) ([]float32, error) {
	if len(tokens) == 0 {
		return nil, errors.New("vllm client: nothing to score")
	}
	p := newSampling(rollout.Request{Temperature: 1})
	var reply completionReply
	err := c.post(ctx, s, "/v1/completions", completionRequest{Model: c.opt.Model, Prompt: tokens, Echo: true, ReturnIDs: true,
		CacheSalt: "score-" + strconv.FormatInt(time.Now().UnixNano(), 36) + "-" + strconv.FormatUint(c.salt.Add(1), 10), sampling: p}, &reply)
	if err != nil {
		return nil, err
	}
	if len(reply.Choices) != 1 || !slices.Equal(reply.Choices[0].PromptIDs, tokens) {
		return nil, serverError("%s: the scored prompt did not come back", s.base)
	}
	lp := reply.logprobs()
	if len(lp) != len(tokens) {
		return nil, serverError("%s: %d log-probs for %d scored tokens", s.base, len(lp), len(tokens))
	}
	lp[0] = 0
	for i, v := range lp {
		if err := checkLogprob(v); err != nil {
			return nil, serverError("%s: scored token %d: %w", s.base, i, err)
		}
	}
	return lp, nil
}
