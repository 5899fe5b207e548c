package lint

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"harness-s/internal/testutil"
)

// Every test that docs/numbers.md names exists, in the package it names.
func TestNumbersNameTests(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join(testutil.Root(t), "docs", "numbers.md"))
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]bool{}
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	for name, src := range goFiles(t) {
		if strings.HasSuffix(name, "_test.go") {
			for _, m := range function.FindAllStringSubmatch(src, -1) {
				has[filepath.ToSlash(filepath.Dir(name))+"."+m[1]] = true
			}
		}
	}
	named := regexp.MustCompile("`([a-z0-9/-]+\\.Test\\w+)`").FindAllStringSubmatch(string(doc), -1)
	if len(named) < 50 {
		t.Fatalf("docs/numbers.md names %d tests; has its form changed?", len(named))
	}
	for _, m := range named {
		if !has[m[1]] {
			t.Errorf("docs/numbers.md names %s, which is no test", m[1])
		}
	}
	// a row of a table without a test claims something for nothing
	for _, line := range strings.Split(string(doc), "\n") {
		if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| property") && !strings.Contains(line, ".Test") {
			t.Errorf("docs/numbers.md: no test in %q", line)
		}
	}
}
