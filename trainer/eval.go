package trainer

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"sort"
	"strings"

	"harness-s/rollout"
	"harness-s/rollout/harness"
)

const (
	routedName   = "routed"
	siblingsName = "siblings"
)

// Score is an evaluation under one harness. In JSON: {"pass@K": ..., "avg@K": ..., "tasks": ...}.
type Score struct {
	K      int
	Pass   float64  // share of tasks with a success among exactly K attempts
	Avg    float64  // mean success of an attempt
	Tasks  int      // all of them, broken attempts counted as failures
	Broken []string // ids of attempts still broken after their retries
}

// MarshalJSON writes the summary's form.
func (s Score) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"pass@%d":%s,"avg@%d":%s,"tasks":%d`, s.K, number(s.Pass), s.K, number(s.Avg), s.Tasks)
	if len(s.Broken) > 0 {
		ids, err := json.Marshal(s.Broken)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, `,"broken":%s`, ids)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// UnmarshalJSON reads what MarshalJSON writes.
func (s *Score) UnmarshalJSON(data []byte) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return err
	}
	for name, raw := range fields {
		var into any
		switch kind, k, _ := strings.Cut(name, "@"); kind {
		case "pass":
			into = &s.Pass
			if _, err := fmt.Sscan(k, &s.K); err != nil {
				return fmt.Errorf("score %q: %w", name, err)
			}
		case "avg":
			into = &s.Avg
		case "tasks":
			into = &s.Tasks
		case "broken":
			into = &s.Broken
		default:
			return fmt.Errorf("score: unknown field %q", name)
		}
		if err := json.Unmarshal(raw, into); err != nil {
			return fmt.Errorf("score %q: %w", name, err)
		}
	}
	return nil
}

// evalTasks are the held-out tasks in use.
func (r *run) evalTasks() []rollout.Task {
	tasks := r.parts.Tasks.Test
	if r.cfg.Eval.Split == "val" {
		tasks = r.parts.Tasks.Validation
	}
	if n := r.cfg.Eval.Tasks; n > 0 {
		tasks = tasks[:min(n, len(tasks))]
	}
	return tasks
}

// expand turns h0, siblings and ids into harnesses; routed is left to the caller.
func (r *run) expand(names []string) ([]*harness.Spec, error) {
	var specs []*harness.Spec
	seen := map[string]bool{}
	add := func(s *harness.Spec) {
		if !seen[s.ID] {
			seen[s.ID] = true
			specs = append(specs, s)
		}
	}
	for _, name := range names {
		switch name {
		case routedName:
		case siblingsName:
			for _, s := range r.pool.Siblings() {
				add(s)
			}
		default:
			s, ok := r.pool.Get(name)
			if !ok {
				return nil, fmt.Errorf("no harness %q: want h0, siblings, routed or an id of the pool", name)
			}
			add(s)
		}
	}
	return specs, nil
}

// evaluate makes K attempts at each held-out task under each named harness and scores them. Attempts of the
// routed harness are those already made under the same harness, or fresh ones.
func (s *stepRun) evaluate(ctx context.Context, label string, names []string) (map[string]Score, error) {
	scores := map[string]Score{}
	err := s.out.timed("time/eval", func() error {
		records, err := s.evalAttempts(ctx, label, names)
		if err != nil {
			return err
		}
		scores, err = s.score(names, records)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("evaluate at step %d: %w", s.next.Step, err)
	}
	for id, score := range scores {
		s.out[fmt.Sprintf("eval/pass@%d/%s", score.K, id)] = score.Pass
		s.out[fmt.Sprintf("eval/avg@%d/%s", score.K, id)] = score.Avg
	}
	return scores, nil
}

func (s *stepRun) evalAttempts(ctx context.Context, label string, names []string) ([]*rollout.Record, error) {
	specs, err := s.expand(names)
	if err != nil {
		return nil, err
	}
	tasks := s.evalTasks()
	jobs := s.jobs("eval", tasks, specs, s.cfg.Eval.K)
	if contains(names, routedName) {
		have := map[string]bool{}
		for _, spec := range specs {
			have[spec.ID] = true
		}
		for _, t := range tasks {
			id, err := s.parts.Router.Rank1(t)
			if err != nil {
				return nil, fmt.Errorf("route task %s: %w", t.ID, err)
			}
			spec, ok := s.pool.Get(id)
			if !ok {
				return nil, fmt.Errorf("route task %s: the pool has no harness %q", t.ID, id)
			}
			if !have[id] {
				jobs = append(jobs, s.jobs("eval", []rollout.Task{t}, []*harness.Spec{spec}, s.cfg.Eval.K)...)
			}
		}
	}
	return s.runJobs(ctx, label, "evaluating", jobs)
}

// attempts makes k attempts at each task under each harness and keeps the records in the folder.
func (s *stepRun) attempts(ctx context.Context, label, phase string, tasks []rollout.Task, specs []*harness.Spec, k int) ([]*rollout.Record, error) {
	return s.runJobs(ctx, label, "calibrating the router", s.jobs(phase, tasks, specs, k))
}

func (s *stepRun) jobs(phase string, tasks []rollout.Task, specs []*harness.Spec, k int) []rollout.Job {
	var jobs []rollout.Job
	for _, spec := range specs {
		for _, t := range tasks {
			for a := range k {
				jobs = append(jobs, rollout.Job{Task: t, Spec: spec, Phase: phase, Step: s.next.Step, Attempt: a})
			}
		}
	}
	return jobs
}

func (s *stepRun) runJobs(ctx context.Context, label, what string, jobs []rollout.Job) ([]*rollout.Record, error) {
	records, err := s.parts.Actor.Collect(ctx, jobs, s.progress.phase(what, len(jobs)))
	if err != nil {
		return nil, fmt.Errorf("collect rollouts: %w", err)
	}
	if s.folder == nil { // eval without a run folder of its own
		return records, nil
	}
	return records, writeRecords(s.folder.RolloutPath(label, s.next.Step), records)
}

// score counts successes by harness and task.
func (s *stepRun) score(names []string, records []*rollout.Record) (map[string]Score, error) {
	byHarness := map[string]map[string][]*rollout.Record{}
	for _, r := range records {
		if byHarness[r.Harness] == nil {
			byHarness[r.Harness] = map[string][]*rollout.Record{}
		}
		byHarness[r.Harness][r.Task] = append(byHarness[r.Harness][r.Task], r)
	}
	scores := map[string]Score{}
	specs, err := s.expand(names)
	if err != nil {
		return nil, err
	}
	for _, spec := range specs {
		scores[spec.ID] = scoreOf(s.evalTasks(), s.cfg.Eval.K, func(t rollout.Task) []*rollout.Record { return byHarness[spec.ID][t.ID] })
	}
	if contains(names, routedName) {
		var failed error
		scores[routedName] = scoreOf(s.evalTasks(), s.cfg.Eval.K, func(t rollout.Task) []*rollout.Record {
			id, err := s.parts.Router.Rank1(t)
			if err != nil {
				failed = err
			}
			return byHarness[id][t.ID]
		})
		if failed != nil {
			return nil, failed
		}
	}
	return scores, nil
}

func scoreOf(tasks []rollout.Task, k int, attempts func(rollout.Task) []*rollout.Record) Score {
	score := Score{K: k, Tasks: len(tasks)}
	for _, t := range tasks {
		wins := 0
		for _, r := range attempts(t) {
			switch {
			case r.Status.Broken():
				score.Broken = append(score.Broken, r.ID)
			case r.Success:
				wins++
			}
		}
		score.Avg += float64(wins) / float64(k)
		score.Pass += toFloat(wins > 0)
	}
	n := math.Max(1, float64(len(tasks)))
	score.Avg /= n
	score.Pass /= n
	sort.Strings(score.Broken)
	return score
}

func contains(names []string, name string) bool {
	for _, n := range names {
		if n == name {
			return true
		}
	}
	return false
}
