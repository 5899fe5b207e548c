package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/term"

	"harness-s/router/evolve"
	"harness-s/trainer"
	"harness-s/trainer/report"
)

type evolveCmd struct {
	Config string   `arg:"" help:"Run config (YAML); its section evolve counts." placeholder:"CONFIG"`
	Set    []string `help:"Override a key: --set evolve.generations=2. May be given again." placeholder:"KEY=VALUE" sep:"none"`
	RunDir string   `name:"run" help:"Run folder. Default: runs/<config>-<time>, or with --resume the newest one of this config." placeholder:"DIR"`
	Resume bool     `help:"Go on where the run in the folder stopped."`
	JSON   bool     `help:"Machine-readable summary on stdout."`
}

// Run evolves a pool of siblings from the base harness.
func (c *evolveCmd) Run(ctx context.Context) error {
	cfg, err := trainer.LoadConfig(c.Config, c.Set)
	if err != nil {
		return usageError{err}
	}
	dir, err := runFolder(c.Config, c.RunDir, c.Resume)
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "run folder:", dir)
	s, err := trainer.Evolve(ctx, cfg, trainer.EvolveOptions{
		RunDir: dir, Resume: c.Resume, Set: c.Set, Out: os.Stderr, Terminal: term.IsTerminal(int(os.Stderr.Fd())),
	})
	if err != nil {
		return err
	}
	page, err := report.WriteEvolution(dir)
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "report:", page)
	if c.JSON {
		return printJSON(os.Stdout, s)
	}
	printEvolution(os.Stderr, filepath.Join(dir, evolve.PoolName), s)
	return nil
}

func printEvolution(w io.Writer, pool string, s evolve.Summary) {
	fmt.Fprintf(w, "\n%d siblings in %s\n", s.ValidChildren, pool)
	fmt.Fprintf(w, "validation tasks solved: %.3f by the pool, %.3f under h0 (mean success %.3f), %.3f under %s (%.3f)\n",
		s.JointCoverage, s.H0Coverage, s.H0Success, s.Best.Coverage, s.Best.Harness, s.Best.Success)
	if c := s.Control; c != nil {
		fmt.Fprintf(w, "under h0 with as many attempts (%d a task): %.3f\n", c.Attempts, c.Coverage)
	}
	if s.Ended == evolve.EndedBudget {
		fmt.Fprintln(w, "ended by its budget: with a larger one, --set evolve.budget.…=N --resume goes on")
	}
	fmt.Fprintf(w, "%d rollouts, %d requests, %d tokens; %.0f s\n", s.Rollouts, s.Calls, s.Tokens, s.WallS)
}
