package runfolder

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func open(t *testing.T) *Folder {
	t.Helper()
	f, err := Open(filepath.Join(t.TempDir(), "run"), false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestOneOwner(t *testing.T) {
	f := open(t)
	if _, err := Open(f.Dir, false); err == nil || !strings.Contains(err.Error(), "in use by process") {
		t.Fatalf("second owner: %v", err)
	}
	f.Close()
	again, err := Open(f.Dir, false)
	if err != nil {
		t.Fatalf("after Close: %v", err)
	}
	again.Close()
}

func TestUsedAndUnused(t *testing.T) {
	f := open(t)
	f.Close()
	if _, err := Open(f.Dir, true); err == nil || !strings.Contains(err.Error(), "no run to resume") {
		t.Fatalf("resume of nothing: %v", err)
	}
	if err := os.WriteFile(f.Path("config.yaml"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(f.Dir, false); err == nil || !strings.Contains(err.Error(), "--resume") {
		t.Fatalf("used folder: %v", err)
	}
	g, err := Open(f.Dir, true)
	if err != nil {
		t.Fatal(err)
	}
	g.Close()
}

func TestUnwritable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	os.WriteFile(file, nil, 0o644)
	if _, err := Open(filepath.Join(file, "run"), false); err == nil || !strings.Contains(err.Error(), file) {
		t.Fatalf("a folder inside a file: %v", err)
	}
}

func TestCut(t *testing.T) {
	f := open(t)
	for _, line := range []string{`{"step":0}`, `{"step":1,"x":2}`, `{"step":2}`} {
		if err := f.AppendMetrics([]byte(line)); err != nil {
			t.Fatal(err)
		}
	}
	w, _ := os.OpenFile(f.Path("metrics.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
	w.WriteString(`{"step":1,"to`) // torn
	w.Close()
	for _, name := range []string{"before_000000", "step_000001", "step_000002", "eval_000001", "after_000001", ".step_000001.jsonl.zst.tmp-x"} {
		if !strings.HasPrefix(name, ".") {
			name += ".jsonl.zst"
		}
		os.WriteFile(f.Path("rollouts", name), nil, 0o644)
	}
	if err := f.Cut(1); err != nil {
		t.Fatal(err)
	}
	data, _ := os.ReadFile(f.Path("metrics.jsonl"))
	if got := string(data); got != "{\"step\":0}\n{\"step\":1,\"x\":2}\n" {
		t.Errorf("metrics after the cut: %q", got)
	}
	var names []string
	entries, _ := os.ReadDir(f.Path("rollouts"))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	want := []string{"before_000000.jsonl.zst", "eval_000001.jsonl.zst", "step_000001.jsonl.zst"}
	if !slices.Equal(names, want) {
		t.Errorf("rollouts after the cut: %v, want %v", names, want)
	}
}

func TestPutStepIsWholeOrAbsent(t *testing.T) {
	f := open(t)
	put := func(step int, text string, fail error) error {
		return f.PutStep("checkpoints", step, func(dir string) error {
			os.WriteFile(filepath.Join(dir, "a"), []byte(text), 0o644)
			return fail
		})
	}
	if err := put(3, "old", nil); err != nil {
		t.Fatal(err)
	}
	full := &os.PathError{Op: "write", Path: "a", Err: syscall.ENOSPC}
	if err := put(4, "half", full); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "step_4") {
		t.Fatalf("full disk: %v", err)
	}
	if err := put(3, "new", nil); err != nil {
		t.Fatal(err)
	}
	if steps, _ := f.Steps("checkpoints"); !slices.Equal(steps, []int{3}) {
		t.Fatalf("steps %v, want [3]", steps)
	}
	if data, _ := os.ReadFile(f.Path("checkpoints", "step_3", "a")); string(data) != "new" {
		t.Fatalf("step_3 holds %q", data)
	}
	left, _ := os.ReadDir(f.Path("checkpoints"))
	if len(left) != 1 {
		t.Fatalf("left behind: %v", left)
	}
	for n := 5; n < 9; n++ {
		put(n, "x", nil)
	}
	if err := f.Prune("checkpoints", 2); err != nil {
		t.Fatal(err)
	}
	if steps, _ := f.Steps("checkpoints"); !slices.Equal(steps, []int{7, 8}) {
		t.Fatalf("after pruning: %v", steps)
	}
}

// TestLeftovers: a run that lost its config.yaml is neither begun anew nor overwritten.
func TestLeftovers(t *testing.T) {
	for _, name := range []string{"checkpoints/step_2/state.json", "rollouts/step_000001.jsonl.zst", "metrics.jsonl"} {
		f := open(t)
		f.Close()
		if err := os.MkdirAll(filepath.Dir(f.Path(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f.Path(name), []byte("precious"), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, resume := range []bool{false, true} {
			if _, err := Open(f.Dir, resume); err == nil || !strings.Contains(err.Error(), "no config.yaml") {
				t.Errorf("%s, resume %v: error %v", name, resume, err)
			}
		}
		if got, _ := os.ReadFile(f.Path(name)); string(got) != "precious" {
			t.Errorf("%s was changed to %q", name, got)
		}
	}
}

func TestMetricsUpTo(t *testing.T) {
	one, two, three := `{"step":1}`+"\n", `{"step":2,"x":null}`+"\n", `{"step":3}`+"\n"
	for _, c := range []struct{ in, want, err string }{
		{one + two + three, one + two, ""},
		{one + `{"st`, one, ""}, // torn by a crash
		{"", "", ""},
		{one + "spoiled\n" + two, "", "2: "},
		{one + "{}\n" + two, "", "2: "},
	} {
		got, err := metricsUpTo([]byte(c.in), 2)
		if (err == nil) != (c.err == "") || err != nil && !strings.HasPrefix(err.Error(), c.err) {
			t.Errorf("%q: error %v, want %q", c.in, err, c.err)
		}
		if err == nil && string(got) != c.want {
			t.Errorf("%q: kept %q, want %q", c.in, got, c.want)
		}
	}
}

func TestDropUnused(t *testing.T) {
	fresh := filepath.Join(t.TempDir(), "fresh")
	f, err := Open(fresh, false)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	f.DropUnused()
	if _, err := os.Stat(fresh); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an unused folder stays: %v", err)
	}
	for _, name := range []string{"config.yaml", "pool/notes.txt"} { // a run, and somebody's file
		dir := t.TempDir()
		f, err := Open(dir, false)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		f.Close()
		f.DropUnused()
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A resume of a folder that is not there makes none.
func TestResumeMakesNoFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	if _, err := OpenWith(dir, true, nil); err == nil || !strings.Contains(err.Error(), "no run to resume") {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the folder was made")
	}
}
