package taskgen

import (
	"fmt"
	"strings"

	"harness-s/rollout/env/sqlenv"
)

// Style is how an agent writes a task's statement. The zero Style is the naive one: the question's words as column
// names, rows instead of a count, names as they stand.
type Style struct {
	Codes  bool // use the columns' real names, as the catalogue tells them
	Count  bool // count(*) instead of the names (count only)
	Clean  bool // compare lower(trim(name))
	Quote  bool // backticks around tables and columns, apostrophes doubled
	Limit  int  // list, count: at most so many rows, 0 = all
	Offset int  // with Limit: skip so many
}

// Look is the catalogue look-up that explains the column asked for.
func (t *Task) Look() string {
	if t.Form == Join {
		return "DESCRIBE " + sqlenv.QuoteName(t.Other)
	}
	return "DESCRIBE " + sqlenv.QuoteName(t.Table)
}

// SQL is the task's statement in a style.
func (t *Task) SQL(s Style) string {
	id := func(name string) string { return name }
	text := func(v string) string { return "'" + v + "'" }
	if s.Quote {
		id, text = sqlenv.QuoteName, sqlenv.QuoteText
	}
	concept := func(word, column string) string {
		if s.Codes {
			return id(column)
		}
		return id(word)
	}
	col, table := concept(t.Concept, t.Column), id(t.Table)
	key := "name"
	if s.Clean {
		key = "lower(trim(name))"
	}
	where := key + " = " + text(t.Entity)
	switch t.Form {
	case Count, List:
		what := "name"
		if s.Count && t.Form == Count {
			what = "count(*)"
		}
		q := fmt.Sprintf("SELECT %s FROM %s WHERE %s %s %d", what, table, col, t.Op, t.Threshold)
		if s.Limit > 0 {
			q += fmt.Sprintf(" LIMIT %d", s.Limit)
		}
		if s.Limit > 0 && s.Offset > 0 {
			q += fmt.Sprintf(" OFFSET %d", s.Offset)
		}
		return q
	case Largest:
		dir := "DESC"
		if t.Smallest {
			dir = "ASC"
		}
		return fmt.Sprintf("SELECT name FROM %s ORDER BY %s %s LIMIT 1", table, col, dir)
	case Lookup:
		return fmt.Sprintf("SELECT %s FROM %s WHERE %s", col, table, where)
	case Join:
		return fmt.Sprintf("SELECT %s FROM %s WHERE name = (SELECT %s FROM %s WHERE %s)", col, id(t.Other), t.Link, table, where)
	case Update:
		return fmt.Sprintf("UPDATE %s SET %s = %d WHERE %s", table, col, t.Value, where)
	}
	names, vals := []string{"name"}, []string{text(t.Entity)}
	for _, c := range t.Cells {
		names = append(names, concept(c.Concept, c.Column))
		vals = append(vals, fmt.Sprint(c.Value))
	}
	return fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s)", table, strings.Join(names, ", "), strings.Join(vals, ", "))
}

// gold are the statements that solve the task with shown rows a result; an agent that sees their results can answer.
func (t *Task) gold(shown int) []string {
	s := Style{Codes: true, Count: true, Clean: t.Traps.Dirty, Quote: true}
	out := []string{t.SQL(s)} // of a long list it shows the first page
	for s.Limit, s.Offset = shown, shown; t.Form == List && s.Offset < len(t.Answers); s.Offset += shown {
		out = append(out, t.SQL(s))
	}
	return out
}
