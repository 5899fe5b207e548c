package vllm

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"harness-s/rollout"
)

// sampled is one reply, brought to one form whatever the dialect.
type sampled struct {
	model    string
	prompt   []int32 // as echoed, nil when it was not
	tokens   []int32
	ids      []int32 // the ids the log-probs are labelled with, nil when labelled by text
	logprobs []float32
	finish   string
	cached   int
	spans    []span
}

// span is a half-open range of output tokens sampled by one weight version.
type span struct {
	Version    string `json:"version"`
	Start, End int
}

// check says what is wrong with a reply to r, if anything.
func (s *sampled) check(model string, r rollout.Request) error {
	switch {
	case s.model != "" && s.model != model:
		return fmt.Errorf("answered by model %q, not %q", s.model, model)
	case s.prompt != nil && !slices.Equal(s.prompt, r.Prompt):
		return fmt.Errorf("the prompt of %d ids came back as %d other ids", len(r.Prompt), len(s.prompt))
	case s.finish != "stop" && s.finish != "length":
		return fmt.Errorf("finish reason %q: the sample is not whole", s.finish)
	case len(s.tokens) == 0:
		return fmt.Errorf("no tokens")
	case len(s.tokens) > r.MaxTokens:
		return fmt.Errorf("%d tokens, more than the %d asked for", len(s.tokens), r.MaxTokens)
	case len(s.logprobs) != len(s.tokens):
		return fmt.Errorf("%d log-probs for %d tokens", len(s.logprobs), len(s.tokens))
	case s.ids != nil && !slices.Equal(s.ids, s.tokens):
		return fmt.Errorf("the log-probs belong to other tokens")
	}
	for i, lp := range s.logprobs {
		if err := checkLogprob(lp); err != nil {
			return fmt.Errorf("token %d: %w", i, err)
		}
		if s.tokens[i] < 0 {
			return fmt.Errorf("token %d: id %d", i, s.tokens[i])
		}
	}
	return nil
}

// minLogprob stands for minus infinity on the wire.
const minLogprob = -9999

func checkLogprob(lp float32) error {
	if math.IsNaN(float64(lp)) || lp > 0 || lp <= minLogprob {
		return fmt.Errorf("log-prob %v is not one", lp)
	}
	return nil
}

// version is the oldest weight version among the spans, when they are numbers.
func (s *sampled) version() (int64, bool) {
	oldest, ok := int64(math.MaxInt64), false
	for _, sp := range s.spans {
		v, err := strconv.ParseInt(sp.Version, 10, 64)
		if err != nil {
			return 0, false
		}
		oldest, ok = min(oldest, v), true
	}
	return oldest, ok
}

// sampling are the fields of both dialects. Every one is always sent: what is left out, a server fills in from the
// model's generation_config.json.
type sampling struct {
	N                 int      `json:"n"`
	Temperature       float64  `json:"temperature"`
	TopP              float64  `json:"top_p"`
	TopK              int      `json:"top_k"`
	MinP              float64  `json:"min_p"`
	PresencePenalty   float64  `json:"presence_penalty"`
	FrequencyPenalty  float64  `json:"frequency_penalty"`
	RepetitionPenalty float64  `json:"repetition_penalty"`
	Seed              int64    `json:"seed"`
	MaxTokens         int      `json:"max_tokens"`
	MinTokens         int      `json:"min_tokens"`
	Stop              []string `json:"stop"`
	StopTokenIDs      []int32  `json:"stop_token_ids"`
	IgnoreEOS         bool     `json:"ignore_eos"`
	Logprobs          int      `json:"logprobs"`
	SkipSpecial       bool     `json:"skip_special_tokens"`
}

func newSampling(r rollout.Request) sampling {
	stop := r.Stop
	if stop == nil {
		stop = []int32{}
	}
	return sampling{N: 1, Temperature: r.Temperature, TopP: 1, TopK: -1, RepetitionPenalty: 1, Seed: r.Seed,
		MaxTokens: r.MaxTokens, Stop: []string{}, StopTokenIDs: stop}
}

type generateRequest struct {
	Model     string   `json:"model"`
	TokenIDs  []int32  `json:"token_ids"`
	Sampling  sampling `json:"sampling_params"`
	ReturnIDs bool     `json:"return_token_ids"`
	RequestID string   `json:"request_id,omitempty"`
	CacheSalt string   `json:"cache_salt"`
}

type generateReply struct {
	Model     string  `json:"model"`
	PromptIDs []int32 `json:"prompt_token_ids"`
	Usage     *usage  `json:"usage"`
	Choices   []struct {
		TokenIDs     []int32 `json:"token_ids"`
		FinishReason string  `json:"finish_reason"`
		Versions     []span  `json:"weight_versions"`
		Logprobs     *struct {
			Content []tokenLogprob `json:"content"`
		} `json:"logprobs"`
	} `json:"choices"`
}

