package policy

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"
)

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

type completionBody struct {
	sampling
	Model         string          `json:"model"`
	Prompt        json.RawMessage `json:"prompt"`
	Echo          bool            `json:"echo"`
	Logprobs      *int            `json:"logprobs"`
	Stream        bool            `json:"stream"`
	StreamOptions *streamOptions  `json:"stream_options"`
	ReturnIDs     bool            `json:"return_token_ids"`
	TokensAsIDs   bool            `json:"return_tokens_as_token_ids"`
	RequestID     string          `json:"request_id"`
	CacheSalt     *string         `json:"cache_salt"`
	Suffix        *string         `json:"suffix"`
}

// completion is one /v1/completions request under way.
type completion struct {
	s       *Server
	body    completionBody
	id      string
	created int64
	prompts prompts
	params  Params
	scores  [][]float32 // of prompts, when asked for
}

func (s *Server) completions(w http.ResponseWriter, r *http.Request) error {
	c := &completion{s: s, created: time.Now().Unix()}
	if err := decodeBody(r.Body, &c.body); err != nil {
		return err
	}
	if err := c.check(); err != nil {
		return err
	}
	c.id = "cmpl-" + requestID(r, c.body.RequestID)
	ctx := r.Context()
	if c.body.Echo || c.body.PromptLogprobs != nil {
		for _, ids := range c.prompts.ids {
			scores, err := s.eng.Score(ctx, ids)
			if err != nil {
				return err
			}
			c.scores = append(c.scores, scores)
		}
	}
	if c.body.Echo {
		return c.reply(w, make([]Completion, len(c.prompts.ids)))
	}
	if c.body.Stream {
		return c.stream(w, ctx)
	}
	out, err := s.eng.generateAll(ctx, c.requests(nil))
	if err != nil {
		return err
	}
	return c.reply(w, out)
}

// check validates the body; the order of checks is vLLM's where the recorded replies show it.
func (c *completion) check() (err *apiError) {
	b := &c.body
	if err = c.s.checkModel(b.Model); err != nil {
		return err
	}
	if c.prompts, err = readPrompts(b.Prompt, c.s.tok); err != nil {
		return err
	}
	if c.params, err = c.s.params(&b.sampling); err != nil {
		return err
	}
	if b.Logprobs != nil {
		if err = topLogprobs("logprobs", *b.Logprobs); err != nil {
			return err
		}
		c.params.TopLogprobs = *b.Logprobs
	}
	if err = c.unsupported(); err != nil {
		return err
	}
	for _, ids := range c.prompts.ids {
		if err = c.s.checkLength(ids, b.Echo); err != nil {
			return err
		}
	}
	c.params.MaxTokens = orElse(b.MaxTokens, 16)
	if c.params.MaxTokens < 1 && !b.Echo {
		v := strconv.Itoa(c.params.MaxTokens)
		return badParam("max_tokens", v, "max_tokens must be at least 1, got %s.", v)
	}
	return checkSalt(b.CacheSalt)
}

func (c *completion) unsupported() *apiError {
	b := &c.body
	switch {
	case b.StreamOptions != nil && !b.Stream:
		return badValue("stream_options", "Stream options can only be defined when `stream=True`.")
	case b.Suffix != nil && *b.Suffix != "":
		return badValue("suffix", "suffix is not currently supported")
	case b.Echo && orElse(b.MaxTokens, 16) != 0:
		return badValue("echo", "echo needs max_tokens 0 on this server: it scores the prompt")
	case b.Echo && (b.Stream || c.params.N > 1):
		return badValue("echo", "echo with stream or n > 1 is not supported by this server")
	case b.Stream && b.PromptLogprobs != nil:
		return badValue("prompt_logprobs", "`prompt_logprobs` are not available when `stream=True`.")
	}
	return nil
}

// params checks sampling fields against this server's limits.
func (s *Server) params(f *sampling) (Params, *apiError) {
	if len(f.Stop) > 0 && s.tok == nil {
		return Params{}, noTokenizer("stop")
	}
	return f.params(s.eng.opt.Vocab, s.eng.opt.MaxSeqs)
}

// checkLength refuses ids outside the vocabulary and prompts that leave no room for a token (or, when only
// scored, that are longer than the model).
func (s *Server) checkLength(ids []int32, score bool) *apiError {
	limit := s.eng.opt.MaxModelLen
	if n := len(ids); n > limit || (n == limit && !score) {
		return badParam("input_tokens", strconv.Itoa(n), "This model's maximum context length is %d tokens. However, your prompt contains %d input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt.", limit, n)
	}
	return s.checkPrompt(ids)
}

