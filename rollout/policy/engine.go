package policy

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"harness-s/model/tokenizer"
)

// EngineOptions bound the engine. Zero values take the defaults named.
type EngineOptions struct {
	MaxModelLen int     // tokens of one sequence, prompt included; required
	Vocab       int     // ids are 0..Vocab-1; required
	EOS         []int32 // ids that end a text
	MaxSeqs     int     // sequences in one step; 64
	StepTokens  int     // tokens of one step, prefill included; 1024
	MaxQueue    int     // sequences waiting before requests are refused; 4096

	// Reload puts the weights of a Hugging Face folder into the model. On an error the old weights are intact.
	Reload func(dir string) error
	// Score is the log-prob of ids[t] given ids[:t] at temperature 1; entry 0 is meaningless.
	Score func(ids []int32) ([]float32, error)
	// Tokenizer is needed for stop strings.
	Tokenizer *tokenizer.Tokenizer
}

// Errors of the engine.
var (
	ErrQueueFull   = errors.New("too many requests are waiting")
	ErrClosed      = errors.New("the server is shutting down")
	ErrEngineDead  = errors.New("the engine has failed and must be restarted")
	ErrUnsupported = errors.New("not supported by this server")
)

// Engine batches requests over one decoder. Its methods may be called from any goroutine.
type Engine struct {
	opt EngineOptions
	dec Decoder
	met *metrics

	mu      sync.Mutex // guards the next four
	inbox   []*job
	cmds    []command
	queued  int // samples submitted and not yet running
	closing bool
	wake    chan struct{} // capacity 1
	stopped chan struct{}
	dead    atomic.Pointer[error]
	paused  atomic.Bool
	cancels atomic.Int32 // jobs canceled since the engine last looked
	version atomic.Pointer[string]

	// Below: the engine goroutine's own.
	running []*sample // in order of arrival
	waiting []*sample
	held    []*sample // arrived while paused
	hold    bool      // new arrivals go to held
	frozen  bool      // no steps
	drained []chan error
	work    []Work
	batch   []*sample
	jobs    map[*job]struct{}
	tight   bool   // a sequence had to make room: none is admitted until one ends, or the two would take turns for ever
	failed  []*job // to be dropped when no queue is under iteration
}

// command is a piece of control work, run between two steps.
type command struct {
	run  func() error
	done chan error // capacity 1
}

// NewEngine starts an engine; Close ends it.
func NewEngine(dec Decoder, opt EngineOptions) (*Engine, error) {
	if opt.MaxModelLen < 2 || opt.Vocab < 1 {
		return nil, fmt.Errorf("policy engine: max model length %d and vocabulary %d must be positive", opt.MaxModelLen, opt.Vocab)
	}
	opt.MaxSeqs = orDefault(opt.MaxSeqs, 64)
	opt.StepTokens = orDefault(opt.StepTokens, 1024)
	opt.MaxQueue = orDefault(opt.MaxQueue, 4096)
	e := &Engine{opt: opt, dec: dec, wake: make(chan struct{}, 1), stopped: make(chan struct{}), jobs: map[*job]struct{}{}}
	version := "default"
	e.version.Store(&version)
	e.met = newMetrics()
	go e.run()
	return e, nil
}

func orDefault(v, d int) int {
	if v <= 0 {
		return d
	}
	return v
}

// Submit checks a request and queues it.
func (e *Engine) Submit(r Request) (*job, error) {
	p := &r.Params
	if p.N < 1 || p.N > e.opt.MaxSeqs || len(r.Prompt) == 0 || len(r.Prompt) >= e.opt.MaxModelLen || p.MaxTokens < 1 {
		panic("policy: request not validated")
	}
	p.MaxTokens = min(p.MaxTokens, e.opt.MaxModelLen-len(r.Prompt))
	e.addMinTokens(p)
	j := newJob(r, func(p *Params) *stopScanner { return newStopScanner(e.opt.Tokenizer, p) })
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.refusal(); err != nil {
		return nil, err
	}
	if e.queued+p.N > e.opt.MaxQueue {
		e.met.rejected.Inc()
		return nil, ErrQueueFull
	}
	e.queued += p.N
	e.inbox = append(e.inbox, j)
	e.poke()
	return j, nil
}

// Generate submits a request and waits for it.
func (e *Engine) Generate(ctx context.Context, r Request) ([]Completion, error) {
	j, err := e.Submit(r)
	if err != nil {
		return nil, err
	}
	return e.wait(ctx, j)
}

// addMinTokens keeps ids that would end the text from being drawn before MinTokens.
func (e *Engine) addMinTokens(p *Params) {
	if p.MinTokens <= 0 || p.Allowed != nil {
		return
	}
	banned := map[int32]bool{}
	for _, id := range p.StopIDs {
		banned[id] = true
	}
	if !p.IgnoreEOS {
		for _, id := range e.opt.EOS {
			banned[id] = true
		}
	}
	p.early = make([]int32, 0, e.opt.Vocab)
	for id := range int32(e.opt.Vocab) {
		if !banned[id] {
			p.early = append(p.early, id)
		}
	}
}

// refusal is why nothing is taken any more; e.mu is held.
func (e *Engine) refusal() error {
	if err := e.Err(); err != nil {
		return err
	}
	if e.closing {
		return ErrClosed
	}
	return nil
}

