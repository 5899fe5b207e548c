// Package testutil holds what tests of several packages share.
package testutil

import (
	"os"
	"path/filepath"
	"testing"
)

// Root is the repository's root folder.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Fatal("no go.mod above the test's folder")
		}
		dir = up
	}
}

// SharedDir is the optional folder of reference data beside the repository; ok is false where it is absent.
func SharedDir(t testing.TB) (dir string, ok bool) {
	t.Helper()
	dir = filepath.Join(Root(t), "..", "shared")
	_, err := os.Stat(filepath.Join(dir, "data"))
	return dir, err == nil
}
