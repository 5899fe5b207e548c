package router

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// Bounds of profiles.
const (
	maxEntries  = 4    // of one harness and task kind
	maxEvidence = 6    // rollout ids of one entry
	maxProfile  = 2048 // entries of all harnesses
	commonShare = 0.75 // share of a group's tasks that show a feature for it to be of the condition
)

// Entry says how a sibling acts at tasks of a kind, measured against H0 on the same tasks with the same seeds, and what comes of it.
type Entry struct {
	Harness   string    `json:"harness"`
	Condition Condition `json:"condition"`
	// Behaviour is what the sibling's traces show and H0's do not ("+ ..."), and the other way round ("- ..."); empty: they
	// show the same.
	Behaviour []string `json:"behaviour"`
	Effect    Effect   `json:"effect"`
	Evidence  []string `json:"evidence"`       // ids of the sibling's rollouts, wins and losses first; not all of them
	Note      string   `json:"note,omitempty"` // words of the language model that grouped; quoted, never obeyed
}

// Condition is where an entry holds.
type Condition struct {
	Kind     string   `json:"kind"`
	Features []string `json:"features"` // what most of the tasks look like
}

// Effect counts pairs: the sibling solved what H0 did not, the other way round, and both or neither.
type Effect struct {
	Wins   int `json:"wins"`
	Losses int `json:"losses"`
	Ties   int `json:"ties"`
}

func (e Effect) pairs() int { return e.Wins + e.Losses + e.Ties }

// Profiles are all entries of one measurement.
type Profiles struct {
	Step    int     `json:"step"`    // policy steps of what was measured
	Version string  `json:"version"` // hash of step and entries
	Entries []Entry `json:"entries"` // by harness, kind, then the pairs behind them
}

// Grouper turns paired attempts into the entries of profiles.
type Grouper interface {
	Group(ctx context.Context, step int, pairs []pair) ([]Entry, error)
}

// newProfiles orders entries and gives them their version.
func newProfiles(step int, entries []Entry) Profiles {
	slices.SortStableFunc(entries, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Harness, b.Harness), cmp.Compare(a.Condition.Kind, b.Condition.Kind),
			cmp.Compare(b.Effect.pairs(), a.Effect.pairs()), cmp.Compare(label(a.Behaviour), label(b.Behaviour)))
	})
	p := Profiles{Step: step, Entries: entries[:min(len(entries), maxProfile)]}
	p.Version = p.hash()
	return p
}

// hash covers everything but the version itself.
func (p Profiles) hash() string {
	p.Version = ""
	data, err := json.Marshal(p)
	if err != nil {
		panic(err) // names and whole numbers always marshal
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

// of are the entries of one harness.
func (p Profiles) of(id string) []Entry {
	var out []Entry
	for _, e := range p.Entries {
		if e.Harness == id {
			out = append(out, e)
		}
	}
	return out
}

// ByBehaviour is the embedded grouper: pairs of one sibling and task kind whose traces differ from H0's in the same way make an
// entry. Of each sibling and kind the most frequent ways stay apart, the others are one entry.
type ByBehaviour struct{}

// Group makes the entries; it never fails.
func (ByBehaviour) Group(_ context.Context, _ int, ps []pair) ([]Entry, error) {
	return entriesOf(groupByBehaviour(ps)), nil
}

// pairGroup are pairs that make one entry.
type pairGroup struct {
	harness, kind string
	behaviour     []string
	pairs         []pair
}

func groupByBehaviour(ps []pair) []pairGroup {
	type cell struct{ harness, kind string }
	cells := map[cell]map[string]*pairGroup{}
	for _, p := range ps {
		c := cell{p.sibling.Harness, p.task.Kind}
		if cells[c] == nil {
			cells[c] = map[string]*pairGroup{}
		}
		shift := shiftOf(behaviour(p.base), behaviour(p.sibling))
		g := cells[c][label(shift)]
		if g == nil {
			g = &pairGroup{harness: c.harness, kind: c.kind, behaviour: shift}
			cells[c][label(shift)] = g
		}
		g.pairs = append(g.pairs, p)
	}
	keys := slices.SortedFunc(maps.Keys(cells), func(a, b cell) int {
		return cmp.Or(cmp.Compare(a.harness, b.harness), cmp.Compare(a.kind, b.kind))
	})
	var out []pairGroup
	for _, c := range keys {
		out = append(out, bounded(cells[c])...)
	}
	return out
}

// otherBehaviour is the behaviour of an entry that holds what is rare.
const otherBehaviour = "various"

// bounded keeps the largest groups of a cell and merges the rest.
func bounded(byLabel map[string]*pairGroup) []pairGroup {
	var groups []pairGroup
	for _, g := range byLabel {
		groups = append(groups, *g)
	}
	slices.SortFunc(groups, func(a, b pairGroup) int {
		return cmp.Or(cmp.Compare(len(b.pairs), len(a.pairs)), cmp.Compare(label(a.behaviour), label(b.behaviour)))
	})
	if len(groups) <= maxEntries {
		return groups
	}
	rest := groups[maxEntries-1]
	rest.behaviour = []string{otherBehaviour}
	for _, g := range groups[maxEntries:] {
		rest.pairs = append(rest.pairs, g.pairs...)
	}
	return append(groups[:maxEntries-1], rest)
}

func entriesOf(groups []pairGroup) []Entry {
	var out []Entry
	for _, g := range groups {
		out = append(out, g.entry())
	}
	return out
}

func (g pairGroup) entry() Entry {
	e := Entry{Harness: g.harness, Condition: Condition{Kind: g.kind, Features: g.features()}, Behaviour: g.behaviour}
	var telling, ties []string
	for _, p := range g.pairs {
		switch {
		case p.sibling.Success == p.base.Success:
			e.Effect.Ties++
			ties = append(ties, p.sibling.ID)
			continue
		case p.sibling.Success:
			e.Effect.Wins++
		default:
			e.Effect.Losses++
		}
		telling = append(telling, p.sibling.ID)
	}
	slices.Sort(telling)
	slices.Sort(ties)
	e.Evidence = append(telling, ties...)
	e.Evidence = slices.Clone(e.Evidence[:min(len(e.Evidence), maxEvidence)])
	if e.Behaviour == nil {
		e.Behaviour = []string{}
	}
	return e
}

// features are those of most of the group's tasks, sorted.
func (g pairGroup) features() []string {
	n := map[string]int{}
	for _, p := range g.pairs {
		for _, f := range taskFeatures(p.task) {
			n[f]++
		}
	}
	out := []string{}
	for f, c := range n {
		if float64(c) >= commonShare*float64(len(g.pairs)) {
			out = append(out, f)
		}
	}
	slices.Sort(out)
	return out
}

// shiftOf is what the second trace shows and the first does not, and the other way round, sorted.
func shiftOf(base, sibling []string) []string {
	var out []string
	for _, b := range sibling {
		if !slices.Contains(base, b) {
			out = append(out, "+ "+b)
		}
	}
	for _, b := range base {
		if !slices.Contains(sibling, b) {
			out = append(out, "- "+b)
		}
	}
	return out
}

func label(behaviour []string) string { return strings.Join(behaviour, "; ") }
