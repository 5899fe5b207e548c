package sqlenv

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"harness-s/rollout"
)

type fixed struct {
	tables []Table
	view   View
}

func (f fixed) Tables() []Table { return f.tables }
func (f fixed) View() View      { return f.view }
func (f fixed) Grade(context.Context, Final) (rollout.Grade, error) {
	return rollout.Grade{Success: true}, nil
}

func people() Table {
	t := Table{Name: "t", Columns: []Column{{Name: "a", Type: "TEXT"}, {Name: "b", Type: "TEXT"}}}
	for i := range 40 {
		t.Rows = append(t.Rows, []any{strconv.Itoa(i), "x"})
	}
	return t
}

func open(t testing.TB, p Problem, timeout time.Duration) *Session {
	t.Helper()
	s, err := New(Options{Timeout: timeout}).OpenProblem(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func exec(t testing.TB, s *Session, sql string) rollout.Observation {
	t.Helper()
	o, err := s.Execute(t.Context(), sql)
	if err != nil {
		t.Fatalf("%.80s: %v", sql, err)
	}
	return o
}

const forever = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c) "

// expand doubles a subquery n times: small text, exponential work for the compiler.
func expand(n int) string {
	s := "WITH c0(x) AS (SELECT 1)"
	for i := range n {
		k, j := strconv.Itoa(i+1), strconv.Itoa(i)
		s += ", c" + k + "(x) AS (SELECT p.x FROM c" + j + " p, c" + j + " q)"
	}
	return s + " SELECT count(*) FROM c" + strconv.Itoa(n)
}

// hostile statements must come back as an error (or, where want is set, with harmless text) within the time bound.
var hostile = []struct{ name, sql, want string }{
	{"second statement", "SELECT 1; DROP TABLE t", ""},
	{"second behind a comment", "SELECT 1 /* ; */ ; -- x\n DELETE FROM t", ""},
	{"attach", "ATTACH DATABASE '/etc/passwd' AS p", ""},
	{"attach memory", "ATTACH ':memory:' AS p", ""},
	{"detach", "DETACH DATABASE main", ""},
	{"vacuum into", "VACUUM INTO '/tmp/sqlenv-stolen.db'", ""},
	{"vacuum", "VACUUM", ""},
	{"load extension", "SELECT load_extension('libc.so.6')", ""},
	{"readfile", "SELECT readfile('/etc/passwd')", ""},
	{"writefile", "SELECT writefile('/tmp/sqlenv-stolen.db', 'x')", ""},
	{"pragma heap", "PRAGMA hard_heap_limit=0", ""},
	{"pragma pages", "PRAGMA max_page_count=1000000000", ""},
	{"pragma writable schema", "PRAGMA writable_schema=1", ""},
	{"pragma temp store", "PRAGMA temp_store_directory='/tmp'", ""},
	{"pragma function", "SELECT * FROM pragma_database_list", ""},
	{"schema write", "UPDATE sqlite_schema SET sql='x'", ""},
	{"schema insert", "INSERT INTO sqlite_master VALUES('table','z','z',0,'x')", ""},
	{"virtual table", "CREATE VIRTUAL TABLE v USING fts3(x)", ""},
	{"tokenizer", "SELECT fts3_tokenizer('simple')", ""},
	{"trigger", "CREATE TRIGGER g AFTER INSERT ON t BEGIN DELETE FROM t; END", ""},
	{"temp trigger", "CREATE TEMP TRIGGER g AFTER INSERT ON t BEGIN SELECT 1; END", ""},
	{"temp table", "CREATE TEMP TABLE z AS SELECT 1", ""},
	{"view", "CREATE VIEW v AS SELECT * FROM t", ""},
	{"begin", "BEGIN EXCLUSIVE", ""},
	{"start transaction", "START TRANSACTION", ""},
	{"savepoint", "SAVEPOINT s", ""},
	{"rollback", "ROLLBACK", ""},
	{"analyze", "ANALYZE", ""},
	{"NUL", "SELECT 'a\x00b'", ""},
	{"invalid UTF-8", "SELECT '\xff\xfe\xc3'", "\uFFFD"},
	{"unclosed quote", "SELECT 'a", ""},
	{"unclosed comment", "SELECT 1 /* ", ""},
	{"empty", " ;; -- nothing", ""},
	{"parameters", "SELECT ?1, :x, @y", ""},
	{"random", "SELECT random()", ""},
	{"now", "SELECT CURRENT_TIMESTAMP", ""},
	{"date", "SELECT datetime('now')", ""},
	{"endless count", forever + "SELECT count(*) FROM c", ""},
	{"endless rows", forever + "SELECT x FROM c", "[TRUNCATED]"},
	{"endless sort", forever + "SELECT x FROM c ORDER BY -x", ""},
	{"endless wide sort", forever + "SELECT printf('%.*c', 200000, 'x') FROM c ORDER BY 1", ""},
	{"endless distinct", forever + "SELECT DISTINCT x FROM c", "[TRUNCATED]"},
	{"endless window", forever + "SELECT sum(x) OVER (ORDER BY x) FROM c", ""},
	{"endless insert", forever + "INSERT INTO t SELECT x, printf('%.*c', 100000, 'x') FROM c", ""},
	{"endless update", "UPDATE t SET a = (" + forever + "SELECT max(x) FROM c)", ""},
	{"endless create", "CREATE TABLE z AS " + forever + "SELECT x FROM c", ""},
	{"cross join", "SELECT count(*) FROM t a, t b, t c, t d, t e, t f, t g", ""},
	{"exponential CTE", expand(40), ""},
	{"printf bomb", "SELECT printf('%.*c', 2000000000, 'x')", ""},
	{"width bomb", "SELECT printf('%2000000000d', 1)", ""},
	{"zeroblob", "SELECT hex(zeroblob(1000000000))", ""},
	{"replace bomb", "SELECT replace(printf('%.*c', 200000, 'x'), 'x', printf('%.*c', 200000, 'y'))", ""},
	{"concat bomb", "WITH RECURSIVE c(x) AS (SELECT 'x' UNION ALL SELECT x||x FROM c) SELECT length(x) FROM c ORDER BY 1 DESC", ""},
	{"group concat bomb", "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c LIMIT 100000) SELECT group_concat(printf('%.*c', 1000, 'x')) FROM c", ""},
	{"json bomb", "SELECT json_group_array(printf('%.*c', 10000, 'x')) FROM t a, t b, t c", ""},
	{"like backtracking", "SELECT printf('%.*c', 200000, 'a') LIKE '" + strings.Repeat("%a", 60) + "%b'", "[(0,)]"},
	{"glob backtracking", "SELECT printf('%.*c', 200000, 'a') GLOB '" + strings.Repeat("*a", 60) + "*b'", "[(0,)]"},
	{"glob classes", "SELECT printf('%.*c', 200000, 'a') GLOB '" + strings.Repeat("*[a-z]", 30) + "*b'", "[(0,)]"},
	{"regexp backtracking", "SELECT printf('%.*c', 200000, 'a') REGEXP '(a+)+b'", "[(0,)]"},
	{"regexp size", "SELECT 'a' REGEXP '((a{1000}){1000}){1000}'", ""},
	{"deep expression", "SELECT " + strings.Repeat("(", 5000) + "1" + strings.Repeat(")", 5000), ""},
	{"long sum", "SELECT 1" + strings.Repeat("+1", 20000), ""},
	{"long statement", "SELECT '" + strings.Repeat("x", 1<<20) + "'", ""},
	{"compound", "SELECT 1" + strings.Repeat(" UNION ALL SELECT 1", 3000), ""},
	{"wide result", "SELECT " + strings.Repeat("1,", 3000) + "1", ""},
	{"huge cell", "SELECT printf('%.*c', 250000, 'x')", "[TRUNCATED]"},
	{"explain", "EXPLAIN SELECT * FROM t", "[("},
}

func TestHostile(t *testing.T) {
	for _, mysql := range []bool{false, true} {
		s := open(t, fixed{[]Table{people()}, View{MySQL: mysql}}, 150*time.Millisecond)
		for _, h := range hostile {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // a runaway statement fails here instead of hanging
			start := time.Now()
			o, err := s.Execute(ctx, h.sql)
			cancel()
			if d := time.Since(start); d > 400*time.Millisecond {
				t.Logf("mysql=%v %s took %v", mysql, h.name, d)
			}
			switch {
			case err != nil:
				t.Errorf("mysql=%v %s: %v", mysql, h.name, err)
			case h.want == "" && !o.Error:
				t.Errorf("mysql=%v %s: not refused: %.100q", mysql, h.name, o.Text)
			case h.want != "" && !strings.Contains(o.Text, h.want) && !strings.Contains(o.Text, errTimeout.Error()): // a slow machine
				t.Errorf("mysql=%v %s: answered %.100q", mysql, h.name, o.Text)
			case len(o.Text) > 4000:
				t.Errorf("mysql=%v %s: %d bytes of text", mysql, h.name, len(o.Text))
			}
			if got := exec(t, s, "SELECT count(*), min(a) FROM t").Text; got != "[(40, '0')]" {
				t.Fatalf("mysql=%v after %s the table has %s", mysql, h.name, got)
			}
		}
		if got := exec(t, s, "SHOW TABLES").Text; got != "[('t',)]" {
			t.Errorf("tables left: %s", got)
		}
	}
	if _, err := os.Stat("/tmp/sqlenv-stolen.db"); err == nil {
		t.Error("a file was written")
	}
}
