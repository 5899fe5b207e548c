package sqlenv

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"

	"harness-s/rollout/env/sqlenv/pylit"
)

// A request about the catalogue that MySQL answers and SQLite does not.
type request struct {
	what  string // tables | describe | create
	table string
}

// asRequest reads SHOW TABLES, SHOW [FULL] COLUMNS|FIELDS FROM t, SHOW CREATE TABLE t, DESCRIBE|DESC|EXPLAIN t.
func asRequest(toks []token) (request, bool) {
	w := words(toks)
	at := func(i int, keywords ...string) bool {
		for _, k := range keywords {
			if i < len(w) && w[i].is(k) {
				return true
			}
		}
		return false
	}
	switch {
	case at(0, "DESCRIBE", "DESC", "EXPLAIN") && len(w) == 2 && w[1].name() != "":
		return request{what: "describe", table: w[1].name()}, true
	case at(0, "SHOW") && at(1, "TABLES"):
		return request{what: "tables"}, true
	case at(0, "SHOW") && at(1, "CREATE") && at(2, "TABLE") && len(w) == 4:
		return request{what: "create", table: w[3].name()}, true
	}
	if at(0, "SHOW") && at(1, "FULL") {
		w = append(w[:1:1], w[2:]...)
	}
	if at(0, "SHOW") && at(1, "COLUMNS", "FIELDS") && at(2, "FROM", "IN") && len(w) >= 4 {
		return request{what: "describe", table: w[3].name()}, true
	}
	return request{}, false
}

// asksCatalogue says that a statement reads SQLite's own catalogue.
func asksCatalogue(toks []token) bool {
	for _, t := range toks {
		n := strings.ToLower(t.name())
		if t.kind != tokText && (n == "sqlite_schema" || n == "sqlite_master" || n == "pragma" || strings.HasPrefix(n, "pragma_table_")) {
			return true
		}
	}
	return false
}

type columnInfo struct {
	Name, Type string
	NotNull    bool
	Default    any
	Key        bool
}

// columns lists a table's columns as they are now; none when there is no such table.
func (k *conn) columns(ctx context.Context, table string) ([]columnInfo, error) {
	res, err := k.run(ctx, `SELECT name, type, "notnull", dflt_value, pk FROM pragma_table_info(?)`, maxScanRows,
		driver.NamedValue{Ordinal: 1, Value: table})
	if err != nil {
		return nil, err
	}
	var out []columnInfo
	for _, r := range res.rows {
		name, _ := r[0].(string)
		typ, _ := r[1].(string)
		out = append(out, columnInfo{Name: name, Type: typ, NotNull: r[2] == int64(1), Default: r[3], Key: r[4] != int64(0)})
	}
	return out, nil
}

func (k *conn) tableNames(ctx context.Context) ([]string, error) {
	res, err := k.run(ctx, "SELECT name FROM sqlite_schema WHERE type='table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY rowid", maxScanRows)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, r := range res.rows {
		out = append(out, r[0].(string))
	}
	return out, nil
}

// answer replies to a catalogue request. found is false when the table does not exist.
func (s *Session) answer(ctx context.Context, q request) (text string, rows int, found bool, err error) {
	switch q.what {
	case "tables":
		names, err := s.conn.tableNames(ctx)
		list := pylit.List{}
		for _, n := range names {
			list = append(list, pylit.Tuple{n})
		}
		return pylit.Repr(list), len(names), true, err
	case "create":
		res, err := s.conn.run(ctx, "SELECT name, sql FROM sqlite_schema WHERE type='table' AND name=? COLLATE NOCASE", 1,
			driver.NamedValue{Ordinal: 1, Value: q.table})
		if err != nil || len(res.rows) == 0 {
			return "", 0, false, err
		}
		return renderRows(res.rows), 1, true, nil
	}
	cols, err := s.conn.columns(ctx, q.table)
	if err != nil || len(cols) == 0 {
		return "", 0, false, err
	}
	return s.describe(q.table, cols), len(cols), true, nil
}

// describe writes a table's columns: with their comments when the task gave any, else as MySQL's DESCRIBE does.
func (s *Session) describe(table string, cols []columnInfo) string {
	comments, commented := s.comments(table)
	if commented {
		t := Table{}
		for _, c := range cols {
			t.Columns = append(t.Columns, Column{Name: c.Name, Comment: comments[strings.ToLower(c.Name)]})
		}
		return t.describe()
	}
	list := pylit.List{}
	for _, c := range cols {
		null, key := "YES", ""
		if c.NotNull {
			null = "NO"
		}
		if c.Key {
			key = "PRI"
		}
		def := c.Default
		if b, ok := def.([]byte); ok {
			def = pylit.Bytes(b)
		}
		list = append(list, pylit.Tuple{c.Name, strings.ToLower(c.Type), null, key, def, ""})
	}
	return pylit.Repr(list)
}

func (s *Session) comments(table string) (map[string]string, bool) {
	for _, t := range s.problem.Tables() {
		if !strings.EqualFold(t.Name, table) || !t.commented() {
			continue
		}
		m := map[string]string{}
		for _, c := range t.Columns {
			m[strings.ToLower(c.Name)] = c.Comment
		}
		return m, true
	}
	return nil, false
}

// Catalogue is one line a table as the database stands now: "items: name name, price k7", or "items: name, price" where
// columns carry no comments. After a fault of the database it falls back to the tables as they were.
func (s *Session) Catalogue() string {
	ctx, cancel := context.WithTimeout(context.Background(), s.conn.timeout)
	defer cancel()
	names, err := s.conn.tableNames(ctx)
	var b strings.Builder
	for _, n := range names {
		cols, e := s.conn.columns(ctx, n)
		err = errors.Join(err, e)
		if _, commented := s.comments(n); commented {
			fmt.Fprintf(&b, "%s: %s\n", n, s.describe(n, cols))
			continue
		}
		list := make([]string, len(cols))
		for i, c := range cols {
			list[i] = c.Name
		}
		fmt.Fprintf(&b, "%s: %s\n", n, strings.Join(list, ", "))
	}
	if err != nil {
		b.Reset()
		for _, t := range s.problem.Tables() {
			fmt.Fprintf(&b, "%s: %s\n", t.Name, t.describe())
		}
	}
	return clip(strings.TrimSuffix(b.String(), "\n"), 4000)
}
