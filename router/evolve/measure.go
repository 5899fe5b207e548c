package evolve

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"harness-s/rollout"
	"harness-s/rollout/harness"
)

func (e *engine) measureBase(ctx context.Context) error {
	e.pool, e.parents = []*harness.Spec{e.Base}, []*harness.Spec{e.Base}
	records, err := e.attempts(ctx, "validate_0", "validating "+e.Base.ID, jobs(e.pool, e.Validation, validationStep, e.Size.Attempts))
	if err != nil {
		return err
	}
	row := e.matrix.add(e.Base.ID, 0, records)
	if !row.measured() {
		return fmt.Errorf("evolve: every validation attempt under %s was broken; the first: %s", e.Base.ID, records[0].Error)
	}
	e.unsolved = firstFailures(records, row, e.Validation)
	e.nodes = []Node{{ID: e.Base.ID, Hash: e.Base.Hash(), Valid: true, Success: row.Success, Solved: row.Solved}}
	return nil
}

func (e *engine) validate(ctx context.Context, gen *Generation, pairs []*pair) error {
	var children []child
	for _, p := range pairs {
		children = append(children, p.children...)
	}
	slices.SortFunc(children, func(a, b child) int { return a.made - b.made })
	var specs []*harness.Spec
	for _, c := range children {
		specs = append(specs, c.spec)
	}
	what := fmt.Sprintf("generation %d: validating %d children", gen.Number, len(specs))
	records, err := e.attempts(ctx, fmt.Sprintf("validate_%d", gen.Number), what, jobs(specs, e.Validation, validationStep, e.Size.Attempts))
	if err != nil {
		return err
	}
	each := len(e.Validation) * e.Size.Attempts
	for i, c := range children {
		e.take(gen, c, records[i*each:(i+1)*each])
	}
	return nil
}

func (e *engine) take(gen *Generation, c child, records []*rollout.Record) {
	row := e.matrix.add(c.spec.ID, gen.Number, records)
	if !row.measured() {
		e.matrix.Rows = e.matrix.Rows[:len(e.matrix.Rows)-1]
		delete(e.gate.byHash, c.spec.Hash())
		e.turnAway(gen, c.pair, Rejected{Candidate: c.spec.ID, Edit: c.edit, Spec: string(c.spec.YAML()), Manifest: c.manifest},
			reject(Unmeasured, "every validation attempt was broken; the first: %s", records[0].Error))
		return
	}
	e.pool = append(e.pool, c.spec)
	d := c.pair.direction
	e.nodes = append(e.nodes, Node{
		ID: c.spec.ID, Parent: c.spec.Parent, Generation: gen.Number, Hash: c.spec.Hash(), Valid: true,
		Direction: &d, Manifest: &c.manifest, Edit: c.edit, Success: row.Success, Solved: row.Solved,
	})
	gen.Valid++
	gen.Children = append(gen.Children, c.spec.ID)
}

func (e *engine) measureControl(ctx context.Context) error {
	siblings := len(e.pool) - 1
	more := jobs(e.pool[:1], e.Validation, validationStep, siblings*e.Size.Attempts)
	if !e.Size.Control || siblings == 0 || !e.affords(len(more)) {
		return nil
	}
	for i := range more {
		more[i].Attempt += e.Size.Attempts
	}
	records, err := e.attempts(ctx, fmt.Sprintf("control_%d", siblings), "more attempts under "+e.Base.ID, more)
	if err != nil {
		return fmt.Errorf("evolve: control: %w", err)
	}
	solved := map[string]bool{}
	for i, wins := range e.matrix.Rows[0].Wins {
		if wins > 0 {
			solved[e.matrix.Tasks[i].ID] = true
		}
	}
	for _, r := range records {
		if r.Success {
			solved[r.Task] = true
		}
	}
	e.control = &Control{Attempts: len(e.pool) * e.Size.Attempts, Coverage: e.matrix.share(len(solved))}
	return nil
}

func (e *engine) causes(ctx context.Context) error {
	for at := 0; at < len(e.unsolved); at += labelled {
		part := e.unsolved[at:min(at+labelled, len(e.unsolved))]
		found, _, err := ask(ctx, e, fmt.Sprintf("causes %d %d", len(e.history), at), func() ([]Label, error) {
			return e.Analyst.Label(ctx, e.Base, part)
		})
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errBudget):
			return nil
		case err != nil:
			e.Progress.Note("no causes of validation failures: " + err.Error())
			return nil
		}
		for _, l := range e.cleanLabels(found, part) {
			i := slices.IndexFunc(e.matrix.Tasks, func(t TaskEntry) bool { return t.ID == l.Task })
			e.matrix.Tasks[i].Cause = l.Cause
		}
	}
	err := e.settle()
	if errors.Is(err, errUnanswered) { // the pool is there without them
		e.Progress.Note("no causes of validation failures: " + err.Error())
		return nil
	}
	return err
}

func firstFailures(records []*rollout.Record, row *Row, tasks []rollout.Task) []*rollout.Record {
	var unsolved []*rollout.Record
	each := len(records) / len(tasks)
	for i, wins := range row.Wins {
		if wins == 0 {
			failed := failures(records[i*each:(i+1)*each], 1)
			unsolved = append(unsolved, failed...)
		}
	}
	return unsolved
}
