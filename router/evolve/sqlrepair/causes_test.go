package sqlrepair

import (
	"context"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"harness-s/model/chat"
	"harness-s/rollout"
	"harness-s/rollout/env/sqlenv"
	"harness-s/rollout/harness"
	"harness-s/router/evolve"
)

// say and hear write a transcript by hand.
type line struct {
	call    chat.ToolCall
	silent  bool
	heard   string
	refused string
}

func sql(query, heard string) line {
	return line{call: chat.ToolCall{Name: sqlenv.ToolSQL, Args: []chat.Arg{chat.StringArg("query", query)}}, heard: heard}
}

func commit(answers ...string) line {
	raw, _ := json.Marshal(answers)
	return line{call: chat.ToolCall{Name: sqlenv.ToolCommit, Args: []chat.Arg{{Key: "answers", Value: raw}}}, heard: "The answer is committed."}
}

func (l line) refusedBy(rule string) line { l.refused = rule; return l }

var silence = line{silent: true, heard: "No tool call found. Call a tool."}

// transcript is a failed record of the lines.
func transcript(grader string, lines ...line) *rollout.Record {
	rec := &rollout.Record{ID: "r", Task: "t", TaskKind: "kind", Status: rollout.TurnLimit}
	for _, l := range lines {
		turn := rollout.Turn{Role: "assistant", Text: "..."}
		result := rollout.Turn{Role: "user", Text: l.heard}
		if !l.silent {
			turn.Calls = []chat.ToolCall{l.call}
			result = rollout.Turn{Role: "tool", Text: l.call.Name, Observation: l.heard, Refused: l.refused}
			if l.call.Name == sqlenv.ToolCommit && l.refused == "" {
				rec.Status = rollout.Completed
			}
		}
		rec.Turns = append(rec.Turns, turn, result)
	}
	if grader != "" {
		rec.Grader = json.RawMessage(grader)
	}
	return rec
}

func h0(t testing.TB) *harness.Spec {
	t.Helper()
	return parse(t, "id: h0\nprompt: {system: Use the tools to answer., user: \"{{question}}\", tools_block: none}\n")
}

