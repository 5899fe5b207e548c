// Package sqlenv is the SQL environment: an in-memory SQLite database for each attempt, DBBench's two tools, and a
// sandbox that treats every statement as hostile.
//
// Start at New and Env.Open. Tasks come from the sub-packages: dbbench reads the benchmark's rows and grades them,
// taskgen makes the quickstart's task families. Both hand over a Problem, which is all this package knows of a task.
package sqlenv

import (
	"context"
	"encoding/json"
	"fmt"
	"sort"
	"strings"

	"harness-s/rollout"
)

// Source is a set of tasks by split.
type Source interface {
	// Task is the i-th task of the split, the same on every call. It panics for an unknown split or an i outside Len.
	Task(split string, i int) rollout.Task
	// Len counts the split's tasks; 0 means that there is no end.
	Len(split string) int
}

// Problem is what rollout.Task.Data holds for this environment. It is immutable and shared by attempts.
type Problem interface {
	Tables() []Table
	View() View
	// Grade judges an attempt that committed an answer. An error is a fault of the environment.
	Grade(ctx context.Context, f Final) (rollout.Grade, error)
}

// View says how a problem's database talks to the policy.
type View struct {
	MySQL     bool // read statements as MySQL writes them: "text", # comments, \' escapes, 1st as a name
	MaxChars  int  // longest result text, in characters, before "[TRUNCATED]"; 0 = 800, DBBench's
	MaxRows   int  // rows shown before "[TRUNCATED]"; 0 = as many as fit
	ShowCount bool // answer a change with the number of rows it touched instead of DBBench's "[]"
}

// Column is one column. Comment, if any, is what DESCRIBE answers for it.
type Column struct {
	Name    string
	Type    string // TEXT | INTEGER | REAL
	Comment string
}

// Table is a table with its first contents. Cells are string, int64, float64 or nil.
type Table struct {
	Name       string
	Columns    []Column
	Rows       [][]any
	IgnoreCase bool // compare text as MySQL's default collation does (ASCII letters only)
}

// QuoteName writes an identifier so that SQLite and MySQL take it as it is.
func QuoteName(s string) string { return "`" + strings.ReplaceAll(s, "`", "``") + "`" }

// QuoteText writes a text literal.
func QuoteText(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// createSQL keeps the comments, so that sqlite_schema shows them too.
func (t Table) createSQL() string {
	var b strings.Builder
	fmt.Fprintf(&b, "CREATE TABLE %s (", QuoteName(t.Name))
	for i, c := range t.Columns {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s %s", QuoteName(c.Name), c.Type)
		if t.IgnoreCase && c.Type == "TEXT" {
			b.WriteString(" COLLATE NOCASE")
		}
		if c.Comment != "" {
			fmt.Fprintf(&b, " /* %s */", strings.ReplaceAll(c.Comment, "*/", "* /"))
		}
	}
	b.WriteString(")")
	return b.String()
}

func (t Table) commented() bool {
	for _, c := range t.Columns {
		if c.Comment != "" {
			return true
		}
	}
	return false
}

// describe is the short form of a commented table: "meaning column" pairs, the meaning first because that is what
// a question names. A column without a comment means its own name.
func (t Table) describe() string {
	var b strings.Builder
	for i, c := range t.Columns {
		if i > 0 {
			b.WriteString(", ")
		}
		meaning := c.Comment
		if meaning == "" {
			meaning = c.Name
		}
		b.WriteString(meaning + " " + c.Name)
	}
	return b.String()
}

// Final is the end of an attempt, as a grader sees it.
type Final struct {
	Raw     json.RawMessage // the committed argument as written
	Answers []string        // the same as texts (see ParseAnswers)
	read    func(ctx context.Context, table string) (columns []string, rows [][]any, err error)
}

// Table reads a table as it is now: column names and all rows in storage order, cells as in Table.Rows (or []byte).
// ErrGone says that the policy dropped it, ErrTooBig that it grew beyond what a grader reads.
func (f Final) Table(ctx context.Context, name string) (columns []string, rows [][]any, err error) {
	return f.read(ctx, name)
}

// Errors of Final.Table: both are the policy's doing and mean a failed attempt.
var (
	ErrGone   = fmt.Errorf("the table is gone")
	ErrTooBig = fmt.Errorf("the table is too big to grade")
)

// Canonical is a text that two tables share only with the same columns and the same rows in any order.
func Canonical(columns []string, rows [][]any) string {
	lines := make([]string, len(rows))
	for i, r := range rows {
		lines[i] = renderRows([][]any{r})
	}
	sort.Strings(lines)
	return strings.Join(columns, "\x00") + "\n" + strings.Join(lines, "\n")
}
