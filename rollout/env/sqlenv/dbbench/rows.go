// Package dbbench reads DBBench's rows (AgentBench) as tasks of the SQL environment and grades them, by the official
// comparator's rules (compat) and by a strict reading without its loopholes.
//
// Start at LoadRows; Check and Grade are the command line's "env check" and "env grade".
package dbbench

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"strings"

	"harness-s/internal/strictjson"
	"harness-s/rollout/env/sqlenv"
	"harness-s/rollout/env/sqlenv/pylit"
)

// Bounds of a data file. The official tables have up to 105 rows.
const (
	maxLine   = 8 << 20  // bytes
	maxRows   = 100_000  // lines
	maxCells  = 200_000  // of one table
	maxCell   = 16 << 10 // bytes
	maxRow    = 128 << 10
	maxTable  = 2 << 20 // bytes of all cells; a session's database holds twice that
	maxWidth  = 100     // columns
	maxTables = 16
	maxLabels = 2000
)

// Row is one line of a DBBench file.
type Row struct {
	Index       int // 0-based line of the file
	Kind        string
	Description string
	Addition    string // add_description
	Evidence    string
	Label       json.RawMessage // as written, for the official comparator
	Labels      []string
	AnswerMD5   string
	SQL         string // sql.query: of SELECT rows no gold program (half of them do not parse)
	Tabs        []sqlenv.Table
}

// Changes says that the row is graded by the tables' state, not by the answer.
func (r *Row) Changes() bool {
	return r.Kind == "INSERT" || r.Kind == "UPDATE" || r.Kind == "DELETE"
}

// Question is DBBench's user message.
func (r *Row) Question() string {
	var b strings.Builder
	if r.Evidence != "" {
		fmt.Fprintf(&b, "Evidence about the question: %s\n", r.Evidence)
	}
	if r.Addition != "" {
		fmt.Fprintf(&b, "Additional table information about the question: %s\n", r.Addition)
	}
	fmt.Fprintf(&b, "Question: %s\n", r.Description)
	return b.String()
}

// LoadRows reads a JSONL file of DBBench rows. Keys it does not know are allowed (the sets differ), everything it
// uses must have its type; the first fault is an error that names file, line and key.
func LoadRows(path string) ([]*Row, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("dbbench rows: %w", err)
	}
	defer f.Close()
	var out []*Row
	err = eachLine(f, path, func(line []byte, index int) error {
		if index >= maxRows {
			return fmt.Errorf("more than %d rows", maxRows)
		}
		r, err := parseRow(line)
		if err != nil {
			return err
		}
		r.Index = index
		out = append(out, r)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: no rows; give a JSONL file, one DBBench row a line", path)
	}
	return out, nil
}

// eachLine calls f for each line of r with its 0-based index and puts name:line before an error. An empty line is an error: indices are
// line numbers. A line break at the end is not a line.
func eachLine(r io.Reader, name string, f func(line []byte, index int) error) error {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 0, 64<<10), maxLine)
	i := 0
	for ; sc.Scan(); i++ {
		line := bytes.TrimSpace(sc.Bytes())
		err := errors.New("an empty line; remove it, lines are counted")
		if len(line) > 0 {
			err = f(line, i)
		}
		if err != nil {
			return fmt.Errorf("%s:%d: %w", name, i+1, err)
		}
	}
	if err := sc.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			err = fmt.Errorf("longer than %d bytes", maxLine)
		}
		return fmt.Errorf("%s:%d: %w", name, i+1, err)
	}
	return nil
}

// rawRow is a row's JSON; pointers tell absent keys.
type rawRow struct {
	Description *string         `json:"description"`
	Addition    string          `json:"add_description"`
	Evidence    string          `json:"evidence"`
	Label       json.RawMessage `json:"label"`
	AnswerMD5   *string         `json:"answer_md5"`
	Type        []string        `json:"type"`
	Table       json.RawMessage `json:"table"`
	SQL         struct {
		Query string `json:"query"`
	} `json:"sql"`
	UserSQLite bool `json:"user_sqlite"`
}

