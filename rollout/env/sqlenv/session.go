package sqlenv

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"harness-s/model/chat"
	"harness-s/rollout"
	"harness-s/rollout/env/sqlenv/pylit"
)

// Session is one attempt at one problem.
type Session struct {
	problem Problem
	view    View
	conn    *conn
	final   *Final
}

var _ rollout.Session = (*Session)(nil)

// Act runs one call. As in DBBench the first argument counts, whatever its name.
func (s *Session) Act(ctx context.Context, call chat.ToolCall) (rollout.Observation, error) {
	if s.final != nil {
		return rollout.Observation{Text: "Error: the answer was committed, the task is over", Done: true, Error: true, Rows: -1}, nil
	}
	switch call.Name {
	case ToolSQL:
		if len(call.Args) == 0 {
			return failed("execute_sql needs a query"), nil
		}
		var sql string
		if err := json.Unmarshal(call.Args[0].Value, &sql); err != nil || bytes.Equal(bytes.TrimSpace(call.Args[0].Value), []byte("null")) {
			return failed("the query must be text"), nil
		}
		return s.Execute(ctx, sql)
	case ToolCommit:
		if len(call.Args) == 0 {
			return failed("commit_final_answer needs answers"), nil
		}
		return s.Commit(call.Args[0].Value), nil
	}
	return rollout.Observation{Text: "Invalid function call. Please call a tool instead.", Error: true, Rows: -1}, nil
}

func failed(what string) rollout.Observation {
	return rollout.Observation{Text: "Error: " + what, Error: true, Rows: -1}
}

// Commit ends the attempt as commit_final_answer would.
func (s *Session) Commit(raw json.RawMessage) rollout.Observation {
	if len(raw) > maxAnswerBytes {
		return failed(fmt.Sprintf("the answer is longer than %d bytes", maxAnswerBytes))
	}
	answers, err := ParseAnswers(raw)
	if err != nil {
		return failed(err.Error())
	}
	s.final = &Final{Raw: raw, Answers: answers, read: s.conn.table}
	return rollout.Observation{Text: "The answer is committed.", Done: true, Kind: "answer", Rows: -1}
}

// Execute runs one statement as execute_sql would. An error is a fault of the environment or the context's.
func (s *Session) Execute(ctx context.Context, sql string) (rollout.Observation, error) {
	if len(sql) > maxSQL {
		return failed(fmt.Sprintf("the statement is longer than %d bytes", maxSQL)), nil
	}
	stmt, toks, err := prepare(sql, s.view.MySQL)
	if err != nil {
		return failed(err.Error()), nil
	}
	if q, ok := asRequest(toks); ok {
		text, rows, found, err := s.answer(ctx, q)
		switch {
		case err != nil:
			return s.fault(ctx, err)
		case !found:
			o := failed("no such table: " + clip(q.table, 100))
			o.Kind = "catalogue"
			return o, nil
		}
		return rollout.Observation{Text: s.cut(text), Kind: "catalogue", Rows: rows}, nil
	}
	res, err := s.conn.run(ctx, stmt, s.keep())
	if err != nil {
		return s.fault(ctx, err)
	}
	return s.observe(ctx, toks, res)
}

// keep bounds the rows held: more than are ever shown is waste (each takes at least 4 characters).
func (s *Session) keep() int {
	if s.view.MaxRows > 0 {
		return s.view.MaxRows
	}
	return s.view.MaxChars/4 + 1
}

// fault tells the caller's end of patience from an error of the statement.
func (s *Session) fault(ctx context.Context, err error) (rollout.Observation, error) {
	if ctx.Err() != nil {
		return rollout.Observation{}, ctx.Err()
	}
	return failed(s.conn.explain(err)), nil
}

func (s *Session) observe(ctx context.Context, toks []token, res result) (rollout.Observation, error) {
	if res.columns == 0 {
		o := rollout.Observation{Text: "[]", Kind: "change", Rows: -1}
		if isDML(toks) {
			n, err := s.conn.changes(ctx)
			if err != nil {
				return s.fault(ctx, err)
			}
			o.Rows = n
			if s.view.ShowCount {
				o.Text = strconv.Itoa(n) + " changed"
			}
		}
		return o, nil
	}
	o := rollout.Observation{Kind: "select", Rows: res.total}
	switch {
	case asksCatalogue(toks):
		o.Kind = "catalogue"
	case words(toks)[0].is("INSERT"), words(toks)[0].is("UPDATE"), words(toks)[0].is("DELETE"), words(toks)[0].is("REPLACE"):
		o.Kind = "change" // with RETURNING
	}
	text := renderRows(res.rows)
	if res.cut {
		text = strings.TrimSuffix(text, "]")
		o.Text = clip(text, s.view.MaxChars) + truncated
	} else {
		o.Text = s.cut(text)
	}
	return o, nil
}

func isDML(toks []token) bool {
	first := words(toks)[0]
	for _, k := range []string{"INSERT", "UPDATE", "DELETE", "REPLACE", "WITH"} {
		if first.is(k) {
			return true
		}
	}
	return false
}

const truncated = "[TRUNCATED]"

// cut is DBBench's: the first MaxChars characters and a mark.
func (s *Session) cut(text string) string {
	if utf8.RuneCountInString(text) <= s.view.MaxChars {
		return text
	}
	return clip(text, s.view.MaxChars) + truncated
}

// renderRows is Python's str of a list of tuples.
func renderRows(rows [][]any) string {
	list := make(pylit.List, len(rows))
	for i, r := range rows {
		t := make(pylit.Tuple, len(r))
		for j, v := range r {
			if b, ok := v.([]byte); ok {
				v = pylit.Bytes(b)
			}
			t[j] = v
		}
		list[i] = t
	}
	return pylit.Repr(list)
}

// Grade judges the attempt. Without a committed answer it failed, as in DBBench.
func (s *Session) Grade(ctx context.Context) (rollout.Grade, error) {
	if s.final == nil {
		return rollout.Grade{Detail: map[string]any{"compat": false, "reason": "no answer committed"}}, nil
	}
	return s.problem.Grade(ctx, *s.final)
}

// Close frees the database.
func (s *Session) Close() error { return s.conn.Close() }
