package router

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"harness-s/model/chat"
	"harness-s/rollout"
	"harness-s/rollout/harness"
)

// scripted is a voter that may answer otherwise each time.
type scripted struct {
	name  string
	asked atomic.Int64
	vote  func(n int64, t rollout.Task) ([]string, error)
}

func (s *scripted) Name() string { return s.name }

func (s *scripted) Vote(ctx context.Context, _ *View, t rollout.Task) ([]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return s.vote(s.asked.Add(1), t)
}

func always(name, ids string) *scripted {
	return &scripted{name: name, vote: func(int64, rollout.Task) ([]string, error) { return strings.Fields(ids), nil }}
}

func task(id, kind, question string) rollout.Task {
	return rollout.Task{ID: id, Kind: kind, Vars: map[string]string{"question": question}}
}

var someTasks = []rollout.Task{
	task("v1", "count", "how many rows have the most points"), task("v2", "count", "how many teams won in 1990"),
	task("v3", "update", "set the value of Bern to 'x'"), task("v4", "update", "set all values that are not 3"),
}

// measured makes paired attempts: wins say how many of the attempts at each task a harness solves.
func measured(attempts int, wins map[string][]int) (out []*rollout.Record) {
	for _, id := range []string{"h0", "a", "b", "c"} {
		for i, t := range someTasks {
			for n := range attempts {
				r := &rollout.Record{ID: fmt.Sprintf("%s-%s-%d", id, t.ID, n), Harness: id, Task: t.ID, TaskKind: t.Kind, Attempt: n,
					Seed: int64(10*i + n), Success: n < wins[id][i], Status: rollout.Completed}
				if id == "a" {
					r.Turns = transcript("select * from sqlite_master", "t", "select 1", "1")
				}
				out = append(out, r)
			}
		}
	}
	return out
}

// transcript is calls and what they were told, in turn.
func transcript(lines ...string) (turns []rollout.Turn) {
	for i := 0; i < len(lines); i += 2 {
		value, _ := json.Marshal(lines[i])
		turns = append(turns, rollout.Turn{Role: "assistant", Calls: []chat.ToolCall{{Name: "execute_sql", Args: []chat.Arg{{Key: "query", Value: value}}}}},
			rollout.Turn{Role: "tool", Observation: lines[i+1]})
	}
	return turns
}

var usual = map[string][]int{"h0": {1, 0, 0, 0}, "a": {4, 4, 0, 0}, "b": {0, 0, 4, 4}, "c": {1, 1, 1, 0}}

