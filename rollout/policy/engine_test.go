package policy

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"harness-s/rollout/policy/policytest"
)

const patience = 20 * time.Second

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits for a condition another goroutine brings about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// same request alone, in a crowd, preempted, prefilled in pieces: same tokens, same log-prob bits.
func TestSampleDependsOnContextAndSeedAlone(t *testing.T) {
	ctx := testContext(t)
	want := map[int]Completion{}
	alone := testEngine(t, newFake(t, 250, 1<<20), EngineOptions{})
	request := func(i int) Request {
		p := greedy(5 + i%40)
		p.Seed = uint64(i)
		return Request{Prompt: ids(1+i*11%300, i%5), Params: p}
	}
	const n = 33
	for i := range n {
		out, err := alone.Generate(ctx, request(i))
		if err != nil {
			t.Fatal(err)
		}
		want[i] = out[0]
	}
	for _, room := range []int{1 << 20, 900} { // the second forces preemption
		d := newFake(t, 250, room)
		crowd := testEngine(t, d, EngineOptions{MaxSeqs: 16, StepTokens: 50})
		if err := crowd.Pause(ctx, PauseKeep); err != nil { // so that all are there when the first step is planned
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				out, err := crowd.Generate(ctx, request(i))
				if err != nil {
					t.Errorf("request %d: %v", i, err)
					return
				}
				if !slices.Equal(out[0].Tokens, want[i].Tokens) || !sameBits(out[0].Logprobs, want[i].Logprobs) {
					t.Errorf("room %d: request %d gave other tokens or log-probs than alone", room, i)
				}
			})
		}
		eventually(t, "all requests queued", func() bool {
			crowd.mu.Lock()
			defer crowd.mu.Unlock()
			return crowd.queued == n
		})
		if err := crowd.Resume(ctx); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if d.widest.Load() < 2 {
			t.Error("requests were never batched")
		}
		eventually(t, "all sequences closed", func() bool { return d.opened.Load() == 0 })
	}
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

func TestFirstOfManySamplesIsTheSingleOne(t *testing.T) {
	ctx, e := testContext(t), testEngine(t, newFake(t, 250, 1<<20), EngineOptions{})
	p := greedy(10)
	one, err := e.Generate(ctx, Request{Prompt: ids(20, 0), Params: p})
	if err != nil {
		t.Fatal(err)
	}
	p.N = 4
	four, err := e.Generate(ctx, Request{Prompt: ids(20, 0), Params: p})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(four[0].Tokens, one[0].Tokens) {
		t.Error("sample 0 of n=4 is not the sample of n=1")
	}
	for i := range 4 {
		for k := range i {
			if slices.Equal(four[i].Tokens, four[k].Tokens) {
				t.Errorf("samples %d and %d are equal", i, k)
			}
		}
	}
}