func parse(t testing.TB, text string) *harness.Spec {
	t.Helper()
	s, err := harness.Parse("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Transcripts with their cause and the turn, counted from 0, of the decision.
func TestCauses(t *testing.T) {
	const (
		noColumn  = "Error: no such column: price"
		committed = "The answer is committed."
		five      = "[('a',), ('b',), ('c',), ('d',), ('e',)[TRUNCATED]"
		schema    = "name name, price k7"
	)
	guess := sql("SELECT price FROM ravis WHERE name = 'tavo'", noColumn)
	look := sql("DESCRIBE `ravis`", schema)
	found := sql("SELECT k7 FROM ravis WHERE name = 'tavo'", "[(5,)]")
	nothing := sql("SELECT k7 FROM ravis WHERE name = 'tavo'", "[]")
	clean := sql("SELECT k7 FROM ravis WHERE lower(trim(name)) = 'tavo'", "[]")
	list := sql("SELECT name FROM ravis WHERE k7 > 5", five)
	whole := sql("SELECT name FROM ravis WHERE k7 > 5", "[('a',), ('b',)]")
	none := sql("UPDATE ravis SET k7 = 3 WHERE name = 'tavo'", "0 changed")
	one := sql("UPDATE ravis SET k7 = 3 WHERE name = 'tavo'", "1 changed")
	shown := func(l line) line { l.heard += "\nSchema:\nravis: " + schema; return l }
	const withSchema = "rules: {schema_on_error: {text: \"Schema:\"}}\n"

	for _, c := range []struct {
		name   string
		lines  []line
		grader string
		rules  string
		cause  string
		turn   int
		facts  map[string]string
	}{
		{name: "guess", lines: []line{guess, commit("none")}, cause: "guesses-names", turn: 0},
		{name: "guess twice: the first is the decision", lines: []line{guess, sql("SELECT cost FROM ravis", "Error: no such column: cost"), commit("none")}, cause: "guesses-names", turn: 0},
		{name: "guess in an insert", lines: []line{sql("INSERT INTO t (price) VALUES (1)", "Error: table t has no column named price"), commit("done")}, cause: "guesses-names"},
		{name: "guess of a table", lines: []line{sql("SELECT a FROM nowhere", "Error: no such table: nowhere"), commit("none")}, cause: "guesses-names"},
		{name: "an alias is no second half", lines: []line{sql("SELECT x.a FROM nowhere x", "Error: no such table: nowhere"), commit("none")}, cause: "guesses-names"},
		{name: "guess, made good", lines: []line{guess, look, found, commit("6")}, grader: `{"gold":["7"]}`, cause: "commits-unchecked", turn: 3},
		{name: "guess, made good, guess again: the second", lines: []line{guess, sql("SELECT k7 FROM ravis", "[(5,), (6,)]"), guess, commit("none")}, cause: "guesses-names", turn: 2},
		{name: "guess after a look", lines: []line{look, guess, commit("none")}, cause: "misreads-schema", turn: 1},
		{name: "guess after the rule showed it", lines: []line{shown(guess), shown(guess), commit("none")}, rules: withSchema, cause: "misreads-schema", turn: 1},
		{name: "no try after the rule showed it", lines: []line{shown(guess), commit("none")}, rules: withSchema, cause: "gives-up-after-error", turn: 1},
		{name: "looked up too late and left", lines: []line{guess, look, commit("none")}, cause: "gives-up-after-error", turn: 2},
		{name: "an error of another kind", lines: []line{sql("SELECT k7(1) FROM ravis", "Error: no such function: k7"), commit("none")}, cause: "gives-up-after-error", turn: 1},

		{name: "reserved word", lines: []line{sql("SELECT name FROM t ORDER BY order", `Error: near "order": syntax error`), commit("none")}, cause: "wrong-quoting"},
		{name: "two words of a table", lines: []line{sql("SELECT a FROM old ravis WHERE a > 3", "Error: no such table: old"), commit("none")}, cause: "wrong-quoting"},
		{name: "two words of a column", lines: []line{sql("SELECT unit price FROM t", "Error: no such column: unit"), commit("none")}, cause: "wrong-quoting"},
		{name: "an apostrophe", lines: []line{sql("SELECT a FROM t WHERE name = 'ta'vo'", "Error: a quote or comment is not closed"), commit("none")}, cause: "wrong-quoting"},
		{name: "quoting goes before what follows from it", lines: []line{look, sql("SELECT a FROM old ravis", "Error: no such table: old"), look, commit("none")}, cause: "wrong-quoting", turn: 1},

		{name: "the same again until the end", lines: []line{look, look, look}, cause: "repeats-call", turn: 1},
		{name: "the same after a refusal", lines: []line{nothing, nothing.refusedBy("refuse_repeat"), commit("none")}, cause: "compares-exactly", turn: 0},
		{name: "a refusal, no statement", lines: []line{look, look.refusedBy("refuse_repeat")}, cause: "repeats-call", turn: 1},
		{name: "the same after a change is no repeat", lines: []line{found, one, found}, cause: "runs-out-of-turns", turn: 2, facts: map[string]string{"limit": "turns"}},

		{name: "no call", lines: []line{silence, silence}, cause: "no-call", turn: 0},
		{name: "no call, made good", lines: []line{silence, nothing, commit("none")}, cause: "compares-exactly", turn: 1},

		{name: "exact text", lines: []line{nothing, commit("none")}, cause: "compares-exactly"},
		{name: "exact text in a subquery", lines: []line{sql("SELECT a FROM t WHERE name = (SELECT b FROM u WHERE name = 'x')", "[]"), commit("none")}, cause: "compares-exactly"},
		{name: "clean text, nothing there", lines: []line{clean, commit("none")}, cause: "takes-empty-result"},
		{name: "nothing, then something", lines: []line{nothing, sql("SELECT k7 FROM ravis", "[(5,)]"), commit("5")}, cause: "commits-unchecked", turn: 2},

		{name: "no row changed", lines: []line{none, commit("done")}, cause: "changes-nothing", facts: map[string]string{"exact": "true"}},
		{name: "rows changed, unseen", lines: []line{one, commit("done")}, grader: `{"reason":"table ravis is not as asked"}`, cause: "unverified-change"},
		{name: "changes not told", lines: []line{sql("DELETE FROM t WHERE a = 1", "[]"), commit("done")}, cause: "unverified-change"},
		{name: "rows changed, seen", lines: []line{one, found, commit("done")}, cause: "commits-unchecked", turn: 2},

		{name: "counted what is shown", lines: []line{list, commit("5")}, cause: "counts-shown-rows", facts: map[string]string{"rows": "5", "cut_by": "environment"}},
		{name: "a number of one row is no count", lines: []line{found, commit("6")}, cause: "commits-unchecked", turn: 1},
		{name: "counted wrongly", lines: []line{whole, commit("3")}, cause: "counts-shown-rows", facts: map[string]string{"rows": "2", "cut_by": "environment"}},
		{name: "counted by the database", lines: []line{sql("SELECT COUNT(*) FROM t", "[(4,)]"), commit("5")}, cause: "commits-unchecked", turn: 1},
		{name: "counted by the database, in groups", lines: []line{sql("SELECT owner, count(*) FROM t GROUP BY owner", "[('a', 4), ('b', 3)]"), commit("7")}, cause: "commits-unchecked", turn: 1},
		{name: "copied what is shown", lines: []line{list, commit("a", "b", "c", "d", "e")}, cause: "copies-cut-result", facts: map[string]string{"rows": "5", "cut_by": "environment"}},
		{name: "one full page", lines: []line{sql("SELECT name FROM t LIMIT 2", "[('a',), ('b',)]"), commit("a", "b")}, cause: "copies-cut-result", facts: map[string]string{"rows": "2", "cut_by": "environment"}},
		{name: "the first of an order is no page", lines: []line{sql("SELECT name FROM t ORDER BY a LIMIT 1", "[('a',)]"), commit("a")}, cause: "commits-unchecked", turn: 1},
		{name: "cut by the harness", lines: []line{sql("SELECT a FROM t", "[('aaaaaaaaaaaaa',), ('bbbbbbbbbb[TRUNCATED]"), commit("aaaaaaaaaaaaa")}, rules: "memory: {max_observation_chars: 32}\n",
			cause: "copies-cut-result", facts: map[string]string{"rows": "1", "cut_by": "harness"}},

		{name: "one text for two", lines: []line{whole, commit("a, b")}, grader: `{"answers":["a, b"],"gold":["b","a"]}`, cause: "wrong-form", turn: 1, facts: map[string]string{"had": "answer"}},
		{name: "left one out", lines: []line{whole, commit("a")}, grader: `{"answers":["a"],"gold":["b","a"]}`, cause: "wrong-form", turn: 1, facts: map[string]string{"had": "result"}},
		{name: "gold of another form", lines: []line{found, commit("a")}, grader: `{"gold":"d41d8","answers":3}`, cause: "commits-unchecked", turn: 1},

		{name: "no answer in time", lines: []line{found, sql("SELECT 1", "[(1,)]")}, cause: "runs-out-of-turns", turn: 1, facts: map[string]string{"limit": "turns"}},
		{name: "answered from nothing", lines: []line{commit("none")}, cause: "commits-unchecked", turn: 0},
		{name: "a check is not an answer", lines: []line{commit("4").refusedBy("verify_before_finish"), commit("4")}, cause: "commits-unchecked", turn: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			parent := parse(t, "id: h0\nprompt: {user: \"{{question}}\"}\n"+c.rules)
			for _, l := range c.lines {
				if strings.Contains(l.heard, committed) && l.refused != "" {
					l.heard = "Check first."
				}
			}
			rec := transcript(c.grader, c.lines...)
			labels, err := Analyst{}.Label(context.Background(), parent, []*rollout.Record{rec})
			if err != nil {
				t.Fatal(err)
			}
			if len(labels) != 1 {
				t.Fatalf("labels %+v, want one: %s", labels, c.cause)
			}
			l := labels[0]
			if l.Cause != c.cause || l.Turn != 2*c.turn || !reflect.DeepEqual(l.Facts, c.facts) {
				t.Errorf("got %s in turn %d, facts %v; want %s in turn %d, facts %v", l.Cause, l.Turn/2, l.Facts, c.cause, c.turn, c.facts)
			}
			if l.Rollout != "r" || l.Task != "t" || l.Kind != "kind" || !strings.Contains(l.Why, "In turn ") {
				t.Errorf("label %+v", l)
			}
		})
	}
}

// Every cause of the list has a transcript above, an edit, and a place in the order of precedence that is its own.
func TestListIsClosed(t *testing.T) {
	names := map[string]bool{}
	for _, c := range causes {
		if names[c.name] {
			t.Errorf("%s stands twice", c.name)
		}
		names[c.name] = true
		if len(repairs[c.name]) < 3 {
			t.Errorf("%s: %d edits leave nothing to select from", c.name, len(repairs[c.name]))
		}
	}
	for name := range repairs {
		if !names[name] {
			t.Errorf("edits for %s, which is no cause", name)
		}
	}
}

// In one turn the order of the list decides, between turns the earlier one.
func TestPrecedence(t *testing.T) {
	// The last statement changes nothing and nobody looked: both tests fit its turn.
	tr := readTrace(h0(t), transcript("", sql("UPDATE t SET a = 1 WHERE b = 'x'", "0 changed"), commit("done")))
	for _, name := range []string{"changes-nothing", "unverified-change"} {
		if turn, _, ok := causeNamed(t, name).test(tr); !ok || turn != 0 {
			t.Errorf("%s: turn %d, %v", name, turn, ok)
		}
	}
	if c, _, _ := diagnose(tr); c.name != "changes-nothing" {
		t.Errorf("cause %s", c.name)
	}
	// A turn without words before a repeated call: the earlier decision is the cause.
	look := sql("DESCRIBE t", "a a")
	if c, turn, _ := diagnose(readTrace(h0(t), transcript("", silence, look, look))); c.name != "no-call" || turn != 0 {
		t.Errorf("cause %s in turn %d", c.name, turn)
	}
}

func causeNamed(t *testing.T, name string) cause {
	t.Helper()
	for _, c := range causes {
		if c.name == name {
			return c
		}
	}
	t.Fatalf("no cause %s", name)
	return cause{}
}

// The analyst sees the transcript and the grader's word: what the grader says the task was built from changes nothing, and
// nothing of statements, tables or answers goes into a label.
func TestLabelsAreBlindAndClean(t *testing.T) {
	lines := []line{sql("SELECT zugo FROM ravis WHERE name = 'tavo'", "Error: no such column: zugo"), commit("mapi")}
	var first []evolve.Label
	for i, detail := range []string{`{"gold":["77"],"traps":["opaque"],"kind":"lookup"}`, `{"gold":["77"],"traps":["cut","quote"]}`, `{"gold":["77"]}`} {
		labels, err := Analyst{}.Label(context.Background(), h0(t), []*rollout.Record{transcript(detail, lines...)})
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = labels
		}
		if !reflect.DeepEqual(labels, first) {
			t.Errorf("detail %s: %+v, want %+v", detail, labels, first)
		}
		j, _ := json.Marshal(struct {
			Why   string
			Facts any
		}{labels[0].Why, labels[0].Facts})
		for _, secret := range []string{"zugo", "ravis", "tavo", "mapi", "77", "opaque"} {
			if strings.Contains(string(j), secret) {
				t.Errorf("label %s holds %q", j, secret)
			}
		}
	}
}

