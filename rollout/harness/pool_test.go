package harness_test

import (
	"path/filepath"
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
