package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEvolveUsage(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	const recipe = "../../recipes/reference.yaml"
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"evolve", missing}, exitUsage, missing},
		{[]string{"evolve", recipe, "--set", "evolve.attempts=1"}, exitUsage, "evolve.attempts"},
		{[]string{"evolve", recipe, "--run", missing, "--resume"}, exitFailed, "no run to resume"},
		{[]string{"evolve", recipe, "--run", missing, "--set", "model.path=" + missing}, exitFailed, missing},
	} {
		if code, _, stderr := call(t, "", c.args...); code != c.code || !strings.Contains(stderr, c.says) {
			t.Errorf("%v: exit %d, want %d with %q on stderr:\n%s", c.args, code, c.code, c.says, stderr)
		}
	}
}

// pool check of an evolution's folder says where the pool is no longer what was measured, and finds a broken lineage.
func TestPoolCheckLineage(t *testing.T) {
	run := t.TempDir()
	if err := os.CopyFS(filepath.Join(run, "pool"), os.DirFS(pool)); err != nil {
		t.Fatal(err)
	}
	lineage := func(text string) {
		if err := os.WriteFile(filepath.Join(run, "lineage.json"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{run, filepath.Join(run, "pool")} {
		lineage(`{"nodes": [{"id": "h0", "hash": "old"}, {"id": "gone", "parent": "h0", "generation": 1}]}`)
		code, stdout, stderr := call(t, "", "pool", "check", dir, "--json")
		var r poolReport
		if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != 0 {
			t.Fatalf("exit %d, %v\n%s", code, err, stderr)
		}
		notes := strings.Join(r.Notes, "\n")
		for _, want := range []string{"h0: edited since", "gone: in the lineage, not in the pool", "look: not in the lineage"} {
			if !strings.Contains(notes, want) {
				t.Errorf("%s: no note %q in\n%s", dir, want, notes)
			}
		}
		lineage(`{"nodes": [{"id": "h0"}, {"id": "a", "parent": "b", "generation": 1}]}`)
		if code, _, stderr := call(t, "", "pool", "check", dir); code != exitFailed || !strings.Contains(stderr, "does not come before") {
			t.Errorf("%s: exit %d with a broken lineage:\n%s", dir, code, stderr)
		}
	}
}