func TestNoLabelForSuccessAndFaults(t *testing.T) {
	won, broken := transcript("", commit("1")), transcript("", silence)
	won.Success, broken.Status = true, rollout.ServerError
	nothing := &rollout.Record{ID: "empty", Status: rollout.TokenLimit}
	labels, err := Analyst{}.Label(context.Background(), h0(t), []*rollout.Record{won, broken, nothing})
	if err != nil || len(labels) != 0 {
		t.Errorf("labels %+v, error %v", labels, err)
	}
}

// Whatever stands in a transcript, the analyst ends and says something or nothing.
func FuzzAnalyst(f *testing.F) {
	f.Add("SELECT a FROM t WHERE b = 'x' LIMIT 3", "[('a',), ('b'", "5", `{"gold":["1"]}`)
	f.Add("'", "Error: near", "[", `{"gold":[null]}`)
	f.Add("", "3 changed", "", `[]`)
	f.Fuzz(func(t *testing.T, query, heard, answer, grader string) {
		rec := transcript("", sql(query, heard), commit(answer), sql(query, heard))
		rec.Grader = json.RawMessage(grader)
		labels, err := Analyst{}.Label(context.Background(), h0(t), []*rollout.Record{rec})
		if err != nil || len(labels) > 1 {
			t.Fatalf("%v %v", labels, err)
		}
	})
}

