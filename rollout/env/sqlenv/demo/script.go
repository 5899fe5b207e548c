package demo

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"harness-s/model/chat"
	"harness-s/rollout"
	"harness-s/rollout/env/sqlenv"
	"harness-s/rollout/env/sqlenv/taskgen"
)

// turn is what the script says: an optional note, then one call.
type turn struct {
	note string
	call chat.ToolCall
}

// script decides turn by turn. It knows the task, but uses of it only what an agent could know by then: the question, and
// of the columns' real names what a look-up showed.
type script struct {
	task  *taskgen.Task
	does  Behaviour
	style taskgen.Style

	next     func(last rollout.Observation) turn
	note     string   // to be written before the next statement
	found    []string // names read page by page
	answer   []string // what will be committed
	repaired bool     // one repair is tried, no more
}

func newScript(t *taskgen.Task, does Behaviour) *script {
	s := &script{task: t, does: does}
	s.style = taskgen.Style{Count: does&Count != 0, Clean: does&Clean != 0, Quote: does&Quote != 0}
	s.next = s.begin
	return s
}

func (s *script) begin(rollout.Observation) turn {
	if s.does&Look != 0 {
		s.next = s.afterLook
		return s.look()
	}
	return s.first()
}

func (s *script) look() turn { return turn{call: execute(s.task.Look())} }

// afterLook writes down what the look-up said of the columns asked for; the real names serve from here on. Whoever has
// seen that a name needs quoting quotes it.
func (s *script) afterLook(rollout.Observation) turn {
	s.learn()
	return s.first()
}

func (s *script) learn() {
	s.style.Codes = true
	if s.task.Traps.Quote && s.repaired {
		s.style.Quote = true
	}
	cells := s.task.Cells
	if len(cells) == 0 {
		cells = []taskgen.Cell{{Concept: s.task.Concept, Column: s.task.Column}}
	}
	notes := make([]string, len(cells))
	for i, c := range cells {
		notes[i] = c.Concept + " is " + c.Column + "."
	}
	s.note = strings.Join(notes, " ")
}

// first is the task's statement, or for a change the count before it.
func (s *script) first() turn {
	if s.does&Recount != 0 && s.task.Form == taskgen.Update {
		s.next = s.afterCount
		return s.say(execute(s.counting()))
	}
	return s.query()
}

// counting asks how many rows a change touches.
func (s *script) counting() string {
	if s.task.Form == taskgen.Insert {
		look := *s.task
		look.Form = taskgen.Lookup
		_, rows, _ := strings.Cut(look.SQL(s.style), " FROM ")
		return "SELECT count(*) FROM " + rows
	}
	table, rest, _ := strings.Cut(strings.TrimPrefix(s.task.SQL(s.style), "UPDATE "), " SET ")
	_, where, _ := strings.Cut(rest, " WHERE ")
	return "SELECT count(*) FROM " + table + " WHERE " + where
}

// afterCount reads the count: where nothing matches as written, text is compared cleanly.
func (s *script) afterCount(last rollout.Observation) turn {
	if !last.Error && strings.HasPrefix(last.Text, "[(0,)") {
		s.style.Clean = true
	}
	return s.query()
}

// say puts the pending note before a call.
func (s *script) say(c chat.ToolCall) turn {
	t := turn{note: s.note, call: c}
	s.note = ""
	return t
}

func (s *script) query() turn {
	s.next = s.afterQuery
	if s.pages() {
		s.style.Limit = s.task.View().MaxRows
	}
	return s.say(execute(s.task.SQL(s.style)))
}

// pages says that the result is read page by page.
func (s *script) pages() bool {
	return s.does&Page != 0 && (s.task.Form == taskgen.List || s.task.Form == taskgen.Count && !s.style.Count)
}

