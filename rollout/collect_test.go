package rollout

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"harness-s/model/chat"
)

// funcPolicy answers by the request alone and may be used by many goroutines.
type funcPolicy func(ctx context.Context, r Request) (Reply, error)

func (f funcPolicy) Generate(ctx context.Context, r Request) (Reply, error) { return f(ctx, r) }

// bySeed commits 42 when the seed is even: an outcome that depends on the seed alone.
func bySeed(_ context.Context, r Request) (Reply, error) {
	time.Sleep(time.Duration(r.Seed%3) * 100 * time.Microsecond) // jobs end out of order
	if r.Seed%2 == 0 {
		return say("!commit 42;", r), nil
	}
	return say("!commit 41;", r), nil
}

func jobs(t *testing.T, n int) []Job {
	s := spec(t, "")
	var out []Job
	for i := range n {
		out = append(out, Job{Spec: s, Task: Task{ID: fmt.Sprintf("t%d", i/4), Kind: "count", Vars: map[string]string{"question": "Q"}},
			Step: 2, Phase: "train", Attempt: i % 4})
	}
	return out
}

// stateless has no record of calls, unlike fakeEnv: many sessions at a time.
func stateless() *fakeEnv {
	e := &fakeEnv{}
	return e
}

func collectOptions(e Environment, p Policy) CollectOptions {
	o := options(nil, nil, nil)
	return CollectOptions{Env: e, Policy: p, Renderer: fakeRenderer{}, RunSeed: 7, Temperature: 1, Limits: o.Limits, Workers: 8}
}

func TestCollectKeepsOrderAndSeeds(t *testing.T) {
	var outcomes [2]string
	for i, workers := range []int{1, 8} {
		o := collectOptions(lockedEnv{stateless(), new(sync.Mutex)}, funcPolicy(bySeed))
		o.Workers = workers
		var ended []int
		o.Progress = func(done, total int, r *Record) {
			ended = append(ended, done)
			if total != 40 || r == nil {
				t.Errorf("progress %d of %d", done, total)
			}
		}
		records, stats, err := Collect(context.Background(), jobs(t, 40), o)
		if err != nil {
			t.Fatal(err)
		}
		if stats.Attempts != 40 || stats.Dropped != 0 || len(ended) != 40 || ended[39] != 40 {
			t.Errorf("stats %+v, progress %v", stats, ended)
		}
		for j, r := range records {
			if r.Task != fmt.Sprintf("t%d", j/4) || r.Attempt != j%4 || r.Group != "2-"+r.Task || r.Seed != Seed(7, "train", 2, r.Task, r.Attempt, 0) {
				t.Fatalf("record %d is %s seed %d", j, r.ID, r.Seed)
			}
			outcomes[i] += fmt.Sprint(r.Success)
		}
	}
	if outcomes[0] != outcomes[1] || !strings.Contains(outcomes[0], "true") || !strings.Contains(outcomes[0], "false") {
		t.Errorf("outcomes depend on the workers: %v", outcomes)
	}
}

// lockedEnv runs one call at a time, since fakeEnv writes down what ran.
type lockedEnv struct {
	*fakeEnv
	mu *sync.Mutex
}

func (e lockedEnv) Open(ctx context.Context, task Task) (Session, error) {
	e.fakeEnv.opened.Add(1)
	return &lockedSession{fakeSession{env: e.fakeEnv}, e.mu}, nil
}

type lockedSession struct {
	fakeSession
	mu *sync.Mutex
}

func (s *lockedSession) Act(ctx context.Context, c chat.ToolCall) (Observation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fakeSession.Act(ctx, c)
}

func TestCollectBoundsConcurrency(t *testing.T) {
	var now, most atomic.Int32
	p := funcPolicy(func(_ context.Context, r Request) (Reply, error) {
		n := now.Add(1)
		defer now.Add(-1)
		for {
			m := most.Load()
			if n <= m || most.CompareAndSwap(m, n) {
				break
			}
		}
		time.Sleep(time.Millisecond)
		return say("hm;", r), nil
	})
	o := collectOptions(stateless(), p)
	o.Workers = 3
	if _, _, err := Collect(context.Background(), jobs(t, 20), o); err != nil {
		t.Fatal(err)
	}
	if m := most.Load(); m != 3 {
		t.Errorf("%d attempts at a time, want 3", m)
	}
}

