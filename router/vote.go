package router

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"harness-s/rollout"
	"harness-s/rollout/harness"
)

// VoteOptions say who votes and how votes are counted.
type VoteOptions struct {
	Voters    []Voter // names differ
	Aggregate string  // one of Aggregations
	Quorum    int     // ballots that must count; with fewer the validation rule decides
	Grouper   Grouper // makes the profiles; nil: ByBehaviour
	Fixed     bool    // keep the profiles of the first measurement
	// Answers is the file that keeps what language models answered; empty: in memory only.
	Answers string
}

// Vote is the adaptive router: voters rank the pool for a task from its looks, the statistics and the profiles, and the
// rankings are made into one. See docs/router.md.
//
// TopK, Ranking and Explain are for one goroutine; Prepare may run beside them. None runs beside Observe or UnmarshalJSON.
type Vote struct {
	opts    VoteOptions
	view    View
	version string // of statistics and profiles: what a ballot rests on
	answers *answers
	used    map[string]Ballot // ballots of voters that may answer otherwise, on which a choice rested, by key
	tally   tally
}

// tally counts what choices rested on.
type tally struct {
	choices, h0First, ballots, repaired, dropped, cached, fallback int
}

// prepared is how many tasks' ballots are asked for at once; clients have limits of their own.
const prepared = 16

// NewVote is a router without evidence over the harnesses of a pool.
func NewVote(pool *harness.Pool, o VoteOptions) (*Vote, error) {
	rule := NewRule(pool)
	if err := CheckAggregation(o.Aggregate, len(rule.ids)); err != nil {
		return nil, fmt.Errorf("router: aggregation: %w", err)
	}
	names := map[string]bool{}
	for _, v := range o.Voters {
		if names[v.Name()] {
			return nil, fmt.Errorf("router: two voters are called %q", v.Name())
		}
		names[v.Name()] = true
	}
	if o.Quorum < 1 || o.Quorum > len(o.Voters) {
		return nil, fmt.Errorf("router: a quorum of %d with %d voters", o.Quorum, len(o.Voters))
	}
	if o.Grouper == nil {
		o.Grouper = ByBehaviour{}
	}
	r := &Vote{opts: o, answers: newAnswers(o.Answers), used: map[string]Ballot{}}
	r.set(View{IDs: rule.ids, Rule: rule, Profiles: newProfiles(-1, []Entry{})})
	return r, nil
}

// Close closes the file of answers.
func (r *Vote) Close() error { return r.answers.close() }

// set changes what voters know. Ballots that rest on something else are forgotten.
func (r *Vote) set(v View) {
	if v.evidence == nil {
		v.evidence = []taskEvidence{}
	}
	r.view = v
	data, err := json.Marshal(struct {
		Evidence []taskEvidence
		Profiles string
		IDs      []string
	}{v.evidence, v.Profiles.Version, v.IDs})
	if err != nil {
		panic(err) // names and whole numbers always marshal
	}
	sum := sha256.Sum256(data)
	if version := hex.EncodeToString(sum[:8]); version != r.version {
		r.version, r.used = version, map[string]Ballot{}
	}
}

// Observe renews the statistics of the tasks measured, and the profiles unless they are fixed. On an error all stays as it was.
func (r *Vote) Observe(ctx context.Context, step int, tasks []rollout.Task, records []*rollout.Record) error {
	fresh, err := gather(step, r.view.IDs, tasks, records)
	if err != nil {
		return err
	}
	v := r.view
	v.evidence = renew(v.evidence, fresh)
	v.Rule = sum(v.IDs, step, v.evidence)
	if !r.opts.Fixed || v.Profiles.Step < 0 {
		ps := pairs(tasks, records)
		entries, err := r.group(ctx, step, ps)
		if err != nil {
			return fmt.Errorf("router: profiles at step %d: %w", step, err)
		}
		v.Profiles = newProfiles(step, keepOthers(v.Profiles.Entries, entries))
	}
	r.set(v)
	return nil
}

