// Package router chooses harnesses for tasks: siblings that rescue a failed group, and the one to answer under.
//
// Start at Rule, the validation rule: the siblings that did best on validation tasks of the same kind.
package router

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"harness-s/rollout"
	"harness-s/rollout/harness"
)

// priorTries is the weight, in attempts, of what is known besides a harness's attempts at tasks of one kind.
const priorTries = 4

// stateVersion is the version of the JSON form.
const stateVersion = 1

// counts are attempts and successes.
type counts struct {
	wins, tries int
}

func (c *counts) add(success bool) {
	c.tries++
	if success {
		c.wins++
	}
}

// shrunk is the success rate drawn to a prior by priorTries attempts.
func (c counts) shrunk(prior float64) float64 {
	return (float64(c.wins) + priorTries*prior) / float64(c.tries+priorTries)
}

// Rule ranks harnesses by their success on validation tasks of the same kind. The estimate for a harness and a kind is
//
//	(wins + m*mu) / (tries + m),  mu = (all wins + m*g) / (all tries + m),  m = 4
//
// over its attempts at that kind, drawn to its own mean mu over all kinds, which is drawn to the mean g of all
// harnesses (0.5 before any evidence). Few attempts thus count for little, and a kind never seen is ranked by the
// overall success. Equal estimates are ordered by id, H0 first: the choice follows from the counts alone.
//
// Rule is used by one goroutine.
type Rule struct {
	ids   []string // H0 first, then siblings by id
	step  int      // policy step of the evidence, -1 before any
	stats map[string]map[string]counts
}

// NewRule is a rule without evidence over the harnesses of a pool.
func NewRule(pool *harness.Pool) *Rule {
	r := &Rule{step: -1, stats: map[string]map[string]counts{}}
	for _, s := range pool.Specs {
		r.ids = append(r.ids, s.ID)
	}
	return r
}

// Observe replaces the evidence by attempts at validation tasks made by the policy after step training steps. Broken
// attempts say nothing and are passed over. An attempt under a harness that is not in the pool is an error, and then
// the evidence stays as it was.
func (r *Rule) Observe(_ context.Context, step int, _ []rollout.Task, records []*rollout.Record) error {
	stats := map[string]map[string]counts{}
	for _, rec := range records {
		if !slices.Contains(r.ids, rec.Harness) {
			return fmt.Errorf("router: rollout %s: the pool has no harness %q", rec.ID, rec.Harness)
		}
		if rec.Status.Broken() {
			continue
		}
		byKind := stats[rec.Harness]
		if byKind == nil {
			byKind = map[string]counts{}
			stats[rec.Harness] = byKind
		}
		c := byKind[rec.TaskKind]
		c.add(rec.Success)
		byKind[rec.TaskKind] = c
	}
	r.step, r.stats = step, stats
	return nil
}

// TopK is the k best distinct siblings for a task, best first. An error wraps harness.ErrPoolTooSmall when there are
// fewer.
func (r *Rule) TopK(_ context.Context, task rollout.Task, k int) ([]string, error) {
	if siblings := len(r.ids) - 1; k > siblings || k < 1 {
		return nil, fmt.Errorf("router: %w: asked for %d of %d siblings", harness.ErrPoolTooSmall, k, siblings)
	}
	var top []string
	for _, e := range r.rank(task) {
		if e.Harness != harness.BaseID && len(top) < k {
			top = append(top, e.Harness)
		}
	}
	return top, nil
}

// Prepare does nothing: the rule answers at once.
func (r *Rule) Prepare(context.Context, []rollout.Task) error { return nil }

// Tally is empty: nobody votes.
func (r *Rule) Tally() map[string]float64 { return nil }

// Files are the counts.
func (r *Rule) Files() (map[string][]byte, error) {
	stats, err := json.Marshal(r)
	return map[string][]byte{"stats": stats}, err
}

// Ranking is the whole pool for a task, H0 included, best first.
func (r *Rule) Ranking(_ context.Context, task rollout.Task) ([]string, error) {
	var ids []string
	for _, e := range r.rank(task) {
		ids = append(ids, e.Harness)
	}
	return ids, nil
}

// Best is the sibling with the best estimate over all kinds.
func (r *Rule) Best() (string, error) {
	if len(r.ids) < 2 {
		return "", fmt.Errorf("router: %w: no siblings", harness.ErrPoolTooSmall)
	}
	g := r.mean()
	return slices.MaxFunc(r.ids[1:], func(a, b string) int { // the first of equals, so the least id
		return cmp.Compare(r.overall(a).shrunk(g), r.overall(b).shrunk(g))
	}), nil
}

