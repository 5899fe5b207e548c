package sqlrepair

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"harness-s/internal/strictyaml"
	"harness-s/rollout/harness"
	"harness-s/router/evolve"
)

// Editor makes children with the operators that the library lists for a cause.
type Editor struct{}

var _ evolve.Editor = Editor{}

// Edit proposes n edits of the direction's cause that change parent, each to another child: the first n of the library at
// first, and where some of these did not pass, n from the end, then those before them, whatever the problems were. A direction
// that the library does not know has none.
func (Editor) Edit(ctx context.Context, parent *harness.Spec, d evolve.Direction, n, attempt int, _ []string) ([]evolve.Candidate, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var all []evolve.Candidate
	seen := map[string]bool{parent.Hash(): true}
	for _, e := range repairs[d.ID] {
		c, err := apply(parent, d, e)
		if err != nil {
			return nil, err
		}
		if hash := c.Spec.Hash(); !seen[hash] {
			seen[hash] = true
			all = append(all, c)
		}
	}
	if attempt > 0 {
		slices.Reverse(all)
		all = all[min(len(all), n*(attempt-1)):]
	}
	return all[:min(len(all), n)], nil
}

// apply runs an edit on a copy of parent.
func apply(parent *harness.Spec, d evolve.Direction, e edit) (evolve.Candidate, error) {
	child, err := clone(parent)
	if err != nil {
		return evolve.Candidate{}, fmt.Errorf("edit harness %s for %s: %w", parent.ID, d.ID, err)
	}
	m := evolve.Manifest{
		Parent: parent.ID, Direction: d.ID, Evidence: d.Evidence,
		Why:    fmt.Sprintf("Under %s the policy %s (%d failed attempts, %d tasks).", parent.ID, d.Description, len(d.Evidence), d.Tasks),
		Expect: fmt.Sprintf("Attempts that fail because the policy %s.", d.Description),
	}
	for _, op := range e {
		if said := op(child, d.Facts); said != "" {
			m.Changes = append(m.Changes, said)
		}
	}
	m.Components = components(parent, child)
	return evolve.Candidate{Spec: child, Manifest: m}, nil
}

// clone is a copy that shares nothing with the original.
func clone(s *harness.Spec) (*harness.Spec, error) {
	return harness.Parse("harness "+s.ID, s.YAML())
}

// components names what differs between two specs.
func components(a, b *harness.Spec) []string {
	var out []string
	for _, c := range []struct {
		name string
		a, b any
	}{{"prompt", &a.Prompt, &b.Prompt}, {"tools", &struct{ T any }{a.Tools}, &struct{ T any }{b.Tools}}, {"memory", &a.Memory, &b.Memory}, {"rules", &a.Rules, &b.Rules}} {
		if !same(c.a, c.b) {
			out = append(out, c.name)
		}
	}
	return out
}

func same(a, b any) bool {
	x, errA := strictyaml.Marshal(a)
	y, errB := strictyaml.Marshal(b)
	return errA == nil && errB == nil && bytes.Equal(x, y)
}
