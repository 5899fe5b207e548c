package trainer

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"
)

// compareProgress tells how far all runs are together. What a single run says goes into its own log.
type compareProgress struct {
	mu     sync.Mutex
	line   *progress
	every  time.Duration
	begun  time.Time
	told   time.Time
	runs   int          // of the comparison
	done   int          // of them
	expect map[*job]int // attempts of each run that was left, about
	made   map[*job]int // of them, made by this process
	active map[*job]bool
}

func newCompareProgress(o CompareOptions, all, left []*job) *compareProgress {
	p := &compareProgress{
		line: newProgress(o.Out, o.Terminal), every: phaseLines, begun: time.Now(), told: time.Now(),
		runs: len(all), done: len(all) - len(left),
		expect: map[*job]int{}, made: map[*job]int{}, active: map[*job]bool{},
	}
	if o.Terminal {
		p.every = phaseTerminal
	}
	for _, j := range left {
		p.expect[j] = j.attempts()
	}
	p.line.note(fmt.Sprintf("comparison in %s: %d runs, %d done", o.Dir, p.runs, p.done))
	return p
}

// attempts estimates a job's attempts: training, calibrations and evaluations.
func (j *job) attempts() int {
	c := j.cfg
	validation := c.Data.Validation
	if n := c.Router.Tasks; n > 0 {
		validation = min(n, validation)
	}
	anchor := validation * c.Router.Attempts * len(j.poolIDs)
	test := c.Data.Test
	if c.Eval.Tasks > 0 {
		test = min(test, c.Eval.Tasks)
	}
	all := anchor + 4*test*c.Eval.K // names share attempts, most often
	if j.arm == nil {
		return all
	}
	steps := c.Budget.Rollouts / (c.Rollout.N * c.Rollout.Tasks)
	all += c.Budget.Rollouts
	if c.Eval.Every > 0 {
		all += steps / c.Eval.Every * test * c.Eval.K
	}
	if (&run{cfg: c}).needsRouter() {
		all += anchor
		if c.Router.Refresh > 0 {
			all += steps / c.Router.Refresh * anchor
		}
	}
	return all
}

// counting is the job's builder, which tells of every attempt.
func (p *compareProgress) counting(j *job) Builder {
	p.mu.Lock()
	p.active[j] = true
	p.mu.Unlock()
	return func(ctx context.Context, c Config, from Sources) (Parts, error) {
		parts, err := j.build.wire(ctx, c, from)
		if err == nil {
			parts.Actor = countedActor{parts.Actor, func(n int) { p.ended(j, n) }}
		}
		return parts, err
	}
}

func (p *compareProgress) ended(j *job, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.made[j] += n
	if time.Since(p.told) < p.every {
		return
	}
	p.told = time.Now()
	p.line.show(fmt.Sprintf("%d/%d runs, %d at work, %s", p.done, p.runs, len(p.active), p.left()))
}

// left is the time to go over all runs, by attempts.
func (p *compareProgress) left() string {
	made, all := 0.0, 0.0
	for j, expect := range p.expect {
		made += float64(p.made[j])
		all += math.Max(float64(expect), float64(p.made[j]))
	}
	spent := time.Since(p.begun).Seconds()
	if made == 0 {
		return duration(spent) + " elapsed"
	}
	return fmt.Sprintf("%s elapsed, about %s left", duration(spent), duration(spent*(all-made)/made))
}

// finished leaves a line a run.
func (p *compareProgress) finished(j *job, r Result) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expect[j] = p.made[j]
	delete(p.active, j)
	p.done++
	p.line.note(fmt.Sprintf("%s, seed %d: H0 %.3f, best %.3f, routed %.3f  %s  %d/%d runs, %s", j.name, j.seed,
		average(r.After, "h0"), average(r.After, bestName), average(r.After, routedName), duration(r.WallS), p.done, p.runs, p.left()))
}

func (p *compareProgress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.line.end()
}