// The n attempts at one task compute their shared prefix once.
func TestSharedPrefixIsComputedOnce(t *testing.T) {
	d := newFake(t, 250, 1<<20)
	e := testEngine(t, d, EngineOptions{StepTokens: 100})
	prompt := ids(300, 1) // 4 whole chunks = 256 tokens
	var wg sync.WaitGroup
	const n, newTokens = 8, 5
	for i := range n {
		wg.Go(func() {
			p := greedy(newTokens)
			p.Seed = uint64(i)
			if _, err := e.Generate(testContext(t), Request{Prompt: prompt, Params: p}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	want := int64(300 + (n-1)*(300-256) + n*(newTokens-1))
	if got := d.computed.Load(); got != want {
		t.Errorf("%d tokens computed, want %d", got, want)
	}
	out, err := e.Generate(testContext(t), Request{Prompt: prompt, Params: greedy(1)})
	if err != nil || out[0].Cached != 256 {
		t.Errorf("cached %d, %v; want 256", out[0].Cached, err)
	}
}

func TestStops(t *testing.T) {
	tok := policytest.Tokenizer(t)
	d := newFake(t, tok.VocabSize(), 1<<20)
	e := testEngine(t, d, EngineOptions{Tokenizer: tok})
	run := func(change func(*Params)) Completion {
		t.Helper()
		p := greedy(40)
		change(&p)
		out, err := e.Generate(testContext(t), Request{Prompt: ids(9, 3), Params: p})
		if err != nil {
			t.Fatal(err)
		}
		return out[0]
	}
	free := run(func(*Params) {})
	if free.Finish != "length" || len(free.Tokens) != 40 || free.StopID != -1 || free.Cut != -1 {
		t.Fatalf("without stops: %+v", free)
	}
	stop := free.Tokens[10]
	at := slices.Index(free.Tokens, stop)
	byID := run(func(p *Params) { p.StopIDs = []int32{stop} })
	if byID.Finish != "stop" || byID.StopID != stop || !slices.Equal(byID.Tokens, free.Tokens[:at+1]) {
		t.Errorf("stop id %d at %d: %+v", stop, at, byID)
	}
	late := run(func(p *Params) { p.StopIDs, p.MinTokens = []int32{stop}, 20 })
	if slices.Contains(late.Tokens[:min(20, len(late.Tokens))], stop) || len(late.Tokens) < 20 {
		t.Errorf("min_tokens 20: %d tokens, stop id among the first 20: %v", len(late.Tokens), late.Tokens)
	}

	// A stop string that begins in one token and ends in a later one, in text of printable tokens.
	var printable []int32
	for id := range int32(tok.VocabSize()) {
		if b := tok.TokenBytes(id); len(b) > 0 && b[0] > ' ' && b[0] < 0x7f && !tok.IsSpecial(id) {
			printable = append(printable, id)
		}
	}
	plain := func(p *Params) { p.Allowed = printable }
	whole := run(plain)
	text, border := tok.Decode(whole.Tokens), len(tok.Decode(whole.Tokens[:15]))
	word := text[border-1 : border+1]
	cut := run(func(p *Params) { plain(p); p.Stop = []string{"no such text", word} })
	at = strings.Index(text, word)
	if cut.Finish != "stop" || cut.StopText != word || cut.Cut != at || len(cut.Tokens) > 16 {
		t.Errorf("stop %q expected at byte %d: %+v", word, at, cut)
	}
	if n := len(tok.Decode(cut.Tokens)); n < at+len(word) || n-len(tok.TokenBytes(cut.Tokens[len(cut.Tokens)-1])) >= at+len(word) {
		t.Errorf("stop %q at byte %d of %q: stopped after %d bytes", word, at, text, n)
	}
}

func TestPauseResumeReload(t *testing.T) {
	d := newFake(t, 250, 1<<20)
	d.gate = make(chan struct{})
	reloads := 0
	e := testEngine(t, d, EngineOptions{Reload: func(dir string) error {
		if dir == "bad" {
			return errors.New("no config.json")
		}
		reloads++
		d.weights.Add(1)
		return nil
	}})
	ctx := testContext(t)
	result := make(chan Completion, 1)
	go func() {
		out, err := e.Generate(ctx, Request{Prompt: ids(70, 0), Params: greedy(10)})
		if err != nil {
			t.Error(err)
			result <- Completion{}
			return
		}
		result <- out[0]
	}()
	for range 4 { // 4 tokens
		d.gate <- struct{}{}
	}
	eventually(t, "step 5 has begun", func() bool { return d.entered.Load() == 5 })
	paused := make(chan error)
	go func() { paused <- e.Pause(ctx, PauseKeep) }()
	eventually(t, "the pause is queued", func() bool { e.mu.Lock(); defer e.mu.Unlock(); return len(e.cmds) > 0 })
	d.gate <- struct{}{} // the step under way ends: 5 tokens
	if err := <-paused; err != nil {
		t.Fatal(err)
	}
	if err := e.ReloadWeights(ctx, "bad"); err == nil || !strings.Contains(err.Error(), "old weights serve on") {
		t.Errorf("bad folder: %v", err)
	}
	if err := e.ReloadWeights(ctx, "good"); err != nil {
		t.Fatal(err)
	}
	if err := e.SetVersion(ctx, "2"); err != nil {
		t.Fatal(err)
	}
	if err := e.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	close(d.gate)
	got := <-result
	want := []Span{{"default", 0, 5}, {"2", 5, 10}}
	if !slices.Equal(got.Versions, want) || len(got.Tokens) != 10 {
		t.Errorf("versions %v, want %v", got.Versions, want)
	}
	// The tokens after the reload are those the new weights give for the context reached.
	p := greedy(5)
	c := append(ids(70, 0), got.Tokens[:5]...)
	for i := 5; i < 10; i++ {
		s := newJob(Request{Params: p, Prompt: c}, nil).samples[0].draw
		s.Counter = uint64(i)
		f := newFake(t, 250, 1<<20)
		f.weights.Store(1)
		if r := f.draw(c, Work{Sample: &s}); r.Sample.ID != got.Tokens[i] {
			t.Fatalf("token %d is %d, want %d", i, got.Tokens[i], r.Sample.ID)
		}
		c = append(c, got.Tokens[i])
	}
	if reloads != 1 {
		t.Errorf("%d reloads", reloads)
	}
}

func TestPauseModes(t *testing.T) {
	ctx := testContext(t)
	d := newFake(t, 250, 1<<20)
	d.gate = make(chan struct{})
	e := testEngine(t, d, EngineOptions{})
	start := func() chan Completion {
		c := make(chan Completion, 1)
		j, err := e.Submit(Request{Prompt: ids(10, 0), Params: greedy(6)})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			out, err := e.wait(ctx, j)
			if err != nil {
				t.Error(err)
				out = make([]Completion, 1)
			}
			c <- out[0]
		}()
		return c
	}
	running := start()
	d.gate <- struct{}{}
	d.gate <- struct{}{}
	eventually(t, "step 3 has begun", func() bool { return d.entered.Load() == 3 })
	paused := make(chan error, 1)
	go func() { paused <- e.Pause(ctx, PauseAbort) }()
	eventually(t, "the pause is queued", func() bool { e.mu.Lock(); defer e.mu.Unlock(); return len(e.cmds) > 0 })
	d.gate <- struct{}{}
	if err := <-paused; err != nil {
		t.Fatal(err)
	}
	if c := <-running; c.Finish != "abort" || len(c.Tokens) != 3 {
		t.Errorf("aborted: %q with %d tokens, want abort with 3", c.Finish, len(c.Tokens))
	}
	held := start() // waits for resume
	eventually(t, "the request is held", func() bool {
		n := 0
		e.do(ctx, func() error { n = len(e.held); return nil })
		return n == 1
	})
	if !e.Paused() {
		t.Error("not paused")
	}
	if err := e.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	go func() { paused <- e.Pause(ctx, PauseWait) }() // drains held first
	close(d.gate)
	if err := <-paused; err != nil {
		t.Fatal(err)
	}
	if c := <-held; c.Finish != "length" || len(c.Tokens) != 6 {
		t.Errorf("drained: %q with %d tokens", c.Finish, len(c.Tokens))
	}
}

func TestDisconnectFreesTheSequence(t *testing.T) {
	d := newFake(t, 250, 1<<20)
	d.gate = make(chan struct{})
	e := testEngine(t, d, EngineOptions{})
	ctx, cancel := context.WithCancel(testContext(t))
	ended := make(chan error, 1)
	go func() {
		_, err := e.Generate(ctx, Request{Prompt: ids(10, 0), Params: greedy(500)})
		ended <- err
	}()
	d.gate <- struct{}{}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	d.gate <- struct{}{}
	eventually(t, "the sequence is closed", func() bool { return d.opened.Load() == 0 })
}

func TestFaultsOfTheDecoder(t *testing.T) {
	d := newFake(t, 250, 400)
	e := testEngine(t, d, EngineOptions{MaxQueue: 3})
	ctx := testContext(t)
	generate := func(n int) error {
		_, err := e.Generate(ctx, Request{Prompt: ids(n, 0), Params: greedy(2)})
		return err
	}
	if err := generate(450); !errors.Is(err, ErrFull) {
		t.Errorf("a prompt larger than the cache: %v", err)
	}
	fault := fmt.Errorf("device lost")
	d.stepErr.Store(&fault)
	if err := generate(10); !errors.Is(err, fault) {
		t.Errorf("a failed step: %v", err)
	}
	d.nan.Store(true)
	if err := generate(10); err == nil || !strings.Contains(err.Error(), "log-prob NaN") {
		t.Errorf("a NaN: %v", err)
	}
	d.nan.Store(false)
	if err := generate(10); err != nil {
		t.Errorf("after faults: %v", err)
	}
	p := greedy(2)
	p.N = 4
	if _, err := e.Generate(ctx, Request{Prompt: ids(10, 0), Params: p}); !errors.Is(err, ErrQueueFull) {
		t.Errorf("more than the queue holds: %v", err)
	}
	if n := d.opened.Load(); n != 0 {
		t.Errorf("%d sequences left open", n)
	}
	d.boom.Store(true)
	if err := generate(10); !errors.Is(err, ErrEngineDead) || !strings.Contains(err.Error(), "kernel fault") {
		t.Errorf("a panic: %v", err)
	}
	if err := generate(10); !errors.Is(err, ErrEngineDead) {
		t.Errorf("after a panic: %v", err)
	}
	if err := e.Resume(ctx); !errors.Is(err, ErrEngineDead) {
		t.Errorf("control after a panic: %v", err)
	}
}

func TestCloseAnswersAll(t *testing.T) {
	d := newFake(t, 250, 1<<20)
	d.gate = make(chan struct{})
	e := testEngine(t, d, EngineOptions{MaxSeqs: 2})
	ended := make(chan error, 5)
	for i := range 5 {
		go func() {
			_, err := e.Generate(testContext(t), Request{Prompt: ids(10, i), Params: greedy(500)})
			ended <- err
		}()
	}
	d.gate <- struct{}{}
	eventually(t, "all submitted", func() bool { e.mu.Lock(); defer e.mu.Unlock(); return e.queued >= 3 })
	close(d.gate)
	e.Close()
	for range 5 {
		if err := <-ended; !errors.Is(err, ErrClosed) {
			t.Errorf("at close: %v", err)
		}
	}
	if _, err := e.Submit(Request{Prompt: ids(3, 0), Params: greedy(1)}); !errors.Is(err, ErrClosed) {
		t.Errorf("after close: %v", err)
	}
}
