package trainer

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"harness-s/internal/testutil"
	"harness-s/rollout"
)

// sameRun compares two run folders: everything but times must be the same bits.
func sameRun(t *testing.T, want, got string) {
	t.Helper()
	if a, b := steadyMetrics(t, want), steadyMetrics(t, got); a != b {
		t.Errorf("metrics differ:\n%s", firstDifference(a, b))
	}
	if a, b := steadySummary(t, want), steadySummary(t, got); a != b {
		t.Errorf("summary.json differs:\n%s\n%s", a, b)
	}
	sameRollouts(t, want, got)
	sameWeights(t, want, got)
}

func sameRollouts(t *testing.T, want, got string) {
	t.Helper()
	wantFiles, _ := filepath.Glob(filepath.Join(want, "rollouts", "*"))
	gotFiles, _ := filepath.Glob(filepath.Join(got, "rollouts", "*"))
	if len(wantFiles) == 0 || len(wantFiles) != len(gotFiles) {
		t.Fatalf("%d rollout files, want %d", len(gotFiles), len(wantFiles))
	}
	for _, f := range wantFiles {
		other := filepath.Join(got, "rollouts", filepath.Base(f))
		if a, b := steadyRecords(t, f), steadyRecords(t, other); a != b {
			t.Fatalf("%s differs:\n%s", other, firstDifference(a, b))
		}
	}
}

// sameWeights compares the files of the last checkpoints.
func sameWeights(t *testing.T, want, got string) {
	t.Helper()
	steps, _ := filepath.Glob(filepath.Join(want, "checkpoints", "step_*"))
	last := steps[len(steps)-1]
	entries, err := os.ReadDir(last)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() == stateName {
			continue
		}
		a, errA := os.ReadFile(filepath.Join(last, e.Name()))
		b, errB := os.ReadFile(filepath.Join(got, "checkpoints", filepath.Base(last), e.Name()))
		if errA != nil || errB != nil || !bytes.Equal(a, b) {
			t.Errorf("%s of the last checkpoint differs (%v, %v)", e.Name(), errA, errB)
		}
	}
}

func steadySummary(t *testing.T, dir string) string {
	t.Helper()
	var s map[string]any
	data, err := os.ReadFile(filepath.Join(dir, "summary.json"))
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		t.Fatal(err)
	}
	delete(s, "wall_s")
	out, _ := json.Marshal(s)
	return string(out)
}

func steadyMetrics(t *testing.T, dir string) string {
	t.Helper()
	g := &rig{dir: dir}
	var b strings.Builder
	for _, m := range g.lines(t) {
		for name := range m {
			if strings.HasPrefix(name, "time/") || strings.HasPrefix(name, "perf/") {
				delete(m, name)
			}
		}
		b.Write(m.line(int(m["step"])))
		b.WriteByte('\n')
	}
	return b.String()
}

