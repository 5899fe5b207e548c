package evolve

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"unicode"

	"harness-s/rollout"
	"harness-s/rollout/harness"
)

// pair is a parent and one direction of its repair.
type pair struct {
	parent    *harness.Spec
	direction Direction
	children  []child  // passed the gate
	refused   int      // candidates that did not
	problems  []string // of the last edit, told to the editor
	done      bool
}

// child is a candidate that passed the gate.
type child struct {
	pair     *pair
	spec     *harness.Spec
	manifest Manifest
	edit     int // attempt of the editor, from 0
	made     int // order in the generation
}

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
	s = strings.ToValidUTF8(s, "")
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
	return strings.ToValidUTF8(s[:min(len(s), max)], "")
}

// edit gets children for every pair, in rounds: all pairs are edited, then what came is put through the gate, and those
// whose candidates did not pass are told why and edited again.
func (e *engine) edit(ctx context.Context, gen *Generation, pairs []*pair) error {
	b := &brood{engine: e, gen: gen, number: map[string]int{}}
	for attempt := 0; attempt < MaxEdits && !b.full(0); attempt++ {
		var open []*pair
		for _, p := range pairs {
			if !p.done {
				open = append(open, p)
			}
		}
		proposals, err := e.proposals(ctx, gen.Number, attempt, open)
		if err != nil && !errors.Is(err, errBudget) {
			return err
		}
		if err := errors.Join(b.round(ctx, attempt, open, proposals), err); err != nil {
			return err
		}
	}
	return nil
}

// editors is how many edits are asked for at once.
const editors = 8

// proposals asks the editor for every pair, several at once. What a pair got is in the place of the pair.
func (e *engine) proposals(ctx context.Context, g, attempt int, pairs []*pair) ([][]proposal, error) {
	out, errs := make([][]proposal, len(pairs)), make([]error, len(pairs))
	var wg sync.WaitGroup
	slots := make(chan struct{}, editors)
	for i, p := range pairs {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			n := e.Size.Children - len(p.children)
			key := fmt.Sprintf("edit %d %s %s %d", g, p.parent.ID, p.direction.ID, attempt)
			out[i], _, errs[i] = ask(ctx, e, key, func() ([]proposal, error) {
				candidates, err := e.Editor.Edit(ctx, p.parent, p.direction, n, attempt, p.problems)
				var all []proposal
				for _, c := range candidates[:min(n, len(candidates))] {
					all = append(all, propose(c, p.parent, p.direction, e.Tools))
				}
				return all, err
			})
		})
	}
	wg.Wait()
	err := errors.Join(errs...)
	if err == nil || errors.Is(err, errBudget) {
		err = errors.Join(err, e.settle())
	}
	return out, err
}

// brood is the children of a generation on their way through the gate.
type brood struct {
	*engine
	gen    *Generation
	number map[string]int // candidates by direction id
	made   int            // children
}

// trial is a candidate that has passed the static checks.
type trial struct {
	child
	yaml  string
	smoke smoke
}

// round puts what one edit of each pair gave through the gate. First candidates come before second ones, so that every
// direction has a child before the pool or the budget ends.
func (b *brood) round(ctx context.Context, attempt int, pairs []*pair, proposals [][]proposal) error {
	for _, p := range pairs {
		p.problems = nil
	}
	var trials []*trial
	full := false
	for k := 0; k < b.Size.Children && !full; k++ {
		for i, p := range pairs {
			if k >= len(proposals[i]) {
				continue
			}
			if full = b.full(len(trials)); full {
				break
			}
			if t := b.candidate(attempt, p, &proposals[i][k]); t != nil {
				trials = append(trials, t)
			}
		}
	}
	if err := b.smoke(ctx, trials); err != nil {
		return err
	}
	for _, t := range trials {
		b.verdict(t)
	}
	for i, p := range pairs {
		p.done = len(p.children) >= b.Size.Children || len(proposals[i]) == 0 || len(p.problems) == 0
	}
	return nil
}

