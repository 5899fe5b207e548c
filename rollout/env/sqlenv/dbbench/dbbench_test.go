package dbbench

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"harness-s/internal/testutil"
)

func official(t *testing.T, name string) string {
	t.Helper()
	dir, ok := testutil.SharedDir(t)
	if !ok {
		t.Skip("no reference data beside the repository")
	}
	return filepath.Join(dir, "data", "dbbench", name)
}

func TestOfficialRows(t *testing.T) {
	for _, c := range []struct {
		file         string
		rows, failed int
	}{{"dev.jsonl", 60, 0}, {"std_even.jsonl", 150, 4}} {
		rep, err := Check(t.Context(), official(t, c.file))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %+v", c.file, rep)
		if rep.Rows != c.rows || rep.NoopPass != 0 || rep.SpoiledPass != 0 || len(rep.FailedRows) > c.failed || rep.GoldPass != c.rows-len(rep.FailedRows) {
			t.Errorf("%s: %+v", c.file, rep)
		}
	}
}

// row writes one JSONL line; extra is put before the closing brace.
func row(kind, label, rows, extra string) string {
	return `{"description":"q","type":["` + kind + `"],"label":` + label +
		`,"table":{"table_name":"my t","table_info":{"columns":[{"name":"a"},{"name":"b c"}],"rows":` + rows + `}}` + extra + `}`
}

func write(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rows.jsonl")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoadRowsErrors(t *testing.T) {
	good := row("other", `["x"]`, `[["1","2"]]`, "")
	for _, c := range []struct{ line, want string }{
		{`{`, "bad JSON"},
		{`[]`, "bad JSON"},
		{``, "empty line"},
		{`{"description":5}`, `key "description": got number, want a text`},
		{strings.Repeat("x", maxLine+1), "longer than"},
		{good + "{}", "text after"},
		{`{"type":["other"]}`, `"description" is missing`},
		{row("other", `["x"]`, `[["1"]]`, ""), "row 0): 1 cells for 2 columns"},
		{row("other", `["x"]`, `[["1",["2"]]]`, ""), "cell 1: must be a text"},
		{row("other", `["x"]`, `[["1","`+strings.Repeat("x", maxCell+1)+`"]]`, ""), "bytes, more than"},
		{row("other", `["x"]`, `[`+strings.Repeat(`["","`+strings.Repeat("x", maxCell)+`"],`, 200)+`["",""]]`, ""), "the table has more than"},
		{row("other", `[]`, `[]`, ""), `"label": is empty`},
		{row("other", `{}`, `[]`, ""), `"label"`},
		{row("other", `["x"]`, `{}`, ""), `"table"`},
		{strings.Replace(good, `"b c"`, `"A"`, 1), "there twice"},
		{strings.Replace(good, `"my t"`, `7`, 1), "table_name"},
		{strings.Replace(good, `["other"]`, `[]`, 1), `"type"`},
		{strings.Replace(good, `["other"]`, `"other"`, 1), "type"},
		{strings.Replace(good, `"table":`, `"tables":`, 1), `"table" is missing`},
	} {
		_, err := LoadRows(write(t, good, c.line, good))
		if err == nil || !strings.Contains(err.Error(), "rows.jsonl:2:") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60s: got %v, want line 2 and %q", c.line, err, c.want)
		}
	}
	if _, err := LoadRows(filepath.Join(t.TempDir(), "absent")); err == nil {
		t.Error("absent file: no error")
	}
	if _, err := LoadRows(write(t)); err == nil {
		t.Error("empty file: no error")
	}
}

func TestCellsAreStoredAsPythonTexts(t *testing.T) {
	rows, err := LoadRows(write(t, row("other", `["x"]`, `[[null,true],[1.0,-0],[1e20,12345678901234567890]]`, "")))
	if err != nil {
		t.Fatal(err)
	}
	want := [][]any{{"None", "True"}, {"1.0", "0"}, {"1e+20", "12345678901234567890"}}
	for i, r := range rows[0].Tabs[0].Rows {
		if !slices.Equal(r, want[i]) {
			t.Errorf("row %d: %q, want %q", i, r, want[i])
		}
	}
}

