package harness_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"harness-s/internal/testutil"
	"harness-s/rollout/env/sqlenv"
	"harness-s/rollout/env/sqlenv/taskgen"
	"harness-s/rollout/harness"
)

// The shipped pool must fit the real environment: its tools, and the variables of every kind of task.
func TestShippedPoolFitsTheEnvironment(t *testing.T) {
	pool, problems := harness.CheckPool(filepath.Join(testutil.Root(t), "recipes", "pools", "sql"), sqlenv.New(sqlenv.Options{}).Tools())
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	source, err := taskgen.New(taskgen.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		task := source.Task("val", i)
		for _, s := range pool.Specs {
			if _, err := s.Messages(task.Vars); err != nil {
				t.Fatalf("%s, kind %s: %v", task.ID, task.Kind, err)
			}
		}
	}
}

// The documented example must be a valid spec that sets every key.
func TestDocumentedExample(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join(testutil.Root(t), "recipes", "pools", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(doc), "```yaml\n")
	example, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("no yaml block")
	}
	s, err := harness.Parse("README.md", []byte(example))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(sqlenv.New(sqlenv.Options{}).Tools()); err != nil {
		t.Fatal(err)
	}
	rules := reflect.ValueOf(s.Rules)
	for i := range rules.NumField() {
		if rules.Field(i).IsNil() {
			t.Errorf("the example lacks the rule %s", rules.Type().Field(i).Tag.Get("yaml"))
		}
	}
	if len(s.Prompt.FewShot) == 0 || len(s.Tools) == 0 || s.Memory.Mode == "" {
		t.Error("the example lacks a section")
	}
}
