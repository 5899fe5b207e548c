package router

import (
	"encoding/json"
	"errors"
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
	if err := a.log.Close(); err != nil { // writes fail from here on
		t.Fatal(err)
	}
	_, failed := a.get(t.Context(), "second", ask)
	if _, err := a.get(t.Context(), "third", ask); failed == nil || errors.Unwrap(err) != errors.Unwrap(failed) {
		t.Errorf("a failed write: %v; then: %v", failed, err)
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
