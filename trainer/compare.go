package trainer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"

	"harness-s/internal/atomicfile"
	"harness-s/kernels"
)

// CompareOptions say what to run side by side, and where.
type CompareOptions struct {
	Dir      string // a run folder each: Dir/ARM/seed-N; Dir/frozen/seed-N is the policy before training
	Plan     ComparePlan
	Out      io.Writer // progress; nil: none
	Terminal bool      // Out is a terminal
	Build    Builder   // wires the parts; nil: Build of this package
	Report   func(dir string) (string, error)
}

// Comparison is summary.json of a comparison: what is done of it.
type Comparison struct {
	Plan  ComparePlan                  `json:"plan"`
	Pool  []string                     `json:"pool"`   // ids, H0 first
	Runs  int                          `json:"runs"`   // arms that train x seeds
	Done  int                          `json:"done"`   // of them
	WallS float64                      `json:"wall_s"` // of all runs added up
	Arms  map[string]map[string]Result `json:"arms"`   // by arm, then seed
}

// Compare trains every arm under every seed at the budget of the config, and measures each before and after. Runs that
// are done are taken as they are and a run that was stopped goes on, so that a comparison can be interrupted and called
// again; ErrInterrupted says that ctx ended. A seed goes through all arms before the next one starts: a comparison cut
// short is still a fair one. Runs side by side give the same bits as runs one after the other.
func Compare(ctx context.Context, o CompareOptions) (Comparison, error) {
	if err := o.Plan.Check(); err != nil {
		return Comparison{}, fmt.Errorf("compare: %w", err)
	}
	jobs, err := o.jobs()
	if err != nil {
		return Comparison{}, fmt.Errorf("compare: %w", err)
	}
	c := &comparing{o: o, jobs: jobs, results: map[*job]Result{}}
	if err := c.known(); err != nil {
		return Comparison{}, fmt.Errorf("compare: %w", err)
	}
	err = c.run(ctx)
	result := c.result()
	if err == nil {
		err = c.write(result)
	}
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return result, fmt.Errorf("comparison %s: interrupted; the same command goes on: %w", o.Dir, ctx.Err())
	}
	if err != nil {
		return result, fmt.Errorf("compare: %w", err)
	}
	return result, nil
}

// comparing is a comparison at work.
type comparing struct {
	o        CompareOptions
	jobs     []*job
	progress *compareProgress

	mu      sync.Mutex
	results map[*job]Result
}

// jobs is everything to run, a seed after the other, the policy before training first.
func (o CompareOptions) jobs() ([]*job, error) {
	var jobs []*job
	for _, seed := range o.Plan.Seeds {
		arms := []*Arm{nil}
		for i := range o.Plan.Arms {
			if o.Plan.Arms[i].Frozen == "" {
				arms = append(arms, &o.Plan.Arms[i])
			}
		}
		for _, arm := range arms {
			cfg, err := o.Plan.config(arm, seed)
			if err != nil {
				return nil, err
			}
			name := frozenFolder
			if arm != nil {
				name = arm.Name
			}
			j := &job{arm: arm, name: name, seed: seed, cfg: cfg, dir: filepath.Join(o.Dir, name, fmt.Sprint("seed-", seed)), build: o.Build}
			if err := j.identify(); err != nil {
				return nil, err
			}
			jobs = append(jobs, j)
		}
	}
	return jobs, nil
}

// known takes the results that are there, and refuses a folder made by other settings before anything runs.
func (c *comparing) known() error {
	for _, j := range c.jobs {
		r, done, err := j.load()
		if err != nil {
			return err
		}
		if done {
			c.results[j] = r
		}
	}
	return nil
}

// run does the jobs that are left, some side by side.
func (c *comparing) run(ctx context.Context) error {
	var left []*job
	for _, j := range c.jobs {
		if _, done := c.results[j]; !done {
			left = append(left, j)
		}
	}
	atOnce, threads := c.o.Plan.divide(left)
	c.progress = newCompareProgress(c.o, c.jobs, left)
	defer c.progress.end()
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for _, j := range left {
		g.Go(func() error {
			if err := inner.Err(); err != nil {
				return err
			}
			r, err := j.do(inner, threads, c.progress)
			if err != nil {
				return fmt.Errorf("arm %s, seed %d: %w", j.name, j.seed, err)
			}
			return c.finished(j, r)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// divide says how many runs go side by side, and on how many threads each computes: a core each, except that runs on a
// device take it one after the other.
func (p ComparePlan) divide(left []*job) (atOnce, threads int) {
	cores := runtime.NumCPU()
	atOnce = p.Parallel
	if atOnce == 0 {
		atOnce = cores
		for _, j := range left {
			if name, _ := kernels.Resolve(j.cfg.Backend); name != "cpu" {
				atOnce = 1
			}
		}
	}
	atOnce = max(1, min(atOnce, len(left)))
	return atOnce, max(1, cores/atOnce)
}

// finished takes a result, and writes the comparison as far as it is.
func (c *comparing) finished(j *job, r Result) error {
	c.mu.Lock()
	c.results[j] = r
	c.mu.Unlock()
	c.progress.finished(j, r)
	return c.write(c.result())
}

// result puts together what is done. An arm's run counts once its seed's measurement before training is there too.
func (c *comparing) result() Comparison {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := Comparison{Plan: c.o.Plan, Arms: map[string]map[string]Result{}, Pool: c.jobs[0].poolIDs}
	put := func(arm string, seed int64, r Result) {
		if out.Arms[arm] == nil {
			out.Arms[arm] = map[string]Result{}
		}
		out.Arms[arm][fmt.Sprint(seed)] = r
	}
	for _, frozen := range c.jobs {
		if frozen.arm != nil {
			continue
		}
		before, ok := c.results[frozen]
		out.WallS += before.WallS
		for _, j := range c.jobs {
			if j.arm == nil || j.seed != frozen.seed {
				continue
			}
			out.Runs++
			if r, done := c.results[j]; done {
				out.Done++
				out.WallS += r.WallS
				if ok {
					put(j.name, j.seed, r.startingAt(before))
				}
			}
		}
		for _, a := range c.o.Plan.Arms {
			if a.Frozen != "" && ok {
				put(a.Name, frozen.seed, before.usedAs(a.Frozen))
			}
		}
	}
	return out
}

// write makes summary.json, table.md and the report.
func (c *comparing) write(r Comparison) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := atomicfile.Write(filepath.Join(c.o.Dir, "summary.json"), append(data, '\n')); err != nil {
		return err
	}
	if err := atomicfile.WriteFunc(filepath.Join(c.o.Dir, "table.md"), func(w io.Writer) error { return r.Table(w) }); err != nil {
		return err
	}
	if c.o.Report == nil {
		return nil
	}
	_, err = c.o.Report(c.o.Dir)
	return err
}
