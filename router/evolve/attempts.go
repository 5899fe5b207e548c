package evolve

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"harness-s/rollout"
	"harness-s/rollout/harness"
)

// Phase is the phase of an evolution's jobs and seeds.
const Phase = "evolve"

// Steps of jobs. Seeds hold the step, so that validation attempts are paired over all generations while training tasks are
// met afresh in each: its step is the generation's number, from 1.
const validationStep = 0

// errBudget ends an evolution in order.
var errBudget = errors.New("the budget is used up")

// jobs makes k attempts at each task under each harness, in that order.
func jobs(specs []*harness.Spec, tasks []rollout.Task, step, k int) []rollout.Job {
	var out []rollout.Job
	for _, s := range specs {
		for _, t := range tasks {
			for a := range k {
				out = append(out, rollout.Job{Spec: s, Task: t, Step: step, Phase: Phase, Attempt: a})
			}
		}
	}
	return out
}

// attempts makes the jobs' rollouts, or reads those that rollouts/NAME.jsonl.zst already has. It charges the budget, and
// makes none at all when that does not pay for every job.
func (e *engine) attempts(ctx context.Context, name, what string, jobs []rollout.Job) ([]*rollout.Record, error) {
	if !e.affords(len(jobs)) {
		return nil, fmt.Errorf("%s: %d rollouts: %w", what, len(jobs), errBudget)
	}
	e.spent.Rollouts += len(jobs)
	if len(jobs) == 0 {
		return nil, nil
	}
	path := filepath.Join(e.Dir, rolloutsName, name+".jsonl.zst")
	records, err := readBack(path, jobs)
	if err != nil || len(records) == len(jobs) {
		return records, err
	}
	w, err := rollout.OpenRecords(path, -1)
	if err != nil {
		return nil, err
	}
	e.journal.work()
	told := e.Progress.Phase(what, len(jobs))
	for len(records) < len(jobs) && err == nil {
		done := len(records)
		var made []*rollout.Record
		made, err = e.Actor.Collect(ctx, jobs[done:min(done+e.Chunk, len(jobs))], func(n int) { told(done + n) })
		if err == nil {
			err = e.plausible(ctx, made, jobs[done])
		}
		if err == nil {
			records, err = append(records, made...), keep(w, made)
		}
	}
	if closed := w.Close(); err == nil { // after a failed write it says the same once more
		err = closed
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return records, nil
}

// plausible refuses to keep attempts most of which are broken while the base harness's break as well: then the server or the
// environment is down, and they would say of the harnesses what is not so.
func (e *engine) plausible(ctx context.Context, made []*rollout.Record, j rollout.Job) error {
	broken := rollout.Dropped(made)
	if 2*len(broken) <= len(made) {
		return nil
	}
	return e.alive(ctx, j.Task, broken[0].Error)
}

// alive makes one more attempt under the base harness; an error says that even that one is broken. It is a check of the
// machinery and not counted.
func (e *engine) alive(ctx context.Context, t rollout.Task, why string) error {
	records, err := e.Actor.Collect(ctx, jobs([]*harness.Spec{e.Base}, []rollout.Task{t}, validationStep, 1), nil)
	if err != nil {
		return err
	}
	if r := records[0]; r.Status.Broken() {
		return fmt.Errorf("attempts are broken, under the base harness too: mend what is down, then resume; the first: %s; the last: %s", why, r.Error)
	}
	return nil
}

// keep makes records durable.
func keep(w *rollout.RecordWriter, records []*rollout.Record) error {
	for _, r := range records {
		if err := w.Write(r); err != nil {
			return err
		}
	}
	return w.Flush()
}

// readBack reads the rollouts that an earlier process made of the jobs; they are the first of them.
func readBack(path string, jobs []rollout.Job) ([]*rollout.Record, error) {
	var out []*rollout.Record
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	_, _, err := rollout.ReadRecords(path, func(r *rollout.Record) error {
		if len(out) == len(jobs) {
			return fmt.Errorf("more than the %d rollouts of this evolution", len(jobs))
		}
		j := jobs[len(out)]
		if want := rollout.ID(j.Phase, j.Step, j.Task.ID, j.Spec.ID, j.Attempt); r.ID != want {
			return fmt.Errorf("rollout %s stands where this evolution has %s: the file is another run's, or the journal was edited", r.ID, want)
		}
		if r.HarnessHash != j.Spec.Hash() {
			return fmt.Errorf("rollout %s was made under another harness %s: its spec was edited (put it back), or the journal was", r.ID, j.Spec.ID)
		}
		out = append(out, r)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%w; without this file its rollouts are made again", err)
	}
	return out, nil
}

// affords says whether n more rollouts are within the budget.
func (e *engine) affords(n int) bool {
	return e.Limit.Rollouts == 0 || e.spent.Rollouts+n <= e.Limit.Rollouts
}

// failures picks the attempts that ended and failed: broken ones say nothing. With a limit they are spread over tasks: the
// first failure of each task, then the second, and so on.
func failures(records []*rollout.Record, limit int) []*rollout.Record {
	byTask := map[string]int{}
	var rounds [][]*rollout.Record
	count := 0
	for _, r := range records {
		if r.Success || r.Status.Broken() {
			continue
		}
		n := byTask[r.Task]
		byTask[r.Task]++
		if n == len(rounds) {
			rounds = append(rounds, nil)
		}
		rounds[n] = append(rounds[n], r)
		count++
	}
	out := make([]*rollout.Record, 0, count)
	for _, round := range rounds {
		out = append(out, round...)
	}
	if limit > 0 && len(out) > limit {
		out = out[:limit]
	}
	return out
}
