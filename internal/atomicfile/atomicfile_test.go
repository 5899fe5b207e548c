package atomicfile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

func TestWriteReplacesOrLeavesAlone(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.json")
	if err := Write(path, []byte("one")); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("disk on fire")
	err := WriteFunc(path, func(w io.Writer) error {
		io.WriteString(w, "half")
		return broken
	})
	if !errors.Is(err, broken) {
		t.Fatalf("got %v, want it to wrap the cause", err)
	}
	if got, _ := os.ReadFile(path); string(got) != "one" {
		t.Fatalf("a failed write changed the file to %q", got)
	}
	if err := Write(path, []byte("two")); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(path); string(got) != "two" {
		t.Fatalf("got %q", got)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Fatalf("files left behind: %v", left)
	}
	if err := Write(filepath.Join(dir, "no", "such"), nil); err == nil {
		t.Fatal("a missing folder must be an error")
	}
}
