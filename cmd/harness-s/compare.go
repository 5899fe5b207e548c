package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/term"

	"harness-s/trainer"
	"harness-s/trainer/report"
)

type compareCmd struct {
	Config   string   `arg:"" help:"Comparison (YAML), or a run config: then every rescue mode is an arm." placeholder:"CONFIG"`
	Set      []string `help:"Override a key in every run." placeholder:"KEY=VALUE" sep:"none"`
	RunDir   string   `name:"run" help:"Folder of the comparison; a run folder an arm and seed in it. Default: runs/compare-<config>. Runs in it that are done are kept, one that was stopped goes on." placeholder:"DIR"`
	Arms     []string `aliases:"modes" help:"Only these arms (of a run config: rescue modes)." placeholder:"ARM,..."`
	Seeds    []int64  `help:"Seeds instead of the comparison's; of a run config 1,2,3."`
	Parallel int      `help:"Runs side by side; 0: as the comparison says. Results do not depend on it."`
	Resume   bool     `help:"Accepted for uniformity: a comparison always goes on where it stopped."`
	JSON     bool     `help:"Machine-readable output on stdout."`
}

// Run trains every arm under every seed, measures, and prints the tables.
func (c *compareCmd) Run(ctx context.Context) error {
	plan, err := c.plan()
	if err != nil {
		return usageError{err}
	}
	dir := c.RunDir
	if dir == "" {
		stem := strings.TrimSuffix(filepath.Base(c.Config), filepath.Ext(c.Config))
		if !strings.HasPrefix(stem, "compare") {
			stem = "compare-" + stem
		}
		dir = filepath.Join("runs", stem)
	}
	result, err := trainer.Compare(ctx, trainer.CompareOptions{
		Dir: dir, Plan: plan, Out: os.Stderr, Terminal: term.IsTerminal(int(os.Stderr.Fd())), Report: report.WriteComparison,
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "report:", filepath.Join(dir, "report.html"))
	if c.JSON {
		return printJSON(os.Stdout, result)
	}
	return result.Table(os.Stderr)
}

func (c *compareCmd) plan() (trainer.ComparePlan, error) {
	plan, err := trainer.LoadComparePlan(c.Config)
	if err != nil {
		return plan, err
	}
	plan.Set = append(plan.Set, c.Set...)
	if len(c.Seeds) > 0 {
		plan.Seeds = c.Seeds
	}
	if c.Parallel != 0 {
		plan.Parallel = c.Parallel
	}
	if len(c.Arms) > 0 {
		if plan, err = plan.Only(c.Arms); err != nil {
			return plan, err
		}
	}
	return plan, plan.Check()
}
