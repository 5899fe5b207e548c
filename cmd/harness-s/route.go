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
	width := len("harness")
	for _, e := range route.Ranking {
		width = max(width, len(e.Harness))
	}
	fmt.Fprintf(w, "%4s  %-*s %9s %12s %12s\n", "rank", width, "harness", "estimate", "this kind", "all kinds")
	for _, e := range route.Ranking {
		fmt.Fprintf(w, "%4d  %-*s %9.3f %12s %12s\n", e.Rank, width, e.Harness, e.Score, of(e.KindWins, e.KindTries), of(e.Wins, e.Tries))
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
		fmt.Fprintf(w, "  %-14s %s%s\n", b.Voter, places(b.Ranking), remark(b))
	}
	fmt.Fprintf(w, "\nprofiles behind the first %d (nearness to the task, wins-losses-ties against h0 on the same tasks and seeds):\n", routeProfiles)
	for _, e := range route.Ranking[:min(routeProfiles, len(route.Ranking))] {
		for _, p := range route.Profiles[e.Harness] {
			fmt.Fprintf(w, "  %-*s %.2f  %s  %d-%d-%d  e.g. %s\n", width, e.Harness, p.Nearness, p.Where(), p.Effect.Wins, p.Effect.Losses, p.Effect.Ties, strings.Join(p.Evidence, " "))
		}
	}
}

// How many places are explained by their profiles, and how many of a ballot are shown; --json has all.
const (
	routeProfiles = 3
	routePlaces   = 10
)

// places is the head of a ballot.
func places(ids []string) string {
	if len(ids) <= routePlaces {
		return strings.Join(ids, " ")
	}
	return fmt.Sprintf("%s, %d more", strings.Join(ids[:routePlaces], " "), len(ids)-routePlaces)
}

func of(wins, tries int) string { return fmt.Sprintf("%d/%d", wins, tries) }

func remark(b router.Ballot) string {
	switch {
	case b.Dropped != "":
		return "(dropped: " + b.Dropped + ")"
	case b.Repaired != "":
		return " (repaired: " + b.Repaired + ")"
	}
	return ""
}