// requests are the engine's requests of the body, one a prompt.
func (c *completion) requests(mail *mailbox) []Request {
	list := make([]Request, len(c.prompts.ids))
	for i, ids := range c.prompts.ids {
		list[i] = Request{ID: c.id + "-" + strconv.Itoa(i), Prompt: ids, Params: c.params, mail: mail, base: i * c.params.N}
	}
	return list
}

// submitAll queues every request or none.
func (e *Engine) submitAll(list []Request) ([]*job, error) {
	jobs := make([]*job, 0, len(list))
	for _, r := range list {
		j, err := e.Submit(r)
		if err != nil {
			e.cancelAll(jobs)
			return nil, err
		}
		jobs = append(jobs, j)
	}
	return jobs, nil
}

func (e *Engine) cancelAll(jobs []*job) {
	for _, j := range jobs {
		e.cancel(j)
	}
}

// generateAll runs requests together; an error of one ends all.
func (e *Engine) generateAll(ctx context.Context, list []Request) ([]Completion, error) {
	jobs, err := e.submitAll(list)
	if err != nil {
		return nil, err
	}
	var out []Completion
	for i, j := range jobs {
		one, err := e.wait(ctx, j)
		if err != nil {
			e.cancelAll(jobs[i:])
			return nil, err
		}
		out = append(out, one...)
	}
	return out, nil
}

func (c *completion) head(b []byte) []byte {
	b = append(b, `{"id":`...)
	b = appendString(b, c.id)
	b = append(b, `,"object":"text_completion","created":`...)
	b = appendInt(b, c.created)
	b = append(b, `,"model":`...)
	b = appendString(b, c.s.opt.Model)
	return append(b, `,"choices":[`...)
}

func (c *completion) reply(w http.ResponseWriter, out []Completion) error {
	buf := buffers.Get().(*[]byte)
	defer putBuffer(buf)
	b := c.head((*buf)[:0])
	use := usage{}
	for i := range out {
		if i > 0 {
			b = append(b, ',')
		}
		b = c.choice(b, i, &out[i])
		use.add(&out[i])
	}
	for _, ids := range c.prompts.ids {
		use.prompt += len(ids)
	}
	b = append(b, `],"service_tier":null,"system_fingerprint":null,"usage":`...)
	b = use.append(b, true)
	b = append(b, `,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}`...)
	*buf = b
	writeRaw(w, http.StatusOK, b)
	return nil
}

// choice writes one element of choices.
func (c *completion) choice(b []byte, i int, out *Completion) []byte {
	prompt := i / c.params.N
	ids := c.prompts.ids[prompt]
	b = append(b, `{"index":`...)
	b = appendInt(b, i)
	b = append(b, `,"text":`...)
	if c.body.Echo {
		b = appendString(b, c.prompts.text[prompt])
	} else {
		b = appendString(b, c.s.text(out, &c.params, c.body.IncludeStop))
	}
	b = append(b, `,"logprobs":`...)
	switch {
	case c.body.Logprobs == nil:
		b = append(b, "null"...)
	case c.body.Echo:
		b = c.logprobs(b, ids, c.scores[prompt], nil, true, 0)
	default:
		b = c.logprobs(b, out.Tokens, out.Logprobs, out.Top, false, 0)
	}
	finish := out.Finish
	if c.body.Echo {
		finish = "length"
	}
	b = appendFinish(b, finish, out)
	b = append(b, `,"token_ids":`...)
	b = appendIDsIf(b, c.body.ReturnIDs, out.Tokens)
	b = append(b, `,"prompt_logprobs":`...)
	b = c.s.promptLogprobs(b, ids, c.scores, prompt)
	b = append(b, `,"prompt_token_ids":`...)
	b = appendIDsIf(b, c.body.ReturnIDs, ids)
	return append(b, `,"routed_experts":null}`...)
}

func appendIDsIf(b []byte, want bool, ids []int32) []byte {
	if !want {
		return append(b, "null"...)
	}
	return appendInts(b, ids)
}

// appendFinish writes finish_reason and stop_reason; finish "" is null.
func appendFinish(b []byte, finish string, out *Completion) []byte {
	b = append(b, `,"finish_reason":`...)
	if finish == "" {
		return append(b, `null,"stop_reason":null`...)
	}
	b = appendString(b, finish)
	b = append(b, `,"stop_reason":`...)
	switch {
	case finish == "stop" && out.StopID >= 0:
		return appendInt(b, out.StopID)
	case finish == "stop" && out.Cut >= 0:
		return appendString(b, out.StopText)
	}
	return append(b, "null"...)
}