// grades runs Grade over one row and returns strict and compat of each answer line.
func grades(t *testing.T, data string, lines ...string) []Graded {
	t.Helper()
	var out bytes.Buffer
	if err := Grade(t.Context(), data, strings.NewReader(strings.Join(lines, "\n")), &out); err != nil {
		t.Fatal(err)
	}
	var gs []Graded
	for dec := json.NewDecoder(&out); dec.More(); {
		var g Graded
		if err := dec.Decode(&g); err != nil {
			t.Fatal(err)
		}
		gs = append(gs, g)
	}
	if len(gs) != len(lines) {
		t.Fatalf("%d grades for %d answers", len(gs), len(lines))
	}
	return gs
}

func TestStrictAndCompat(t *testing.T) {
	for _, c := range []struct {
		label, answer  string
		strict, compat bool
	}{
		{`["7"]`, `["7"]`, true, true},
		{`["7"]`, `[7]`, true, true},
		{`["7"]`, `"7"`, true, true},
		{`["7"]`, `7`, true, false}, // the official code fails on an answer it cannot slice
		{`["7"]`, `["7.005"]`, true, true},
		{`["7"]`, `["7.02"]`, false, false},
		{`["7"]`, `[]`, false, false},
		{`["7"]`, `["7","7"]`, false, false},
		{`["21000.0"]`, `["21,000"]`, true, true},
		{`["12"]`, `["12%"]`, false, true},
		{`["0"]`, `["none"]`, false, true},
		{`["0.0"]`, `[null]`, false, true},
		{`["0"]`, `[""]`, false, true},
		{`["0"]`, `["nan"]`, false, true},
		{`["none"]`, `["0"]`, false, true},
		{`["none"]`, `["None"]`, true, true},
		{`["none"]`, `[null]`, true, true},
		{`["none"]`, `[]`, false, false},
		{`["a b"]`, `[" a b "]`, true, true},
		{`["a"]`, `["'a'"]`, false, true},
		{`["a"]`, `["A"]`, false, false},
		{`["a","b"]`, `["b","a"]`, true, true},
		{`["a","b"]`, `["a","b","a"]`, false, true},
		{`["a","a"]`, `["a"]`, false, true},
		{`["1","1"]`, `["1"]`, false, false},
		{`["1","2"]`, `["2.0","1.0"]`, true, true},
		{`["a","b"]`, `"[('a',), ('b',)]"`, true, true},
		{`["a","b"]`, `"[\"a\", \"b\"]"`, true, true},
		{`["5"]`, `"[(Decimal('5'),)]"`, false, false},
		{`["2"]`, `"[1+1]"`, false, false}, // the one kind of text on which the evaluating original says yes
		{`["16"]`, `["0x10"]`, false, false},
		{`["10"]`, `["1_0"]`, false, true},
		{`["1e400"]`, `["1e401"]`, false, false},
		{`["123456789012345678901"]`, `["123456789012345678902"]`, false, true},
		{`["x"]`, `["__import__('os').system('false')"]`, false, false},
		{`["x"]`, `{"a":1}`, false, false},
		{`["['x']"]`, `[["x"]]`, false, true},
	} {
		data := write(t, row("other", c.label, `[["1","2"]]`, ""))
		g := grades(t, data, `{"index":0,"answer":`+c.answer+`}`)[0]
		if g.Success != c.strict || g.Compat != c.compat {
			t.Errorf("label %s answer %s: strict %v compat %v, want %v %v (%v)", c.label, c.answer, g.Success, g.Compat, c.strict, c.compat, g.Detail)
		}
	}
}

