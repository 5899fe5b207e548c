package sqlrepair

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"harness-s/internal/testutil"
	"harness-s/model/chat"
	"harness-s/model/tokenizer"
	"harness-s/rollout"
	"harness-s/rollout/env/sqlenv"
	"harness-s/rollout/env/sqlenv/taskgen"
	"harness-s/rollout/harness"
	"harness-s/rollout/policy"
	"harness-s/rollout/vllm"
	"harness-s/router/evolve"
)

// shipped makes attempts with the shipped policy behind the embedded server.
type shipped struct{ rollout.CollectOptions }

func (s shipped) Collect(ctx context.Context, jobs []rollout.Job, _ func(int)) ([]*rollout.Record, error) {
	records, _, err := rollout.Collect(ctx, jobs, s.CollectOptions)
	return records, err
}

func openShipped(t *testing.T) shipped {
	t.Helper()
	dir := filepath.Join(testutil.Root(t), "recipes", "policies", "sql")
	server, err := policy.Open(dir, policy.OpenOptions{MaxSeqs: 64, Dev: true})
	if err != nil {
		t.Fatal(err)
	}
	url, stop, err := server.StartLocal()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	client, err := vllm.Dial(context.Background(), vllm.Options{URLs: []string{url}, LoadDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	tok, err := tokenizer.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	format, err := chat.NewRenderer(tok, false)
	if err != nil {
		t.Fatal(err)
	}
	return shipped{rollout.CollectOptions{
		Env: sqlenv.New(sqlenv.Options{Name: "sql"}), Policy: client, Renderer: format, RunSeed: 1, Temperature: 1, Workers: 64,
		Limits: rollout.Limits{MaxTurns: 6, MaxTokensPerTurn: 96, MaxContextTokens: 640, ToolDeadline: time.Minute, RolloutDeadline: 5 * time.Minute},
	}}
}

// Two small generations with the shipped policy, from H0 alone: the pool solves what H0 does not in any of its attempts, and
// the same seed makes the same pool.
func TestEvolutionFromTheBaseAlone(t *testing.T) {
	actor := openShipped(t)
	base, err := harness.Load(filepath.Join(testutil.Root(t), "recipes", "pools", "sql-base", "h0.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	source, err := taskgen.New(taskgen.Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	take := func(split string, n int) (tasks []rollout.Task) {
		for i := range n {
			tasks = append(tasks, source.Task(split, i))
		}
		return tasks
	}
	dirs := [2]string{t.TempDir(), t.TempDir()}
	for _, dir := range dirs {
		sum, err := evolve.Run(context.Background(), evolve.Options{
			Dir: dir, Seed: 1, Base: base, Tools: actor.Env.Tools(), Train: take(taskgen.Train, 64), Validation: take(taskgen.Val, 12),
			Size:  evolve.Size{Generations: 2, Tasks: 32, Attempts: 3, Directions: 3, Children: 1, Parents: 2, Pool: 8, MaxBytes: 4096},
			Actor: actor, Analyst: Analyst{}, Editor: Editor{},
		})
		if err != nil {
			t.Fatal(err)
		}
		if sum.ValidChildren < 5 || sum.JointCoverage < sum.H0Coverage+0.25 || sum.Rejected[evolve.Leaks] > 0 || sum.Dropped != (evolve.Dropped{}) {
			t.Errorf("summary %+v", sum)
		}
	}
	for _, name := range []string{evolve.LineageName, evolve.MatrixName, evolve.LabelsName} {
		a, errA := os.ReadFile(filepath.Join(dirs[0], name))
		b, errB := os.ReadFile(filepath.Join(dirs[1], name))
		if errA != nil || errB != nil || !bytes.Equal(a, b) {
			t.Errorf("%s: two runs of one seed differ (%v, %v)", name, errA, errB)
		}
	}
	// Content is identity: the pool is as frozen as its lineage says, and the second generation combines.
	pool, err := harness.LoadPool(filepath.Join(dirs[0], evolve.PoolName))
	if err != nil {
		t.Fatal(err)
	}
	combined := 0
	for _, s := range pool.Siblings() {
		if _, have := splitSystem(s.Prompt.System); s.Parent != harness.BaseID && len(have) > 1 {
			combined++
		}
	}
	if combined == 0 {
		t.Errorf("no child of a child asks for two things")
	}
}

// The shipped evolved pool starts from the base that evolution starts from, and is enough to train with.
func TestShippedEvolvedPool(t *testing.T) {
	pools := filepath.Join(testutil.Root(t), "recipes", "pools")
	pool, problems := harness.CheckPool(filepath.Join(pools, "evolved"), sqlenv.New(sqlenv.Options{}).Tools())
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	if err := pool.RequireK(8); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"sql-base", "sql"} {
		base, err := harness.Load(filepath.Join(pools, name, "h0.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		if base.Hash() != pool.Base().Hash() {
			t.Errorf("the base harness differs from that of %s", name)
		}
	}
}