func steadyRecords(t *testing.T, path string) string {
	t.Helper()
	var b strings.Builder
	_, _, err := rollout.ReadRecords(path, func(r *rollout.Record) error {
		r.WallMS = 0
		for i := range r.Turns {
			r.Turns[i].GenerateMS, r.Turns[i].ActMS = 0, 0
		}
		r.Usage.CachedTokens = 0 // how the context was reached, not what was sampled
		data, err := json.Marshal(r)
		b.Write(append(data, '\n'))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func firstDifference(a, b string) string {
	la, lb := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range la {
		if i >= len(lb) || la[i] != lb[i] {
			return fmt.Sprintf("line %d\nwant %.600s\ngot  %.600s", i+1, la[i], strings.Join(lb[min(i, len(lb)):min(i+1, len(lb))], ""))
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(lb), len(la))
}

// A test binary that is started to be killed runs one training, of the kind and in the folder named here.
const (
	childKind = "HARNESS_S_TEST_CHILD"
	childDir  = "HARNESS_S_TEST_CHILD_DIR"
	childRoot = "HARNESS_S_TEST_ROOT"   // kinds real and shipped: the repository
	childWith = "HARNESS_S_TEST_POLICY" // kinds real and shipped: the policy's folder
)

func TestMain(m *testing.M) {
	if kind := os.Getenv(childKind); kind != "" {
		os.Exit(childRun(kind, os.Getenv(childDir)))
	}
	os.Exit(m.Run())
}

// crashRig has everything going on that a crash could spoil.
func crashRig(kind, dir string) *rig {
	g := &rig{cfg: fakeConfig(), dir: dir, ctx: context.Background()}
	g.cfg.Budget.Rollouts = 800
	switch kind {
	case "model":
		g.cfg, g.build = modelConfig(), modelBuilder
	case "real":
		g.cfg, g.build = realConfig(os.Getenv(childWith), os.Getenv(childRoot)), Build
		g.cfg.Budget.Rollouts = 96 // 8 steps
	case "shipped":
		g.cfg, g.build = shippedConfig(os.Getenv(childWith), os.Getenv(childRoot)), Build
	case "4b-8gpu", "9b-8gpu":
		g.cfg, g.build = deviceConfig(os.Getenv(childWith), os.Getenv(childRoot), kind), Build
	case voteKind:
		g.cfg, g.build = voteConfig(os.Getenv(childEndpoint)), voteBuilder
	case nodesKind:
		g.cfg, g.build = nodesConfig(os.Getenv(childWith), os.Getenv(childRoot)), Build
	}
	g.cfg.Eval.Every, g.cfg.Router.Refresh, g.cfg.Optim.Epochs = 2, 3, 2
	g.cfg.Checkpoint.Every, g.cfg.Checkpoint.Keep = 2, 2
	return g
}

func childRun(kind, dir string) int {
	if kind == evolveKind {
		return childEvolve(dir)
	}
	g := crashRig(kind, dir)
	if kind == nodesKind {
		return childNode(g.cfg)
	}
	_, err := os.Stat(filepath.Join(dir, "config.yaml"))
	g.resume = err == nil
	if _, err := g.run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func TestKillAndResume(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	testKill(t, "fake", 2)
}

// The same with nothing faked: HTTP, the embedded server, SQL. The policy is random, its weights move in every step.
func TestKillAndResumeRealParts(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	policy := filepath.Join(t.TempDir(), "policy")
	if err := randomPolicy(policy); err != nil {
		t.Fatal(err)
	}
	t.Setenv(childRoot, testutil.Root(t))
	t.Setenv(childWith, policy)
	testKill(t, "real", 1)
}

// The same with the policy that `make train` starts from, learning from its rewards.
func TestKillAndResumeShippedPolicy(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	root := testutil.Root(t)
	policy := filepath.Join(root, "recipes", "policies", "sql")
	if _, err := os.Stat(filepath.Join(policy, "config.json")); err != nil {
		t.Skip("no policy in recipes/policies: run make policy")
	}
	t.Setenv(childRoot, root)
	t.Setenv(childWith, policy)
	testKill(t, "shipped", 1)
}

// testKill: a run killed at random moments and resumed each time ends in the same bits as one never killed.
func testKill(t *testing.T, kind string, runs int) {
	whole := crashRig(kind, filepath.Join(t.TempDir(), "run"))
	start := time.Now()
	whole.must(t)
	span := time.Since(start)
	whole.wantUpdates(t)
	if os.Getenv("HARNESS_S_LONG") != "" {
		runs *= 20
	}
	for seed := range runs {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "run")
			killed := killUntilDone(t, kind, dir, rand.New(rand.NewPCG(uint64(seed), 9)), span)
			t.Logf("killed %d times", killed)
			sameRun(t, whole.dir, dir)
		})
	}
}

// wantUpdates fails unless the run changed its weights in two steps at least: otherwise its bits show little.
func (g *rig) wantUpdates(t *testing.T) {
	t.Helper()
	moved := 0
	for _, m := range g.lines(t) {
		if m["policy/grad_norm"] > 0 {
			moved++
		}
	}
	if moved < 2 {
		t.Errorf("%d steps had an update, want 2 at least", moved)
	}
}

// killUntilDone starts the run in a process again and again, each killed after a random time, until one ends
// by itself. The time allowed grows, so that it ends. A run that was never killed behind a checkpoint shows nothing:
// it is made again, with less time.
func killUntilDone(t *testing.T, kind, dir string, rng *rand.Rand, span time.Duration) (killed int) {
	t.Helper()
	resumed := 0
	for try := 1; try < 200; try++ {
		limit := time.Duration(rng.Float64() * float64(span) * (0.4 + 0.2*float64(try)))
		switch done := childUntil(t, kind, dir, limit); {
		case done && resumed > 0:
			return killed
		case done:
			span = span * 2 / 3
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		default:
			killed++
			if steps, _ := filepath.Glob(filepath.Join(dir, "checkpoints", "step_[1-9]*")); len(steps) > 0 {
				resumed++
			}
		}
	}
	t.Fatal("the run never ended")
	return killed
}

// childUntil runs the training in a process that is killed after the limit; done says that it ended before.
func childUntil(t *testing.T, kind, dir string, limit time.Duration) (done bool) {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childKind+"="+kind, childDir+"="+dir)
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(limit, func() { cmd.Process.Kill() })
	err := cmd.Wait()
	timer.Stop()
	if err == nil {
		return true
	}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	return false
}