// keepOthers adds to new entries the older ones on harnesses and kinds that were not measured anew.
func keepOthers(old, fresh []Entry) []Entry {
	type cell struct{ harness, kind string }
	measured := map[cell]bool{}
	for _, e := range fresh {
		measured[cell{e.Harness, e.Condition.Kind}] = true
	}
	out := slices.Clone(fresh)
	for _, e := range old {
		if !measured[cell{e.Harness, e.Condition.Kind}] {
			out = append(out, e)
		}
	}
	return out
}

// group makes entries; what a language model makes of the pairs is kept like a ballot.
func (r *Vote) group(ctx context.Context, step int, ps []pair) ([]Entry, error) {
	if _, ok := r.opts.Grouper.(ByBehaviour); ok {
		return r.opts.Grouper.Group(ctx, step, ps)
	}
	plain, err := json.Marshal(entriesOf(groupByBehaviour(ps)))
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(plain)
	data, err := r.answers.get(ctx, fmt.Sprintf("profiles %d %s", step, hex.EncodeToString(sum[:8])), func() (json.RawMessage, error) {
		entries, err := r.opts.Grouper.Group(ctx, step, ps)
		if err != nil {
			return nil, err
		}
		return json.Marshal(entries)
	})
	if err != nil {
		return nil, err
	}
	var entries []Entry
	return entries, json.Unmarshal(data, &entries)
}

// Prepare asks the voters that take long for their ballots on tasks, many at once. It returns an error when ctx ends or an
// answer could not be kept.
func (r *Vote) Prepare(ctx context.Context, tasks []rollout.Task) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(prepared)
	for _, v := range r.opts.Voters {
		if _, ok := v.(embedded); ok {
			continue
		}
		for _, t := range tasks {
			g.Go(func() error {
				if err := ctx.Err(); err != nil {
					return err
				}
				_, err := r.ask(ctx, v, t)
				return err
			})
		}
	}
	return g.Wait()
}

// choice is a ranking and what it rests on.
type choice struct {
	ranking  []string
	ballots  []Ballot // by voter
	fallback bool     // too few ballots counted
}

