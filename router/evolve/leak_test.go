package evolve

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"harness-s/internal/testutil"
	"harness-s/rollout"
	"harness-s/rollout/env/sqlenv"
	"harness-s/rollout/env/sqlenv/dbbench"
	"harness-s/rollout/env/sqlenv/taskgen"
	"harness-s/rollout/harness"
)

// oneTask is a leak scanner over 200 tasks, of which task 7 has the secrets, and all have the word "price" and "zonk".
func oneTask(known []string, secrets ...string) *leaks {
	tasks := make([]rollout.Task, 200)
	for i := range tasks {
		tasks[i] = rollout.Task{ID: fmt.Sprintf("train-%d", i), Vars: map[string]string{"question": fmt.Sprintf("How many of item%d are there in all?", i), "kind": "count"}}
	}
	return newLeaks(tasks, func(t rollout.Task) []string {
		if t.ID == "train-7" {
			return append(secrets, "price", "zonk")
		}
		return []string{"price", "zonk"}
	}, known)
}

func TestLeakRule(t *testing.T) {
	secrets := []string{
		"Ravis", "tavo", "vo7", "k7", "Open", "names", "cancelled", "42", "1999", "12345", "3.14", "old ravis", "number of rows", "Mo", "Player of the Year Award",
		"São Paulo", "O'Neil", "unit_price", "x", "",
	}
	l := oneTask([]string{"Use the tools on ratio data.", "tavo is known"}, secrets...)
	for text, leak := range map[string]bool{
		"Look at ravis first.":                true,
		"Look at RAVIS.":                      true,
		"SELECT * FROM `ravis`;":              true,
		"The ravisher":                        false, // a part of a longer word
		"Mind tavo.":                          false, // the base harness says it
		"Column vo7 is what you want":         true,
		"k7":                                  false, // too short
		"Open the table and check the names.": false, // common words
		"42 rows, the year 1999":              false, // short numbers
		"The answer is 12345.":                true,
		"It is 3.14":                          false,
		"Count the number of rows.":           false, // a short phrase of common words
		"Mo":                                  false,
		"It is called the player of the year award.": true,  // a long phrase of common words
		"Player of the year":                         false, // a part of it
		"sao paulo":                                  false, // other letters
		"It is in são paulo":                         true,
		"Mr O'Neil":                                  true,
		"the unit price":                             false, // common, both
		"Price and zonk":                             false, // what all tasks have
		"How many of item9 are there in all?":        true,  // the task's own wording
		"item9":                                      false, // not a secret alone: the environment did not say so
		"How many are there in all?":                 false,
		"train-7":                                    true,
		"See TRAIN-12, or (train-3).":                true,
		"train-200":                                  false, // no such task
		"train-1x, pretrain-7":                       false,
		"count":                                      false, // a kind of task
	} {
		if got := l.find(text); (got != "") != leak {
			t.Errorf("%q: found %q, want a leak: %v", text, got, leak)
		}
	}
}

// With few tasks, what five of them share is common.
func TestLeakFewTasks(t *testing.T) {
	tasks := []rollout.Task{{ID: "a-1"}, {ID: "a-2"}, {ID: "a-3"}, {ID: "a-4"}, {ID: "a-5"}}
	l := newLeaks(tasks, func(t rollout.Task) []string {
		if t.ID == "a-5" {
			return []string{"frob", "frob"}
		}
		return []string{"frob", "quux"}
	}, nil)
	if l.find("frob") != "" || l.find("quux") == "" {
		t.Errorf("frob: %q, quux: %q", l.find("frob"), l.find("quux"))
	}
}

func generated(t *testing.T) []rollout.Task {
	t.Helper()
	src, err := taskgen.New(taskgen.Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	var tasks []rollout.Task
	for i := range 1000 {
		tasks = append(tasks, src.Task(taskgen.Train, i))
	}
	for i := range 48 {
		tasks = append(tasks, src.Task(taskgen.Val, i))
	}
	return tasks
}

// The shipped harnesses raise no alarm, and what is telling of a generated task does: nearly every table's name, and an
// answer that is a name.
func TestLeaksOfGeneratedTasks(t *testing.T) {
	tasks := generated(t)
	l := newLeaks(tasks, sqlenv.New(sqlenv.Options{}).Secrets, nil)
	pool, err := harness.LoadPool(filepath.Join(testutil.Root(t), "recipes", "pools", "sql"))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range pool.Specs {
		for _, p := range texts(s) {
			if what := l.find(p.text); what != "" {
				t.Errorf("harness %s: %s holds %s", s.ID, p.at, what)
			}
		}
	}
	tables, names, found, named := 0, 0, 0, 0
	for _, task := range tasks {
		d := task.Data.(*taskgen.Task)
		tables++
		if l.find("Look at "+d.Table+".") != "" {
			found++
		}
		if d.Kind == taskgen.Largest {
			names++
			if l.find("It is "+d.Answers[0]+".") != "" {
				named++
			}
		}
		if l.find("As in: "+d.Question) == "" {
			t.Errorf("task %s: its question is not found", task.ID)
		}
	}
	t.Logf("tables found %d/%d, answers that are names %d/%d", found, tables, named, names)
	if 100*found < 95*tables || 100*named < 95*names {
		t.Errorf("found %d of %d tables, %d of %d names", found, tables, named, names)
	}
}

// What people write about SQL raises no alarm over the tables of real tasks.
func TestLeaksOfDBBench(t *testing.T) {
	shared, ok := testutil.SharedDir(t)
	if !ok {
		t.Skip("no reference data")
	}
	src, err := dbbench.NewSource(filepath.Join(shared, "data", "dbbench", "std_even.jsonl"), "", dbbench.DefaultSplits)
	if err != nil {
		t.Fatal(err)
	}
	var tasks []rollout.Task
	for _, split := range []string{"train", "val"} {
		for i := range src.Len(split) {
			tasks = append(tasks, src.Task(split, i))
		}
	}
	l := newLeaks(tasks, sqlenv.New(sqlenv.Options{}).Secrets, nil)
	for _, text := range strings.Split(strings.TrimSpace(harmless), "\n") {
		if what := l.find(text); what != "" {
			t.Errorf("%q holds %s", text, what)
		}
	}
	found := 0
	for _, task := range tasks {
		if l.find(task.Vars["description"]) != "" {
			found++
		}
	}
	if found != len(tasks) {
		t.Errorf("%d of %d questions found", found, len(tasks))
	}
}

const harmless = `
You are a careful data analyst. Use the tools to answer the question, and commit the final answer only once you have verified it.
Before the first query, look up the schema with DESCRIBE or SHOW TABLES; never guess the names of columns.
If a statement fails, read the error message, fix the statement, and try again; never repeat a failed call unchanged.
Put names with spaces in backticks and text in single quotes. Compare text without regard to case and blanks: lower(trim(x)) = lower('y').
After an INSERT, UPDATE or DELETE, run a SELECT to check that exactly the intended rows changed.
When the result is truncated, use LIMIT and OFFSET to read the next page, or COUNT(*) to count all rows.
Numbers may be stored as text: cast them before you compare, sort or sum.
The answer is a list of strings. Give only the values asked for, without units, explanations or punctuation.
An empty result usually means that a value is spelled differently: list the distinct values of the column first.
You have at most 15 turns. Keep one turn for the final answer, even if you are not sure.
Example: to find which entry has the greatest value, ORDER BY the column DESC and take the first row; watch for ties and NULL.
Dates may be stored in several formats, such as 2020-01-31 or January 31, 2020: inspect a few samples before filtering.
`
