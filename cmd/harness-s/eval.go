package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"golang.org/x/term"

	"harness-s/trainer"
)

type evalCmd struct {
	RunDir   string   `name:"run" help:"Run folder: its config, pool, last checkpoint and router." placeholder:"DIR" xor:"from"`
	Config   string   `help:"Run config instead of a run." placeholder:"CONFIG" xor:"from"`
	Set      []string `help:"Override a key of --config; not with --run." placeholder:"KEY=VALUE" sep:"none"`
	Model    string   `help:"Hugging Face folder to evaluate instead." placeholder:"DIR" xor:"policy"`
	Endpoint string   `help:"Policy server to evaluate instead." placeholder:"URL" xor:"policy"`
	Pool     string   `help:"Harness folder to use instead." placeholder:"DIR"`
	Harness  []string `help:"h0, siblings, routed, best, rank2, rank3, ..., or ids of the pool." default:"h0,siblings,routed"`
	K        int      `help:"Attempts at each task." default:"3"`
	Split    string   `help:"Tasks: test or val." enum:"test,val" default:"test"`
	Tasks    int      `help:"Use so many tasks; 0: as the config says."`
	JSON     bool     `help:"Machine-readable output on stdout."`
}

// Run evaluates and prints.
func (c *evalCmd) Run(ctx context.Context) error {
	if c.RunDir == "" && c.Config == "" {
		return usagef("eval: give --run or --config")
	}
	if c.RunDir != "" && len(c.Set) > 0 {
		return usagef("eval: --set goes with --config, a run keeps its own config")
	}
	o := trainer.EvalOptions{
		RunDir: c.RunDir, Model: c.Model, Endpoint: c.Endpoint, Pool: c.Pool,
		Harness: c.Harness, K: c.K, Split: c.Split, Tasks: c.Tasks,
		Out: os.Stderr, Terminal: term.IsTerminal(int(os.Stderr.Fd())),
	}
	if c.K < 1 || c.Tasks < 0 {
		return usagef("eval: --k at least 1, --tasks at least 0")
	}
	if c.Config != "" {
		cfg, err := trainer.LoadConfig(c.Config, c.Set)
		if err != nil {
			return usageError{err}
		}
		o.Config = cfg
	}
	result, err := trainer.Eval(ctx, o)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(os.Stdout, result)
	}
	printScores(os.Stderr, result)
	return nil
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

func printScores(w io.Writer, r trainer.EvalResult) {
	fmt.Fprintf(w, "%-16s %8s %8s %6s\n", "harness", fmt.Sprintf("pass@%d", r.K), fmt.Sprintf("avg@%d", r.K), "tasks")
	for _, id := range slices.Sorted(maps.Keys(r.Scores)) {
		s := r.Scores[id]
		fmt.Fprintf(w, "%-16s %8.3f %8.3f %6d\n", id, s.Pass, s.Avg, s.Tasks)
	}
}
