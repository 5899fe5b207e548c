package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"

	"harness-s/internal/nodes"
	"harness-s/trainer"
	"harness-s/trainer/report"
)

type trainCmd struct {
	Config string   `arg:"" help:"Run config (YAML)." placeholder:"CONFIG"`
	Set    []string `help:"Override a key: --set budget.rollouts=4000. May be given again." placeholder:"KEY=VALUE" sep:"none"`
	RunDir string   `name:"run" help:"Run folder. Default: runs/<config>-<time>, or with --resume the newest one of this config." placeholder:"DIR"`
	Resume bool     `help:"Continue the run in the folder from its last checkpoint."`
}

// Run trains; as another node than the first it takes part in the training that node 0 leads.
func (c *trainCmd) Run(ctx context.Context) error {
	cfg, err := trainer.LoadConfig(c.Config, c.Set)
	if err != nil {
		return usageError{err}
	}
	place, err := nodes.FromEnv(os.Getenv)
	if err != nil {
		return usageError{err}
	}
	if place.Node > 0 {
		return trainer.Follow(ctx, cfg, place, os.Stderr)
	}
	dir, err := runFolder(c.Config, c.RunDir, c.Resume)
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "run folder:", dir)
	_, err = trainer.Train(ctx, cfg, trainer.Options{
		RunDir: dir, Resume: c.Resume, Set: c.Set,
		Out: os.Stderr, Terminal: term.IsTerminal(int(os.Stderr.Fd())),
		Report: report.Write, Nodes: place,
	})
	return err
}

// runFolder is where the run of a config lives: the folder given, or by name and time.
func runFolder(config, given string, resume bool) (string, error) {
	if given != "" {
		return given, nil
	}
	stem := strings.TrimSuffix(filepath.Base(config), filepath.Ext(config))
	if !resume {
		return filepath.Join("runs", stem+"-"+time.Now().Format("20060102-150405")), nil
	}
	return newestRun("runs", stem)
}

// newestRun finds the last of root/STEM-DATE-TIME; the run of a config whose name only begins with stem is another's.
func newestRun(root, stem string) (string, error) {
	stamped := regexp.MustCompile("^" + regexp.QuoteMeta(stem) + `-\d{8}-\d{6}$`)
	entries, err := os.ReadDir(root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("find the run to resume: %w", err)
	}
	for _, e := range slices.Backward(entries) {
		dir := filepath.Join(root, e.Name())
		if _, err := os.Stat(filepath.Join(dir, "config.yaml")); err == nil && stamped.MatchString(e.Name()) {
			return dir, nil
		}
	}
	return "", usagef("nothing to resume: no run of %s under %s; name its folder with --run", stem, root)
}
