package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/term"

	"harness-s/trainer"
	"harness-s/trainer/report"
)

type trainCmd struct {
	Config string   `arg:"" help:"Run config (YAML)." placeholder:"CONFIG"`
	Set    []string `help:"Override a key: --set budget.rollouts=4000. May be given again." placeholder:"KEY=VALUE" sep:"none"`
	RunDir string   `name:"run" help:"Run folder. Default: runs/<config>-<time>, or with --resume the newest one of this config." placeholder:"DIR"`
	Resume bool     `help:"Continue the run in the folder from its last checkpoint."`
}

// Run trains.
func (c *trainCmd) Run(ctx context.Context) error {
	cfg, err := trainer.LoadConfig(c.Config, c.Set)
	if err != nil {
		return usageError{err}
	}
	dir, err := c.folder()
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "run folder:", dir)
	_, err = trainer.Train(ctx, cfg, trainer.Options{
		RunDir: dir, Resume: c.Resume, Set: c.Set,
		Out: os.Stderr, Terminal: term.IsTerminal(int(os.Stderr.Fd())),
		Report: report.Write,
	})
	return err
}

// folder is where the run lives.
func (c *trainCmd) folder() (string, error) {
	if c.RunDir != "" {
		return c.RunDir, nil
	}
	stem := strings.TrimSuffix(filepath.Base(c.Config), filepath.Ext(c.Config))
	if !c.Resume {
		return filepath.Join("runs", stem+"-"+time.Now().Format("20060102-150405")), nil
	}
	found, err := filepath.Glob(filepath.Join("runs", stem+"-*", "config.yaml"))
	if err != nil || len(found) == 0 {
		return "", usagef("nothing to resume: no run of %s under runs; name its folder with --run", stem)
	}
	return filepath.Dir(found[len(found)-1]), nil
}
