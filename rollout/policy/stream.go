package policy

import (
	"context"
	"net/http"
	"unicode/utf8"

	"harness-s/model/tokenizer"
)

// sse writes server-sent events.
type sse struct {
	w     http.ResponseWriter
	flush http.Flusher
	buf   []byte
}

func newSSE(w http.ResponseWriter) (*sse, error) {
	f, ok := w.(http.Flusher)
	if !ok {
		return nil, ErrUnsupported
	}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
	f.Flush()
	return &sse{w: w, flush: f}, nil
}

// event sends what f appends as one data line.
func (s *sse) event(f func(b []byte) []byte) {
	s.buf = append(s.buf[:0], "data: "...)
	s.buf = append(f(s.buf), "\n\n"...)
	writeSoon(s.w)
	s.w.Write(s.buf)
}

// fail reports an error after the status line has gone out.
func (s *sse) fail(err error) { s.event(asAPIError(err).append) }

func (s *sse) done() {
	s.event(func(b []byte) []byte { return append(b, "[DONE]"...) })
	s.flush.Flush()
}

// delta is what one sample got since the last look.
type delta struct {
	ids      []int32
	logprobs []float32
	top      [][]Top
	done     *Completion
}

// textTail turns a sample's tokens into text to send, holding back what may still become a stop string.
type textTail struct {
	stream *tokenizer.Stream // nil without a tokenizer: no text
	text   []byte
	sent   int
	hold   int  // bytes held back until the end
	first  bool // the first chunk has gone
	offset int  // runes of the token names sent so far
}

func (s *Server) newTextTail(p *Params) *textTail {
	t := &textTail{}
	if s.tok != nil {
		t.stream = s.tok.NewStream(p.SkipSpecial)
	}
	for _, stop := range p.Stop {
		t.hold = max(t.hold, len(stop)-1)
	}
	return t
}

// push takes a delta and returns the text that is now certain.
func (t *textTail) push(d *delta, includeStop bool) string {
	if t.stream == nil {
		return ""
	}
	ids := d.ids
	end := d.done
	if end != nil && end.Finish == "stop" && end.Cut < 0 && !includeStop && len(ids) > 0 {
		ids = ids[:len(ids)-1]
	}
	for _, id := range ids {
		t.text = append(t.text, t.stream.Step(id)...)
	}
	upTo := len(t.text) - t.hold
	if end != nil {
		upTo = len(t.text)
		if end.Cut >= 0 {
			upTo = min(upTo, end.Cut)
			if includeStop {
				upTo = min(len(t.text), end.Cut+len(end.StopText))
			}
		}
	}
	for upTo > t.sent && upTo < len(t.text) && !utf8.RuneStart(t.text[upTo]) {
		upTo--
	}
	if upTo <= t.sent {
		return ""
	}
	out := string(t.text[t.sent:upTo])
	t.sent = upTo
	return out
}

// follow calls send with each sample's deltas until all samples are done. Events that came together are sent
// together: a slow client gets fewer, larger chunks.
func (e *Engine) follow(ctx context.Context, jobs []*job, mail *mailbox, samples int, send func(sample int, d *delta)) error {
	deltas := make([]delta, samples)
	var events []Event
	for left := samples; left > 0; {
		select {
		case <-mail.ready:
		case <-ctx.Done():
			e.cancelAll(jobs)
			return ctx.Err()
		}
		events = mail.take(events)
		for _, ev := range events {
			if ev.Err != nil {
				e.cancelAll(jobs)
				return ev.Err
			}
			d := &deltas[ev.Sample]
			if !ev.NoToken {
				d.ids, d.logprobs, d.top = append(d.ids, ev.Token), append(d.logprobs, ev.Logprob), append(d.top, ev.Top)
			}
			d.done = ev.Done
			if ev.Done != nil {
				left--
			}
		}
		for i := range deltas {
			if d := &deltas[i]; len(d.ids) > 0 || d.done != nil {
				send(i, d)
				*d = delta{ids: d.ids[:0], logprobs: d.logprobs[:0], top: d.top[:0]}
			}
		}
	}
	return nil
}

// stream answers a completions request as events.
func (c *completion) stream(w http.ResponseWriter, ctx context.Context) error {
	mail := newMailbox()
	jobs, err := c.s.eng.submitAll(c.requests(mail))
	if err != nil {
		return err
	}
	out, err := newSSE(w)
	if err != nil {
		c.s.eng.cancelAll(jobs)
		return err
	}
	n := c.params.N * len(c.prompts.ids)
	tails := make([]*textTail, n)
	for i := range tails {
		tails[i] = c.s.newTextTail(&c.params)
	}
	use := usage{}
	for _, ids := range c.prompts.ids {
		use.prompt += len(ids)
	}
	err = c.s.eng.follow(ctx, jobs, mail, n, func(i int, d *delta) {
		out.event(func(b []byte) []byte { return c.chunk(b, i, tails[i], d) })
		out.flush.Flush()
		if d.done != nil {
			use.add(d.done)
		}
	})
	if err != nil {
		out.fail(err)
	} else if c.body.StreamOptions != nil && c.body.StreamOptions.IncludeUsage {
		out.event(func(b []byte) []byte {
			b = append(c.head(b), `],"usage":`...)
			return append(use.append(b, false), '}')
		})
	}
	out.done()
	return nil
}

// chunk writes one streamed choice.
func (c *completion) chunk(b []byte, i int, t *textTail, d *delta) []byte {
	b = append(c.head(b), `{"index":`...)
	b = appendInt(b, i)
	b = append(b, `,"text":`...)
	b = appendString(b, t.push(d, c.body.IncludeStop))
	b = append(b, `,"logprobs":`...)
	if c.body.Logprobs == nil || len(d.ids) == 0 {
		b = append(b, "null"...)
	} else {
		b = c.logprobs(b, d.ids, d.logprobs, d.top, false, t.offset)
		for _, id := range d.ids {
			t.offset += utf8.RuneCountInString(c.s.token(id, c.body.TokensAsIDs))
		}
	}
	finish := ""
	if d.done != nil {
		finish = d.done.Finish
	}
	b = appendFinish(b, finish, d.done)
	if c.body.ReturnIDs {
		b = append(b, `,"prompt_token_ids":`...)
		b = appendIDsIf(b, !t.first, c.prompts.ids[i/c.params.N])
		b = append(b, `,"token_ids":`...)
		b = appendInts(b, d.ids)
	}
	t.first = true
	return append(b, "}]}"...)
}