func newVote(t testing.TB, o VoteOptions) *Vote {
	t.Helper()
	if o.Aggregate == "" {
		o.Aggregate = Borda
	}
	if o.Quorum == 0 {
		o.Quorum = 1
	}
	if o.Voters == nil {
		for _, name := range EmbeddedNames() {
			o.Voters = append(o.Voters, Embedded[name])
		}
	}
	r, err := NewVote(pool(t, "b", "a", "c"), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func anchored(t testing.TB, o VoteOptions) *Vote {
	t.Helper()
	r := newVote(t, o)
	if err := r.Observe(ctx, 3, someTasks, measured(4, usual)); err != nil {
		t.Fatal(err)
	}
	return r
}

func ranking(t testing.TB, r *Vote, task rollout.Task) []string {
	t.Helper()
	ids, err := r.Ranking(ctx, task)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// Every embedded voter alone finds the sibling that was made for the kind, and puts the harmful ones behind H0 where it can.
func TestEmbeddedVoters(t *testing.T) {
	for _, name := range EmbeddedNames() {
		r := anchored(t, VoteOptions{Voters: []Voter{Embedded[name]}})
		for kind, want := range map[string]string{"count": "a", "update": "b"} {
			if got := ranking(t, r, task("new", kind, "how many")); got[0] != want {
				t.Errorf("%s: %s: %v", name, kind, got)
			}
		}
		top, err := r.TopK(ctx, task("new", "count", "how many"), 3)
		if err != nil || slices.Contains(top, "h0") || len(top) != 3 {
			t.Errorf("%s: top 3: %v, %v", name, top, err)
		}
	}
}

func TestVotersByHand(t *testing.T) {
	r := anchored(t, VoteOptions{})
	// a at count: 8 pairs, h0 won 1 attempt of v1 with the same seed as a: 7 wins and a tie; the condition fits (1 of 1 features
	// of the group, "asks how many"). At update: 8 ties of another kind, with no feature in common of 1 here.
	got := byProfile(&r.view, task("new", "count", "how many"))
	own, other := 1.0, otherKind*(1+0.0)/2
	if want := 7 * own / (4 + 8*own + 8*other); abs(got[1]-want) > 1e-12 {
		t.Errorf("profile: a has %v, want %v", got[1], want)
	}
	if got[0] != 0 {
		t.Errorf("profile: h0 has %v against itself", got[0])
	}
	// Wilson, z = 1: 8 of 8 is 1/(1+1/8) = 8/9; 0 of 8 is 0; 1 of 2: (1/2+1/4-sqrt(1/8+1/16))/(3/2).
	for c, want := range map[counts]float64{{8, 8}: 8.0 / 9, {0, 8}: 0, {1, 2}: (0.75 - 0.4330127018922193) / 1.5, {}: 0} {
		if got := wilson(c); abs(got-want) > 1e-12 {
			t.Errorf("wilson%v = %v, want %v", c, got, want)
		}
	}
}

func abs(x float64) float64 { return max(x, -x) }

func TestProfilesSayWhatHappened(t *testing.T) {
	r := anchored(t, VoteOptions{})
	entries := r.view.Profiles.of("a")
	if len(entries) != 2 {
		t.Fatalf("%d entries of a: %+v", len(entries), entries)
	}
	e := entries[0]
	if e.Condition.Kind != "count" || !reflect.DeepEqual(e.Condition.Features, []string{"asks how many"}) {
		t.Errorf("condition %+v", e.Condition)
	}
	if !reflect.DeepEqual(e.Behaviour, []string{"+ " + looksAtSchema}) || e.Effect != (Effect{Wins: 7, Ties: 1}) {
		t.Errorf("behaviour %v, effect %+v", e.Behaviour, e.Effect)
	}
	if len(e.Evidence) != maxEvidence || e.Evidence[0] != "a-v1-1" { // a-v1-0 is a tie: those come last
		t.Errorf("evidence %v", e.Evidence)
	}
	for _, id := range []string{"b", "c", "a"} { // bounded
		if n := len(r.view.Profiles.of(id)); n > 2*maxEntries {
			t.Errorf("%s has %d entries", id, n)
		}
	}
	if v := r.view.Profiles.Version; v != r.view.Profiles.hash() || len(v) != 16 {
		t.Errorf("version %q", v)
	}
}

func TestBehaviour(t *testing.T) {
	rec := &rollout.Record{Status: rollout.TurnLimit, Usage: rollout.Usage{ParseErrors: 1},
		Turns: transcript("PRAGMA table_info(t)", "x", "update t set a = 1", "Error: no such column", "update t set b = 1", "1 changed",
			"select b from t limit 5 offset 5", "1", "select b from t limit 5 offset 5", "1")}
	want := []string{doesNotEnd, badFormat, asksOften, looksAtSchema, meetsErrors, pages, repeats, retries, verifies}
	slices.Sort(want)
	if got := behaviour(rec); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := behaviour(&rollout.Record{Status: rollout.Completed, Turns: []rollout.Turn{{Role: "assistant", Calls: []chat.ToolCall{{}, {}}}, {Role: "user"}}}); got != nil {
		t.Errorf("nothing was run: %v", got)
	}
}

func TestReadBallot(t *testing.T) {
	ids := []string{"h0", "a", "b", "c"}
	for _, c := range []struct {
		answer, want      string
		repaired, dropped bool
	}{
		{"a b c h0", "a b c h0", false, false},
		{"a b c", "a b c", false, false}, // partial: the aggregation knows what to make of it
		{"a b a c", "a b c", true, false},
		{"a x b c", "a b c", true, false},
		{"a b", "", false, true},
		{"a b c w x y z", "", false, true},
		{"", "", false, true},
	} {
		b := readBallot(ids, strings.Fields(c.answer))
		if strings.Join(b.Ranking, " ") != c.want || (b.Repaired != "") != c.repaired || (b.Dropped != "") != c.dropped {
			t.Errorf("%q: %+v", c.answer, b)
		}
	}
}

func TestQuorumAndFallback(t *testing.T) {
	down := &scripted{name: "down", vote: func(int64, rollout.Task) ([]string, error) { return nil, errors.New("the server is down") }}
	prose := always("prose", "I think that a is best")
	good := always("good", "c b a h0")
	r := anchored(t, VoteOptions{Voters: []Voter{down, prose, good}, Quorum: 1})
	count := task("new", "count", "how many")
	if got := ranking(t, r, count); !reflect.DeepEqual(got, []string{"c", "b", "a", "h0"}) {
		t.Errorf("one ballot counts: %v", got)
	}
	tally := r.Tally()
	if tally["router/ballots"] != 3 || tally["router/dropped"] != 2 || tally["router/fallback"] != 0 || tally["router/cached"] != 0 {
		t.Errorf("tally %v", tally)
	}
	if r.Tally() != nil {
		t.Error("a tally is told once")
	}
	r = anchored(t, VoteOptions{Voters: []Voter{down, prose, good}, Quorum: 2})
	if got := ranking(t, r, count); !reflect.DeepEqual(got, r.view.order(count)) {
		t.Errorf("no quorum: %v, the rule says %v", got, r.view.order(count))
	}
	if r.Tally()["router/fallback"] != 1 {
		t.Error("the fallback is not counted")
	}
	e, err := r.Explain(ctx, count)
	if err != nil || !e.Fallback || len(e.Ballots) != 3 || e.Ballots[0].Dropped != "the server is down" || !e.Ballots[2].Cached {
		t.Errorf("explanation %+v, %v", e, err)
	}
	if len(e.Profiles["a"]) == 0 || len(e.Profiles["a"][0].Evidence) == 0 {
		t.Error("an explanation without evidence")
	}
}

func TestBallotsAreKept(t *testing.T) {
	v := &scripted{name: "moody", vote: func(n int64, _ rollout.Task) ([]string, error) {
		return [][]string{{"a", "b", "c", "h0"}, {"c", "b", "a", "h0"}}[n%2], nil
	}}
	r := anchored(t, VoteOptions{Voters: []Voter{v}})
	first := ranking(t, r, someTasks[0])
	if again := ranking(t, r, someTasks[0]); !reflect.DeepEqual(again, first) || v.asked.Load() != 1 {
		t.Errorf("asked %d times: %v, then %v", v.asked.Load(), first, again)
	}
	if r.Tally()["router/cached"] != 1 {
		t.Error("one of the two ballots was cached")
	}
	// The state brings them back.
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	other := newVote(t, VoteOptions{Voters: []Voter{v}})
	if err := json.Unmarshal(data, other); err != nil {
		t.Fatal(err)
	}
	if got := ranking(t, other, someTasks[0]); !reflect.DeepEqual(got, first) || v.asked.Load() != 1 {
		t.Errorf("restored: %v, want %v; asked %d times", got, first, v.asked.Load())
	}
	if again, _ := json.Marshal(other); string(again) != string(data) {
		t.Errorf("state changed:\n%s\n%s", data, again)
	}
	// A new measurement makes them void.
	if err := r.Observe(ctx, 9, someTasks, measured(4, map[string][]int{"h0": {4, 4, 4, 4}, "a": {0, 0, 0, 0}, "b": {0, 0, 0, 0}, "c": {0, 0, 0, 0}})); err != nil {
		t.Fatal(err)
	}
	if ranking(t, r, someTasks[0]); v.asked.Load() != 2 {
		t.Errorf("asked %d times after a new measurement", v.asked.Load())
	}
}

// What was answered before a crash is in the file: a router that begins again from an older state rests on the same answers,
// and leaves the same state and the same tally.
func TestAnswersOutliveACrash(t *testing.T) {
	path := filepath.Join(t.TempDir(), "router", "answers.jsonl")
	moody := func() *scripted {
		return &scripted{name: "moody", vote: func(n int64, _ rollout.Task) ([]string, error) {
			return [][]string{{"a", "b", "c", "h0"}, {"c", "b", "a", "h0"}}[n%2], nil
		}}
	}
	one := moody()
	r := anchored(t, VoteOptions{Voters: []Voter{one}, Answers: path})
	checkpoint, _ := json.Marshal(r)
	var want [][]string
	for _, task := range someTasks {
		want = append(want, ranking(t, r, task))
	}
	state, _ := json.Marshal(r)
	tally := r.Tally()
	r.Close()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteString(`{"key":"torn`)
	f.Close()

	two := moody()
	again := newVote(t, VoteOptions{Voters: []Voter{two}, Answers: path})
	if err := json.Unmarshal(checkpoint, again); err != nil {
		t.Fatal(err)
	}
	for i, task := range someTasks {
		if got := ranking(t, again, task); !reflect.DeepEqual(got, want[i]) {
			t.Errorf("task %s: %v, before the crash %v", task.ID, got, want[i])
		}
	}
	if got, _ := json.Marshal(again); string(got) != string(state) || two.asked.Load() != 0 {
		t.Errorf("asked %d times; state\n%s\nwant\n%s", two.asked.Load(), got, state)
	}
	if got := again.Tally(); !reflect.DeepEqual(got, tally) {
		t.Errorf("tally %v, want %v", got, tally)
	}
	ranking(t, again, task("fresh", "count", "how many")) // appended behind the torn line, which is gone
	again.Close()
	data, _ := os.ReadFile(path)
	if lines := strings.Count(string(data), "\n"); lines != len(someTasks)+1 || strings.Contains(string(data), "torn") {
		t.Errorf("%d lines:\n%s", lines, data)
	}
	if err := os.WriteFile(path, []byte("nonsense\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := newVote(t, VoteOptions{Voters: []Voter{two}, Answers: path}).Ranking(ctx, count); err == nil || !strings.Contains(err.Error(), "answers.jsonl:1") {
		t.Errorf("a damaged file: %v", err)
	}
}

func TestPrepareBesideChoices(t *testing.T) {
	var mu sync.Mutex
	asked := map[string]int{}
	v := &scripted{name: "slow", vote: func(_ int64, t rollout.Task) ([]string, error) {
		mu.Lock()
		defer mu.Unlock()
		asked[t.ID]++
		return []string{"a", "b", "c", "h0"}, nil
	}}
	r := anchored(t, VoteOptions{Voters: []Voter{v}})
	done := make(chan error)
	go func() { done <- r.Prepare(ctx, someTasks) }()
	for _, task := range someTasks {
		ranking(t, r, task)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for id, n := range asked {
		if n != 1 {
			t.Errorf("task %s was asked about %d times", id, n)
		}
	}
	cancelled, stop := context.WithCancel(ctx)
	stop()
	if err := r.Prepare(cancelled, []rollout.Task{task("more", "count", "")}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	// What was only prepared is not yet part of the state.
	if err := r.Prepare(ctx, []rollout.Task{task("only", "count", "")}); err != nil {
		t.Fatal(err)
	}
	if data, _ := json.Marshal(r); strings.Contains(string(data), `"only"`) {
		t.Error("nothing rests on a prepared ballot, and it is in the state")
	}
}

func TestReanchoring(t *testing.T) {
	fixed, adaptive := anchored(t, VoteOptions{Fixed: true}), anchored(t, VoteOptions{})
	before := fixed.view.Profiles.Version
	half := slices.DeleteFunc(measured(4, map[string][]int{"h0": {4, 4, 0, 0}, "a": {0, 0, 0, 0}, "b": {4, 4, 0, 0}, "c": {4, 4, 0, 0}}),
		func(r *rollout.Record) bool { return r.TaskKind != "count" })
	for _, r := range []*Vote{fixed, adaptive} {
		if err := r.Observe(ctx, 20, someTasks[:2], half); err != nil {
			t.Fatal(err)
		}
		if c := r.view.Rule.stats["b"]; c["count"] != (counts{8, 8}) || c["update"] != (counts{8, 8}) {
			t.Errorf("b: %v: new evidence of count, the older of update", c)
		}
		if e := r.view.evidence; e[0].Step != 20 || e[2].Step != 3 {
			t.Errorf("evidence of steps %d and %d", e[0].Step, e[2].Step)
		}
	}
	if fixed.view.Profiles.Version != before || fixed.view.Profiles.Step != 3 {
		t.Error("fixed profiles have changed")
	}
	p := adaptive.view.Profiles
	if p.Version == before || p.Step != 20 {
		t.Error("adaptive profiles have not changed")
	}
	for _, e := range p.of("a") {
		if want := map[string]Effect{"count": {Losses: 8}, "update": {Ties: 8}}[e.Condition.Kind]; e.Effect != want {
			t.Errorf("a at %s: %+v, want %+v", e.Condition.Kind, e.Effect, want)
		}
	}
	if got := ranking(t, adaptive, someTasks[0]); got[len(got)-1] != "a" {
		t.Errorf("a does harm now: %v", got)
	}
}

func TestVoteErrors(t *testing.T) {
	p := pool(t, "a", "b", "c")
	two := []Voter{Embedded["rule"], Embedded["rule"]}
	for _, o := range []VoteOptions{
		{Voters: two[:1], Aggregate: "best", Quorum: 1}, {Voters: two, Aggregate: Borda, Quorum: 1},
		{Voters: two[:1], Aggregate: Borda}, {Voters: two[:1], Aggregate: Borda, Quorum: 2},
	} {
		if _, err := NewVote(p, o); err == nil {
			t.Errorf("accepted %+v", o)
		}
	}
	r := anchored(t, VoteOptions{})
	for _, k := range []int{0, 4} {
		if _, err := r.TopK(ctx, count, k); !errors.Is(err, harness.ErrPoolTooSmall) {
			t.Errorf("k = %d: %v", k, err)
		}
	}
	before, _ := json.Marshal(r)
	if err := r.Observe(ctx, 9, someTasks[:1], measured(4, usual)); err == nil {
		t.Error("a rollout of a task that was not measured")
	}
	if err := r.Observe(ctx, 9, someTasks, attempts("z", "count", 1, 1)); err == nil {
		t.Error("a harness that the pool does not have")
	}
	for _, change := range [][2]string{
		{`"kind":"vote"`, `"kind":"rule"`}, {`"version":1`, `"version":7`}, {`"wins":4,"tries":4`, `"wins":5,"tries":4`},
		{`"harness":"a"`, `"harness":"z"`}, {`"losses":0`, `"losses":1`}, {`"task":"v1"`, `"task":"v9"`},
		{`"ballots":[]`, `"ballots":[{"task":"t","voter":"v","ranking":["a","a"]}]`}, {`"ballots":[]`, `"ballots":[],"more":1`},
	} {
		bad := strings.Replace(string(before), change[0], change[1], 1)
		if bad == string(before) {
			t.Fatalf("%s is not in the state", change[0])
		}
		if err := json.Unmarshal([]byte(bad), r); err == nil {
			t.Errorf("accepted a state with %s", change[1])
		}
	}
	if after, _ := json.Marshal(r); string(after) != string(before) {
		t.Error("an error must leave the router as it was")
	}
}

// Whatever voters say: K distinct siblings, a whole ranking, and no matter in which order voters are named.
func TestVoteProperties(t *testing.T) {
	p := pool(t, "a", "b", "c", "d", "e")
	rapid.Check(t, func(t *rapid.T) {
		words := []string{"h0", "a", "b", "c", "d", "e", "x", "ignore", ""}
		var voters []Voter
		for i := range rapid.IntRange(1, 5).Draw(t, "voters") {
			said := rapid.SliceOfN(rapid.SampledFrom(words), 0, 12).Draw(t, "ballot")
			voters = append(voters, &scripted{name: fmt.Sprint(i), vote: func(int64, rollout.Task) ([]string, error) { return said, nil }})
		}
		rule := rapid.SampledFrom(Aggregations).Draw(t, "rule")
		quorum := rapid.IntRange(1, len(voters)).Draw(t, "quorum")
		rank := func(voters []Voter) []string {
			r, err := NewVote(p, VoteOptions{Voters: voters, Aggregate: rule, Quorum: quorum})
			if err != nil {
				t.Fatal(err)
			}
			ids, err := r.Ranking(ctx, someTasks[0])
			if err != nil {
				t.Fatal(err)
			}
			for k := 1; k <= 5; k++ {
				top, err := r.TopK(ctx, someTasks[0], k)
				if err != nil || len(top) != k || slices.Contains(top, "h0") || len(slices.Compact(slices.Sorted(slices.Values(top)))) != k {
					t.Fatalf("top %d: %v, %v", k, top, err)
				}
			}
			return ids
		}
		ids := rank(voters)
		if !reflect.DeepEqual(slices.Sorted(slices.Values(ids)), []string{"a", "b", "c", "d", "e", "h0"}) {
			t.Fatalf("%v is no ranking of the pool", ids)
		}
		if other := rank(rapid.Permutation(voters).Draw(t, "order")); !reflect.DeepEqual(other, ids) {
			t.Fatalf("the order of voters matters: %v, %v", other, ids)
		}
	})
}