func (s *script) afterQuery(last rollout.Observation) turn {
	switch {
	case last.Error:
		return s.afterError()
	case s.nothing(last) && s.does&(Repair|Values) != 0 && s.task.Form != taskgen.Count && s.task.Form != taskgen.List && !s.repaired && !s.style.Clean:
		return s.afterNothing()
	case s.pages() && last.Rows >= s.style.Limit && len(s.found) < 40:
		s.found = append(s.found, names(last.Text)...)
		s.style.Offset += s.style.Limit
		return s.say(execute(s.task.SQL(s.style)))
	}
	s.answer = s.read(last)
	if s.does&Recount != 0 && s.task.Form == taskgen.Update && !last.Error {
		s.next = func(rollout.Observation) turn { return s.commit() }
		return s.say(execute(s.counting()))
	}
	return s.commit()
}

// nothing is an empty result or a change of no row.
func (s *script) nothing(o rollout.Observation) bool { return !o.Error && o.Rows == 0 }

// afterError repairs once, if that is done here, and else gives up.
func (s *script) afterError() turn {
	if s.repaired || s.does&(Repair|Retry) == 0 {
		s.answer = []string{"none"}
		return s.commit()
	}
	s.repaired = true
	if s.does&Retry != 0 { // the harness has shown the schema
		s.learn()
		return s.query()
	}
	s.next = func(rollout.Observation) turn { s.learn(); return s.query() }
	return s.look()
}

// afterNothing looks at what is stored (values) and asks again, comparing cleanly.
func (s *script) afterNothing() turn {
	s.repaired = true
	s.style.Clean = true
	if s.does&Values == 0 {
		return s.query()
	}
	s.next = func(rollout.Observation) turn { return s.query() }
	table := s.task.Table
	if s.style.Quote {
		table = sqlenv.QuoteName(table)
	}
	return s.say(execute("SELECT name FROM " + table))
}

// read forms the answer from the last result as a naive reader does: what is shown is all there is.
func (s *script) read(o rollout.Observation) []string {
	got := append(s.found, names(o.Text)...)
	switch {
	case s.task.Changes():
		return []string{"done"}
	case s.task.Form == taskgen.Count && s.style.Count:
		return first(got)
	case s.task.Form == taskgen.Count:
		return []string{strconv.Itoa(len(got))}
	case len(got) == 0:
		return []string{"none"}
	case s.task.Form == taskgen.List:
		return got
	}
	return first(got)
}

func first(got []string) []string {
	if len(got) == 0 {
		return []string{"none"}
	}
	return got[:1]
}

// commit answers. A harness that refuses the first answer and asks for a check gets one, if that is done here.
func (s *script) commit() turn {
	s.next = s.afterRefusal
	return turn{call: commitCall(s.answer)}
}

func (s *script) afterRefusal(rollout.Observation) turn {
	if s.does&Verify == 0 {
		return s.commit()
	}
	s.does &^= Verify
	if s.task.Form == taskgen.Insert { // adding the row once more would spoil it
		s.next = func(rollout.Observation) turn { return s.commit() }
		return s.say(execute(s.counting()))
	}
	switch s.task.Form {
	case taskgen.Count:
		s.style.Count = true
	case taskgen.Lookup, taskgen.Join, taskgen.Update:
		s.style.Clean = true
	}
	s.found = nil
	s.next = func(last rollout.Observation) turn {
		if !last.Error {
			s.answer = s.read(last)
		}
		return s.commit()
	}
	return s.say(execute(s.task.SQL(s.style)))
}

// names reads the first value of each tuple shown.
func names(text string) []string {
	var out []string
	for _, row := range strings.Split(text, "(")[1:] {
		v, _, ok := strings.Cut(row, ",)")
		if !ok {
			v, _, ok = strings.Cut(row, ")")
		}
		if !ok {
			break
		}
		out = append(out, strings.TrimSpace(strings.Trim(strings.TrimSpace(v), `'"`)))
	}
	return out
}

func execute(sql string) chat.ToolCall { return call("execute_sql", "query", sql) }

func commitCall(answers []string) chat.ToolCall {
	return call("commit_final_answer", "answers", answers)
}

func call(name, key string, v any) chat.ToolCall {
	value, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("demo: argument %v: %v", v, err))
	}
	return chat.ToolCall{Name: name, Args: []chat.Arg{{Key: key, Value: value}}}
}
