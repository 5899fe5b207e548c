// Package lint keeps the house rules that no compiler checks.
package lint

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"harness-s/internal/testutil"
)

// layer orders the packages: a file may import its own layer's package tree and lower layers only.
// model/chat, model/tokenizer and model/safetensors are leaves that everything may use.
var layer = map[string]int{
	"cuda": 0, "kernels": 1, "model": 2, "rollout": 3, "router": 4, "trainer": 5, "bench": 6, "cmd": 7,
}

var leaves = map[string]bool{
	"model/chat": true, "model/tokenizer": true, "model/safetensors": true,
}

const module = "harness-s/"

func goFiles(t *testing.T) map[string]string {
	t.Helper()
	root := testutil.Root(t)
	files := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		if d.IsDir() {
			if rel != "." && (strings.HasPrefix(d.Name(), ".") || rel == "bin" || rel == "runs") {
				return filepath.SkipDir
			}
			return nil
		}
		if strings.HasSuffix(rel, ".go") {
			src, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			files[filepath.ToSlash(rel)] = string(src)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func imports(t *testing.T, name, src string) []string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, i := range f.Imports {
		out = append(out, strings.Trim(i.Path.Value, `"`))
	}
	return out
}

func top(path string) string {
	first, _, _ := strings.Cut(path, "/")
	return first
}

func TestImportsGoDownwards(t *testing.T) {
	for name, src := range goFiles(t) {
		from, ok := layer[top(name)]
		if !ok {
			continue // internal
		}
		for _, imp := range imports(t, name, src) {
			rel, inside := strings.CutPrefix(imp, module)
			if !inside || leaves[rel] {
				continue
			}
			to, ok := layer[top(rel)]
			if ok && to > from {
				t.Errorf("%s imports %s, which is above it", name, imp)
			}
		}
	}
}

// The rollout side sees the model only where the embedded server and its tests are.
func TestRolloutSeesModelOnlyInPolicy(t *testing.T) {
	for name, src := range goFiles(t) {
		if top(name) != "rollout" || strings.HasPrefix(name, "rollout/policy/") || strings.HasSuffix(name, "_test.go") {
			continue
		}
		for _, imp := range imports(t, name, src) {
			if imp == module+"model" || strings.HasPrefix(imp, module+"kernels") || strings.HasPrefix(imp, module+"cuda") {
				t.Errorf("%s imports %s; only rollout/policy may", name, imp)
			}
		}
	}
}

func TestCgoOnlyInKernelsAndCuda(t *testing.T) {
	for name, src := range goFiles(t) {
		if top(name) == "kernels" || top(name) == "cuda" {
			continue
		}
		for _, imp := range imports(t, name, src) {
			if imp == "C" {
				t.Errorf("%s uses cgo; only kernels and cuda may", name)
			}
		}
	}
}

// Gorgonia 0.9's LogSumExp is wrong (1.292 for 2.495): nothing may call it.
func TestBannedCalls(t *testing.T) {
	banned := regexp.MustCompile(`\b(G|gorgonia)\.LogSumExp\b`)
	for name, src := range goFiles(t) {
		if strings.HasPrefix(name, "internal/lint/") {
			continue
		}
		if banned.MatchString(src) {
			t.Errorf("%s calls Gorgonia's LogSumExp, which is wrong", name)
		}
	}
}

func TestNoMachinePaths(t *testing.T) {
	root := testutil.Root(t)
	bad := regexp.MustCompile(`(^|[^A-Za-z0-9_./])/(home|root|work|Users)/[A-Za-z]`)
	for name, src := range goFiles(t) {
		if bad.MatchString(src) && !strings.HasPrefix(name, "internal/lint/") {
			t.Errorf("%s names a path of one machine", name)
		}
	}
	docs, _ := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	for _, name := range append(docs, filepath.Join(root, "README.md")) {
		src, err := os.ReadFile(name)
		if err == nil && bad.Match(src) {
			t.Errorf("%s names a path of one machine", name)
		}
	}
}

// Every package says what it is, in exactly the place godoc shows.
func TestPackagesAreDocumented(t *testing.T) {
	documented := map[string]bool{}
	for name, src := range goFiles(t) {
		dir := filepath.ToSlash(filepath.Dir(name))
		f, err := parser.ParseFile(token.NewFileSet(), name, src, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		documented[dir] = documented[dir] || f.Doc != nil
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("package in %s has no package comment", dir)
		}
	}
}