// full says that no further candidate can be taken: the pool has no place, or the budget does not pay for its smoke run
// and for measuring it. The latter ends the evolution.
func (b *brood) full(trials int) bool {
	if len(b.pool)-1+b.made+trials >= b.Size.Pool {
		return true
	}
	if !b.affords((b.made+trials+1)*b.childCost() - b.made) { // the smoke runs of those made are paid
		b.ended = EndedBudget
		return true
	}
	return false
}

// childCost is the rollouts a child takes: its smoke run, and measuring it.
func (e *engine) childCost() int { return 1 + len(e.Validation)*e.Size.Attempts }

// candidate puts one through the static checks; nil when it does not pass.
func (b *brood) candidate(attempt int, p *pair, prop *proposal) *trial {
	d := p.direction
	b.number[d.ID]++
	id := fmt.Sprintf("g%d-%s-%d", b.gen.Number, d.ID, b.number[d.ID])
	m := &prop.Manifest
	m.Child, m.Parent, m.Direction = id, p.parent.ID, d.ID
	m.Evidence = slices.DeleteFunc(m.Evidence, func(r string) bool { return !slices.Contains(d.Evidence, r) })
	if len(m.Evidence) == 0 {
		m.Evidence = d.Evidence
	}
	s, r := b.gate.static(prop, id, p.parent)
	if r != nil {
		b.turnAway(b.gen, p, Rejected{Candidate: id, Edit: attempt, Spec: prop.YAML, Manifest: *m}, r)
		return nil
	}
	return &trial{child: child{pair: p, spec: s, manifest: *m, edit: attempt}, yaml: prop.YAML}
}

// smoke makes one attempt under each candidate, several at once: each by itself, for one that cannot be made ends a whole
// call of the actor.
func (b *brood) smoke(ctx context.Context, trials []*trial) error {
	task := longest(b.fresh(b.gen.Number))
	b.spent.Rollouts += len(trials)
	errs := make([]error, len(trials))
	var wg sync.WaitGroup
	slots := make(chan struct{}, editors)
	for i, t := range trials {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			t.smoke, errs[i] = unit(b.journal, b.Meter, "smoke "+t.spec.ID, func() (smoke, error) {
				return b.smokeRun(ctx, t.spec, task)
			})
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (b *brood) smokeRun(ctx context.Context, s *harness.Spec, task rollout.Task) (smoke, error) {
	records, err := guarded("smoke run", func() ([]*rollout.Record, error) {
		return b.Actor.Collect(ctx, jobs([]*harness.Spec{s}, []rollout.Task{task}, b.gen.Number, 1), nil)
	})
	if ctx.Err() != nil {
		return smoke{}, ctx.Err()
	}
	if err != nil {
		return smoke{Error: err.Error()}, nil
	}
	r := records[0]
	if r.Status.Broken() {
		if err := b.alive(ctx, task, r.Error); err != nil {
			return smoke{}, err
		}
	}
	return smoke{Status: r.Status, Turns: len(r.Turns), Error: r.Error, Made: true}, nil
}

// longest is the task with the longest texts: its prompt is the most likely not to fit.
func longest(tasks []rollout.Task) rollout.Task {
	size := func(t rollout.Task) (n int) {
		for _, v := range t.Vars {
			n += len(v)
		}
		return n
	}
	best := tasks[0]
	for _, t := range tasks[1:] {
		if size(t) > size(best) {
			best = t
		}
	}
	return best
}

// verdict takes a candidate whose smoke run went well.
func (b *brood) verdict(t *trial) {
	if r := t.smoke.judge(); r != nil {
		delete(b.gate.byHash, t.spec.Hash())
		b.turnAway(b.gen, t.pair, Rejected{Candidate: t.spec.ID, Edit: t.edit, Spec: t.yaml, Manifest: t.manifest}, r)
		return
	}
	t.made = b.made
	b.made++
	t.pair.children = append(t.pair.children, t.child)
}

// turnAway counts and keeps a rejection.
func (e *engine) turnAway(gen *Generation, p *pair, entry Rejected, r *rejection) {
	entry.Generation, entry.Parent, entry.Direction = gen.Number, p.parent.ID, p.direction.ID
	entry.Reason, entry.Detail = r.reason, r.detail
	e.refused = append(e.refused, entry)
	gen.Rejected[r.reason]++
	p.refused++
	p.problems = append(p.problems, r.Error())
}
