package linelog

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A line is read in bounded pieces.
func TestReadLine(t *testing.T) {
	const max = 64 // four times the reader's buffer
	text := strings.Repeat("x", max) + "\n" + strings.Repeat("y", max+1) + "\n"
	b := bufio.NewReaderSize(strings.NewReader(text), 16)
	if line, err := readLine(b, max); err != nil || string(line) != text[:max+1] {
		t.Errorf("the longest line: %q, %v", line, err)
	}
	if _, err := readLine(b, max); !errors.Is(err, ErrTooLong) {
		t.Errorf("a longer one: %v", err)
	}
	if _, err := Read(strings.NewReader(text), max, func(int, []byte) error { return nil }); !errors.Is(err, ErrTooLong) || !strings.Contains(err.Error(), "line 2 ") {
		t.Errorf("read as a whole: %v", err)
	}
}

// linesOf opens a log and takes what it reads.
func linesOf(t *testing.T, path string) (*Log, []string) {
	t.Helper()
	var lines []string
	l, err := Open(path, 100, func(number int, text []byte) error {
		if lines = append(lines, string(text)); number != len(lines) {
			t.Errorf("line %d is called %d", len(lines), number)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return l, lines
}

// What a crash left of a line is cut, wherever it was cut, and lines go on behind the last whole one.
func TestTornLine(t *testing.T) {
	const whole = "one\n\nthree\n"
	for cut := range len(whole) + 1 {
		path := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(path, []byte(whole[:cut]), 0o644); err != nil {
			t.Fatal(err)
		}
		l, lines := linesOf(t, path)
		kept := whole[:strings.LastIndexByte(whole[:cut], '\n')+1]
		if got := strings.Count(kept, "\n"); len(lines) != got {
			t.Errorf("cut at %d: %q, want %d lines", cut, lines, got)
		}
		if err := errors.Join(l.Append([]byte("more")), l.Close()); err != nil {
			t.Fatal(err)
		}
		if data, err := os.ReadFile(path); err != nil || string(data) != kept+"more\n" {
			t.Errorf("cut at %d: %q, %v", cut, data, err)
		}
	}
}

// After a write that failed nothing more is appended: half a line may be in the file.
func TestAfterAFailedWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, _ := linesOf(t, path)
	if err := l.Append([]byte("first")); err != nil {
		t.Fatal(err)
	}
	writable := l.f
	readOnly, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	l.f = readOnly // writes fail, as on a full disk
	failed := l.Append([]byte("second"))
	l.f = writable // there is space again
	if err := l.Append([]byte("third")); failed == nil || !errors.Is(err, failed) {
		t.Errorf("a failed write: %v; then: %v", failed, err)
	}
	if err := errors.Join(readOnly.Close(), l.Close()); err != nil {
		t.Fatal(err)
	}
	l, lines := linesOf(t, path)
	if len(lines) != 1 || lines[0] != "first" {
		t.Errorf("%q", lines)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}
