package sqlenv

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/mattn/go-sqlite3"
)

func TestSingle(t *testing.T) {
	for _, c := range []struct {
		in    string
		mysql bool
		want  string
		err   error
	}{
		{"SELECT 1", false, "SELECT 1", nil},
		{" ; SELECT 1 ;; -- x\n /* y */ ; ", false, "SELECT 1", nil},
		{"SELECT ';' AS `a;b`, \"c;d\", [e;f] -- ;", false, "SELECT ';' AS `a;b`, \"c;d\", [e;f]", nil},
		{"SELECT 1; SELECT 2", false, "", errSecond},
		{"SELECT 1;;x", false, "", errSecond},
		{"", false, "", errEmpty},
		{"-- only", false, "", errEmpty},
		{"SELECT 'a", false, "", errUnclosed},
		{"SELECT '\\'; DROP TABLE t; --'", false, "", errSecond},
		{"SELECT '\\'; DROP TABLE t; --'", true, "SELECT '''; DROP TABLE t; --'", nil},
		{`SELECT 'it\'s', "say ""hi"" 'x'"`, true, `SELECT 'it''s', 'say "hi" ''x'''`, nil},
		{`SELECT 'a\nb\%c\\'`, true, "SELECT 'a\nb\\%c\\'", nil},
		{"SELECT 1 # c ; d\n + 1", true, "SELECT 1   + 1", nil},
		{"SELECT 1--1", true, "SELECT 1--1", nil}, // MySQL: 1 - (-1); SQLite reads a comment, and both end here
		{"SELECT 1--1; DROP TABLE t", true, "", nil},
		{"SELECT 1st, 2e5, 0x1F, 1.5e3 FROM 2009_10", true, "SELECT `1st`, 2e5, 0x1F, 1.5e3 FROM `2009_10`", nil},
		{"SELECT 1/*!; DROP TABLE t*/", true, "SELECT 1", nil},
	} {
		got, _, err := prepare(c.in, c.mysql)
		if c.want == "" && c.err == nil {
			if err == nil && strings.Contains(got, ";") {
				t.Errorf("%q: %q", c.in, got)
			}
			continue
		}
		if strings.TrimSpace(got) != c.want || !errors.Is(err, c.err) {
			t.Errorf("mysql=%v %q: %q %v, want %q %v", c.mysql, c.in, got, err, c.want, c.err)
		}
	}
}

// FuzzPrepare checks the reading of statements against SQLite's own: a text that prepare lets through never has a
// second statement.
func FuzzPrepare(f *testing.F) {
	for _, s := range []string{
		"SELECT 1; SELECT 2", "SELECT '\\'; SELECT 2; --'", "SELECT [a;b]", "SELECT `a``;b`", "SELECT 1--;\n;SELECT 2", "SELECT x'00;'", "SELECT \"a\\\";SELECT 2;\"", "/*/;*/ SELECT 1", "SELECT 1#;SELECT 2", "\xef\xbb\xbfSELECT 1",
	} {
		f.Add(s, true)
		f.Add(s, false)
	}
	c, err := (&sqlite3.SQLiteDriver{}).Open(":memory:")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { c.Close() })
	c.(*sqlite3.SQLiteConn).RegisterAuthorizer(func(op int, _, _, _ string) int {
		if op == sqlite3.SQLITE_SELECT || op == sqlite3.SQLITE_READ || op == actRecursive || op == sqlite3.SQLITE_FUNCTION {
			return sqlite3.SQLITE_OK
		}
		return sqlite3.SQLITE_DENY
	})
	f.Fuzz(func(t *testing.T, s string, mysql bool) {
		if strings.Contains(strings.ToUpper(s), "RECURSIVE") || len(s) > 500 {
			return // the connection has no bounds
		}
		stmt, toks, err := prepare(s, mysql)
		if err != nil {
			return
		}
		var joined strings.Builder
		for _, tok := range toks {
			joined.WriteString(tok.text)
		}
		if !mysql && joined.String() != stmt {
			t.Fatalf("tokens of %q are not the statement", s)
		}
		st, err := c.Prepare(stmt)
		if err != nil {
			return
		}
		defer st.Close()
		// What SQLite left uncompiled is in a field of the driver's statement that it does not export.
		if tail := reflect.ValueOf(st).Elem().FieldByName("t").String(); tail != "" {
			t.Fatalf("mysql=%v %q: SQLite ends %q before %q", mysql, s, stmt, tail)
		}
	})
}
