package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"harness-s/router"
	"harness-s/trainer"
)

// What people read of a choice: columns that line up whatever the names, every ballot with what became of it, and the head of long ones.
func TestPrintRoute(t *testing.T) {
	route := trainer.Route{Task: "test-3", Kind: "count"}
	route.Step, route.Aggregate, route.Version = 20, "borda", "v1"
	var ids []string
	for i := range 12 {
		ids = append(ids, fmt.Sprintf("g1-a-name-that-is-longer-%d", i+1))
		route.Ranking = append(route.Ranking, router.Evidence{Harness: ids[i], Rank: i + 1, Score: 0.5, KindWins: 1, KindTries: 2, Wins: 10 * i, Tries: 240})
	}
	route.Ballots = []router.Ballot{
		{Voter: "rule", Ranking: ids},
		{Voter: "llm:m", Ranking: ids[:3], Repaired: "2 unknown"},
		{Voter: "llm:n", Dropped: "no answer in time"},
	}
	route.Profiles = map[string][]router.Weight{ids[0]: {{Nearness: 0.5, Entry: router.Entry{Harness: ids[0], Effect: router.Effect{Wins: 3}, Evidence: []string{"anchor-0-val-1-x-0"}}}}}
	var out bytes.Buffer
	printRoute(&out, route)
	lines := strings.Split(out.String(), "\n")
	for i, line := range lines[2:14] {
		if len(line) != len(lines[1]) || !strings.HasSuffix(line, fmt.Sprintf(" %d/240", 10*i)) {
			t.Errorf("line %q does not stand under %q", line, lines[1])
		}
	}
	for _, want := range []string{
		"step 20", "borda", ids[9] + ", 2 more\n", ids[2] + " (repaired: 2 unknown)\n", "llm:n          (dropped: no answer in time)\n", "3-0-0  e.g. anchor-0-val-1-x-0\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	route.Fallback = true
	out.Reset()
	if printRoute(&out, route); !strings.Contains(out.String(), "ranked by the validation rule: too few ballots") {
		t.Errorf("a fallback is not told:\n%s", &out)
	}
}
