package router

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"

	"harness-s/rollout"
	"harness-s/rollout/harness"
)

// View is what a voter knows: the pool, the statistics and the profiles. It is not changed while votes run.
type View struct {
	IDs      []string // H0 first, then siblings by id
	Rule     *Rule
	evidence []taskEvidence
	Profiles Profiles
}

// Voter ranks the whole pool for a task, best first. What it returns is not trusted: see readBallot. An embedded voter follows
// from the view and the task alone and never fails.
type Voter interface {
	Name() string
	Vote(ctx context.Context, v *View, t rollout.Task) ([]string, error)
}

// Embedded are the voters that need no language model, by name.
var Embedded = map[string]Voter{
	"rule":    embedded{"rule", byRule},
	"bound":   embedded{"bound", byBound},
	"profile": embedded{"profile", byProfile},
	"similar": embedded{"similar", bySimilar},
}

// EmbeddedNames are the names of the embedded voters, in order.
func EmbeddedNames() []string { return slices.Sorted(maps.Keys(Embedded)) }

// embedded is a voter that scores each harness.
type embedded struct {
	name  string
	score func(v *View, t rollout.Task) []float64 // [IDs], more is better
}

// Name is the voter's name.
func (e embedded) Name() string { return e.name }

// Vote orders the pool by score; of equals the validation rule's first goes first.
func (e embedded) Vote(_ context.Context, v *View, t rollout.Task) ([]string, error) {
	score := map[string]float64{}
	for i, s := range e.score(v, t) {
		score[v.IDs[i]] = s
	}
	ids := v.order(t)
	slices.SortStableFunc(ids, func(a, b string) int { return cmp.Compare(score[b], score[a]) })
	return ids, nil
}

// order is the validation rule's ranking: what breaks every tie.
func (v *View) order(t rollout.Task) []string {
	var ids []string
	for _, e := range v.Rule.rank(t) {
		ids = append(ids, e.Harness)
	}
	return ids
}

// byRule is the validation rule's estimate.
func byRule(v *View, t rollout.Task) []float64 {
	out := make([]float64, len(v.IDs))
	for _, e := range v.Rule.rank(t) {
		out[slices.Index(v.IDs, e.Harness)] = e.Score
	}
	return out
}

// byBound is the lower end of the success rate at tasks of the kind: a harness that was hardly tried is not trusted. Where the
// kind was never tried, that over all kinds, halved.
func byBound(v *View, t rollout.Task) []float64 {
	out := make([]float64, len(v.IDs))
	for i, id := range v.IDs {
		if c := v.Rule.stats[id][t.Kind]; c.tries > 0 {
			out[i] = wilson(c)
		} else {
			out[i] = wilson(v.Rule.overall(id)) / 2
		}
	}
	return out
}

// boundZ is the normal quantile of a one-sided 84 % bound.
const boundZ = 1

// wilson is the lower end of Wilson's score interval (JASA 22, 1927):
//
//	(p + z^2/2n - z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)
//
// of nothing it is 0.
func wilson(c counts) float64 {
	if c.tries == 0 {
		return 0
	}
	n := float64(c.tries)
	p := float64(c.wins) / n
	z2 := boundZ * boundZ / n
	return (p + z2/2 - boundZ*math.Sqrt(p*(1-p)/n+z2/(4*n))) / (1 + z2)
}

// byProfile is the mean effect against H0 (wins less losses, a pair) of the profile entries, each weighted by how near its
// condition is to the task, with priorTries pairs without effect. H0 has none against itself.
func byProfile(v *View, t rollout.Task) []float64 {
	features := taskFeatures(t)
	out := make([]float64, len(v.IDs))
	for i, id := range v.IDs {
		if id == harness.BaseID {
			continue
		}
		effect, weight := 0.0, float64(priorTries)
		for _, e := range v.Profiles.of(id) {
			w := nearness(e.Condition, t.Kind, features)
			effect += w * float64(e.Effect.Wins-e.Effect.Losses)
			weight += w * float64(e.Effect.pairs())
		}
		out[i] = effect / weight
	}
	return out
}

// otherKind is the weight of an entry on another kind of task.
const otherKind = 0.1

// nearness is the weight of a condition for a task: 1 for the same kind and features.
func nearness(c Condition, kind string, features []string) float64 {
	w := (1 + overlap(c.Features, features)) / 2
	if len(c.Features) == 0 && len(features) == 0 {
		w = 1
	}
	if c.Kind != kind {
		w *= otherKind
	}
	return w
}

// neighbours is how many validation tasks the similarity voter looks at.
const neighbours = 8

// bySimilar is the success at the validation tasks that are most like the task: words in common, and the kind. Each counts by
// its likeness; priorTries attempts at the harness's mean are added.
func bySimilar(v *View, t rollout.Task) []float64 {
	type near struct {
		at       int
		likeness float64
	}
	words := taskWords(t)
	all := make([]near, len(v.evidence))
	for i, e := range v.evidence {
		like := overlap(e.Words, words)
		if e.Kind == t.Kind {
			like++
		}
		all[i] = near{i, like / 2}
	}
	slices.SortStableFunc(all, func(a, b near) int { return cmp.Compare(b.likeness, a.likeness) }) // evidence is in the order of ids
	all = all[:min(len(all), neighbours)]
	g := v.Rule.mean()
	out := make([]float64, len(v.IDs))
	for i, id := range v.IDs {
		wins, tries := priorTries*v.Rule.overall(id).shrunk(g), float64(priorTries)
		for _, n := range all {
			c := v.evidence[n.at].Count[id]
			wins += n.likeness * float64(c.Wins)
			tries += n.likeness * float64(c.Tries)
		}
		out[i] = wins / tries
	}
	return out
}
