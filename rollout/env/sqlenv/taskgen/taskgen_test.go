package taskgen

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"harness-s/rollout"
	"harness-s/rollout/env/sqlenv"
	"harness-s/rollout/env/sqlenv/pylit"
)

var splits = []string{Train, Val, Test, Demo}

func source(t testing.TB, opt Options) *Source {
	t.Helper()
	s, err := New(opt)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// agent answers a task from what it sees alone: it runs statements and reads their rows.
type agent struct {
	t *testing.T
	s *sqlenv.Session
}

func (a agent) run(sql string) (rows []any, o rollout.Observation) {
	a.t.Helper()
	o, err := a.s.Execute(a.t.Context(), sql)
	if err != nil {
		a.t.Fatal(err)
	}
	v, _ := pylit.Parse(strings.TrimSuffix(strings.ReplaceAll(o.Text, "[TRUNCATED]", "]"), "\n"))
	l, _ := v.(pylit.List)
	return l, o
}

func (a agent) commit(task *Task, answers []string) bool {
	a.t.Helper()
	raw, err := json.Marshal(answers)
	if err != nil {
		a.t.Fatal(err)
	}
	a.s.Commit(raw)
	g, err := a.s.Grade(a.t.Context())
	if err != nil {
		a.t.Fatalf("%s: %v", task.Question, err)
	}
	return g.Success
}

func firsts(rows []any) []string {
	var out []string
	for _, r := range rows {
		out = append(out, pylit.Str(r.(pylit.Tuple)[0]))
	}
	return out
}

// conclude turns the rows seen into an answer, as any agent would.
func conclude(task *Task, rows []any, counted, failed bool) []string {
	switch {
	case task.Changes():
		return []string{"done"}
	case failed:
		return []string{"none"}
	case task.Form == Count && !counted:
		return []string{pylit.Repr(int64(len(rows)))}
	case len(rows) == 0:
		return []string{"none"}
	}
	return firsts(rows)
}

func attempt(t *testing.T, task *Task, style Style, statements []string) bool {
	t.Helper()
	s, err := sqlenv.New(sqlenv.Options{}).OpenProblem(t.Context(), task)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	a := agent{t, s}
	var rows []any
	failed := false
	for _, q := range statements {
		got, o := a.run(q)
		rows = append(rows, got...)
		failed = failed || o.Error
	}
	return a.commit(task, conclude(task, rows, style.Count, failed))
}

// TestSolvableAndTrapped runs every kind in every split: the gold statements, read by an agent that sees only results, always
// succeed; the naive ones fail exactly on the trapped tasks; doing nothing and a spoiled gold never succeed.
func TestSolvableAndTrapped(t *testing.T) {
	s := source(t, Options{Seed: 1, Val: 300, Test: 300})
	kinds, traps := map[string]int{}, map[string]int{}
	for _, split := range splits {
		for i := range 300 {
			task := s.Make(split, i)
			kinds[task.Kind]++
			for _, n := range task.Traps.Names() {
				traps[n]++
			}
			fail := func(what string) {
				t.Errorf("%s-%d %s %v %q (gold %q): %s", split, i, task.Kind, task.Traps.Names(), task.Question, task.Gold, what)
			}
			if !attempt(t, task, Style{Count: true}, task.Gold) {
				fail("gold fails")
			}
			if attempt(t, task, Style{}, []string{task.SQL(Style{})}) == task.Traps.Any() {
				fail("the naive agent succeeds on a trapped task or fails on a plain one")
			}
			if nothing(t, task) {
				fail("doing nothing succeeds")
			}
			if spoiled(t, task) {
				fail("a spoiled gold succeeds")
			}
		}
	}
	for _, k := range Kinds() {
		if kinds[k] < 20 {
			t.Errorf("only %d tasks of kind %s", kinds[k], k)
		}
	}
	for _, n := range (Traps{true, true, true, true}).Names() {
		if traps[n] < 50 {
			t.Errorf("only %d tasks with trap %s", traps[n], n)
		}
	}
	t.Logf("kinds %v traps %v", kinds, traps)
}

func nothing(t *testing.T, task *Task) bool {
	s, err := sqlenv.New(sqlenv.Options{}).OpenProblem(t.Context(), task)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	return agent{t, s}.commit(task, []string{})
}

// spoiled runs the gold and then one change more, or commits the gold with one value more.
func spoiled(t *testing.T, task *Task) bool {
	s, err := sqlenv.New(sqlenv.Options{}).OpenProblem(t.Context(), task)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	a := agent{t, s}
	for _, q := range task.Gold {
		a.run(q)
	}
	if task.Changes() {
		a.run("UPDATE " + sqlenv.QuoteName(task.Table) + " SET " + sqlenv.QuoteName(task.Column) + " = 100 WHERE rowid = 3")
		return a.commit(task, task.Answers)
	}
	return a.commit(task, append(slices.Clone(task.Answers), task.Answers[0]))
}

// TestEachTrapNeedsItsCure gives the gold style without one ability: it fails on every task with that trap.
func TestEachTrapNeedsItsCure(t *testing.T) {
	full := Style{Codes: true, Count: true, Clean: true, Quote: true}
	for _, c := range []struct {
		name    string
		without func(*Style)
		has     func(*Task) bool
	}{
		{"opaque", func(s *Style) { s.Codes = false }, func(t *Task) bool { return t.Traps.Opaque }},
		{"cut", func(s *Style) { s.Count = false }, func(t *Task) bool { return t.Traps.Cut && t.Form == Count }},
		{"paging", func(*Style) {}, func(t *Task) bool { return t.Traps.Cut && t.Form == List }},
		{"dirty", func(s *Style) { s.Clean = false }, func(t *Task) bool { return t.Traps.Dirty }},
		{"quote", func(s *Style) { s.Quote = false }, func(t *Task) bool { return t.Traps.Quote }},
	} {
		s := source(t, Options{Seed: 2, Probs: &Probs{0.5, 0.5, 0.5, 0.5}})
		for i, seen := 0, 0; seen < 60; i++ {
			task := s.Make(Train, i)
			if !c.has(task) {
				continue
			}
			seen++
			style := full
			c.without(&style)
			if attempt(t, task, style, []string{task.SQL(style)}) {
				t.Errorf("%s: %q succeeds with %q", c.name, task.Question, task.SQL(style))
			}
		}
	}
}

func TestDeterministic(t *testing.T) {
	a, b := source(t, Options{Seed: 7}), source(t, Options{Seed: 7})
	other := source(t, Options{Seed: 8})
	same := 0
	for i := range 100 {
		if !reflect.DeepEqual(a.Task(Train, i), b.Task(Train, i)) {
			t.Fatalf("task %d differs", i)
		}
		if a.Task(Train, i).Vars["question"] == other.Task(Train, i).Vars["question"] {
			same++
		}
	}
	if same > 2 {
		t.Errorf("%d of 100 questions do not depend on the seed", same)
	}
}

// TestSplitsShareNoWords checks that tables, entities and codes of val and test are in no other split, and tables of
// demonstrations in none of the three.
func TestSplitsShareNoWords(t *testing.T) {
	s := source(t, Options{Seed: 3, Val: 500, Test: 500})
	seen := map[string]map[string]bool{}
	tables := map[string]map[string]bool{}
	for _, split := range splits {
		seen[split], tables[split] = map[string]bool{}, map[string]bool{}
		for i := range 500 {
			for _, tab := range s.Make(split, i).Tables() {
				name := tab.Name[strings.LastIndexByte(tab.Name, ' ')+1:]
				seen[split][name], tables[split][name] = true, true
				for _, c := range tab.Columns {
					if c.Name != c.Comment {
						seen[split]["code "+c.Name] = true
					}
				}
				for _, r := range tab.Rows {
					seen[split]["entity "+strings.ReplaceAll(strings.ToLower(strings.TrimSpace(r[0].(string))), "'", "")] = true
				}
			}
		}
	}
	common := func(a, b map[string]bool) (out []string) {
		for w := range a {
			if b[w] {
				out = append(out, w)
			}
		}
		return out
	}
	for _, pair := range [][2]string{{Train, Val}, {Train, Test}, {Val, Test}, {Demo, Val}, {Demo, Test}} {
		if c := common(seen[pair[0]], seen[pair[1]]); len(c) > 0 {
			t.Errorf("%s and %s share %v", pair[0], pair[1], c[:min(5, len(c))])
		}
	}
	if c := common(tables[Demo], tables[Train]); len(c) > 0 {
		t.Errorf("demonstrations and train share tables %v", c)
	}
}

func TestTextsAreShort(t *testing.T) {
	s := source(t, Options{})
	for i := range 300 {
		task := s.Make(Train, i)
		if len(task.Question) > 90 {
			t.Errorf("question of %d characters: %s", len(task.Question), task.Question)
		}
		e, err := sqlenv.New(sqlenv.Options{}).Open(t.Context(), rollout.Task{Data: task})
		if err != nil {
			t.Fatal(err)
		}
		if c := e.Catalogue(); len(c) > 160 || !strings.Contains(c, task.Concept+" "+task.Column) {
			t.Errorf("catalogue %q", c)
		}
		e.Close()
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, o := range []Options{
		{MaxRows: 1}, {MinTable: 5}, {MinTable: 20}, {MaxTable: 100, MinTable: 10}, {Val: -1}, {Probs: &Probs{Opaque: 1.5}},
		{Mix: map[string]float64{"nope": 1}}, {Mix: map[string]float64{Count: -1}}, {Mix: map[string]float64{}},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
}
