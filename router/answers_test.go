package router

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// After a write that failed nothing more is appended: half a line may be in the file.
func TestAnswersAfterAFailedWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "answers.jsonl")
	a := newAnswers(path)
	ask := func() (json.RawMessage, error) { return json.RawMessage(`1`), nil }
	if _, err := a.get(t.Context(), "first", ask); err != nil {
		t.Fatal(err)
	}
	writable := a.file
	readOnly, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	a.file = readOnly // writes fail, as on a full disk
	_, failed := a.get(t.Context(), "second", ask)
	a.file = writable // there is space again
	if _, err := a.get(t.Context(), "third", ask); failed == nil || !errors.Is(err, a.failed) {
		t.Errorf("a failed write: %v; then: %v", failed, err)
	}
	if err := errors.Join(readOnly.Close(), a.close()); err != nil {
		t.Fatal(err)
	}
	b := newAnswers(path)
	if _, err := b.get(t.Context(), "first", func() (json.RawMessage, error) { return nil, errors.New("not kept") }); err != nil || len(b.known) != 1 {
		t.Errorf("%d answers: %v", len(b.known), err)
	}
}

// What is no file is not read.
func TestAnswersOfNoFile(t *testing.T) {
	a := newAnswers(t.TempDir())
	if _, err := a.get(t.Context(), "key", nil); err == nil {
		t.Error("a folder was read")
	}
}
