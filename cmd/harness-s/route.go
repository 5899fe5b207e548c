package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"harness-s/router"
	"harness-s/trainer"
)

type routeCmd struct {
	RunDir string `name:"run" help:"Run folder." required:"" placeholder:"DIR"`
	Task   string `help:"Task id, as rollouts record it (test-12)." required:"" placeholder:"ID"`
	JSON   bool   `help:"Machine-readable output on stdout."`
}

// Run prints the ranking of the pool for a task and what it rests on.
func (c *routeCmd) Run(ctx context.Context) error {
	route, err := trainer.Explain(ctx, c.RunDir, c.Task)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(os.Stdout, route)
	}
	printRoute(os.Stderr, route)
	return nil
}

// printRoute writes a choice for people: the ranking, the ballots, the profiles behind the first places.
func printRoute(w io.Writer, route trainer.Route) {
	fmt.Fprintf(w, "task %s (%s), router statistics of step %d\n", route.Task, route.Kind, route.Step)
	fmt.Fprintf(w, "%4s  %-14s %9s %14s %14s\n", "rank", "harness", "estimate", "this kind", "all kinds")
	for _, e := range route.Ranking {
		fmt.Fprintf(w, "%4d  %-14s %9.3f %8d/%-5d %8d/%-5d\n", e.Rank, e.Harness, e.Score, e.KindWins, e.KindTries, e.Wins, e.Tries)
	}
	if len(route.Ballots) == 0 {
		return
	}
	by := route.Aggregate
	if route.Fallback {
		by = "the validation rule: too few ballots count"
	}
	fmt.Fprintf(w, "\nranked by %s, version %s of statistics and profiles; ballots:\n", by, route.Version)
	for _, b := range route.Ballots {
		fmt.Fprintf(w, "  %-14s %s%s\n", b.Voter, strings.Join(b.Ranking, " "), remark(b))
	}
	fmt.Fprintf(w, "\nprofiles behind the first %d (nearness to the task, wins-losses-ties against h0 on the same tasks and seeds):\n", routeProfiles)
	for _, e := range route.Ranking[:min(routeProfiles, len(route.Ranking))] {
		for _, p := range route.Profiles[e.Harness] {
			fmt.Fprintf(w, "  %-14s %.2f  %s  %d-%d-%d  e.g. %s\n", e.Harness, p.Nearness, p.Where(), p.Effect.Wins, p.Effect.Losses, p.Effect.Ties, strings.Join(p.Evidence, " "))
		}
	}
}

// routeProfiles is how many places are explained by their profiles; --json has all.
const routeProfiles = 3

func remark(b router.Ballot) string {
	switch {
	case b.Dropped != "":
		return "(dropped: " + b.Dropped + ")"
	case b.Repaired != "":
		return " (repaired: " + b.Repaired + ")"
	}
	return ""
}
