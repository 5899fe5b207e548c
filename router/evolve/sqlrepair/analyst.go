// Package sqlrepair is the embedded analyst and editor of the SQL environment: what evolution uses where no language model
// is at hand. Both are deterministic.
//
// The Analyst names the earliest wrong decision of a failed attempt, out of a closed list (causes.go), from the transcript and
// the grader's word: never from the task. The Editor has typed operators on harness specs (operators.go) and a table of which
// operators repair which cause (library.go).
package sqlrepair

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"harness-s/rollout"
	"harness-s/rollout/harness"
	"harness-s/router/evolve"
)

// Analyst finds causes of failed attempts by reading their transcripts.
type Analyst struct{}

var _ evolve.Analyst = Analyst{}

// Label names the cause of each failed record. Broken attempts and those that no test fits have no label.
func (Analyst) Label(ctx context.Context, parent *harness.Spec, failed []*rollout.Record) ([]evolve.Label, error) {
	var labels []evolve.Label
	for _, rec := range failed {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if rec.Success || rec.Status.Broken() {
			continue
		}
		t := readTrace(parent, rec)
		c, turn, facts := diagnose(t)
		if c == nil {
			continue
		}
		labels = append(labels, evolve.Label{
			Rollout: rec.ID, Task: rec.Task, Kind: rec.TaskKind, Cause: c.name, Turn: turn,
			Why: fmt.Sprintf("In turn %d of %d the policy %s.", turnNumber(rec, turn), turnNumber(rec, t.lastOut), c.what), Facts: facts,
		})
	}
	return labels, nil
}

// turnNumber counts the policy's turns up to Turns[at], from 1.
func turnNumber(rec *rollout.Record, at int) int {
	n := 0
	for _, turn := range rec.Turns[:at+1] {
		if turn.Role == "assistant" {
			n++
		}
	}
	return n
}

// Directions are one a cause, the one with most distinct tasks first, ties by the list's order. Facts are those that most of
// a cause's labels agree on.
func (Analyst) Directions(_ context.Context, _ *harness.Spec, labels []evolve.Label, most int) ([]evolve.Direction, error) {
	var out []evolve.Direction
	for _, c := range causes {
		d := evolve.Direction{ID: c.name, Description: c.what}
		tasks, facts := map[string]bool{}, map[string]map[string]int{}
		for _, l := range labels {
			if l.Cause != c.name {
				continue
			}
			d.Evidence = append(d.Evidence, l.Rollout)
			tasks[l.Task] = true
			for k, v := range l.Facts {
				if facts[k] == nil {
					facts[k] = map[string]int{}
				}
				facts[k][v]++
			}
		}
		if len(d.Evidence) == 0 {
			continue
		}
		d.Tasks, d.Facts = len(tasks), commonest(facts)
		out = append(out, d)
	}
	slices.SortStableFunc(out, func(a, b evolve.Direction) int { return b.Tasks - a.Tasks })
	return out[:min(most, len(out))], nil
}

// commonest takes for each fact the value seen most often, ties to the smaller text.
func commonest(facts map[string]map[string]int) map[string]string {
	if len(facts) == 0 {
		return nil
	}
	out := map[string]string{}
	for k, seen := range facts {
		values := slices.Sorted(maps.Keys(seen))
		out[k] = slices.MaxFunc(values, func(a, b string) int {
			if seen[a] != seen[b] {
				return seen[a] - seen[b]
			}
			return strings.Compare(b, a)
		})
	}
	return out
}