func TestDirections(t *testing.T) {
	label := func(rollout, task, cause string, facts map[string]string) evolve.Label {
		return evolve.Label{Rollout: rollout, Task: task, Cause: cause, Facts: facts}
	}
	cut := func(rows string) map[string]string { return map[string]string{"rows": rows, "cut_by": "environment"} }
	labels := []evolve.Label{
		label("1", "a", "wrong-quoting", nil), label("2", "a", "wrong-quoting", nil), label("3", "b", "wrong-quoting", nil),
		label("4", "a", "counts-shown-rows", cut("5")), label("5", "b", "counts-shown-rows", cut("7")), label("6", "c", "counts-shown-rows", cut("7")),
		label("7", "d", "guesses-names", nil), label("8", "e", "guesses-names", nil),
		label("9", "f", "made-up", nil),
		label("10", "g", "copies-cut-result", cut("7")), label("11", "g", "copies-cut-result", cut("5")),
	}
	got, err := Analyst{}.Directions(context.Background(), h0(t), labels, 10)
	if err != nil {
		t.Fatal(err)
	}
	want := []evolve.Direction{
		{ID: "counts-shown-rows", Evidence: []string{"4", "5", "6"}, Tasks: 3, Facts: cut("7")},
		{ID: "guesses-names", Evidence: []string{"7", "8"}, Tasks: 2}, // two tasks like the next: the list's order
		{ID: "wrong-quoting", Evidence: []string{"1", "2", "3"}, Tasks: 2},
		{ID: "copies-cut-result", Evidence: []string{"10", "11"}, Tasks: 1, Facts: cut("5")},
	}
	for i := range want {
		want[i].Description = causeNamed(t, want[i].ID).what
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if few, _ := (Analyst{}).Directions(context.Background(), h0(t), labels, 1); !reflect.DeepEqual(few, want[:1]) {
		t.Errorf("at most one: %+v", few)
	}
}
