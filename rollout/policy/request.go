package policy

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"harness-s/kernels"
)

// Params says how a request is sampled.
type Params struct {
	N           int // samples; sample 0 is what N = 1 gives
	Seed        uint64
	Temperature float32
	TopP        float32 // 1 = off
	TopK        int     // <= 0 = off
	MaxTokens   int     // clamped to the model's length
	MinTokens   int     // ends of text and stops do not count before
	StopIDs     []int32 // kept in the tokens
	Stop        []string
	SkipSpecial bool // stop strings are sought in text without special tokens
	IgnoreEOS   bool
	TopLogprobs int     // most likely tokens reported beside the sampled one
	Allowed     []int32 // if not nil, only these may be drawn

	early []int32 // what may be drawn before MinTokens; made by Submit
}

// Span is a half-open range of output tokens sampled by one weight version.
type Span struct {
	Version    string
	Start, End int
}

// Completion is one finished sample.
type Completion struct {
	Tokens   []int32
	Logprobs []float32 // of the distribution each token was drawn from
	Top      [][]Top   // nil when TopLogprobs is 0
	Finish   string    // stop | length | abort
	StopID   int32     // the stop token id that ended it, -1 for none (end of text counts as none)
	StopText string    // the stop string that ended it
	Cut      int       // byte offset of StopText in the text, -1 for none
	Versions []Span
	Cached   int // prompt tokens whose state was reused
}

// Event is news of a streaming request: the next token of one sample, its end, or both.
type Event struct {
	Sample  int // Request.Base + the sample's index
	Token   int32
	Logprob float32
	Top     []Top
	NoToken bool        // an abort: only Done counts
	Done    *Completion // set on the sample's last event
	Err     error       // the whole request failed
}

// Request is one prompt to be continued Params.N times.
type Request struct {
	ID     string
	Prompt []int32
	Params Params
	mail   *mailbox // events go there, if set
	base   int      // added to the sample index of events
}

// job is a request inside the engine.
type job struct {
	id       string
	samples  []*sample
	left     int // samples not finished; engine goroutine only
	err      error
	done     chan struct{} // closed after the last sample, or on err
	canceled atomic.Bool
	arrived  time.Time
	mail     *mailbox // nil unless streaming
	base     int
}

// end closes the job.
func (j *job) end(err error) {
	j.err = err
	close(j.done)
	if err != nil && j.mail != nil {
		j.mail.put(Event{Err: err})
	}
}

// mailbox carries events from the engine to one handler without ever making the engine wait. It holds at most
// one event a token asked for.
type mailbox struct {
	mu     sync.Mutex
	events []Event
	ready  chan struct{} // capacity 1
}

func newMailbox() *mailbox { return &mailbox{ready: make(chan struct{}, 1)} }

func (m *mailbox) put(ev Event) {
	m.mu.Lock()
	m.events = append(m.events, ev)
	m.mu.Unlock()
	select {
	case m.ready <- struct{}{}:
	default:
	}
}

func (m *mailbox) take(into []Event) []Event {
	m.mu.Lock()
	defer m.mu.Unlock()
	into = append(into[:0], m.events...)
	m.events = m.events[:0]
	return into
}

// sample is one of a job's sequences. ctx is the prompt and what was sampled; ctx[pos:] is not yet in the decoder.
type sample struct {
	job      *job
	index    int
	ctx      []int32
	prompt   int // tokens of ctx that are prompt
	pos      int
	seq      Sequence // nil while waiting
	admitted bool     // was running at least once
	params   *Params
	draw     kernels.SampleParams
	text     *stopScanner // nil without stop strings
	out      Completion
	started  time.Time
	first    time.Time
	closed   bool
}

func (s *sample) generated() int { return len(s.ctx) - s.prompt }
func (s *sample) pending() int   { return len(s.ctx) - s.pos }

// sampleSeed derives the seed of sample i from the request's: i = 0 keeps it, others are mixed (splitmix64).
func sampleSeed(seed uint64, i int) uint64 {
	if i == 0 {
		return seed
	}
	z := seed + uint64(i)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func newJob(r Request, scan func(*Params) *stopScanner) *job {
	j := &job{id: r.ID, left: r.Params.N, done: make(chan struct{}), arrived: time.Now(), mail: r.mail, base: r.base}
	p := r.Params
	for i := range p.N {
		s := &sample{job: j, index: i, prompt: len(r.Prompt), params: &p}
		s.ctx = append(make([]int32, 0, len(r.Prompt)+p.MaxTokens), r.Prompt...)
		s.draw = kernels.SampleParams{Temperature: p.Temperature, TopP: p.TopP, TopK: p.TopK, Seed: sampleSeed(p.Seed, i)}
		s.out.Logprobs = make([]float32, 0, p.MaxTokens)
		s.out.StopID, s.out.Cut, s.out.Cached = -1, -1, -1
		if len(p.Stop) > 0 {
			s.text = scan(&p)
		}
		j.samples = append(j.samples, s)
	}
	return j
}

// wait blocks until the job ends or ctx does; then the engine is told to drop it.
func (e *Engine) wait(ctx context.Context, j *job) ([]Completion, error) {
	select {
	case <-j.done:
	case <-ctx.Done():
		e.cancel(j)
		return nil, ctx.Err()
	}
	if j.err != nil {
		return nil, j.err
	}
	out := make([]Completion, len(j.samples))
	for i, s := range j.samples {
		out[i] = s.out
	}
	return out, nil
}

func (e *Engine) cancel(j *job) {
	j.canceled.Store(true)
	e.cancels.Add(1)
	e.poke()
}
