package policy

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"harness-s/kernels"
)

// plan fills e.work and e.batch: first every running sequence that only needs its next token, then prefill of
// running ones in order of arrival, then waiting ones as far as sequences and the token budget allow.
func (e *Engine) plan() {
	e.work, e.batch = e.work[:0], e.batch[:0]
	budget := e.opt.StepTokens
	for _, s := range e.running {
		if s.pending() == 1 {
			e.add(s, 1)
			budget--
		}
	}
	for _, s := range e.running {
		if n := min(s.pending(), budget); s.pending() > 1 && n > 0 {
			e.add(s, n)
			budget -= n
		}
	}
	e.admit(budget)
}

// add gives s a part in the step: its next n tokens, and a draw when they are its last.
func (e *Engine) add(s *sample, n int) {
	w := Work{Seq: s.seq, Tokens: s.ctx[s.pos : s.pos+n]}
	if n == s.pending() {
		s.draw.Counter = uint64(s.generated())
		s.draw.Allowed = s.params.Allowed
		if s.generated() < s.params.MinTokens && s.params.early != nil {
			s.draw.Allowed = s.params.early
		}
		w.Sample, w.TopK = &s.draw, s.params.TopLogprobs
	}
	e.work, e.batch = append(e.work, w), append(e.batch, s)
}

// admit opens waiting sequences. One that shares a prefix with a sequence still computing it waits for that (the
// n attempts at one task), and others may overtake it.
func (e *Engine) admit(budget int) {
	if e.tight {
		return
	}
	kept, scanned := e.waiting[:0], 0
	for i, s := range e.waiting {
		if budget <= 0 || len(e.running) >= e.opt.MaxSeqs || scanned >= 2*e.opt.MaxSeqs {
			kept = append(kept, e.waiting[i:]...)
			break
		}
		scanned++
		if e.sharesUnfinished(s) {
			kept = append(kept, s)
			continue
		}
		seq, cached, err := e.dec.Open(s.ctx)
		if errors.Is(err, ErrFull) && len(e.running) > 0 {
			kept = append(kept, e.waiting[i:]...)
			break
		}
		e.unqueue(1)
		if err != nil {
			e.failSample(s, fmt.Errorf("opening a sequence of %d tokens: %w", len(s.ctx), err))
			continue
		}
		e.start(s, seq, cached)
		n := min(s.pending(), budget)
		e.add(s, n)
		budget -= n
	}
	clear(e.waiting[len(kept):])
	e.waiting = kept
	e.reapFailed()
}

// start makes s a running sequence.
func (e *Engine) start(s *sample, seq Sequence, cached int) {
	s.seq, s.pos = seq, cached
	if !s.admitted {
		s.admitted, s.started = true, time.Now()
		s.out.Cached = cached
		e.met.observeStart(s, cached)
	}
	e.running = append(e.running, s)
}

// sharesUnfinished says that a running sequence is about to compute whole chunks which s could then reuse.
func (e *Engine) sharesUnfinished(s *sample) bool {
	const chunk = kernels.ChunkLen
	usable := (len(s.ctx) - 1) / chunk * chunk
	for _, r := range e.running {
		if r.pending() <= 1 || r.pos >= usable {
			continue
		}
		if commonPrefix(s.ctx[:usable], r.ctx)/chunk*chunk > r.pos {
			return true
		}
	}
	return false
}

