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

// evaluate makes K attempts at each held-out task under each named harness and scores them. A name that the router decides
// (routed, best, rank2, ...) shares the attempts already made at the task under the same harness.
func (s *stepRun) evaluate(ctx context.Context, label string, names []string) (map[string]Score, error) {
	scores := map[string]Score{}
	err := s.out.timed("time/eval", func() error {
		columns, err := s.columns(ctx, names)
		if err != nil {
			return err
		}
		records, err := s.runJobs(ctx, label, "evaluating", s.evalJobs(columns))
		if err != nil {
			return err
		}
		s.out["rollouts/eval"] += float64(len(records))
		scores = s.score(columns, records)
		return nil
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

// evalJobs are the attempts that the columns need, none twice.
func (s *stepRun) evalJobs(columns []column) []rollout.Job {
	type cell struct{ task, harness string }
	seen := map[cell]bool{}
	var jobs []rollout.Job
	for _, c := range columns {
		for i, t := range s.evalTasks() {
			if at := (cell{t.ID, c.specs[i].ID}); !seen[at] {
				seen[at] = true
				jobs = append(jobs, s.jobs("eval", []rollout.Task{t}, []*harness.Spec{c.specs[i]}, s.cfg.Eval.K)...)
			}
		}
	}
	return jobs
}

// attempts makes k attempts at each task under each harness and keeps the records in the folder.
func (s *stepRun) attempts(ctx context.Context, label, phase string, tasks []rollout.Task, specs []*harness.Spec, k int) ([]*rollout.Record, error) {
	records, err := s.runJobs(ctx, label, "calibrating the router", s.jobs(phase, tasks, specs, k))
	s.out["rollouts/router"] += float64(len(records))
	return records, err
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

// score counts the successes of each column's attempts.
func (s *stepRun) score(columns []column, records []*rollout.Record) map[string]Score {
	type cell struct{ task, harness string }
	at := map[cell][]*rollout.Record{}
	for _, r := range records {
		c := cell{r.Task, r.Harness}
		at[c] = append(at[c], r)
	}
	scores := map[string]Score{}
	tasks := s.evalTasks()
	for _, c := range columns {
		scores[c.name] = scoreOf(tasks, s.cfg.Eval.K, func(i int) []*rollout.Record { return at[cell{tasks[i].ID, c.specs[i].ID}] })
	}
	return scores
}

func scoreOf(tasks []rollout.Task, k int, attempts func(task int) []*rollout.Record) Score {
	score := Score{K: k, Tasks: len(tasks)}
	for i := range tasks {
		wins := 0
		for _, r := range attempts(i) {
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