// Err is nil while the engine can serve.
func (e *Engine) Err() error {
	if p := e.dead.Load(); p != nil {
		return *p
	}
	return nil
}

// Close aborts what is running and ends the engine's goroutine. The decoder is no longer used afterwards.
func (e *Engine) Close() {
	e.mu.Lock()
	e.closing = true
	e.mu.Unlock()
	e.poke()
	<-e.stopped
}

func (e *Engine) poke() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// run is the engine's goroutine.
func (e *Engine) run() {
	defer close(e.stopped)
	defer e.die()
	for e.intake() {
		e.plan()
		if len(e.work) > 0 {
			e.step()
		}
	}
	e.failAll(ErrClosed)
}

// die turns a panic (a bug of ours or of a kernel) into errors for all who wait: the decoder's state can no longer
// be trusted, so the engine stays dead, and says so.
func (e *Engine) die() {
	r := recover()
	if r == nil {
		return
	}
	err := fmt.Errorf("%w: %v\n%s", ErrEngineDead, r, debug.Stack())
	e.mu.Lock()
	e.dead.Store(&err)
	e.mu.Unlock()
	e.failAll(err)
}

// intake takes in requests and commands, and blocks until there is something to compute; false = closing.
func (e *Engine) intake() bool {
	for {
		e.mu.Lock()
		inbox, cmds, closing := e.inbox, e.cmds, e.closing
		e.inbox, e.cmds = nil, nil
		e.mu.Unlock()
		for _, j := range inbox {
			e.arrive(j)
		}
		for i, c := range cmds {
			e.runCommand(c, cmds[i+1:])
		}
		if closing {
			return false
		}
		e.dropCanceled()
		e.finishDrain()
		e.met.observeQueues(len(e.running), len(e.waiting)+len(e.held), e.dec)
		if !e.frozen && len(e.running)+len(e.waiting) > 0 {
			return true
		}
		<-e.wake
	}
}

// runCommand answers the commands behind it as well when c panics: they were already taken from the queue.
func (e *Engine) runCommand(c command, rest []command) {
	defer func() {
		if r := recover(); r != nil {
			err := fmt.Errorf("%w: %v", ErrEngineDead, r)
			c.done <- err
			for _, o := range rest {
				o.done <- err
			}
			panic(r)
		}
	}()
	c.done <- c.run()
}

func (e *Engine) arrive(j *job) {
	e.jobs[j] = struct{}{}
	if e.hold {
		e.held = append(e.held, j.samples...)
	} else {
		e.waiting = append(e.waiting, j.samples...)
	}
}

// dropCanceled forgets the samples of jobs whose client has gone.
func (e *Engine) dropCanceled() {
	if e.cancels.Swap(0) == 0 {
		return
	}
	for j := range e.jobs {
		if j.canceled.Load() {
			e.met.finished("abort")
			e.drop(j, context.Canceled)
		}
	}
}

// drop ends a whole job with an error.
func (e *Engine) drop(j *job, err error) {
	gone := func(s *sample) bool { return s.job == j }
	before := len(e.waiting) + len(e.held)
	for _, s := range e.running {
		if s.job == j {
			e.release(s)
		}
	}
	e.running = slices.DeleteFunc(e.running, gone)
	e.waiting = slices.DeleteFunc(e.waiting, gone)
	e.held = slices.DeleteFunc(e.held, gone)
	e.unqueue(before - len(e.waiting) - len(e.held))
	delete(e.jobs, j)
	j.end(err)
}

// unqueue counts n samples out of the queue.
func (e *Engine) unqueue(n int) {
	e.mu.Lock()
	e.queued -= n
	e.mu.Unlock()
}

// release gives a sample's sequence back to the decoder.
func (e *Engine) release(s *sample) {
	if s.seq != nil {
		e.dec.Close(s.seq)
		s.seq, e.tight = nil, false
	}
}

// failAll answers everything that waits; the decoder is not touched.
func (e *Engine) failAll(err error) {
	e.mu.Lock()
	inbox, cmds := e.inbox, e.cmds
	e.inbox, e.cmds, e.closing = nil, nil, true
	e.mu.Unlock()
	for _, j := range inbox {
		e.jobs[j] = struct{}{}
	}
	for j := range e.jobs {
		j.end(err)
	}
	clear(e.jobs)
	for _, c := range cmds {
		c.done <- err
	}
	for _, d := range e.drained {
		d <- err
	}
	e.running, e.waiting, e.held, e.drained = nil, nil, nil, nil
}

// finish ends one sample. last is the event of its last token, if it has one.
func (e *Engine) finish(s *sample, reason string, last Event) {
	e.release(s)
	s.closed = true
	s.out.Finish = reason
	s.out.Tokens = s.ctx[s.prompt:]
	s.out.Cached = max(s.out.Cached, 0)
	e.met.observeSample(s, reason)
	j := s.job
	if j.mail != nil {
		out := s.out
		last.Done = &out
		j.mail.put(last)
	}
	if j.left--; j.left == 0 {
		delete(e.jobs, j)
		e.met.observe(e.met.e2e, time.Since(j.arrived))
		j.end(nil)
	}
}
