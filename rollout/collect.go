package rollout

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"harness-s/rollout/harness"
)

// Job is one attempt to make.
type Job struct {
	Spec    *harness.Spec
	Task    Task
	Step    int
	Phase   string // train | rescue | eval | anchor
	Attempt int
}

// CollectOptions say how jobs are run.
type CollectOptions struct {
	Env         Environment
	Policy      Policy
	Renderer    Renderer
	RunSeed     int64
	SeedPhase   string // phase in the seed; empty: the job's, with rescue counted as train
	Temperature float64
	Limits      Limits
	Workers     int           // attempts at a time
	Retries     int           // more tries of a broken attempt, with the same seed
	Backoff     time.Duration // wait before the first retry; doubles each time, up to MaxBackoff
	// Progress, where set, is called after every attempt that ended, one call at a time, in order of ending.
	Progress func(done, total int, r *Record)
}

// MaxBackoff bounds the wait between two tries of an attempt.
const MaxBackoff = 30 * time.Second

// Stats count what Collect did.
type Stats struct {
	Attempts     int // attempts made, retries included
	Retried      int // tries after the first
	Dropped      int // jobs still broken after the last try
	ServerErrors int // broken tries by status
	EnvErrors    int
	Deadlines    int
	ParseErrors  int // turns' parse errors in the records returned
	Truncated    int // records that ended at a token limit
}

// Dropped picks the broken records, which are counted and never trained on.
func Dropped(records []*Record) []*Record {
	var out []*Record
	for _, r := range records {
		if r.Status.Broken() {
			out = append(out, r)
		}
	}
	return out
}

// Collect runs all jobs, at most Workers at a time, and returns a record for each, in the order of the jobs. A broken
// attempt is tried again; one still broken after Retries is dropped: its record is returned with its broken status.
// On an error (ctx cancelled, a faulty spec or request) the records are nil and no goroutine is left behind.
func Collect(ctx context.Context, jobs []Job, o CollectOptions) ([]*Record, Stats, error) {
	if o.Workers < 1 || o.Retries < 0 {
		return nil, Stats{}, fmt.Errorf("collect: %d workers, %d retries; want at least 1 and 0", o.Workers, o.Retries)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c := &collector{jobs: jobs, o: &o, records: make([]*Record, len(jobs))}
	queue := make(chan int)
	var workers sync.WaitGroup
	for range min(o.Workers, len(jobs)) {
		workers.Go(func() {
			for i := range queue {
				if err := c.job(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := range jobs {
		select {
		case queue <- i:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(queue)
	workers.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, c.stats, fmt.Errorf("collect: %w", err)
	}
	return c.records, c.stats, nil
}

type collector struct {
	jobs    []Job
	o       *CollectOptions
	records []*Record // entry i is written by the worker of job i alone

	mu    sync.Mutex // guards what follows, and calls of Progress
	stats Stats
	ended int
}

// job runs job i until it is not broken or its tries are used up.
func (c *collector) job(ctx context.Context, i int) (err error) {
	opt := c.options(c.jobs[i])
	// The environment's panics are caught inside Run; what arrives here is a bug, told with the rollout it hit.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("rollout %s: panic: %v\n%s", opt.ID, p, debug.Stack())
		}
	}()
	for try := 0; ; try++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		r, err := Run(ctx, opt)
		if err != nil {
			return err
		}
		c.count(r, try)
		if !r.Status.Broken() || try == c.o.Retries {
			c.finish(i, r)
			return nil
		}
		if err := wait(ctx, backoff(c.o.Backoff, try)); err != nil {
			return err
		}
	}
}

func (c *collector) options(j Job) RunOptions {
	phase := c.o.SeedPhase
	if phase == "" {
		phase = j.Phase
		if phase == "rescue" { // rescue attempts count on from n within the training phase
			phase = "train"
		}
	}
	return RunOptions{
		Spec: j.Spec, Task: j.Task, Env: c.o.Env, Policy: c.o.Policy, Renderer: c.o.Renderer,
		Seed: func(turn int) int64 {
			return Seed(c.o.RunSeed, phase, j.Step, j.Task.ID, j.Attempt, turn)
		},
		Temperature: c.o.Temperature, Limits: c.o.Limits,
		ID:    ID(j.Phase, j.Step, j.Task.ID, j.Spec.ID, j.Attempt),
		Group: GroupID(j.Step, j.Task.ID), Phase: j.Phase, Step: j.Step, Attempt: j.Attempt,
	}
}

func (c *collector) count(r *Record, try int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Attempts++
	if try > 0 {
		c.stats.Retried++
	}
	switch r.Status {
	case ServerError:
		c.stats.ServerErrors++
	case EnvError:
		c.stats.EnvErrors++
	case Deadline:
		c.stats.Deadlines++
	}
}

func (c *collector) finish(i int, r *Record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.records[i] = r
	c.ended++
	c.stats.ParseErrors += r.Usage.ParseErrors
	if r.Status == TokenLimit {
		c.stats.Truncated++
	}
	if r.Status.Broken() {
		c.stats.Dropped++
	}
	if c.o.Progress != nil {
		c.o.Progress(c.ended, len(c.jobs), r)
	}
}

// backoff is the wait after try number try (from 0).
func backoff(first time.Duration, try int) time.Duration {
	d := min(first, MaxBackoff)
	for range try {
		d = min(2*d, MaxBackoff)
	}
	return d
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