func TestCollectRetriesBroken(t *testing.T) {
	var mu sync.Mutex
	tries := map[string][]int64{}
	p := funcPolicy(func(_ context.Context, r Request) (Reply, error) {
		mu.Lock()
		tries[r.RolloutID] = append(tries[r.RolloutID], r.Seed)
		n := len(tries[r.RolloutID])
		mu.Unlock()
		switch {
		case strings.Contains(r.RolloutID, "-t0-") && n <= 2: // comes back at the third try
			return Reply{}, fmt.Errorf("%w: busy", ErrServer)
		case strings.Contains(r.RolloutID, "-t1-"): // never comes back
			return Reply{}, fmt.Errorf("%w: dead", ErrServer)
		}
		return say("hm;", r), nil
	})
	o := collectOptions(stateless(), p)
	o.Retries, o.Backoff = 2, time.Microsecond
	o.Limits.MaxTurns = 1
	records, stats, err := Collect(context.Background(), jobs(t, 12), o)
	if err != nil {
		t.Fatal(err)
	}
	want := Stats{Attempts: 4*3 + 4*3 + 4, Retried: 16, Dropped: 4, ServerErrors: 4*2 + 4*3}
	if stats != want {
		t.Errorf("stats %+v, want %+v", stats, want)
	}
	for i, r := range records {
		if r.Status.Broken() != (i/4 == 1) {
			t.Errorf("record %d: %s", i, r.Status)
		}
	}
	if len(Dropped(records)) != 4 {
		t.Error("dropped")
	}
	for id, seeds := range tries {
		for _, s := range seeds {
			if s != seeds[0] {
				t.Errorf("%s: a retry must keep its seed: %v", id, seeds)
			}
		}
	}
}

func TestCollectSeedPhases(t *testing.T) {
	o := collectOptions(stateless(), funcPolicy(bySeed))
	j := jobs(t, 1)
	j[0].Phase, j[0].Attempt = "rescue", 9
	records, _, err := Collect(context.Background(), j, o)
	if err != nil || records[0].Seed != Seed(7, "train", 2, "t0", 9, 0) || records[0].Phase != "rescue" {
		t.Errorf("rescue counts on in the training phase: %v %v", records, err)
	}
}

func TestCollectStops(t *testing.T) {
	before := runtime.NumGoroutine()
	// Cancelled from outside.
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(5*time.Millisecond, cancel)
	if records, _, err := Collect(ctx, jobs(t, 50), collectOptions(stateless(), waiting{})); !errors.Is(err, context.Canceled) || records != nil {
		t.Errorf("cancelled: %v", err)
	}
	// A refused request ends the run and says where.
	p := funcPolicy(func(ctx context.Context, r Request) (Reply, error) {
		if strings.Contains(r.RolloutID, "-t3-") {
			return Reply{}, errBoom
		}
		<-ctx.Done()
		return Reply{}, ctx.Err()
	})
	if _, _, err := Collect(context.Background(), jobs(t, 50), func() CollectOptions { o := collectOptions(stateless(), p); o.Workers = 16; return o }()); !errors.Is(err, errBoom) || !strings.Contains(err.Error(), "train-2-t3-h0-") {
		t.Errorf("refused: %v", err)
	}
	// A panic outside the environment is a bug: the run ends with the rollout's id, not the process.
	boom := funcPolicy(func(context.Context, Request) (Reply, error) { panic("bug") })
	if _, _, err := Collect(context.Background(), jobs(t, 3), collectOptions(stateless(), boom)); err == nil || !strings.Contains(err.Error(), "train-2-t0-h0-") || !strings.Contains(err.Error(), "bug") {
		t.Errorf("panic: %v", err)
	}
	// Cancelled while waiting to retry.
	ctx, cancel = context.WithCancel(context.Background())
	time.AfterFunc(5*time.Millisecond, cancel)
	o := collectOptions(stateless(), funcPolicy(func(context.Context, Request) (Reply, error) { return Reply{}, ErrServer }))
	o.Retries, o.Backoff = 100, time.Hour
	if _, _, err := Collect(ctx, jobs(t, 3), o); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled in a wait: %v", err)
	}
	if _, _, err := Collect(context.Background(), nil, CollectOptions{}); err == nil {
		t.Error("no workers must be an error")
	}
	if records, _, err := Collect(context.Background(), nil, collectOptions(stateless(), waiting{})); err != nil || len(records) != 0 {
		t.Error("no jobs is no error")
	}
	for range 100 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(time.Millisecond) // timers and finished goroutines need a moment to go
	}
	t.Errorf("%d goroutines, %d before", runtime.NumGoroutine(), before)
}

func TestBackoff(t *testing.T) {
	for try, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, MaxBackoff, MaxBackoff} {
		if got := backoff(time.Second, try); got != want {
			t.Errorf("try %d: %v, want %v", try, got, want)
		}
	}
	if backoff(time.Hour, 1000) != MaxBackoff {
		t.Error("must stay bounded")
	}
}
