package demo

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"harness-s/internal/testutil"
	"harness-s/model/chat"
	"harness-s/model/tokenizer"
	"harness-s/rollout"
	"harness-s/rollout/env/sqlenv"
	"harness-s/rollout/env/sqlenv/taskgen"
	"harness-s/rollout/harness"
)

// stage is what demonstrations need.
type stage struct {
	pool  *harness.Pool
	tasks *taskgen.Source
	opt   Options
}

func newStage(t *testing.T) *stage {
	t.Helper()
	pool, err := harness.LoadPool(filepath.Join(testutil.Root(t), "recipes", "pools", "sql"))
	if err != nil {
		t.Fatal(err)
	}
	tasks, err := taskgen.New(taskgen.Options{Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	added := chat.AddedTokens()
	tok, err := tokenizer.Train(func(func(string) bool) {}, 256+len(added), added)
	if err != nil {
		t.Fatal(err)
	}
	format, err := chat.NewRenderer(tok, false)
	if err != nil {
		t.Fatal(err)
	}
	return &stage{pool, tasks, Options{
		Obedience: 0.7, Env: sqlenv.New(sqlenv.Options{Name: "sql"}), Renderer: format, Encode: NewEncoder(tok, format.Stop()[0]), Limits: DefaultLimits(),
	}}
}

// played runs a script that does exactly what is given.
func (s *stage) played(t *testing.T, id string, does Behaviour, task rollout.Task) *rollout.Record {
	t.Helper()
	spec, ok := s.pool.Get(id)
	if !ok {
		t.Fatalf("no harness %s", id)
	}
	r, err := play(context.Background(), s.opt, spec, task, newScript(task.Data.(*taskgen.Task), does))
	if err != nil {
		t.Fatal(err)
	}
	if r.Status != rollout.Completed || r.Usage.ParseErrors > 0 || len(r.Rows) != 1 {
		t.Fatalf("%s: status %s, %d parse errors, %d rows", r.ID, r.Status, r.Usage.ParseErrors, len(r.Rows))
	}
	return r
}

// statements lists the SQL of a record.
func statements(r *rollout.Record) (out []string) {
	for _, turn := range r.Turns {
		for _, c := range turn.Calls {
			var sql string
			if c.Name == sqlenv.ToolSQL && json.Unmarshal(c.Args[0].Value, &sql) == nil {
				out = append(out, sql)
			}
		}
	}
	return out
}

const many = 200 // tasks: each trap in each kind it is possible for

func TestH0FailsExactlyOnTraps(t *testing.T) {
	s := newStage(t)
	for i := range many {
		task := s.tasks.Task(taskgen.Demo, i)
		d := task.Data.(*taskgen.Task)
		if r := s.played(t, "h0", 0, task); r.Success == d.Traps.Any() {
			t.Errorf("%s %q, traps %v: success %v\n%q", task.ID, d.Question, d.Traps.Names(), r.Success, statements(r))
		}
	}
}

// Every sibling, obeyed, solves the traps that it is for, and what h0 solves.
func TestSiblingsSolveTheirTraps(t *testing.T) {
	s := newStage(t)
	is := func(forms ...string) func(*taskgen.Task) bool {
		return func(d *taskgen.Task) bool { return len(forms) == 0 || slices.Contains(forms, d.Form) }
	}
	anyForm, counts := is(), is(taskgen.Count)
	opaque, cut, dirty, quote := taskgen.Traps{Opaque: true}, taskgen.Traps{Cut: true}, taskgen.Traps{Dirty: true}, taskgen.Traps{Quote: true}
	type goal struct {
		traps taskgen.Traps
		form  func(*taskgen.Task) bool
	}
	goals := map[string][]goal{
		"look": {{opaque, anyForm}}, "count": {{cut, counts}}, "clean": {{dirty, anyForm}}, "quote": {{quote, anyForm}},
		"page": {{cut, anyForm}}, "recount": {{dirty, is(taskgen.Update)}}, "values": {{dirty, anyForm}},
		"repair": {{opaque, anyForm}, {quote, anyForm}, {dirty, anyForm}}, "steady": {{opaque, anyForm}, {quote, anyForm}},
		"retry": {{opaque, anyForm}, {quote, anyForm}}, "verify": {{cut, counts}, {dirty, anyForm}},
		"look-clean": {{opaque, anyForm}, {dirty, anyForm}, {taskgen.Traps{Opaque: true, Dirty: true}, anyForm}},
		"look-count": {{opaque, anyForm}, {cut, counts}, {taskgen.Traps{Opaque: true, Cut: true}, counts}},
	}
	for _, spec := range s.pool.Siblings() {
		want, err := Asked(spec.ID)
		if err != nil {
			t.Fatal(err)
		}
		if len(goals[spec.ID]) == 0 {
			t.Errorf("%s: no trap named here", spec.ID)
		}
		seen := make([]int, len(goals[spec.ID]))
		for i := range many {
			task := s.tasks.Task(taskgen.Demo, i)
			d := task.Data.(*taskgen.Task)
			must := !d.Traps.Any()
			for k, g := range goals[spec.ID] {
				if d.Traps == g.traps && g.form(d) {
					seen[k]++
					must = true
				}
			}
			if must {
				if r := s.played(t, spec.ID, want, task); !r.Success {
					t.Errorf("%s on %s %q, traps %v: fails\n%q", spec.ID, task.ID, d.Question, d.Traps.Names(), statements(r))
				}
			}
		}
		for k, n := range seen {
			if n == 0 {
				t.Errorf("%s: no task for goal %d", spec.ID, k)
			}
		}
	}
}

// What is asked and not obeyed leaves no trace: the first statement is h0's. And no script does what it is not asked.
func TestNothingElseIsDone(t *testing.T) {
	s := newStage(t)
	marks := map[string]Behaviour{
		"DESCRIBE": Look | Repair, "count(*)": Count | Recount | Verify, "lower(": Clean | Recount | Repair | Values | Verify,
		"OFFSET": Page, "SELECT `": Quote | Repair | Retry, "SELECT name FROM `": Quote | Repair | Retry | Values,
	}
	for _, spec := range s.pool.Specs {
		want, err := Asked(spec.ID)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 60 {
			task := s.tasks.Task(taskgen.Demo, i)
			base := statements(s.played(t, "h0", 0, task))
			if got := statements(s.played(t, spec.ID, 0, task)); got[0] != base[0] {
				t.Errorf("%s, not obeyed: %q, h0 says %q", spec.ID, got[0], base[0])
			}
			for _, sql := range statements(s.played(t, spec.ID, want, task)) {
				for mark, asked := range marks {
					if strings.Contains(sql, mark) && want&asked == 0 {
						t.Errorf("%s does not ask for %q: %q", spec.ID, mark, sql)
					}
				}
			}
		}
	}
}

func TestObedience(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	const n = 4000
	counts := map[Behaviour]int{}
	for range n {
		got := obey(Look|Clean, 0.7, rng)
		if got&^(Look|Clean) != 0 {
			t.Fatalf("%b was never asked for", got)
		}
		for _, b := range all {
			if got&b != 0 {
				counts[b]++
			}
		}
	}
	for _, b := range []Behaviour{Look, Clean} { // 5 standard deviations
		if share := float64(counts[b]) / n; share < 0.664 || share > 0.736 {
			t.Errorf("behaviour %b in %.3f of the draws, want 0.7", b, share)
		}
	}
}

func TestPlayIsDeterministicAndRefuses(t *testing.T) {
	s := newStage(t)
	spec, _ := s.pool.Get("look-clean")
	play := func(o Options, seed uint64) (*rollout.Record, error) {
		return Play(context.Background(), o, spec, s.tasks.Task(taskgen.Demo, 4), rand.New(rand.NewPCG(seed, 0)))
	}
	var rows [2][]rollout.Row
	for k := range rows {
		r, err := play(s.opt, 9)
		if err != nil {
			t.Fatal(err)
		}
		rows[k] = r.Rows
	}
	if !reflect.DeepEqual(rows[0], rows[1]) {
		t.Error("the same seed played two demonstrations")
	}
	o := s.opt
	o.Obedience = 1
	if _, err := play(o, 9); err == nil || !strings.Contains(err.Error(), "obedience 1") {
		t.Errorf("obedience 1: %v", err)
	}
	if _, err := Asked("nobody"); err == nil {
		t.Error("an unknown harness asks for something")
	}
}
