package atomicfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
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

func TestWriteRefusesOtherThings(t *testing.T) {
	dir := t.TempDir()
	folder, device := filepath.Join(dir, "folder"), filepath.Join(dir, "device")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(os.DevNull, device); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{folder, device} {
		if err := Write(path, []byte("x")); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: error %v", path, err)
		}
		if Check(path) == nil {
			t.Errorf("%s: the check finds nothing", path)
		}
	}
	absent := filepath.Join(dir, "no", "such")
	if err := Write(absent, nil); err == nil || strings.Contains(err.Error(), "tmp-") || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v, want the cause without the temporary name", err)
	}
	if err := Check(filepath.Join(dir, "new")); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 2 {
		t.Errorf("files left behind: %v", left)
	}
}
