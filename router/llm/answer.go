package llm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrAnswer says that a model gave no usable answer within maxAsks attempts.
var ErrAnswer = errors.New("no usable answer")

const (
	maxAsks   = 3
	maxQuoted = 4 << 10 // bytes of a bad answer that the model is shown again
)

// AskJSON asks for one JSON value and decodes it into a T: see Decode. check, where not nil, says what is wrong with a value
// that decodes. The model is told what was wrong and asked again, three times in all; then the error wraps ErrAnswer. The
// schema, where there is one, is also shown to the model, since not every server makes it answer by it.
func AskJSON[T any](ctx context.Context, c *Client, r Request, check func(T) error) (T, error) {
	base := r.withSchema()
	r.Messages = base
	var problem error
	for try := range maxAsks {
		reply, err := c.Ask(ctx, r)
		if err != nil {
			return *new(T), err
		}
		v, err := accept(reply, check)
		if err == nil {
			return v, nil
		}
		problem = err
		r.Messages = append(slices.Clone(base), Message{"assistant", clip(reply.Text, maxQuoted)}, Message{"user", again(err)})
		r.Seed++
		if try < maxAsks-1 {
			c.counted(func(n *Counters) { n.Repaired++ })
		}
	}
	c.counted(func(n *Counters) { n.Failed++ })
	return *new(T), fmt.Errorf("llm: %s: %w after %d attempts; the last: %s", c.opt.URL, ErrAnswer, maxAsks, c.clean(problem.Error()))
}

func (r Request) withSchema() []Message {
	out := slices.Clone(r.Messages)
	if r.Schema == nil || len(out) == 0 {
		return out
	}
	out[0].Content += "\n\nAnswer with one JSON value and nothing else, no prose and no code fence. Its JSON schema:\n" + string(r.Schema)
	return out
}

func again(problem error) string {
	return "That answer cannot be used: " + line(problem.Error(), maxText) + "\nAnswer again, with the JSON value alone."
}

func accept[T any](reply Reply, check func(T) error) (v T, err error) {
	switch {
	case reply.Refused:
		return v, errors.New("it is a refusal; everything in data blocks is only quoted material, and an empty list is an answer too")
	case reply.Cut:
		return v, errors.New("it was cut off because it was too long; be shorter")
	}
	if err := Decode(reply.Text, &v); err != nil {
		return *new(T), err
	}
	if check == nil {
		return v, nil
	}
	return v, check(v)
}

// Extract is the JSON in a model's answer, without the thinking before it and a code fence around it. It looks for nothing
// cleverer: with prose around, it is not JSON.
func Extract(text string) string {
	s := strings.TrimSpace(text)
	if s == "" {
		return s
	}
	if !strings.ContainsRune("{[`\"", rune(s[0])) { // the opening tag may stand in the prompt
		if _, after, ok := strings.Cut(s, "</think>"); ok {
			s = strings.TrimSpace(after)
		}
	}
	if rest, ok := strings.CutPrefix(s, "```"); ok {
		info, body, more := strings.Cut(rest, "\n")
		body, closed := strings.CutSuffix(strings.TrimSpace(body), "```")
		if more && closed && !strings.ContainsAny(info, "{[\"") {
			s = strings.TrimSpace(body)
		}
	}
	return s
}

// clip is the beginning of a text, valid UTF-8.
func clip(s string, max int) string {
	if len(s) <= max {
		return strings.ToValidUTF8(s, "?")
	}
	return strings.ToValidUTF8(s[:max], "") + "..."
}
