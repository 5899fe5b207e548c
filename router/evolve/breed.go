package evolve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

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