// tokenLogprob has the id in token_id (new) or as the text "token_id:151" (old).
type tokenLogprob struct {
	ID      *int32   `json:"token_id"`
	Token   string   `json:"token"`
	Logprob *float32 `json:"logprob"`
}

type usage struct {
	Details *struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

func (u *usage) cached() int {
	if u == nil || u.Details == nil {
		return 0
	}
	return u.Details.Cached
}

// post sends a generation and decodes the reply.
func (c *Client) post(ctx context.Context, s *server, path string, body, out any) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("vllm client: %w", err)
	}
	reply, err := c.roundTrip(ctx, c.http, http.MethodPost, s.base+path, raw, nil)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(reply, out); err != nil {
		return serverError("POST %s%s: the answer is not the JSON expected: %w", s.base, path, err)
	}
	return nil
}

func (c *Client) viaGenerate(ctx context.Context, s *server, r rollout.Request, salt string) (*sampled, error) {
	var reply generateReply
	err := c.post(ctx, s, "/inference/v1/generate", generateRequest{Model: c.opt.Model, TokenIDs: r.Prompt,
		Sampling: newSampling(r), ReturnIDs: true, CacheSalt: salt}, &reply)
	if err != nil {
		return nil, err
	}
	if len(reply.Choices) != 1 {
		return nil, serverError("%s: %d choices, not 1", s.base, len(reply.Choices))
	}
	ch := &reply.Choices[0]
	out := &sampled{model: reply.Model, prompt: reply.PromptIDs, tokens: ch.TokenIDs, finish: ch.FinishReason,
		cached: reply.Usage.cached(), spans: ch.Versions}
	if ch.Logprobs == nil {
		return out, nil // check finds the log-probs missing
	}
	for _, t := range ch.Logprobs.Content {
		id, ok := t.id()
		if !ok || t.Logprob == nil {
			return nil, serverError("%s: a log-prob without its token or value", s.base)
		}
		out.ids, out.logprobs = append(out.ids, id), append(out.logprobs, *t.Logprob)
	}
	return out, nil
}

func (t *tokenLogprob) id() (int32, bool) {
	if t.ID != nil {
		return *t.ID, true
	}
	text, ok := strings.CutPrefix(t.Token, "token_id:")
	v, err := strconv.ParseInt(text, 10, 32)
	return int32(v), ok && err == nil
}

type completionRequest struct {
	Model     string  `json:"model"`
	Prompt    []int32 `json:"prompt"`
	Echo      bool    `json:"echo"`
	ReturnIDs bool    `json:"return_token_ids"`
	CacheSalt string  `json:"cache_salt"`
	sampling
}

type completionReply struct {
	Model   string `json:"model"`
	Usage   *usage `json:"usage"`
	Choices []struct {
		TokenIDs     []int32 `json:"token_ids"`
		PromptIDs    []int32 `json:"prompt_token_ids"`
		FinishReason string  `json:"finish_reason"`
		Logprobs     *struct {
			TokenLogprobs []*float32 `json:"token_logprobs"`
		} `json:"logprobs"`
	} `json:"choices"`
}

// logprobs are the values; a null counts as NaN, which no check lets through.
func (r *completionReply) logprobs() []float32 {
	if r.Choices[0].Logprobs == nil {
		return nil
	}
	out := make([]float32, 0, len(r.Choices[0].Logprobs.TokenLogprobs))
	for _, p := range r.Choices[0].Logprobs.TokenLogprobs {
		if p == nil {
			out = append(out, float32(math.NaN()))
		} else {
			out = append(out, *p)
		}
	}
	return out
}

func (c *Client) viaCompletions(ctx context.Context, s *server, r rollout.Request, salt string) (*sampled, error) {
	var reply completionReply
	err := c.post(ctx, s, "/v1/completions", completionRequest{Model: c.opt.Model, Prompt: r.Prompt, ReturnIDs: true,
		CacheSalt: salt, sampling: newSampling(r)}, &reply)
	if err != nil {
		return nil, err
	}
	if len(reply.Choices) != 1 {
		return nil, serverError("%s: %d choices, not 1", s.base, len(reply.Choices))
	}
	ch := &reply.Choices[0]
	if ch.PromptIDs == nil {
		return nil, serverError("%s: no token ids in the answer: the server is too old to return them", s.base)
	}
	return &sampled{model: reply.Model, prompt: ch.PromptIDs, tokens: ch.TokenIDs, logprobs: reply.logprobs(),
		finish: ch.FinishReason, cached: reply.Usage.cached()}, nil
}
