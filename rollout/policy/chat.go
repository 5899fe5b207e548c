package policy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"harness-s/model/chat"
)

type chatBody struct {
	Model    string        `json:"model"`
	Messages []chatMessage `json:"messages"`
	Tools    []chatTool    `json:"tools"`
	Template struct {
		Thinking *bool `json:"enable_thinking"`
	} `json:"chat_template_kwargs"`
	ToolChoice json.RawMessage `json:"tool_choice"`
}

type chatMessage struct {
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	Reasoning string          `json:"reasoning"`
	OldReason string          `json:"reasoning_content"`
	Calls     []struct {
		Function chatFunction `json:"function"`
	} `json:"tool_calls"`
}

type chatFunction struct {
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
}

type chatTool struct {
	Type     string    `json:"type"`
	Function chat.Tool `json:"function"`
}

type chatRequest struct {
	sampling
	chatBody
	MaxCompletion *int           `json:"max_completion_tokens"`
	Logprobs      bool           `json:"logprobs"`
	TopLogprobs   int            `json:"top_logprobs"`
	Stream        bool           `json:"stream"`
	StreamOptions *streamOptions `json:"stream_options"`
	ReturnIDs     bool           `json:"return_token_ids"`
	RequestID     string         `json:"request_id"`
	CacheSalt     *string        `json:"cache_salt"`
}

// chatting is one /v1/chat/completions request under way.
type chatting struct {
	s       *Server
	body    chatRequest
	req     Request
	format  *chat.Renderer
	tools   []chat.Tool
	created int64
}

// chat answers a conversation. It is for people and tools that want text: trainers send token ids.
func (s *Server) chat(w http.ResponseWriter, r *http.Request) error {
	c := &chatting{s: s, created: time.Now().Unix()}
	if err := decodeBody(r.Body, &c.body); err != nil {
		return err
	}
	if err := c.prepare(); err != nil {
		return err
	}
	c.req.ID = "chatcmpl-" + requestID(r, c.body.RequestID)
	if c.body.Stream {
		return c.stream(w, r.Context())
	}
	out, err := s.eng.Generate(r.Context(), c.req)
	if err != nil {
		return err
	}
	return c.reply(w, out)
}

// prepare validates the body and renders the prompt.
func (c *chatting) prepare() (err *apiError) {
	b := &c.body
	if err = c.s.checkModel(b.Model); err != nil {
		return err
	}
	if c.req.Prompt, c.format, err = c.s.render(&b.chatBody); err != nil {
		return err
	}
	for _, t := range b.Tools {
		c.tools = append(c.tools, t.Function)
	}
	if err = c.s.checkLength(c.req.Prompt, false); err != nil {
		return err
	}
	if c.req.Params, err = c.s.params(&b.sampling); err != nil {
		return err
	}
	if err = topLogprobs("top_logprobs", b.TopLogprobs); err != nil {
		return err
	}
	if b.PromptLogprobs != nil {
		return unsupported("prompt_logprobs")
	}
	p := &c.req.Params
	p.TopLogprobs = b.TopLogprobs
	p.StopIDs = append(p.StopIDs, c.format.Stop()...)
	p.MaxTokens = orElse(b.MaxCompletion, orElse(b.MaxTokens, c.s.eng.opt.MaxModelLen))
	if p.MaxTokens < 1 {
		return badParam("max_tokens", fmt.Sprint(p.MaxTokens), "max_tokens must be at least 1, got %d.", p.MaxTokens)
	}
	return checkSalt(b.CacheSalt)
}

// render is the prompt's ids, up to where the assistant's turn begins.
func (s *Server) render(b *chatBody) ([]int32, *chat.Renderer, *apiError) {
	if len(b.Messages) == 0 {
		return nil, nil, validation("missing", "body.messages", "Field required", "")
	}
	msgs := make([]chat.Message, len(b.Messages))
	for i := range b.Messages {
		var err error
		if msgs[i], err = b.Messages[i].message(); err != nil {
			return nil, nil, badShape(fmt.Sprintf("body.messages.%d", i), fmt.Sprintf("message %d: %v", i, err))
		}
	}
	var tools []chat.Tool
	if string(b.ToolChoice) != `"none"` {
		for _, t := range b.Tools {
			tools = append(tools, t.Function)
		}
	}
	if len(b.ToolChoice) > 0 && b.ToolChoice[0] == '{' || string(b.ToolChoice) == `"required"` {
		return nil, nil, badValue("tool_choice", "tool_choice must be auto or none on this server: calls are not forced")
	}
	format, thinking := s.plain, orElse(b.Template.Thinking, s.opt.Thinking)
	if thinking {
		format = s.thinking
	}
	ids, err := chat.RenderIDs(s.tok, msgs, tools, chat.RenderOptions{Generate: true, Thinking: thinking})
	if err != nil {
		return nil, nil, badValue("messages", "%v", err)
	}
	return ids, format, nil
}

