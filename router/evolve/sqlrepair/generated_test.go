package sqlrepair

import (
	"context"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"harness-s/internal/testutil"
	"harness-s/model/chat"
	"harness-s/model/tokenizer"
	"harness-s/rollout"
	"harness-s/rollout/env/sqlenv"
	"harness-s/rollout/env/sqlenv/demo"
	"harness-s/rollout/env/sqlenv/taskgen"
	"harness-s/rollout/harness"
)

// expected is the cause of an attempt that walked into a single trap without doing anything against it.
func expected(d *taskgen.Task) string {
	switch t := d.Traps; {
	case t.Quote:
		return "wrong-quoting"
	case t.Opaque:
		return "guesses-names"
	case t.Cut && d.Form == taskgen.Count:
		return "counts-shown-rows"
	case t.Cut:
		return "copies-cut-result"
	case d.Form == taskgen.Update:
		return "changes-nothing"
	}
	return "compares-exactly"
}

// The generator knows the trap of each of its tasks, the analyst sees only the transcript of the scripted attempt, played in
// the real environment: they agree on every task with one trap.
func TestAgreesWithTheGenerator(t *testing.T) {
	tasks, err := taskgen.New(taskgen.Options{Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	base, err := harness.Load(filepath.Join(testutil.Root(t), "recipes", "pools", "sql", "h0.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	options := scripted(t)
	found := map[string]int{}
	for i := range 300 {
		task := tasks.Task(taskgen.Demo, i)
		d := task.Data.(*taskgen.Task)
		rec, err := demo.Play(context.Background(), options, base, task, rand.New(rand.NewPCG(1, uint64(i))))
		if err != nil {
			t.Fatal(err)
		}
		if rec.Success || len(d.Traps.Names()) != 1 {
			continue
		}
		labels, err := Analyst{}.Label(context.Background(), base, []*rollout.Record{rec})
		if err != nil || len(labels) != 1 {
			t.Fatalf("%s: %+v %v", task.ID, labels, err)
		}
		if want := expected(d); labels[0].Cause != want {
			t.Errorf("%s %q: %s, want %s\n%+v", task.ID, d.Question, labels[0].Cause, want, rec.Turns)
		}
		found[labels[0].Cause]++
	}
	if got := slices.Sorted(maps.Keys(found)); len(got) != 6 {
		t.Errorf("causes met: %v", found)
	}
}

// scripted are demonstrations with a tokenizer of bytes.
func scripted(t *testing.T) demo.Options {
	t.Helper()
	added := chat.AddedTokens()
	tok, err := tokenizer.Train(func(func(string) bool) {}, 256+len(added), added)
	if err != nil {
		t.Fatal(err)
	}
	format, err := chat.NewRenderer(tok, false)
	if err != nil {
		t.Fatal(err)
	}
	return demo.Options{Env: sqlenv.New(sqlenv.Options{Name: "sql"}), Renderer: format, Encode: demo.NewEncoder(tok, format.Stop()[0]), Limits: demo.DefaultLimits()}
}
