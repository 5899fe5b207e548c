package main

import (
	"fmt"
	"os"

	"harness-s/trainer"
)

type routeCmd struct {
	RunDir string `name:"run" help:"Run folder." required:"" placeholder:"DIR"`
	Task   string `help:"Task id, as rollouts record it (test-12)." required:"" placeholder:"ID"`
	JSON   bool   `help:"Machine-readable output on stdout."`
}

// Run prints the ranking of the pool for a task and what it rests on.
func (c *routeCmd) Run() error {
	route, err := trainer.Explain(c.RunDir, c.Task)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(os.Stdout, route)
	}
	fmt.Fprintf(os.Stderr, "task %s (%s), router statistics of step %d\n", route.Task, route.Kind, route.Step)
	fmt.Fprintf(os.Stderr, "%4s  %-14s %9s %14s %14s\n", "rank", "harness", "estimate", "this kind", "all kinds")
	for _, e := range route.Ranking {
		fmt.Fprintf(os.Stderr, "%4d  %-14s %9.3f %8d/%-5d %8d/%-5d\n", e.Rank, e.Harness, e.Score, e.KindWins, e.KindTries, e.Wins, e.Tries)
	}
	return nil
}
