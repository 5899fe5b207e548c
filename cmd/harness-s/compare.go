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
	Config string   `arg:"" help:"Run config (YAML)." placeholder:"CONFIG"`
	Set    []string `help:"Override a key in every run." placeholder:"KEY=VALUE" sep:"none"`
	RunDir string   `name:"run" help:"Folder of the comparison; a run folder a mode and seed in it. Default: runs/compare-<config>. Runs in it that are done are kept, one that was stopped goes on." placeholder:"DIR"`
	Modes  []string `help:"Rescue modes; default: all." placeholder:"MODE,..."`
	Seeds  []int64  `help:"Seeds." default:"1,2,3"`
	Resume bool     `help:"Accepted for uniformity: a comparison always goes on where it stopped."`
	JSON   bool     `help:"Machine-readable output on stdout."`
}

// Run trains every mode under every seed and prints the table.
func (c *compareCmd) Run(ctx context.Context) error {
	dir := c.RunDir
	if dir == "" {
		dir = filepath.Join("runs", "compare-"+strings.TrimSuffix(filepath.Base(c.Config), filepath.Ext(c.Config)))
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("compare: %w", err)
	}
	result, err := trainer.Compare(ctx, trainer.CompareOptions{
		Dir: dir, Modes: c.Modes, Seeds: c.Seeds, Train: trainer.Train, Out: os.Stderr,
		Config: func(mode string, seed int64) (trainer.Config, error) {
			set := append(append([]string{}, c.Set...), "rescue.mode="+mode, fmt.Sprintf("seed=%d", seed))
			return trainer.LoadConfig(c.Config, set)
		},
		Run: trainer.Options{Out: os.Stderr, Terminal: term.IsTerminal(int(os.Stderr.Fd())), Report: report.Write},
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(os.Stdout, result)
	}
	result.Table(os.Stderr)
	return nil
}
