package router

import (
	"cmp"
	"fmt"
	"slices"

	"harness-s/rollout"
	"harness-s/rollout/harness"
)

// MaxEvidence bounds the validation tasks that a router keeps.
const MaxEvidence = 4096

// taskEvidence is what is known of one validation task: its looks and how each harness did.
type taskEvidence struct {
	Task  string            `json:"task"`
	Kind  string            `json:"kind"`
	Words []string          `json:"words"` // sorted
	Step  int               `json:"step"`  // of the policy that was measured
	Count map[string]record `json:"count"` // by harness
}

// record is wins and tries in JSON.
type record struct {
	Wins  int `json:"wins"`
	Tries int `json:"tries"`
}

// gather makes evidence of the tasks that were measured, by task id. Broken attempts say nothing.
func gather(step int, ids []string, tasks []rollout.Task, records []*rollout.Record) ([]taskEvidence, error) {
	at := map[string]*taskEvidence{}
	for _, t := range tasks {
		at[t.ID] = &taskEvidence{Task: t.ID, Kind: t.Kind, Words: taskWords(t), Step: step, Count: map[string]record{}}
	}
	for _, r := range records {
		e := at[r.Task]
		if e == nil {
			return nil, fmt.Errorf("router: rollout %s: its task %q is not among the tasks measured", r.ID, r.Task)
		}
		if !slices.Contains(ids, r.Harness) {
			return nil, fmt.Errorf("router: rollout %s: the pool has no harness %q", r.ID, r.Harness)
		}
		if r.Status.Broken() {
			continue
		}
		c := e.Count[r.Harness]
		c.Tries++
		if r.Success {
			c.Wins++
		}
		e.Count[r.Harness] = c
	}
	var out []taskEvidence
	for _, e := range at {
		if len(e.Count) > 0 {
			out = append(out, *e)
		}
	}
	slices.SortFunc(out, byTask)
	return out, nil
}

func byTask(a, b taskEvidence) int { return cmp.Compare(a.Task, b.Task) }

// renew puts new evidence in the place of older evidence of the same tasks. What was not measured anew stays, as far as there
// is room: of too many tasks those measured longest ago go first.
func renew(old, fresh []taskEvidence) []taskEvidence {
	isFresh := map[string]bool{}
	for _, e := range fresh {
		isFresh[e.Task] = true
	}
	out := slices.Clone(fresh)
	for _, e := range old {
		if !isFresh[e.Task] {
			out = append(out, e)
		}
	}
	if len(out) > MaxEvidence {
		slices.SortFunc(out, func(a, b taskEvidence) int { return cmp.Or(cmp.Compare(b.Step, a.Step), byTask(a, b)) })
		out = out[:MaxEvidence]
	}
	slices.SortFunc(out, byTask)
	return out
}

// sum is a Rule over evidence.
func sum(ids []string, step int, evidence []taskEvidence) *Rule {
	r := &Rule{ids: ids, step: step, stats: map[string]map[string]counts{}}
	for _, e := range evidence {
		for id, c := range e.Count {
			if r.stats[id] == nil {
				r.stats[id] = map[string]counts{}
			}
			k := r.stats[id][e.Kind]
			r.stats[id][e.Kind] = counts{k.wins + c.Wins, k.tries + c.Tries}
		}
	}
	return r
}

// pair is two attempts at one task with the same seed: under a sibling and under H0.
type pair struct {
	task          rollout.Task
	sibling, base *rollout.Record
}

// pairs finds the paired attempts of each sibling: same task, attempt and seed, both unbroken; in the order of siblings, tasks and attempts.
func pairs(tasks []rollout.Task, records []*rollout.Record) []pair {
	type place struct {
		task    string
		attempt int
		seed    int64
	}
	base := map[place]*rollout.Record{}
	byID := map[string]rollout.Task{}
	for _, t := range tasks {
		byID[t.ID] = t
	}
	at := func(r *rollout.Record) place { return place{r.Task, r.Attempt, r.Seed} }
	for _, r := range records {
		if r.Harness == harness.BaseID && !r.Status.Broken() {
			base[at(r)] = r
		}
	}
	var out []pair
	for _, r := range records {
		if b := base[at(r)]; b != nil && r.Harness != harness.BaseID && !r.Status.Broken() {
			out = append(out, pair{byID[r.Task], r, b})
		}
	}
	slices.SortStableFunc(out, func(a, b pair) int {
		return cmp.Or(cmp.Compare(a.sibling.Harness, b.sibling.Harness), cmp.Compare(a.task.ID, b.task.ID), cmp.Compare(a.sibling.Attempt, b.sibling.Attempt))
	})
	return out
}
