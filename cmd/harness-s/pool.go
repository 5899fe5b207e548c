package main

import (
	"fmt"
	"os"

	"harness-s/rollout/env/sqlenv"
	"harness-s/rollout/harness"
	"harness-s/router/evolve"
)

type poolCmd struct {
	Check poolCheckCmd `cmd:"" help:"Validate a folder of harness specs."`
}

type poolCheckCmd struct {
	Dir  string `arg:"" help:"Folder with h0.yaml and its siblings, or the run folder of an evolution."`
	JSON bool   `help:"Machine-readable output on stdout."`
}

// poolReport is what check prints with --json.
type poolReport struct {
	Harnesses []poolEntry `json:"harnesses"`
	Problems  []string    `json:"problems"`
	Lineage   string      `json:"lineage,omitempty"` // the file that says how the pool evolved
	Notes     []string    `json:"notes,omitempty"`   // where the pool is no longer what its lineage says
}

type poolEntry struct {
	ID        string `json:"id"`
	Direction string `json:"direction,omitempty"`
	Hash      string `json:"hash"`
}

// Run lists the harnesses, or every problem with its place; of an evolved pool also whether it is still what was measured.
func (c *poolCheckCmd) Run() error {
	dir, lineage := evolve.FindPool(c.Dir)
	pool, problems := harness.CheckPool(dir, sqlenv.New(sqlenv.Options{}).Tools())
	r := poolReport{Problems: []string{}, Harnesses: []poolEntry{}, Lineage: lineage}
	for _, p := range problems {
		r.Problems = append(r.Problems, p.Error())
	}
	if pool != nil {
		for _, s := range pool.Specs {
			r.Harnesses = append(r.Harnesses, poolEntry{s.ID, s.Direction, s.Hash()})
		}
	}
	if lineage != "" {
		r.compare(pool)
	}
	if c.JSON {
		if err := printJSON(os.Stdout, r); err != nil {
			return err
		}
	} else {
		r.print()
	}
	if n := len(r.Problems); n > 0 {
		return fmt.Errorf("pool %s: %d problem(s)", c.Dir, n)
	}
	return nil
}

// compare holds the pool, nil where it has problems, against its lineage.
func (r *poolReport) compare(pool *harness.Pool) {
	l, err := evolve.ReadLineage(r.Lineage)
	switch {
	case err != nil:
		r.Problems = append(r.Problems, err.Error())
	case pool != nil:
		r.Notes = l.Compare(pool)
	}
}

func (r poolReport) print() {
	for _, p := range r.Problems {
		fmt.Fprintln(os.Stderr, p)
	}
	for _, h := range r.Harnesses {
		fmt.Fprintf(os.Stderr, "%-26s %.12s  %s\n", h.ID, h.Hash, h.Direction)
	}
	for _, n := range r.Notes {
		fmt.Fprintln(os.Stderr, "note:", n)
	}
}
