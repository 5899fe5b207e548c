package sqlrepair

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"harness-s/internal/testutil"
	"harness-s/rollout"
	"harness-s/rollout/env/sqlenv/taskgen"
	"harness-s/rollout/harness"
	"harness-s/router/evolve"
)

var controls = flag.Bool("controls", false, "measure what an evolution is compared with (minutes)")

// Sizes of recipes/evolve.yaml.
const (
	controlTasks    = 48
	controlAttempts = 3
	controlPool     = 32
)

// bench measures pools on tasks.
type bench struct {
	*testing.T
	actor shipped
	tasks []rollout.Task
	base  *harness.Spec
}

func newBench(t *testing.T) *bench {
	base, err := harness.Load(filepath.Join(testutil.Root(t), "recipes", "pools", "sql-base", "h0.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return &bench{T: t, actor: openShipped(t), base: base}
}

// on chooses the first n tasks of a split.
func (b *bench) on(split string, n int) {
	source, err := taskgen.New(taskgen.Options{Seed: 1})
	if err != nil {
		b.Fatal(err)
	}
	b.tasks = nil
	for i := range n {
		b.tasks = append(b.tasks, source.Task(split, i))
	}
}

func (b *bench) attempts(s *harness.Spec) []*rollout.Record {
	var jobs []rollout.Job
	for _, task := range b.tasks {
		for a := range controlAttempts {
			jobs = append(jobs, rollout.Job{Spec: s, Task: task, Phase: "evolve", Attempt: a})
		}
	}
	records, err := b.actor.Collect(context.Background(), jobs, nil)
	if err != nil {
		b.Fatal(err)
	}
	return records
}

// solved are the tasks with a success, and the mean success.
func solved(records []*rollout.Record) (map[string]bool, float64) {
	tasks, wins := map[string]bool{}, 0
	for _, r := range records {
		if r.Success {
			tasks[r.Task] = true
			wins++
		}
	}
	return tasks, float64(wins) / float64(len(records))
}

// cover tells what a pool solves together.
func (b *bench) cover(what string, pool []*harness.Spec) {
	joint, sum, best, widest := map[string]bool{}, 0.0, 0.0, 0
	for _, s := range pool {
		tasks, mean := solved(b.attempts(s))
		for id := range tasks {
			joint[id] = true
		}
		sum, best, widest = sum+mean, max(best, mean), max(widest, len(tasks))
	}
	fmt.Printf("%-40s %2d harnesses: joint coverage %.3f (best alone %.3f), mean success %.3f (best %.3f)\n", what, len(pool),
		float64(len(joint))/float64(len(b.tasks)), float64(widest)/float64(len(b.tasks)), sum/float64(len(pool)), best)
}

// TestControls prints the figures of docs/results.md beside those of the evolution itself.
func TestControls(t *testing.T) {
	if !*controls {
		t.Skip("run with -controls")
	}
	b := newBench(t)
	b.on(taskgen.Val, controlTasks)
	prefixes := []*harness.Spec{b.base}
	for i := range int64(controlPool) {
		prefixes = append(prefixes, harness.WithPrefix(b.base, i))
	}
	b.cover("h0 and meaningless prefixes", prefixes)
	for seed := range uint64(3) {
		b.cover(fmt.Sprintf("h0 and edits drawn at random, seed %d", seed), b.random(rand.New(rand.NewPCG(seed, 9))))
	}
	for _, name := range []string{"sql", "evolved"} {
		pool, err := harness.LoadPool(filepath.Join(testutil.Root(t), "recipes", "pools", name))
		if err != nil {
			t.Fatal(err)
		}
		b.on(taskgen.Val, controlTasks)
		b.cover("recipes/pools/"+name, pool.Specs)
		b.on(taskgen.Test, 128)
		b.cover("the same on test tasks", pool.Specs)
		b.cover("h0 alone on test tasks", pool.Specs[:1])
	}
}

// random are children of one to three edits of the library, drawn without looking at a single failure.
func (b *bench) random(r *rand.Rand) []*harness.Spec {
	out := []*harness.Spec{b.base}
	seen := map[string]bool{b.base.Hash(): true}
	for len(out) <= controlPool {
		s := b.base
		for range 1 + r.IntN(3) {
			c := causes[r.IntN(len(causes))]
			child, err := apply(s, evolve.Direction{ID: c.name, Description: c.what}, repairs[c.name][r.IntN(len(repairs[c.name]))])
			if err != nil {
				b.Fatal(err)
			}
			s = child.Spec
		}
		if !seen[s.Hash()] {
			seen[s.Hash()] = true
			out = append(out, s)
		}
	}
	return out
}