// text is the decoded sample without what stopped it. An incomplete last character is left out, as in vLLM.
func (s *Server) text(out *Completion, p *Params, includeStop bool) string {
	if s.tok == nil {
		return ""
	}
	ids := out.Tokens
	if out.Finish == "stop" && out.Cut < 0 && !includeStop && len(ids) > 0 {
		ids = ids[:len(ids)-1] // an end of text or a stop token
	}
	st, b := s.tok.NewStream(p.SkipSpecial), make([]byte, 0, 4*len(ids))
	for _, id := range ids {
		b = append(b, st.Step(id)...)
	}
	if out.Cut >= 0 && !includeStop {
		b = b[:min(out.Cut, len(b))]
	} else if out.Cut >= 0 {
		b = b[:min(out.Cut+len(out.StopText), len(b))]
	}
	return string(b)
}

// token is how a token appears in logprobs: its text, "" for part of a character.
func (s *Server) token(id int32, asID bool) string {
	if asID || s.tok == nil {
		return "token_id:" + strconv.Itoa(int(id))
	}
	if b := s.tok.TokenBytes(id); utf8.Valid(b) {
		return string(b)
	}
	return ""
}

// logprobs writes the completions form. first says that entry 0 has no log-prob; offset is where the first
// token's text begins.
func (c *completion) logprobs(b []byte, ids []int32, lp []float32, top [][]Top, first bool, offset int) []byte {
	names := make([]string, len(ids))
	b = append(b, `{"text_offset":[`...)
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendInt(b, offset)
		names[i] = c.s.token(id, c.body.TokensAsIDs)
		offset += utf8.RuneCountInString(names[i])
	}
	b = append(b, `],"token_logprobs":[`...)
	for i := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		if i == 0 && first {
			b = append(b, "null"...)
			continue
		}
		b = appendFloat(b, lp[i])
	}
	b = append(b, `],"tokens":[`...)
	for i := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, names[i])
	}
	b = append(b, `],"top_logprobs":[`...)
	for i := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		if i == 0 && first {
			b = append(b, "null"...)
			continue
		}
		var t []Top
		if top != nil {
			t = top[i]
		}
		b = c.topMap(b, names[i], lp[i], t)
	}
	return append(b, "]}"...)
}

// topMap writes {token: log-prob}: the sampled one first, then the most likely. Tokens that look alike share a key.
func (c *completion) topMap(b []byte, name string, lp float32, top []Top) []byte {
	b = append(b, '{')
	b = appendString(b, name)
	b = append(b, ':')
	b = appendFloat(b, lp)
	seen := map[string]bool{name: true}
	for _, t := range top {
		n := c.s.token(t.ID, c.body.TokensAsIDs)
		if seen[n] {
			continue
		}
		seen[n] = true
		b = append(b, ',')
		b = appendString(b, n)
		b = append(b, ':')
		b = appendFloat(b, t.Logprob)
	}
	return append(b, '}')
}

// promptLogprobs writes [null, {"id": {...}}, ...] for a scored prompt, else null.
func (s *Server) promptLogprobs(b []byte, ids []int32, scores [][]float32, prompt int) []byte {
	if scores == nil {
		return append(b, "null"...)
	}
	b = append(b, "[null"...)
	for i := 1; i < len(ids); i++ {
		b = append(b, `,{"`...)
		b = appendInt(b, ids[i])
		b = append(b, `":{"logprob":`...)
		b = appendFloat(b, scores[prompt][i])
		b = append(b, `,"rank":null,"decoded_token":`...)
		b = appendString(b, s.token(ids[i], false))
		b = append(b, "}}"...)
	}
	return append(b, ']')
}

// usage counts the tokens of a reply.
type usage struct{ prompt, completion, cached int }

func (u *usage) add(c *Completion) {
	u.completion += len(c.Tokens)
	u.cached += c.Cached
}

func (u *usage) append(b []byte, details bool) []byte {
	b = append(b, `{"prompt_tokens":`...)
	b = appendInt(b, u.prompt)
	b = append(b, `,"total_tokens":`...)
	b = appendInt(b, u.prompt+u.completion)
	b = append(b, `,"completion_tokens":`...)
	b = appendInt(b, u.completion)
	if details {
		b = append(b, `,"prompt_tokens_details":{"cached_tokens":`...)
		b = appendInt(b, u.cached)
		b = append(b, `},"completion_tokens_details":null`...)
	}
	return append(b, '}')
}
