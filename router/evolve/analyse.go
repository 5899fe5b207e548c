package evolve

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"harness-s/rollout"
	"harness-s/rollout/harness"
)

// labelled is how many failures one request to the analyst is about: what a crash can cost.
const labelled = 32

// analyse runs the parents on fresh training tasks and finds what to repair in each. With errBudget the pairs found so far
// stand.
func (e *engine) analyse(ctx context.Context, gen *Generation) ([]*pair, error) {
	all := jobs(e.parents, e.fresh(gen.Number), gen.Number, 1)
	if !e.affords(len(all) + e.childCost()) { // without a child at the end they would be for nothing
		return nil, errBudget
	}
	what := fmt.Sprintf("generation %d: running %d parents on training tasks", gen.Number, len(e.parents))
	records, err := e.attempts(ctx, fmt.Sprintf("train_%d", gen.Number), what, all)
	if err != nil {
		return nil, err
	}
	var out []*pair
	for i, parent := range e.parents {
		own := records[i*e.Size.Tasks : (i+1)*e.Size.Tasks]
		failed := failures(own, e.Size.Failures)
		gen.Failures = append(gen.Failures, len(failures(own, 0)))
		directions, err := e.directions(ctx, gen, parent, failed)
		for _, d := range directions {
			out = append(out, &pair{parent: parent, direction: d})
		}
		if errors.Is(err, errBudget) {
			return out, errors.Join(err, e.settle())
		}
		if err != nil {
			return nil, err
		}
	}
	return out, e.settle()
}

// directions labels the failures of a parent and groups them.
func (e *engine) directions(ctx context.Context, gen *Generation, parent *harness.Spec, failed []*rollout.Record) ([]Direction, error) {
	var labels []Label
	var used error
	for at := 0; at < len(failed); at += labelled {
		part := failed[at:min(at+labelled, len(failed))]
		found, _, err := ask(ctx, e, fmt.Sprintf("label %d %s %d", gen.Number, parent.ID, at), func() ([]Label, error) {
			return e.Analyst.Label(ctx, parent, part)
		})
		if errors.Is(err, errBudget) {
			used = err
			break
		}
		if err != nil {
			return nil, err
		}
		labels = append(labels, e.cleanLabels(found, part)...)
	}
	e.note(gen, parent, labels)
	if len(labels) == 0 {
		return nil, used
	}
	found, _, err := ask(ctx, e, fmt.Sprintf("directions %d %s", gen.Number, parent.ID), func() ([]Direction, error) {
		return e.Analyst.Directions(ctx, parent, labels, e.Size.Directions)
	})
	if err != nil {
		return nil, err
	}
	return e.cleanDirections(found, labels), used
}

// note keeps the labels for people.
func (e *engine) note(gen *Generation, parent *harness.Spec, labels []Label) {
	causes := map[string]int{}
	for _, l := range labels {
		causes[l.Cause]++
		e.labels = append(e.labels, LabelEntry{Generation: gen.Number, Parent: parent.ID, Label: l})
	}
	gen.Causes[parent.ID] = causes
}

// cleanLabels drops what is about no failure of this parent, or about one a second time.
func (e *engine) cleanLabels(found []Label, failed []*rollout.Record) []Label {
	byID := map[string]*rollout.Record{}
	for _, r := range failed {
		byID[r.ID] = r
	}
	var out []Label
	for _, l := range found {
		r := byID[l.Rollout]
		if r == nil || !shortName(l.Cause) {
			e.dropped.Labels++
			continue
		}
		delete(byID, l.Rollout)
		l.Task, l.Kind, l.Why = r.Task, r.TaskKind, plainText(l.Why, maxSentence)
		if l.Turn < -1 || l.Turn >= len(r.Turns) {
			l.Turn = -1
		}
		l.Facts = e.cleanFacts(l.Facts)
		out = append(out, l)
	}
	return out
}

// cleanFacts leaves out what would give a task away, or is no name and short text: facts may reach a prompt.
func (e *engine) cleanFacts(facts map[string]string) map[string]string {
	var out map[string]string
	for _, k := range slices.Sorted(maps.Keys(facts)) {
		v := facts[k]
		if len(out) == maxFacts || !shortName(strings.ReplaceAll(k, "_", "-")) || v != plainText(v, maxFact) || e.gate.leaks.find(k+" "+v) != "" {
			e.dropped.Facts++
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[k] = v
	}
	return out
}

// cleanDirections keeps directions with a name of their own and evidence among the labels, most tasks first.
func (e *engine) cleanDirections(found []Direction, labels []Label) []Direction {
	tasks := map[string]string{} // of labelled rollouts
	for _, l := range labels {
		tasks[l.Rollout] = l.Task
	}
	names := map[string]bool{}
	var out []Direction
	for _, d := range found {
		distinct := map[string]bool{}
		var evidence []string
		for _, id := range d.Evidence {
			if tasks[id] == "" || slices.Contains(evidence, id) {
				e.dropped.Evidence++
				continue
			}
			evidence = append(evidence, id)
			distinct[tasks[id]] = true
		}
		if !shortName(d.ID) || names[d.ID] || len(evidence) == 0 {
			e.dropped.Directions++
			continue
		}
		names[d.ID] = true
		d.Description = plainText(d.Description, harness.MaxDirectionBytes)
		if d.Description == "" || e.gate.leaks.find(d.Description) != "" {
			e.dropped.Descriptions++
			d.Description = strings.ReplaceAll(d.ID, "-", " ")
		}
		d.Evidence, d.Tasks, d.Facts = evidence, len(distinct), e.cleanFacts(d.Facts)
		out = append(out, d)
	}
	slices.SortStableFunc(out, func(a, b Direction) int { return b.Tasks - a.Tasks })
	return out[:min(len(out), e.Size.Directions)]
}

const (
	maxSentence = 1 << 10
	maxFacts    = 16
	maxFact     = 256
	maxName     = 48 // a child's id is a direction's with a few more letters
)

// shortName checks the name of a cause or direction: lower-case letters, digits, -.
func shortName(s string) bool {
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' {
			return false
		}
	}
	return s != "" && len(s) <= maxName && s[0] != '-'
}

// plainText is one line of at most max bytes without control characters.
func plainText(s string, max int) string {
	s = strings.ToValidUTF8(s[:min(len(s), 4*max)], "") // more would be work for nothing: texts may be hostile
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
	return strings.ToValidUTF8(s[:min(len(s), max)], "")
}