func commonPrefix(a, b []int32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// failSample ends the job of a sample that cannot run; reapFailed removes its siblings from the queues, which
// may be under iteration here.
func (e *Engine) failSample(s *sample, err error) {
	if s.job.err == nil {
		s.job.err = err
		e.failed = append(e.failed, s.job)
	}
}

func (e *Engine) reapFailed() {
	if len(e.failed) == 0 {
		return
	}
	for _, j := range e.failed {
		e.met.finished("error")
		e.drop(j, j.err)
	}
	e.failed = e.failed[:0]
	n := 0
	for i, s := range e.batch { // a failed job's other samples may already be planned
		if s.seq != nil {
			e.batch[n], e.work[n] = s, e.work[i]
			n++
		}
	}
	e.batch, e.work = e.batch[:n], e.work[:n]
}

// step runs the planned batch. An error of the decoder fails the requests in the batch, not the engine; a cache
// that is full sends the youngest sequence back to the queue.
func (e *Engine) step() {
	e.met.iteration(e.work)
	results, err := e.dec.Step(e.work)
	switch {
	case errors.Is(err, ErrFull):
		e.preempt()
		return
	case err != nil:
		for _, s := range e.batch {
			e.failSample(s, fmt.Errorf("decoding: %w", err))
		}
		e.reapFailed()
		return
	}
	for i, s := range e.batch {
		s.pos += len(e.work[i].Tokens)
		if e.work[i].Sample != nil {
			e.accept(s, results[i])
		}
	}
	e.running = slices.DeleteFunc(e.running, func(s *sample) bool { return s.closed })
	e.reapFailed()
}

// preempt makes room: the youngest running sequence waits again and will be computed anew.
func (e *Engine) preempt() {
	s := e.running[len(e.running)-1]
	if len(e.running) == 1 {
		e.failSample(s, fmt.Errorf("a sequence of %d tokens alone: %w", len(s.ctx), ErrFull))
		e.reapFailed()
		return
	}
	e.met.preemptions.Inc()
	e.running = e.running[:len(e.running)-1]
	e.requeue([]*sample{s})
	e.tight = true
}

// requeue puts running samples back at the head of the queue, their context kept.
func (e *Engine) requeue(list []*sample) {
	for _, s := range list {
		e.release(s)
		s.pos = 0
	}
	e.unqueue(-len(list))
	e.waiting = slices.Concat(list, e.waiting)
}

// accept takes a drawn token and ends the sample when it should end.
func (e *Engine) accept(s *sample, r Result) {
	lp := float64(r.Sample.Logprob)
	if math.IsNaN(lp) || math.IsInf(lp, 0) || r.Sample.ID < 0 || int(r.Sample.ID) >= e.opt.Vocab {
		e.met.corrupted.Inc()
		e.failSample(s, fmt.Errorf("token %d has log-prob %v: the weights or the context give no distribution", s.generated(), lp))
		return
	}
	s.record(r, *e.version.Load())
	e.met.token(s)
	ev := Event{Sample: s.job.base + s.index, Token: r.Sample.ID, Logprob: r.Sample.Logprob, Top: r.Top}
	if reason := e.end(s, r.Sample.ID); reason != "" {
		e.finish(s, reason, ev)
	} else if s.job.mail != nil {
		s.job.mail.put(ev)
	}
}

// record appends a token to the sample.
func (s *sample) record(r Result, version string) {
	s.ctx = append(s.ctx, r.Sample.ID)
	s.out.Logprobs = append(s.out.Logprobs, r.Sample.Logprob)
	if s.params.TopLogprobs > 0 {
		s.out.Top = append(s.out.Top, r.Top)
	}
	n := s.generated()
	if v := s.out.Versions; len(v) > 0 && v[len(v)-1].Version == version {
		v[len(v)-1].End = n
	} else {
		s.out.Versions = append(v, Span{version, n - 1, n})
	}
	if n == 1 {
		s.first = time.Now()
	}
}

// end is the finish reason after token id, or "".
func (e *Engine) end(s *sample, id int32) string {
	p, enough := s.params, s.generated() >= s.params.MinTokens
	var stop string
	at := -1
	if s.text != nil {
		stop, at = s.text.push(id, enough)
	}
	switch {
	case enough && !p.IgnoreEOS && slices.Contains(e.opt.EOS, id):
		return "stop"
	case enough && slices.Contains(p.StopIDs, id):
		s.out.StopID = id
		return "stop"
	case at >= 0:
		s.out.StopText, s.out.Cut = stop, at
		return "stop"
	case s.generated() >= p.MaxTokens:
		return "length"
	}
	return ""
}

// abort ends the running and waiting samples that match, with what they have.
func (e *Engine) abort(match func(*sample) bool) {
	for _, list := range []*[]*sample{&e.running, &e.waiting, &e.held} {
		var out []*sample
		*list = slices.DeleteFunc(*list, func(s *sample) bool {
			if match(s) {
				out = append(out, s)
				return true
			}
			return false
		})
		if list != &e.running {
			e.unqueue(len(out))
		}
		for _, s := range out {
			e.finish(s, "abort", Event{Sample: s.job.base + s.index, NoToken: true})
		}
	}
}

// do runs f on the engine's goroutine between two steps.
func (e *Engine) do(ctx context.Context, f func() error) error {
	c := command{f, make(chan error, 1)}
	e.mu.Lock()
	if err := e.refusal(); err != nil {
		e.mu.Unlock()
		return err
	}
	e.cmds = append(e.cmds, c)
	e.mu.Unlock()
	e.poke()
	return await(ctx, c.done)
}

func await(ctx context.Context, done <-chan error) error {
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