func TestChanges(t *testing.T) {
	label := "UPDATE `my t` SET `b c` = 'new' WHERE a = '1'"
	quoted, _ := json.Marshal([]string{label})
	data := write(t, row("UPDATE", string(quoted), `[["1","x"],["2","y"]]`, `,"answer_md5":""`))
	for _, c := range []struct {
		sql            string
		strict, compat bool
	}{
		{label, true, true},
		{label + ";", true, true},
		{"UPDATE `my t` SET \"b c\" = 'zzz'", false, false},
		{"bad sql|" + label, true, true},
		{"", false, false},
		{"DROP TABLE `my t`", false, false},
		{"DELETE FROM `my t`", false, false},
		{label + "|ALTER TABLE `my t` ADD COLUMN z", false, true},
		{label + "|ALTER TABLE `my t` DROP COLUMN a", false, false},
		{label + "|INSERT INTO `my t` VALUES ('3','w')", false, false},
		{"UPDATE `my t` SET `b c` = \"new\" WHERE a = 1", true, true},
	} {
		sql, _ := json.Marshal(strings.Split(c.sql, "|"))
		g := grades(t, data, `{"index":0,"sql":`+string(sql)+`,"answer":["x"]}`)[0]
		if g.Success != c.strict || g.Compat != c.compat {
			t.Errorf("%s: strict %v compat %v, want %v %v (%v)", c.sql, g.Success, g.Compat, c.strict, c.compat, g.Detail)
		}
	}
}

func TestTableHash(t *testing.T) {
	// The md5 of the sorted prefixes of md5("a,b") and md5("a,,b"), made with md5sum.
	const want = "d572ae42557d4b7b2dfc6e9516ae2acd"
	if got := tableHash([][]any{{"a", "", "b"}, {"a", nil, "b"}}); got != want {
		t.Errorf("hash %s, want %s", got, want)
	}
	if got := tableHash(nil); got != "None" {
		t.Errorf("empty table: %s", got)
	}
	// Of 200 rows only the first 170 hashes (and 4 characters) count: changing the row that sorts last changes nothing.
	rows := make([][]any, 200)
	for i := range rows {
		rows[i] = []any{strings.Repeat("x", i)}
	}
	full := tableHash(rows)
	slices.SortFunc(rows, func(a, b []any) int { return strings.Compare(prefix(a), prefix(b)) })
	if tableHash(rows[:199]) != full {
		t.Error("a row beyond the cut counts")
	}
	if tableHash(rows[1:]) == full {
		t.Error("a row before the cut does not count")
	}
}

func prefix(row []any) string {
	sum := md5.Sum([]byte(concatWS(row)))
	return hex.EncodeToString(sum[:])[:5]
}

func TestGradeErrors(t *testing.T) {
	data := write(t, row("other", `["x"]`, `[["1","2"]]`, ""))
	for _, line := range []string{`{"index":1}`, `{"index":-1}`, `{}`, `{"index":0,"sql":"x"}`, `nope`} {
		err := Grade(t.Context(), data, strings.NewReader(line), &bytes.Buffer{})
		if err == nil || !strings.Contains(err.Error(), ":1: ") {
			t.Errorf("%s: %v", line, err)
		}
	}
}

func TestSplitsAreDisjointByTable(t *testing.T) {
	s, err := NewSource(official(t, "std_even.jsonl"), "", DefaultSplits)
	if err != nil {
		t.Fatal(err)
	}
	where := map[string]string{}
	total := 0
	for _, split := range []string{"train", "val", "test"} {
		total += s.Len(split)
		for i := range s.Len(split) {
			task := s.Task(split, i)
			for _, tab := range task.Data.(*Problem).Tabs {
				if w, ok := where[tab.Name]; ok && w != split {
					t.Errorf("table %s is in %s and %s", tab.Name, w, split)
				}
				where[tab.Name] = split
			}
		}
		if len(s.IDs(split)) != s.Len(split) || s.Len(split) == 0 {
			t.Errorf("%s: %d ids, %d tasks", split, len(s.IDs(split)), s.Len(split))
		}
	}
	if total != 150 {
		t.Errorf("%d tasks of 150", total)
	}
}
