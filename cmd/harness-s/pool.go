package main

import (
	"fmt"
	"os"

	"harness-s/rollout/env/sqlenv"
	"harness-s/rollout/harness"
)

type poolCmd struct {
	Check poolCheckCmd `cmd:"" help:"Validate a folder of harness specs."`
}

type poolCheckCmd struct {
	Dir  string `arg:"" help:"Folder with h0.yaml and its siblings."`
	JSON bool   `help:"Machine-readable output on stdout."`
}

// poolReport is what check prints with --json.
type poolReport struct {
	Harnesses []poolEntry `json:"harnesses"`
	Problems  []string    `json:"problems"`
}

type poolEntry struct {
	ID        string `json:"id"`
	Direction string `json:"direction,omitempty"`
	Hash      string `json:"hash"`
}

// Run lists the harnesses, or every problem with its place.
func (c *poolCheckCmd) Run() error {
	pool, problems := harness.CheckPool(c.Dir, sqlenv.New(sqlenv.Options{}).Tools())
	r := poolReport{Problems: []string{}, Harnesses: []poolEntry{}}
	for _, p := range problems {
		r.Problems = append(r.Problems, p.Error())
	}
	if pool != nil {
		for _, s := range pool.Specs {
			r.Harnesses = append(r.Harnesses, poolEntry{s.ID, s.Direction, s.Hash()})
		}
	}
	if c.JSON {
		if err := printJSON(os.Stdout, r); err != nil {
			return err
		}
	} else {
		r.print()
	}
	if len(problems) > 0 {
		return fmt.Errorf("pool %s: %d problem(s)", c.Dir, len(problems))
	}
	return nil
}

func (r poolReport) print() {
	for _, p := range r.Problems {
		fmt.Fprintln(os.Stderr, p)
	}
	for _, h := range r.Harnesses {
		fmt.Fprintf(os.Stderr, "%-14s %.12s  %s\n", h.ID, h.Hash, h.Direction)
	}
}