func (m *chatMessage) message() (chat.Message, error) {
	out := chat.Message{Role: m.Role, Reasoning: m.Reasoning + m.OldReason}
	switch m.Role {
	case "system", "user", "assistant", "tool":
	case "developer":
		out.Role = "system"
	default:
		return out, fmt.Errorf("role %q is not system, user, assistant or tool", m.Role)
	}
	var parts []struct{ Type, Text string }
	switch {
	case len(m.Content) == 0 || string(m.Content) == "null":
	case json.Unmarshal(m.Content, &out.Content) == nil:
	case json.Unmarshal(m.Content, &parts) == nil:
		for _, p := range parts {
			if p.Type != "text" {
				return out, fmt.Errorf("content of type %q; this server takes text", p.Type)
			}
			out.Content += p.Text
		}
	default:
		return out, fmt.Errorf("content must be text or a list of text parts")
	}
	for _, c := range m.Calls {
		args, err := orderedArgs(c.Function.Arguments)
		if err != nil {
			return out, fmt.Errorf("arguments of %s: %w", c.Function.Name, err)
		}
		out.Calls = append(out.Calls, chat.ToolCall{Name: c.Function.Name, Args: args})
	}
	return out, nil
}

// orderedArgs reads a JSON object, or a string that holds one, keeping the order of its keys.
func orderedArgs(raw json.RawMessage) ([]chat.Arg, error) {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		raw = json.RawMessage(text)
	}
	if len(bytes.TrimSpace(raw)) == 0 || string(raw) == "null" {
		return nil, nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, fmt.Errorf("not a JSON object")
	}
	var args []chat.Arg
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, err
		}
		a := chat.Arg{Key: key.(string)} // inside an object, tokens before values are keys
		if err := dec.Decode(&a.Value); err != nil {
			return nil, err
		}
		args = append(args, a)
	}
	_, err := dec.Token()
	return args, err
}

// callJSON is a call in OpenAI's form.
type callJSON struct {
	Index    *int   `json:"index,omitempty"`
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// messageJSON is what the policy said, parsed.
type messageJSON struct {
	Role      string     `json:"role,omitempty"`
	Content   *string    `json:"content"`
	Reasoning *string    `json:"reasoning"`
	Calls     []callJSON `json:"tool_calls,omitempty"`
}

// message parses a finished sample. A call that cannot be read stays text.
func (c *chatting) message(i int, out *Completion) messageJSON {
	text := c.s.text(out, &Params{SkipSpecial: true}, c.body.IncludeStop)
	msg := messageJSON{Role: "assistant"}
	parsed := c.format.Parse(text, c.tools)
	if len(parsed.Errors) > 0 || len(parsed.Calls) > 0 && len(c.tools) == 0 {
		msg.Content = &text
		return msg
	}
	if parsed.Content != "" || len(parsed.Calls) == 0 {
		msg.Content = &parsed.Content
	}
	if parsed.Reasoning != "" {
		msg.Reasoning = &parsed.Reasoning
	}
	for k, call := range parsed.Calls {
		j := callJSON{ID: fmt.Sprintf("%s-tool-%d-%d", c.req.ID, i, k), Type: "function"}
		j.Function.Name, j.Function.Arguments = call.Name, argsJSON(call.Args)
		msg.Calls = append(msg.Calls, j)
	}
	return msg
}

func argsJSON(args []chat.Arg) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, a := range args {
		if i > 0 {
			b.WriteString(", ")
		}
		key, _ := json.Marshal(a.Key)
		b.Write(key)
		b.WriteString(": ")
		b.Write(a.Value)
	}
	b.WriteByte('}')
	return b.String()
}

func (m *messageJSON) finish(reason string) string {
	if reason == "stop" && len(m.Calls) > 0 {
		return "tool_calls"
	}
	return reason
}

type chatTop struct {
	Token   string  `json:"token"`
	Logprob float32 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
}

type chatLogprob struct {
	chatTop
	Top []chatTop `json:"top_logprobs"`
}

func (s *Server) chatTop(id int32, lp float32) chatTop {
	t := chatTop{Token: s.token(id, false), Logprob: lp, Bytes: []int{}}
	for _, b := range s.tok.TokenBytes(id) {
		t.Bytes = append(t.Bytes, int(b))
	}
	return t
}

// logprobs is null unless asked for.
func (c *chatting) logprobs(ids []int32, lp []float32, top [][]Top) any {
	if !c.body.Logprobs {
		return nil
	}
	list := make([]chatLogprob, len(ids))
	for i, id := range ids {
		list[i] = chatLogprob{chatTop: c.s.chatTop(id, lp[i]), Top: []chatTop{}}
		if i < len(top) {
			for _, t := range top[i] {
				list[i].Top = append(list[i].Top, c.s.chatTop(t.ID, t.Logprob))
			}
		}
	}
	return map[string]any{"content": list}
}

