package sqlenv

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"harness-s/model/chat"
	"harness-s/rollout"
)

func arg(key, jsonValue string) []chat.Arg {
	return []chat.Arg{{Key: key, Value: json.RawMessage(jsonValue)}}
}

func pets(view View, noCase bool) fixed {
	return fixed{[]Table{{
		Name: "my pets", IgnoreCase: noCase,
		Columns: []Column{{Name: "name", Type: "TEXT"}, {Name: "k7", Type: "INTEGER", Comment: "price"}},
		Rows:    [][]any{{"Tavo", int64(3)}, {"o'mira", int64(10)}, {nil, int64(7)}},
	}}, view}
}

func TestObservations(t *testing.T) {
	for _, c := range []struct {
		sql, text string
		kind      string
		rows      int
		isError   bool
	}{
		{"SELECT name, k7 FROM `my pets` ORDER BY k7", `[('Tavo', 3), (None, 7), ("o'mira", 10)]`, "select", 3, false},
		{"SELECT avg(k7), x'00ff' FROM `my pets`", `[(6.666666666666667, b'\x00\xff')]`, "select", 1, false},
		{"SELECT name FROM `my pets` WHERE k7 > 100", "[]", "select", 0, false},
		{"UPDATE `my pets` SET k7 = 4 WHERE name = 'nobody'", "[]", "change", 0, false},
		{"DELETE FROM `my pets` WHERE k7 > 3;", "[]", "change", 2, false},
		{"SELECT price FROM `my pets`", "Error: no such column: price", "", -1, true},
		{"DESCRIBE `my pets`", "name name, price k7", "catalogue", 2, false},
		{"show full columns from \"MY PETS\"", "name name, price k7", "catalogue", 2, false},
		{"desc nothing", "Error: no such table: nothing", "catalogue", -1, true},
		{"SHOW TABLES", "[('my pets',)]", "catalogue", 1, false},
		{"SELECT name FROM pragma_table_info('my pets')", "[('name',), ('k7',)]", "catalogue", 2, false},
		{"SELECT count(*) FROM sqlite_master", "[(1,)]", "catalogue", 1, false},
		{"CREATE TABLE x (a)", "[]", "change", -1, false},
		{"DESCRIBE x", "[('a', '', 'YES', '', None, '')]", "catalogue", 1, false},
	} {
		s := open(t, pets(View{}, false), time.Second)
		if c.sql == "DESCRIBE x" {
			exec(t, s, "CREATE TABLE x (a)")
		}
		o := exec(t, s, c.sql)
		if o.Text != c.text || o.Kind != c.kind || o.Rows != c.rows || o.Error != c.isError {
			t.Errorf("%s: %+v, want %+v", c.sql, o, c)
		}
	}
}

func TestCommentsAreInTheSchema(t *testing.T) {
	s := open(t, pets(View{}, false), time.Second)
	if o := exec(t, s, "SELECT sql FROM sqlite_schema"); !strings.Contains(o.Text, "/* price */") {
		t.Error(o.Text)
	}
	if got := s.Catalogue(); got != "my pets: name name, price k7" {
		t.Errorf("catalogue %q", got)
	}
}

func TestMySQLDialect(t *testing.T) {
	s := open(t, pets(View{MySQL: true}, true), time.Second)
	for sql, want := range map[string]string{
		`SELECT name FROM "my pets" WHERE name = "TAVO"`:                         "[('Tavo',)]",
		`SELECT "name" FROM "my pets" LIMIT 1`:                                   "[('name',)]",
		`SELECT k7 FROM 'my pets' WHERE name = 'o\'mira' # ; x`:                  "[(10,)]",
		"SELECT CONCAT(LEFT(name, 2), '-', RIGHT(name, 9)) FROM `my pets`":       "[('Ta-Tavo',), (\"o'-o'mira\",), ('-',)]",
		"SELECT IF(k7 > 5, 'x', 'y') FROM `my pets`":                             "[('y',), ('x',), ('x',)]",
		"SELECT k7 FROM `my pets` WHERE name REGEXP '^t.v'":                      "[(3,)]",
		"SELECT SUBSTRING_INDEX('a.b.c', '.', 2), LOCATE('B', 'abc')":            "[('a.b', 2)]",
		"SELECT SUBSTRING_INDEX('a.b.c', '.', -1), CHAR_LENGTH('é'), LCASE('A')": "[('c', 1, 'a')]",
		"SELECT k7 FROM `my pets` LIMIT 1, 1":                                    "[(10,)]",
	} {
		if got := exec(t, s, sql).Text; got != want {
			t.Errorf("%s: %s, want %s", sql, got, want)
		}
	}
}