// Evidence is one place of a ranking and what it rests on.
type Evidence struct {
	Rank      int     `json:"rank"` // from 1
	Harness   string  `json:"harness"`
	Score     float64 `json:"score"` // estimated success rate
	KindWins  int     `json:"kind_wins"`
	KindTries int     `json:"kind_tries"` // validation attempts at tasks of the kind
	Wins      int     `json:"wins"`
	Tries     int     `json:"tries"` // validation attempts at all tasks
}

// Explain says how the rule chooses for a task.
func (r *Rule) Explain(_ context.Context, task rollout.Task) (Explanation, error) {
	return Explanation{Step: r.step, Ranking: r.rank(task)}, nil
}

// rank ranks the whole pool for a task, H0 included.
func (r *Rule) rank(task rollout.Task) []Evidence {
	g := r.mean()
	out := make([]Evidence, 0, len(r.ids))
	for _, id := range r.ids {
		kind, all := r.stats[id][task.Kind], r.overall(id)
		out = append(out, Evidence{
			Harness: id, Score: kind.shrunk(all.shrunk(g)),
			KindWins: kind.wins, KindTries: kind.tries, Wins: all.wins, Tries: all.tries,
		})
	}
	slices.SortStableFunc(out, func(a, b Evidence) int { return cmp.Compare(b.Score, a.Score) }) // ids are in order
	for i := range out {
		out[i].Rank = i + 1
	}
	return out
}

// Step is the policy step of the evidence, -1 before any.
func (r *Rule) Step() int { return r.step }

func (r *Rule) overall(id string) (c counts) {
	for _, k := range r.stats[id] {
		c.wins += k.wins
		c.tries += k.tries
	}
	return c
}

// mean is the success rate of all attempts.
func (r *Rule) mean() float64 {
	var all counts
	for _, id := range r.ids {
		c := r.overall(id)
		all.wins += c.wins
		all.tries += c.tries
	}
	if all.tries == 0 {
		return 0.5
	}
	return float64(all.wins) / float64(all.tries)
}

// state is the JSON form of a Rule: whole numbers and names, so that a loaded rule chooses exactly as the saved one.
type state struct {
	Version    int     `json:"version"`
	PolicyStep int     `json:"policy_step"`
	Counts     []entry `json:"counts"` // by harness, then kind
}

type entry struct {
	Harness string `json:"harness"`
	Kind    string `json:"kind"`
	Wins    int    `json:"wins"`
	Tries   int    `json:"tries"`
}

// MarshalJSON writes the evidence; equal rules give equal bytes.
func (r *Rule) MarshalJSON() ([]byte, error) {
	s := state{Version: stateVersion, PolicyStep: r.step, Counts: []entry{}}
	for _, id := range r.ids {
		kinds := make([]string, 0, len(r.stats[id]))
		for k := range r.stats[id] {
			kinds = append(kinds, k)
		}
		slices.Sort(kinds)
		for _, k := range kinds {
			c := r.stats[id][k]
			s.Counts = append(s.Counts, entry{id, k, c.wins, c.tries})
		}
	}
	return json.Marshal(s)
}

// UnmarshalJSON puts saved evidence into a rule made by NewRule over the same pool. On an error the rule stays as it was.
func (r *Rule) UnmarshalJSON(data []byte) error {
	var s state
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return fmt.Errorf("router state: %w", err)
	}
	if s.Version != stateVersion {
		return fmt.Errorf("router state: version %d; this program reads version %d", s.Version, stateVersion)
	}
	stats := map[string]map[string]counts{}
	for _, e := range s.Counts {
		if !slices.Contains(r.ids, e.Harness) {
			return fmt.Errorf("router state: the pool has no harness %q; the pool of a run must not change", e.Harness)
		}
		if e.Tries < 1 || e.Wins < 0 || e.Wins > e.Tries {
			return fmt.Errorf("router state: harness %s, kind %s: %d successes in %d attempts", e.Harness, e.Kind, e.Wins, e.Tries)
		}
		if stats[e.Harness] == nil {
			stats[e.Harness] = map[string]counts{}
		}
		if _, twice := stats[e.Harness][e.Kind]; twice {
			return fmt.Errorf("router state: harness %s, kind %s stands twice", e.Harness, e.Kind)
		}
		stats[e.Harness][e.Kind] = counts{e.Wins, e.Tries}
	}
	r.step, r.stats = s.PolicyStep, stats
	return nil
}
