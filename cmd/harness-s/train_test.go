package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestNewestRunIsOfThatConfig(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"sql-20260101-000000", "sql-20260102-000000", "sql-long-20270101-000000", "sql-20280101-000000"} {
		if err := os.MkdirAll(filepath.Join(root, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if name == "sql-20280101-000000" {
			continue // it never began
		}
		if err := os.WriteFile(filepath.Join(root, name, "config.yaml"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := newestRun(root, "sql"); err != nil || filepath.Base(got) != "sql-20260102-000000" {
		t.Errorf("got %s, %v", got, err)
	}
	for _, stem := range []string{"s", "sql[", "other"} {
		if got, err := newestRun(root, stem); err == nil {
			t.Errorf("%s: got %s", stem, got)
		}
	}
	if _, err := newestRun(filepath.Join(root, "none"), "sql"); err == nil {
		t.Error("a root that is not there")
	}
}