type rawTable struct {
	Name *string `json:"table_name"`
	Info *struct {
		Columns []struct {
			Name *string `json:"name"`
		} `json:"columns"`
		Rows [][]json.RawMessage `json:"rows"`
	} `json:"table_info"`
}

func parseRow(line []byte) (*Row, error) {
	var raw rawRow
	if err := decodeOne(line, &raw); err != nil {
		return nil, err
	}
	switch {
	case raw.Description == nil:
		return nil, errors.New(`key "description" is missing`)
	case len(raw.Type) != 1 || raw.Type[0] == "":
		return nil, errors.New(`key "type" must be a list of one text`)
	case raw.UserSQLite:
		return nil, errors.New(`key "user_sqlite": rows over a database file are not supported`)
	}
	r := &Row{Kind: raw.Type[0], Description: *raw.Description, Addition: raw.Addition, Evidence: raw.Evidence, Label: raw.Label, SQL: raw.SQL.Query}
	if raw.AnswerMD5 != nil {
		r.AnswerMD5 = *raw.AnswerMD5
	}
	if err := r.readLabels(); err != nil {
		return nil, fmt.Errorf(`key "label": %w`, err)
	}
	if err := r.readTables(raw.Table); err != nil {
		return nil, err
	}
	return r, nil
}

// decodeOne reads exactly one JSON value.
func decodeOne(data []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(v); err != nil {
		return fmt.Errorf("bad JSON: %w", strictjson.Explain(err))
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("text after the JSON object")
	}
	return nil
}

func (r *Row) readLabels() error {
	if len(r.Label) == 0 {
		if r.Changes() && (r.AnswerMD5 != "" || r.SQL != "") {
			return nil
		}
		return errors.New("is missing")
	}
	labels, err := sqlenv.ParseAnswers(r.Label)
	switch {
	case err != nil:
		return errors.New("must be a list of texts")
	case len(labels) == 0:
		return errors.New("is empty")
	case len(labels) > maxLabels:
		return fmt.Errorf("has %d entries, more than %d", len(labels), maxLabels)
	}
	r.Labels = labels
	return nil
}

func (r *Row) readTables(data json.RawMessage) error {
	data = bytes.TrimSpace(data)
	if len(data) == 0 || bytes.Equal(data, []byte("null")) {
		return errors.New(`key "table" is missing`)
	}
	var list []rawTable
	if data[0] != '[' {
		list = make([]rawTable, 1)
		if err := json.Unmarshal(data, &list[0]); err != nil {
			return fmt.Errorf(`key "table": %w`, strictjson.Explain(err))
		}
	} else if err := json.Unmarshal(data, &list); err != nil {
		return fmt.Errorf(`key "table": %w`, strictjson.Explain(err))
	}
	if len(list) == 0 || len(list) > maxTables {
		return fmt.Errorf(`key "table": %d tables, want 1 to %d`, len(list), maxTables)
	}
	seen := map[string]bool{}
	for i, rt := range list {
		t, err := rt.table()
		if err == nil && seen[strings.ToLower(t.Name)] {
			err = fmt.Errorf(`key "table_name": %q is there twice`, t.Name)
		}
		if err != nil {
			return fmt.Errorf(`key "table" (table %d): %w`, i, err)
		}
		seen[strings.ToLower(t.Name)] = true
		r.Tabs = append(r.Tabs, t)
	}
	return nil
}