func (c *chatting) stopReason(out *Completion) any {
	switch {
	case out.Finish == "stop" && out.Cut >= 0:
		return out.StopText
	case out.Finish == "stop" && out.StopID >= 0:
		for _, id := range c.format.Stop() {
			if id == out.StopID {
				return nil // the turn's own end
			}
		}
		return out.StopID
	}
	return nil
}

func (c *chatting) reply(w http.ResponseWriter, out []Completion) error {
	use := usage{prompt: len(c.req.Prompt)}
	choices := make([]map[string]any, len(out))
	for i := range out {
		o := &out[i]
		use.add(o)
		msg := c.message(i, o)
		choices[i] = map[string]any{"index": i, "message": msg, "logprobs": c.logprobs(o.Tokens, o.Logprobs, o.Top),
			"finish_reason": msg.finish(o.Finish), "stop_reason": c.stopReason(o), "token_ids": nil, "routed_experts": nil}
		if c.body.ReturnIDs {
			choices[i]["token_ids"] = o.Tokens
		}
	}
	reply := c.envelope("chat.completion", choices)
	reply["usage"] = json.RawMessage(use.append(nil, true))
	for _, k := range []string{"prompt_logprobs", "prompt_token_ids", "prompt_text", "service_tier", "kv_transfer_params", "ec_transfer_params", "metrics"} {
		reply[k] = nil
	}
	if c.body.ReturnIDs {
		reply["prompt_token_ids"] = c.req.Prompt
	}
	return writeJSON(w, reply)
}

func (c *chatting) envelope(object string, choices any) map[string]any {
	return map[string]any{"id": c.req.ID, "object": object, "created": c.created, "model": c.s.opt.Model,
		"choices": choices, "system_fingerprint": nil}
}

// stream sends plain text as it comes; where calls or thinking may have to be parsed, each sample's message is sent
// when it is whole.
func (c *chatting) stream(w http.ResponseWriter, ctx context.Context) error {
	c.req.mail = newMailbox()
	jobs, err := c.s.eng.submitAll([]Request{c.req})
	if err != nil {
		return err
	}
	out, err := newSSE(w)
	if err != nil {
		c.s.eng.cancelAll(jobs)
		return err
	}
	n := c.req.Params.N
	tails := make([]*textTail, n)
	for i := range tails {
		tails[i] = c.s.newTextTail(&c.req.Params)
		first := c.envelope("chat.completion.chunk", []any{map[string]any{"index": i,
			"delta": map[string]string{"role": "assistant", "content": ""}, "logprobs": nil, "finish_reason": nil}})
		if c.body.ReturnIDs {
			first["prompt_token_ids"] = c.req.Prompt
		}
		out.json(first)
	}
	use, live := usage{prompt: len(c.req.Prompt)}, len(c.tools) == 0 && c.format == c.s.plain
	err = c.s.eng.follow(ctx, jobs, c.req.mail, n, func(i int, d *delta) {
		if choice := c.chunk(i, tails[i], d, live); choice != nil {
			out.json(c.envelope("chat.completion.chunk", []any{choice}))
			out.flush.Flush()
		}
		if d.done != nil {
			use.add(d.done)
		}
	})
	if err != nil {
		out.fail(err)
	} else if c.body.StreamOptions != nil && c.body.StreamOptions.IncludeUsage {
		last := c.envelope("chat.completion.chunk", []any{})
		last["usage"] = json.RawMessage(use.append(nil, false))
		out.json(last)
	}
	out.done()
	return nil
}

// json sends a value as an event.
func (s *sse) json(v any) {
	raw, err := json.Marshal(v)
	if err != nil {
		s.fail(err)
		return
	}
	s.event(func(b []byte) []byte { return append(b, raw...) })
}

// chunk is one streamed choice, nil when there is nothing to send yet.
func (c *chatting) chunk(i int, t *textTail, d *delta, live bool) map[string]any {
	choice := map[string]any{"index": i, "logprobs": c.logprobs(d.ids, d.logprobs, d.top), "finish_reason": nil}
	if c.body.ReturnIDs {
		choice["token_ids"] = d.ids
	}
	switch {
	case live:
		choice["delta"] = map[string]string{"content": t.push(d, c.body.IncludeStop)}
		if d.done != nil {
			choice["finish_reason"], choice["stop_reason"] = d.done.Finish, c.stopReason(d.done)
		}
	case d.done != nil:
		msg := c.message(i, d.done)
		msg.Role = ""
		for k := range msg.Calls {
			msg.Calls[k].Index = &k
		}
		choice["delta"], choice["finish_reason"], choice["stop_reason"] = msg, msg.finish(d.done.Finish), c.stopReason(d.done)
		choice["logprobs"] = c.logprobs(d.done.Tokens, d.done.Logprobs, d.done.Top)
		if c.body.ReturnIDs {
			choice["token_ids"] = d.done.Tokens
		}
	default:
		return nil
	}
	return choice
}