// choose gets the ballots of all voters at once and counts them. It changes nothing.
func (r *Vote) choose(ctx context.Context, t rollout.Task) (choice, error) {
	c := choice{ballots: make([]Ballot, len(r.opts.Voters))}
	g, gctx := errgroup.WithContext(ctx)
	for i, v := range r.opts.Voters {
		g.Go(func() (err error) {
			c.ballots[i], err = r.ask(gctx, v, t)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return choice{}, fmt.Errorf("router: ballots for task %s: %w", t.ID, err)
	}
	var counted [][]string
	for i, b := range c.ballots {
		_, c.ballots[i].Cached = r.used[r.ballotKey(b.Voter, t.ID)]
		if b.Dropped == "" {
			counted = append(counted, b.Ranking)
		}
	}
	order := r.view.order(t)
	if c.fallback = len(counted) < r.opts.Quorum; c.fallback {
		c.ranking = order
	} else {
		c.ranking = aggregate(r.opts.Aggregate, order, counted)
	}
	return c, nil
}

// rest notes that something rests on a choice: its ballots belong to the state from now on.
func (r *Vote) rest(c choice, t rollout.Task) {
	r.tally.choices++
	if c.ranking[0] == harness.BaseID {
		r.tally.h0First++
	}
	if c.fallback {
		r.tally.fallback++
	}
	for i, b := range c.ballots {
		r.tally.ballots++
		r.tally.repaired += one(b.Repaired != "")
		r.tally.dropped += one(b.Dropped != "")
		r.tally.cached += one(b.Cached)
		if _, ok := r.opts.Voters[i].(embedded); !ok {
			r.used[r.ballotKey(b.Voter, t.ID)] = b
		}
	}
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Ranking is the whole pool for a task, H0 included, best first.
func (r *Vote) Ranking(ctx context.Context, t rollout.Task) ([]string, error) {
	c, err := r.choose(ctx, t)
	if err != nil {
		return nil, err
	}
	r.rest(c, t)
	return c.ranking, nil
}

// TopK is the k best distinct siblings for a task, best first. An error wraps harness.ErrPoolTooSmall when there are fewer.
func (r *Vote) TopK(ctx context.Context, t rollout.Task, k int) ([]string, error) {
	if siblings := len(r.view.IDs) - 1; k > siblings || k < 1 {
		return nil, fmt.Errorf("router: %w: asked for %d of %d siblings", harness.ErrPoolTooSmall, k, siblings)
	}
	ranking, err := r.Ranking(ctx, t)
	if err != nil {
		return nil, err
	}
	ranking = slices.DeleteFunc(ranking, func(id string) bool { return id == harness.BaseID })
	return ranking[:k], nil
}

// Best is the sibling with the best estimate over all kinds, by the validation rule.
func (r *Vote) Best() (string, error) { return r.view.Rule.Best() }

// Tally is what the choices since the last call rested on.
func (r *Vote) Tally() map[string]float64 {
	t := r.tally
	r.tally = tally{}
	if t.choices == 0 {
		return nil
	}
	return map[string]float64{
		"router/ballots": float64(t.ballots), "router/repaired": float64(t.repaired), "router/dropped": float64(t.dropped),
		"router/cached": float64(t.cached), "router/fallback": float64(t.fallback), "router/h0_share": float64(t.h0First) / float64(t.choices),
	}
}

// Files are the counts in the validation rule's form, and the profiles.
func (r *Vote) Files() (map[string][]byte, error) {
	stats, err := json.Marshal(r.view.Rule)
	if err != nil {
		return nil, err
	}
	profiles, err := json.MarshalIndent(r.view.Profiles, "", " ")
	return map[string][]byte{"stats": stats, "profiles": profiles}, err
}

// Explanation is a choice for one task with everything it rests on.
type Explanation struct {
	Step    int        `json:"step"`    // of the last measurement
	Ranking []Evidence `json:"ranking"` // the whole pool, H0 included, best first
	// What follows is a Vote's.
	Version   string              `json:"version,omitempty"` // of statistics and profiles
	Aggregate string              `json:"aggregate,omitempty"`
	Fallback  bool                `json:"fallback,omitempty"` // too few ballots counted: the validation rule decided
	Ballots   []Ballot            `json:"ballots,omitempty"`
	Profiles  map[string][]Weight `json:"profiles,omitempty"` // by harness, what counts for this task, nearest first
}

// Weight is a profile entry with how near its condition is to the task.
type Weight struct {
	Nearness float64 `json:"nearness"` // 0..1
	Entry
}

// maxExplained bounds the entries of one harness in an Explanation.
const maxExplained = 4

// Explain says how the router chooses for a task. Scores and ranks of the evidence are the validation rule's counts in the order
// of the vote.
func (r *Vote) Explain(ctx context.Context, t rollout.Task) (Explanation, error) {
	c, err := r.choose(ctx, t)
	if err != nil {
		return Explanation{}, err
	}
	e := Explanation{Step: r.view.Rule.Step(), Version: r.version, Aggregate: r.opts.Aggregate, Fallback: c.fallback, Ballots: c.ballots, Profiles: map[string][]Weight{}}
	byID := map[string]Evidence{}
	for _, ev := range r.view.Rule.rank(t) {
		byID[ev.Harness] = ev
	}
	for i, id := range c.ranking {
		ev := byID[id]
		ev.Rank = i + 1
		e.Ranking = append(e.Ranking, ev)
		if near := nearestOf(r.view.Profiles.of(id), t); len(near) > 0 {
			e.Profiles[id] = near[:min(len(near), maxExplained)]
		}
	}
	return e, nil
}

// nearestOf weighs entries for a task, nearest first.
func nearestOf(entries []Entry, t rollout.Task) []Weight {
	features := taskFeatures(t)
	var out []Weight
	for _, e := range entries {
		out = append(out, Weight{nearness(e.Condition, t.Kind, features), e})
	}
	slices.SortStableFunc(out, func(a, b Weight) int { return cmp.Compare(b.Nearness, a.Nearness) })
	return out
}

// voteState is the JSON form of a Vote.
type voteState struct {
	Kind       string         `json:"kind"` // "vote": a validation rule's state has none
	Version    int            `json:"version"`
	PolicyStep int            `json:"policy_step"`
	Evidence   []taskEvidence `json:"evidence"`
	Profiles   Profiles       `json:"profiles"`
	Ballots    []Ballot       `json:"ballots"` // by task, then voter
}

// voteKind marks a Vote's state.
const voteKind = "vote"

// MarshalJSON writes all that choices follow from; equal routers give equal bytes.
func (r *Vote) MarshalJSON() ([]byte, error) {
	s := voteState{Kind: voteKind, Version: stateVersion, PolicyStep: r.view.Rule.step, Evidence: r.view.evidence, Profiles: r.view.Profiles, Ballots: []Ballot{}}
	for _, b := range r.used {
		s.Ballots = append(s.Ballots, b)
	}
	slices.SortFunc(s.Ballots, func(a, b Ballot) int {
		return cmp.Or(cmp.Compare(a.Task, b.Task), cmp.Compare(a.Voter, b.Voter))
	})
	return json.Marshal(s)
}

// UnmarshalJSON puts a saved state into a router made by NewVote over the same pool. On an error the router stays as it was.
func (r *Vote) UnmarshalJSON(data []byte) error {
	var s voteState
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return fmt.Errorf("router state: %w", err)
	}
	if err := s.check(r.view.IDs); err != nil {
		return fmt.Errorf("router state: %w", err)
	}
	v := View{IDs: r.view.IDs, Rule: sum(r.view.IDs, s.PolicyStep, s.Evidence), evidence: s.Evidence, Profiles: s.Profiles}
	r.used = map[string]Ballot{}
	r.set(v)
	for _, b := range s.Ballots {
		key := r.ballotKey(b.Voter, b.Task)
		value, err := json.Marshal(b)
		if err != nil {
			return fmt.Errorf("router state: %w", err)
		}
		r.used[key] = b
		r.answers.put(key, value)
	}
	return nil
}

func (s voteState) check(ids []string) error {
	if s.Kind != voteKind || s.Version != stateVersion {
		return fmt.Errorf("kind %q, version %d; this program reads %q, %d: was router.kind changed?", s.Kind, s.Version, voteKind, stateVersion)
	}
	for i, e := range s.Evidence {
		if i > 0 && s.Evidence[i-1].Task >= e.Task || !slices.IsSorted(e.Words) {
			return fmt.Errorf("evidence of task %q is out of order", e.Task)
		}
		for id, c := range e.Count {
			if !slices.Contains(ids, id) {
				return fmt.Errorf("the pool has no harness %q; the pool of a run must not change", id)
			}
			if c.Tries < 1 || c.Wins < 0 || c.Wins > c.Tries {
				return fmt.Errorf("task %s, harness %s: %d successes in %d attempts", e.Task, id, c.Wins, c.Tries)
			}
		}
	}
	for _, e := range s.Profiles.Entries {
		if !slices.Contains(ids, e.Harness) {
			return fmt.Errorf("a profile of harness %q, which the pool does not have", e.Harness)
		}
	}
	if s.Profiles.Version != s.Profiles.hash() {
		return fmt.Errorf("profiles do not match their version %q", s.Profiles.Version)
	}
	for _, b := range s.Ballots {
		if err := b.check(ids); err != nil {
			return err
		}
	}
	return nil
}
