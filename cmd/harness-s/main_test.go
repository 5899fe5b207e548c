package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// call runs the command line in this process and returns its exit code, stdout and stderr.
func call(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	dir := t.TempDir()
	in := filepath.Join(dir, "in")
	if err := os.WriteFile(in, []byte(stdin), 0o600); err != nil {
		t.Fatal(err)
	}
	open := func(name string, flag int) *os.File {
		f, err := os.OpenFile(filepath.Join(dir, name), flag|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	oldIn, oldOut, oldErr := os.Stdin, os.Stdout, os.Stderr
	defer func() { os.Stdin, os.Stdout, os.Stderr = oldIn, oldOut, oldErr }()
	os.Stdin, os.Stdout, os.Stderr = open("in", os.O_RDONLY), open("out", os.O_RDWR), open("err", os.O_RDWR)
	code = run(args)
	read := func(f *os.File) string {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(f)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	return code, read(os.Stdout), read(os.Stderr)
}

const pool = "../../recipes/pools/sql"

// Wrong use is 2, failed work is 1; both say why on stderr and leave stdout to machines.
func TestExitCodes(t *testing.T) {
	t.Setenv("HARNESS_S_CUDA_DRIVER", filepath.Join(t.TempDir(), "none.so")) // this machine may have a GPU
	missing := filepath.Join(t.TempDir(), "none")
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"fly"}, exitUsage, "fly"},
		{[]string{"train"}, exitUsage, "config"},
		{[]string{"train", missing}, exitUsage, missing},
		{[]string{"train", "../../recipes/reference.yaml", "--set", "rescue.mood=off"}, exitUsage, "rescue.mood"},
		{[]string{"score", "--model", missing, "--input", "-"}, exitFailed, missing},
		{[]string{"score", "--model", missing, "--input", "-", "--backend", "cuda"}, exitFailed, "cuda"},
		{[]string{"score", "--model", missing, "--input", "-", "--dtype", "bf16"}, exitUsage, "--backend"},
		{[]string{"tokenize", "--model", missing}, exitFailed, missing},
		{[]string{"pool", "check", missing}, exitFailed, missing},
		{[]string{"pool", "check", pool}, 0, ""},
		{[]string{"env", "check", "--data", missing}, exitFailed, missing},
		{[]string{"eval"}, exitUsage, "--run or --config"},
		{[]string{"eval", "--run", missing}, exitFailed, missing},
		{[]string{"route", "--run", missing, "--task", "x"}, exitFailed, missing},
		{[]string{"view", missing}, exitFailed, missing},
		{[]string{"bench", "speed"}, exitUsage, "speed"},
		{[]string{"bench", "step", "--repeat", "0"}, exitUsage, "--repeat"},
		{[]string{"serve", "--model", missing}, exitFailed, missing},
		{[]string{"serve", "--model", missing, "--host", "0.0.0.0", "--dev"}, exitUsage, "--dev"},
		{[]string{"plan", "../../recipes/reference.yaml", "--device", "abacus"}, exitUsage, "abacus"},
		{[]string{"doctor", "--env", "chess"}, exitUsage, "chess"},
		{[]string{"doctor", "--env", "sql"}, 0, ""},
		{[]string{"compare", missing, "--run", t.TempDir()}, exitUsage, missing},
		{[]string{"compare", "../../recipes/quickstart.yaml", "--seeds", "1,1", "--run", t.TempDir()}, exitUsage, "stands twice"},
		{[]string{"compare", "../../recipes/quickstart.yaml", "--parallel=-1", "--run", t.TempDir()}, exitUsage, "parallel"},
	} {
		code, stdout, stderr := call(t, "", c.args...)
		if code != c.code || !strings.Contains(stderr, c.says) {
			t.Errorf("%v: exit %d, want %d with %q on stderr:\n%s", c.args, code, c.code, c.says, stderr)
		}
		if code != 0 && stdout != "" && c.args[0] != "pool" && !strings.Contains(stdout, "Usage:") {
			t.Errorf("%v: failed, yet wrote to stdout:\n%s", c.args, stdout)
		}
	}
}

func TestPoolCheckJSON(t *testing.T) {
	code, stdout, stderr := call(t, "", "pool", "check", pool, "--json")
	var r poolReport
	if err := json.Unmarshal([]byte(stdout), &r); code != 0 || err != nil {
		t.Fatalf("exit %d, %v, stderr %s", code, err, stderr)
	}
	if len(r.Harnesses) < 9 || r.Harnesses[0].ID != "h0" || len(r.Problems) != 0 {
		t.Errorf("got %+v", r)
	}
}

func TestDoctorJSON(t *testing.T) {
	var b bytes.Buffer
	err := reportFindings(&b, []finding{{What: "a", OK: true}, {What: "b", need: true, Mend: "install b"}}, true)
	var got []finding
	if e := json.Unmarshal(b.Bytes(), &got); e != nil || err == nil || len(got) != 2 || got[1].Mend != "install b" {
		t.Errorf("findings %+v, error %v, decoding %v", got, err, e)
	}
}
