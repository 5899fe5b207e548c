package trainer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"harness-s/rollout"
)

// sameRun compares two run folders: everything but times must be the same bits.
func sameRun(t *testing.T, want, got string) {
	t.Helper()
	if a, b := steadyMetrics(t, want), steadyMetrics(t, got); a != b {
		t.Errorf("metrics differ:\n%s", firstDifference(a, b))
	}
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
	if a, b := steadySummary(t, want), steadySummary(t, got); a != b {
		t.Errorf("summary.json differs:\n%s\n%s", a, b)
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