func (rt rawTable) table() (sqlenv.Table, error) {
	t := sqlenv.Table{IgnoreCase: true}
	switch {
	case rt.Name == nil || *rt.Name == "" || strings.IndexByte(*rt.Name, 0) >= 0:
		return t, errors.New(`key "table_name" must be a text that is not empty`)
	case strings.HasPrefix(strings.ToLower(*rt.Name), "sqlite_"):
		return t, errors.New(`key "table_name": names that start with sqlite_ are SQLite's own`)
	case rt.Info == nil:
		return t, errors.New(`key "table_info" is missing`)
	}
	t.Name = *rt.Name
	width := len(rt.Info.Columns)
	if width == 0 || width > maxWidth {
		return t, fmt.Errorf(`key "columns": %d columns, want 1 to %d`, width, maxWidth)
	}
	seen := map[string]bool{}
	for i, c := range rt.Info.Columns {
		if c.Name == nil || strings.IndexByte(*c.Name, 0) >= 0 {
			return t, fmt.Errorf(`key "columns" (column %d): "name" must be a text`, i)
		}
		if seen[strings.ToLower(*c.Name)] {
			return t, fmt.Errorf(`key "columns": the name %q is there twice`, *c.Name)
		}
		seen[strings.ToLower(*c.Name)] = true
		t.Columns = append(t.Columns, sqlenv.Column{Name: *c.Name, Type: "TEXT"})
	}
	if len(rt.Info.Rows)*width > maxCells {
		return t, fmt.Errorf(`key "rows": %d cells, more than %d`, len(rt.Info.Rows)*width, maxCells)
	}
	size := 0
	for i, cells := range rt.Info.Rows {
		row, err := readCells(cells, width)
		for _, c := range row {
			size += len(c.(string))
		}
		if err == nil && size > maxTable {
			err = fmt.Errorf("the table has more than %d bytes", maxTable)
		}
		if err != nil {
			return t, fmt.Errorf(`key "rows" (row %d): %w`, i, err)
		}
		t.Rows = append(t.Rows, row)
	}
	return t, nil
}

// readCells turns cells into the text DBBench stores, Python's str of each.
func readCells(cells []json.RawMessage, width int) ([]any, error) {
	if len(cells) != width {
		return nil, fmt.Errorf("%d cells for %d columns", len(cells), width)
	}
	row := make([]any, width)
	total := 0
	for i, c := range cells {
		v, err := fromJSON(c)
		if err != nil {
			return nil, fmt.Errorf("cell %d: %w", i, err)
		}
		switch v.(type) {
		case pylit.List, pylit.Dict:
			return nil, fmt.Errorf("cell %d: must be a text or a number", i)
		}
		s := pylit.Str(v)
		if total += len(s); len(s) > maxCell || total > maxRow {
			return nil, fmt.Errorf("cell %d: %d bytes, more than %d in a cell or %d in the row", i, len(s), maxCell, maxRow)
		}
		row[i] = s
	}
	return row, nil
}

// fromJSON reads one JSON value as Python's json module does: whole numbers are ints, others floats, objects keep their order.
func fromJSON(data json.RawMessage) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	v, err := readValue(dec, 0)
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("text after the JSON value")
	}
	return v, nil
}

func readValue(dec *json.Decoder, depth int) (any, error) {
	tok, err := dec.Token()
	if err != nil {
		return nil, fmt.Errorf("bad JSON: %w", err)
	}
	switch tok := tok.(type) {
	case json.Number:
		return fromNumber(tok.String())
	case json.Delim:
		if depth > 64 {
			return nil, errors.New("JSON nested too deep")
		}
		if tok == '[' {
			return readList(dec, depth)
		}
		return readDict(dec, depth)
	}
	return tok, nil // nil, bool, string
}

func readList(dec *json.Decoder, depth int) (any, error) {
	out := pylit.List{}
	for dec.More() {
		v, err := readValue(dec, depth+1)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	_, err := dec.Token()
	return out, err
}

func readDict(dec *json.Decoder, depth int) (any, error) {
	out := pylit.Dict{}
	for dec.More() {
		k, err := readValue(dec, depth+1)
		if err != nil {
			return nil, err
		}
		v, err := readValue(dec, depth+1)
		if err != nil {
			return nil, err
		}
		out = append(out, pylit.Pair{Key: k, Value: v})
	}
	_, err := dec.Token()
	return out, err
}

func fromNumber(s string) (any, error) {
	if len(s) > 4300 {
		return nil, errors.New("a number is too long")
	}
	if !strings.ContainsAny(s, ".eE") {
		n, ok := new(big.Int).SetString(s, 10)
		if !ok {
			return nil, fmt.Errorf("bad number %q", s)
		}
		return n, nil
	}
	f, ok := pyFloat(s)
	if !ok {
		return nil, fmt.Errorf("bad number %q", s)
	}
	return f, nil
}
