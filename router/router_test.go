package router

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"harness-s/rollout"
	"harness-s/rollout/harness"
)

func pool(t testing.TB, siblings ...string) *harness.Pool {
	t.Helper()
	specs := []*harness.Spec{{ID: "h0", Prompt: harness.Prompt{User: "{{question}}"}}}
	for _, id := range siblings {
		specs = append(specs, &harness.Spec{ID: id, Parent: "h0", Direction: "d", Prompt: harness.Prompt{System: id, User: "{{question}}"}})
	}
	p, err := harness.NewPool(specs)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// attempts makes n records with the given number of successes.
func attempts(id, kind string, wins, n int) (out []*rollout.Record) {
	for i := range n {
		out = append(out, &rollout.Record{ID: fmt.Sprintf("%s-%s-%d", id, kind, i), Harness: id, TaskKind: kind, Success: i < wins, Status: rollout.Completed})
	}
	return out
}

var ctx = context.Background()

func observe(r *Rule, step int, records []*rollout.Record) error {
	return r.Observe(ctx, step, nil, records)
}

var count, update, unseen = rollout.Task{Kind: "count"}, rollout.Task{Kind: "update"}, rollout.Task{Kind: "new"}

func observed(t *testing.T) *Rule {
	r := NewRule(pool(t, "b", "a", "c"))
	var records []*rollout.Record
	records = append(records, attempts("h0", "count", 2, 8)...)
	records = append(records, attempts("a", "count", 8, 8)...)
	records = append(records, attempts("a", "update", 2, 8)...)
	records = append(records, attempts("b", "count", 0, 8)...)
	records = append(records, attempts("b", "update", 8, 8)...)
	records = append(records, attempts("c", "update", 1, 2)...)
	records = append(records, &rollout.Record{Harness: "b", TaskKind: "count", Status: rollout.ServerError})
	if err := observe(r, 5, records); err != nil {
		t.Fatal(err)
	}
	return r
}

func mustTop(t *testing.T, r *Rule, task rollout.Task, k int) []string {
	t.Helper()
	ids, err := r.TopK(ctx, task, k)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

func TestRuleFollowsTheKind(t *testing.T) {
	r := observed(t)
	if got := mustTop(t, r, count, 3); !reflect.DeepEqual(got, []string{"a", "c", "b"}) {
		t.Errorf("count: %v", got)
	}
	if got := mustTop(t, r, update, 1); got[0] != "b" {
		t.Errorf("update: %v", got)
	}
	if got := mustTop(t, r, unseen, 1); got[0] != "a" { // a kind never seen: overall success
		t.Errorf("unseen: %v", got)
	}
	if best, err := r.Best(); err != nil || best != "a" {
		t.Errorf("best %s, %v", best, err)
	}
	if ids, _ := r.Ranking(ctx, count); !reflect.DeepEqual(ids, []string{"a", "c", "h0", "b"}) {
		t.Errorf("ranking %v", ids)
	}
}

func TestRuleNumbers(t *testing.T) {
	e := observed(t).rank(count)
	// g = 21/42; b: 8 of 16 overall, 0 of 8 here.
	g := 21.0 / 42
	want := (0 + 4*((8+4*g)/20)) / 12
	last := e[len(e)-1]
	if last.Harness != "b" || math.Abs(last.Score-want) > 1e-15 || last.Rank != 4 {
		t.Errorf("got %+v, want the score %v", last, want)
	}
	if last.KindTries != 8 || last.KindWins != 0 || last.Tries != 16 || last.Wins != 8 {
		t.Errorf("evidence %+v: the broken attempt must not count", last)
	}
}

func TestRuleWithoutEvidence(t *testing.T) {
	r := NewRule(pool(t, "b", "a", "c"))
	if got := mustTop(t, r, count, 3); !reflect.DeepEqual(got, []string{"a", "b", "c"}) {
		t.Errorf("ties must go by id: %v", got)
	}
	if ids, _ := r.Ranking(ctx, count); ids[0] != "h0" {
		t.Errorf("without evidence H0 stays: %s", ids[0])
	}
	if best, _ := r.Best(); best != "a" || r.Step() != -1 {
		t.Errorf("best %s, step %d", best, r.Step())
	}
}

func TestRuleErrors(t *testing.T) {
	r := observed(t)
	for _, k := range []int{0, 4} {
		if _, err := r.TopK(ctx, count, k); !errors.Is(err, harness.ErrPoolTooSmall) {
			t.Errorf("k = %d: %v", k, err)
		}
	}
	if _, err := NewRule(pool(t)).Best(); !errors.Is(err, harness.ErrPoolTooSmall) {
		t.Errorf("no siblings: %v", err)
	}
	before, _ := json.Marshal(r)
	if err := observe(r, 9, attempts("h0-prefix", "count", 1, 1)); err == nil || !strings.Contains(err.Error(), "h0-prefix") {
		t.Errorf("unknown harness: %v", err)
	}
	for _, bad := range []string{
		`{"version":2,"policy_step":1,"counts":[]}`,
		`{"version":1,"policy_step":1,"counts":[],"more":1}`,
		`{"version":1,"policy_step":1,"counts":[{"harness":"z","kind":"k","wins":0,"tries":1}]}`,
		`{"version":1,"policy_step":1,"counts":[{"harness":"a","kind":"k","wins":2,"tries":1}]}`,
		`{"version":1,"policy_step":1,"counts":[{"harness":"a","kind":"k","wins":1,"tries":1},{"harness":"a","kind":"k","wins":1,"tries":1}]}`,
		`{"version":1,`,
	} {
		if err := json.Unmarshal([]byte(bad), r); err == nil {
			t.Errorf("accepted %s", bad)
		}
	}
	if after, _ := json.Marshal(r); string(after) != string(before) {
		t.Error("an error must leave the evidence as it was")
	}
}

func TestStateRoundTrip(t *testing.T) {
	r := observed(t)
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"version":1,"policy_step":5,"counts":[{"harness":"h0","kind":"count","wins":2,"tries":8},{"harness":"a","kind":"count","wins":8,"tries":8},{"harness":"a","kind":"update","wins":2,"tries":8},` +
		`{"harness":"b","kind":"count","wins":0,"tries":8},{"harness":"b","kind":"update","wins":8,"tries":8},{"harness":"c","kind":"update","wins":1,"tries":2}]}`
	if string(data) != want {
		t.Errorf("state %s", data)
	}
	got := NewRule(pool(t, "a", "b", "c"))
	if err := json.Unmarshal(data, got); err != nil {
		t.Fatal(err)
	}
	if again, _ := json.Marshal(got); string(again) != string(data) || !reflect.DeepEqual(got.rank(update), r.rank(update)) {
		t.Errorf("a loaded rule differs: %s", again)
	}
}

// The order of the records must not matter; a success must not rank lower than a failure.
func TestRuleProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := []string{"h0", "a", "b", "c", "d"}
		var records []*rollout.Record
		for _, id := range ids {
			for _, kind := range []string{"count", "update"} {
				n := rapid.IntRange(0, 6).Draw(t, "n")
				records = append(records, attempts(id, kind, rapid.IntRange(0, n).Draw(t, "wins"), n)...)
			}
		}
		rule := func(records []*rollout.Record) *Rule {
			r := &Rule{ids: ids, step: -1}
			if err := observe(r, 1, records); err != nil {
				t.Fatal(err)
			}
			return r
		}
		r := rule(records)
		top, err := r.TopK(ctx, count, 4)
		if err != nil {
			t.Fatal(err)
		}
		if sorted := slices.Sorted(slices.Values(top)); !reflect.DeepEqual(sorted, ids[1:]) {
			t.Fatalf("not distinct: %v", top)
		}
		for k := 1; k < 4; k++ {
			if fewer, _ := r.TopK(ctx, count, k); !reflect.DeepEqual(fewer, top[:k]) {
				t.Fatalf("top %d is %v, no prefix of %v", k, fewer, top)
			}
		}
		shuffled := rapid.Permutation(records).Draw(t, "order")
		if other, _ := rule(shuffled).TopK(ctx, count, 4); !reflect.DeepEqual(other, top) {
			t.Fatalf("order of records matters: %v, %v", other, top)
		}
		place := func(r *Rule, id string) int {
			return slices.IndexFunc(r.rank(count), func(e Evidence) bool { return e.Harness == id && e.Score > 0 && e.Score <= 1 })
		}
		id := rapid.SampledFrom(top).Draw(t, "id")
		won := rule(append(slices.Clone(records), attempts(id, "count", 1, 1)...))
		lost := rule(append(slices.Clone(records), attempts(id, "count", 0, 1)...))
		if place(won, id) < 0 || place(won, id) > place(lost, id) {
			t.Fatalf("%s: place %d after a success, %d after a failure", id, place(won, id), place(lost, id))
		}
	})
}
