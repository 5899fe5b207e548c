package sqlrepair

import (
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"harness-s/model/chat"
	"harness-s/rollout"
	"harness-s/rollout/env/sqlenv"
	"harness-s/rollout/env/sqlenv/pylit"
	"harness-s/rollout/harness"
)

// trace is a failed attempt as a reader of its transcript sees it: calls and what came of them, how it ended, and what the
// grader said. The task itself (its question, tables, traps) is not in it.
type trace struct {
	parent  *harness.Spec
	rec     *rollout.Record
	steps   []step
	silent  []int // assistant turns without a call that could be read
	lastOut int   // the last assistant turn, -1 when there is none
	commit  int   // the step that committed the answer, -1 when there is none
	grader  grading
}

// step is one call and its observation.
type step struct {
	turn     int // of the assistant, in Record.Turns
	key      string
	sql      statement // of execute_sql
	isSQL    bool
	answers  []string // of commit_final_answer
	refused  string   // the rule that kept it from running
	told     string   // first line of the observation: what the environment said
	problem  problem
	missing  string // the name that the environment did not find
	cut      bool
	rows     []string // first value of each row shown, nil when the observation is no list of rows
	isRows   bool
	changed  int // rows touched by a change, -1 when not told
	sawTable bool
}

// problem classifies what the environment said of a statement.
type problem int

const (
	fine        problem = iota
	unknownName         // no such column or table
	badQuoting          // a name or text that falls apart without quotes
	otherError
)

// grading is the part of the grader's detail that is used: what was committed and asked, and why a change is wrong. A detail
// that names what the task was built from is left alone.
type grading struct {
	Answers []string `json:"answers"`
	Gold    any      `json:"gold"`
	Reason  string   `json:"reason"`
}

const (
	errorMark     = "Error: "
	truncatedMark = "[TRUNCATED]"
)

func readTrace(parent *harness.Spec, rec *rollout.Record) *trace {
	t := &trace{parent: parent, rec: rec, lastOut: -1, commit: -1}
	if len(rec.Grader) > 0 {
		if err := json.Unmarshal(rec.Grader, &t.grader); err != nil {
			t.grader = grading{} // another environment's form: the trace alone speaks
		}
	}
	for i := range rec.Turns {
		if rec.Turns[i].Role == "assistant" {
			t.lastOut = i
			t.readTurn(i)
		}
	}
	return t
}

// readTurn pairs the calls of assistant turn i with the results that follow it.
func (t *trace) readTurn(i int) {
	calls := t.rec.Turns[i].Calls
	if len(calls) == 0 {
		t.silent = append(t.silent, i)
		return
	}
	results := t.rec.Turns[i+1:]
	for k, call := range calls {
		if k >= len(results) || results[k].Role != "tool" {
			return // what follows the end of the attempt was not run
		}
		s := readStep(i, call, results[k])
		s.sawTable = s.isSQL && (s.problem != fine && t.parent.Rules.SchemaOnError != nil || s.problem == fine && s.sql.catalogue())
		t.steps = append(t.steps, s)
		if call.Name == sqlenv.ToolCommit && s.refused == "" && s.problem == fine {
			t.commit = len(t.steps) - 1
		}
	}
}

func readStep(turn int, call chat.ToolCall, result rollout.Turn) step {
	s := step{turn: turn, refused: result.Refused, changed: -1, key: call.Name}
	for _, a := range call.Args {
		s.key += "\x00" + a.Key + "\x00" + string(a.Value)
	}
	s.told, _, _ = strings.Cut(result.Observation, "\n") // rules speak below; a result is one line
	if len(call.Args) > 0 {
		switch call.Name {
		case sqlenv.ToolSQL:
			var sql string
			s.isSQL = json.Unmarshal(call.Args[0].Value, &sql) == nil && s.refused == ""
			s.sql = parseStatement(sql)
		case sqlenv.ToolCommit:
			s.answers, _ = sqlenv.ParseAnswers(call.Args[0].Value) // unreadable: the environment answered with an error
		}
	}
	s.readResult()
	return s
}

var (
	missingName = regexp.MustCompile(`no such (?:column|table): "?([^\s":]+)|has no column named (\S+)`)
	nearWord    = regexp.MustCompile(`near "[\pL_]\S*": syntax error`)
	changedRows = regexp.MustCompile(`^(\d+) changed$`)
)

// readResult reads the first line of the observation.
func (s *step) readResult() {
	if text, failed := strings.CutPrefix(s.told, errorMark); failed {
		s.readError(text)
		return
	}
	if m := changedRows.FindStringSubmatch(s.told); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil {
			s.changed = n
		}
		return
	}
	text, cut := strings.CutSuffix(strings.TrimSpace(s.told), truncatedMark)
	s.cut = cut
	s.rows, s.isRows = readRows(text)
	if p := s.sql.page(); s.isRows && p > 0 && len(s.rows) == p {
		s.cut = true // a full page: more may follow
	}
}

func (s *step) readError(text string) {
	s.problem = otherError
	if m := missingName.FindStringSubmatch(text); m != nil {
		s.problem, s.missing = unknownName, m[1]+m[2]
		if s.sql.splitName(s.missing) {
			s.problem = badQuoting
		}
		return
	}
	if nearWord.MatchString(text) || strings.Contains(text, "quote or comment is not closed") || strings.Contains(text, "unrecognized token") {
		s.problem = badQuoting
	}
}

// readRows reads a list of rows as the environment writes it, perhaps cut: the first value of each whole row.
func readRows(text string) (first []string, ok bool) {
	if !strings.HasPrefix(text, "[") {
		return nil, false
	}
	for _, whole := range []string{text, text + "]", untilLastRow(text)} {
		v, err := pylit.Parse(whole)
		list, isList := v.(pylit.List)
		if err != nil || !isList {
			continue
		}
		for _, row := range list {
			if tup, isTuple := row.(pylit.Tuple); isTuple && len(tup) > 0 {
				first = append(first, pylit.Str(tup[0]))
			}
		}
		return first, true
	}
	return nil, true
}

// untilLastRow drops a row that was cut in its middle.
func untilLastRow(text string) string {
	i := strings.LastIndex(text, "), (")
	if i < 0 {
		return ""
	}
	return text[:i] + ")]"
}

// statements are the calls of execute_sql that ran and were no look-up.
func (t *trace) statements() []*step {
	var out []*step
	for i := range t.steps {
		if s := &t.steps[i]; s.isSQL && !s.sql.catalogue() {
			out = append(out, s)
		}
	}
	return out
}

// last is the last statement that ran, the one an answer rests on; nil when there is none.
func (t *trace) last() *step {
	all := t.statements()
	if len(all) == 0 {
		return nil
	}
	return all[len(all)-1]
}

// schemaBefore says whether the policy had seen the schema when it wrote the step.
func (t *trace) schemaBefore(s *step) bool {
	return slices.ContainsFunc(t.steps, func(o step) bool { return o.sawTable && o.turn < s.turn })
}

// schemaShown says whether it saw the schema at all.
func (t *trace) schemaShown() bool {
	return slices.ContainsFunc(t.steps, func(o step) bool { return o.sawTable })
}

// gold are the values the grader asked for, nil where it does not say.
func (g grading) gold() []string {
	list, ok := g.Gold.([]any)
	if !ok {
		return nil
	}
	var out []string
	for _, v := range list {
		s, ok := v.(string)
		if !ok {
			return nil
		}
		out = append(out, s)
	}
	return out
}