func TestResultsAreCut(t *testing.T) {
	long := Table{Name: "l", Columns: []Column{{Name: "a", Type: "TEXT"}}}
	for range 100 {
		long.Rows = append(long.Rows, []any{"éééééééé"})
	}
	s := open(t, fixed{[]Table{long}, View{}}, time.Second)
	o := exec(t, s, "SELECT a FROM l")
	if n := len([]rune(o.Text)); n != 800+len(truncated) || !strings.HasSuffix(o.Text, truncated) || o.Rows != 100 {
		t.Errorf("%d characters, %d rows", n, o.Rows)
	}
	s = open(t, fixed{[]Table{long}, View{MaxRows: 2, ShowCount: true}}, time.Second)
	if o := exec(t, s, "SELECT a FROM l LIMIT 3"); o.Text != "[('éééééééé',), ('éééééééé',)[TRUNCATED]" || o.Rows != 3 {
		t.Errorf("%+v", o)
	}
	if o := exec(t, s, "SELECT a FROM l LIMIT 2"); strings.Contains(o.Text, truncated) {
		t.Errorf("%+v", o)
	}
	if o := exec(t, s, "DELETE FROM l"); o.Text != "100 changed" {
		t.Errorf("%+v", o)
	}
}

func TestCalls(t *testing.T) {
	s := open(t, pets(View{}, false), time.Second)
	act := func(name string, args []chat.Arg) rollout.Observation {
		o, err := s.Act(t.Context(), chat.ToolCall{Name: name, Args: args})
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	for _, bad := range []rollout.Observation{
		act("nope", nil), act(ToolSQL, nil), act(ToolSQL, arg("query", "7")), act(ToolSQL, arg("query", "null")), act(ToolCommit, nil), act(ToolCommit, arg("answers", "{")),
		act(ToolCommit, arg("answers", `"`+strings.Repeat("x", maxAnswerBytes)+`"`)),
	} {
		if !bad.Error || bad.Done {
			t.Errorf("%+v", bad)
		}
	}
	if g, err := s.Grade(t.Context()); err != nil || g.Success {
		t.Errorf("grade before a commit: %+v %v", g, err)
	}
	if o := act(ToolSQL, arg("whatever", `"SELECT 1"`)); o.Text != "[(1,)]" {
		t.Errorf("%+v", o)
	}
	if o := act(ToolCommit, arg("answers", `["a"]`)); !o.Done || o.Error {
		t.Errorf("%+v", o)
	}
	if o := act(ToolSQL, arg("query", `"SELECT 1"`)); !o.Done || !o.Error {
		t.Errorf("after the commit: %+v", o)
	}
}

func TestFinalTables(t *testing.T) {
	s := open(t, pets(View{}, false), time.Second)
	exec(t, s, "DELETE FROM `my pets` WHERE k7 = 7")
	s.Commit(json.RawMessage("[]"))
	cols, rows, err := s.final.Table(t.Context(), "my pets")
	if err != nil || Canonical(cols, rows) != Canonical([]string{"name", "k7"}, [][]any{{"o'mira", int64(10)}, {"Tavo", int64(3)}}) {
		t.Errorf("%v %v %v", cols, rows, err)
	}
	if _, _, err := s.final.Table(t.Context(), "gone"); !errors.Is(err, ErrGone) {
		t.Error(err)
	}
}

func TestCancelledContextIsAFault(t *testing.T) {
	s := open(t, pets(View{}, false), time.Minute)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := s.Execute(ctx, forever+"SELECT count(*) FROM c"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if o := exec(t, s, "SELECT 1"); o.Error {
		t.Errorf("the session did not survive: %+v", o)
	}
}

func TestParseAnswers(t *testing.T) {
	for in, want := range map[string]string{
		`["a","b"]`: "a|b", `"a"`: "a", `5`: "5", `[5, null, true, {"a":1}]`: `5|none|true|{"a":1}`, `"[('a',), (1.50,)]"`: "a|1.5", `"[\"a\", 2]"`: "a|2", `"[oops"`: "[oops", `[]`: "",
		`"[(1, 2)]"`: "[(1, 2)]", `[" a "]`: " a ",
	} {
		got, err := ParseAnswers(json.RawMessage(in))
		if err != nil || strings.Join(got, "|") != want {
			t.Errorf("%s: %q %v, want %q", in, got, err, want)
		}
	}
	for _, in := range []string{`{"a":1}`, ``, `[`, `nope`} {
		if got, err := ParseAnswers(json.RawMessage(in)); err == nil {
			t.Errorf("%s: read as %q", in, got)
		}
	}
}

// TestGreedDoesNotFailNeighbours runs memory-hungry statements beside plain ones: the plain ones always get their answer.
func TestGreedDoesNotFailNeighbours(t *testing.T) {
	var wg sync.WaitGroup
	for range 3 {
		s := open(t, fixed{[]Table{people()}, View{}}, 500*time.Millisecond)
		wg.Go(func() {
			for range 2 {
				o, err := s.Execute(t.Context(), forever+"SELECT printf('%.*c', 200000, 'x') FROM c ORDER BY 1")
				if err != nil || !o.Error {
					t.Errorf("%+v %v", o, err)
				}
				t.Log(o.Text)
			}
		})
	}
	for range 2 {
		s := open(t, fixed{[]Table{people()}, View{}}, 30*time.Second)
		wg.Go(func() {
			for range 300 {
				o, err := s.Execute(t.Context(), "SELECT count(*) FROM t a, t b WHERE a.a < b.a ORDER BY 1")
				if err != nil || o.Text != "[(780,)]" {
					t.Errorf("%+v %v", o, err)
					return
				}
			}
		})
	}
	wg.Wait()
}
