package sqlenv

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/mattn/go-sqlite3"
)

// Bounds of one database. They are far above what the benchmark's rows need and low enough for hundreds of
// sessions in one process.
const (
	maxPages     = 1024      // of 4 KiB: 4 MiB of tables
	heapBytes    = 256 << 20 // SQLite's memory in the whole process, beyond which statements fail
	maxValue     = 1 << 18   // bytes of one value or row
	maxSQL       = 1 << 16   // bytes of one statement
	maxResult    = 1 << 20   // bytes read from one result
	maxScanRows  = 10_000    // rows read from one result
	maxGradeRows = 20_000    // rows of a table that a grader reads
)

// conn is one in-memory database behind the sandbox. It is used by one goroutine at a time.
type conn struct {
	c       *sqlite3.SQLiteConn
	timeout time.Duration
	denied  string // what the authorizer refused in the statement being prepared
}

// openConn makes the tables first and closes the sandbox after.
func openConn(ctx context.Context, tables []Table, timeout time.Duration) (*conn, error) {
	dc, err := (&sqlite3.SQLiteDriver{}).Open(":memory:")
	if err != nil {
		return nil, fmt.Errorf("open an in-memory database: %w", err)
	}
	k := &conn{c: dc.(*sqlite3.SQLiteConn), timeout: timeout}
	if err := k.setup(ctx, tables); err != nil {
		k.Close()
		return nil, err
	}
	return k, nil
}

func (k *conn) setup(ctx context.Context, tables []Table) error {
	pragmas := fmt.Sprintf("PRAGMA hard_heap_limit=%d; PRAGMA max_page_count=%d; PRAGMA temp_store=2; PRAGMA trusted_schema=0",
		heapBytes, maxPages)
	if _, err := k.c.Exec(pragmas, nil); err != nil {
		return fmt.Errorf("set the bounds of a database: %w", err)
	}
	if err := registerFuncs(k.c); err != nil {
		return fmt.Errorf("register SQL functions: %w", err)
	}
	for _, t := range tables {
		if err := alone(func() error { return k.fill(ctx, t) }); err != nil {
			return fmt.Errorf("make table %q: %w", t.Name, err)
		}
	}
	for id, v := range map[int]int{
		sqlite3.SQLITE_LIMIT_LENGTH: maxValue, sqlite3.SQLITE_LIMIT_SQL_LENGTH: maxSQL, sqlite3.SQLITE_LIMIT_COLUMN: 256,
		sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100, sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50, sqlite3.SQLITE_LIMIT_VDBE_OP: 50_000,
		sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 64, sqlite3.SQLITE_LIMIT_ATTACHED: 0, sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 200,
		sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 4, sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1, sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
	} {
		k.c.SetLimit(id, v)
	}
	k.c.RegisterAuthorizer(k.authorize)
	return nil
}

// fill creates a table and its rows in one transaction.
func (k *conn) fill(ctx context.Context, t Table) (err error) {
	if _, err := k.c.Exec("BEGIN", nil); err != nil {
		return err
	}
	defer func() {
		if err != nil && !k.c.AutoCommit() {
			k.c.Exec("ROLLBACK", nil)
		}
	}()
	if _, err := k.c.Exec(t.createSQL(), nil); err != nil {
		return err
	}
	if len(t.Rows) > 0 {
		marks := strings.TrimSuffix(strings.Repeat("?,", len(t.Columns)), ",")
		st, err := k.c.Prepare("INSERT INTO " + QuoteName(t.Name) + " VALUES (" + marks + ")")
		if err != nil {
			return err
		}
		defer st.Close()
		for i, row := range t.Rows {
			if err := insert(ctx, st, row); err != nil {
				return fmt.Errorf("row %d: %w", i, err)
			}
		}
	}
	_, err = k.c.Exec("COMMIT", nil)
	return err
}

func insert(ctx context.Context, st driver.Stmt, row []any) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	args := make([]driver.Value, len(row))
	for i, v := range row {
		args[i] = v
	}
	//lint:ignore SA1019 the driver is used without database/sql, and nothing here is to be cancelled
	_, err := st.Exec(args)
	return err
}

func (k *conn) Close() error { return k.c.Close() }

// heapGate keeps one session's greed from failing another's statement. The heap bound is the process's, so a
// statement that runs out of memory is run once more with no other beside it: what still fails is its own doing.
var heapGate sync.RWMutex

func alone(f func() error) error {
	heapGate.RLock()
	err := f()
	heapGate.RUnlock()
	if !outOfMemory(err) {
		return err
	}
	heapGate.Lock()
	defer heapGate.Unlock()
	return f()
}

func outOfMemory(err error) bool {
	var e sqlite3.Error
	return errors.As(err, &e) && e.Code == sqlite3.ErrNomem
}

// result is what one statement gave. rows are at most the caller's bound.
type result struct {
	columns int // 0: the statement returns no rows
	rows    [][]any
	total   int  // rows returned; -1 when reading stopped at a bound
	changed int  // rows changed by an INSERT, UPDATE or DELETE, else -1
	cut     bool // rows were left out
}

var errTimeout = errors.New("SQL execution timed out")

// run executes one statement and keeps at most keep rows (and maxResult bytes), counting on to maxScanRows.
func (k *conn) run(ctx context.Context, stmt string, keep int, args ...driver.NamedValue) (res result, err error) {
	err = alone(func() error {
		var e error
		res, e = k.runOnce(ctx, stmt, keep, args)
		if !k.c.AutoCommit() { // nothing the policy may run leaves one open, an error inside one might
			k.c.Exec("ROLLBACK", nil)
		}
		return e
	})
	return res, err
}

func (k *conn) runOnce(ctx context.Context, stmt string, keep int, args []driver.NamedValue) (result, error) {
	limited, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	res, err := k.read(limited, stmt, keep, args)
	switch {
	case err == nil:
		return res, nil
	case ctx.Err() != nil:
		return res, ctx.Err()
	case limited.Err() != nil:
		return res, errTimeout
	}
	return res, err
}

func (k *conn) read(ctx context.Context, stmt string, keep int, args []driver.NamedValue) (res result, err error) {
	k.denied = ""
	rows, err := k.c.QueryContext(ctx, stmt, args)
	if err != nil {
		return res, err
	}
	defer func() {
		if e := rows.Close(); err == nil {
			err = e
		}
	}()
	res.changed = -1
	res.columns = len(rows.Columns())
	if res.columns == 0 {
		return res, nil
	}
	dest := make([]driver.Value, res.columns)
	for bytes := 0; ; {
		if err := rows.Next(dest); err == io.EOF {
			return res, nil
		} else if err != nil {
			return res, err
		}
		res.total++
		if len(res.rows) < keep && bytes < maxResult {
			res.rows = append(res.rows, copyRow(dest, &bytes))
		} else {
			res.cut = true
		}
		if res.total >= maxScanRows {
			res.total, res.cut = -1, true
			return res, nil
		}
	}
}

func copyRow(src []driver.Value, bytes *int) []any {
	row := make([]any, len(src))
	for i, v := range src {
		switch v := v.(type) {
		case string:
			*bytes += len(v)
			row[i] = strings.ToValidUTF8(v, "\uFFFD")
		case []byte:
			*bytes += len(v)
			row[i] = append([]byte{}, v...)
		case bool: // a column declared BOOLEAN, which MySQL keeps as a small integer
			row[i] = int64(0)
			if v {
				row[i] = int64(1)
			}
		case time.Time: // a column declared DATE or TIMESTAMP
			row[i] = v.UTC().Format("2006-01-02 15:04:05")
		default:
			row[i] = v
		}
		*bytes += 16
	}
	return row
}

// changes counts the rows the last INSERT, UPDATE or DELETE touched.
func (k *conn) changes(ctx context.Context) (int, error) {
	res, err := k.run(ctx, "SELECT changes()", 1)
	if err != nil {
		return -1, err
	}
	return int(res.rows[0][0].(int64)), nil
}

// table reads a whole table for a grader.
func (k *conn) table(ctx context.Context, name string) (columns []string, rows [][]any, err error) {
	cols, err := k.columns(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	list := make([]string, len(cols))
	for i, c := range cols {
		columns = append(columns, c.Name)
		list[i] = QuoteName(c.Name)
	}
	if len(cols) == 0 {
		return nil, nil, ErrGone
	}
	// Pages bound a table's bytes, so reading it whole is safe; the rows are counted first.
	res, err := k.run(ctx, "SELECT "+strings.Join(list, ", ")+" FROM "+QuoteName(name), maxGradeRows)
	switch {
	case errors.Is(err, errTimeout) || outOfMemory(err):
		return nil, nil, ErrTooBig
	case err != nil:
		return nil, nil, err
	case res.cut:
		return nil, nil, ErrTooBig
	}
	return columns, res.rows, nil
}

var opaqueError = regexp.MustCompile(`^(not authorized|.* prohibited.*|.*may not be modified)`)

// explain words an SQLite error for the policy, without Go's and the driver's wrapping.
func (k *conn) explain(err error) string {
	var e sqlite3.Error
	text := err.Error()
	if errors.As(err, &e) {
		text = e.Error()
		if opaqueError.MatchString(text) && k.denied != "" {
			text = k.denied
		}
	}
	return clip(strings.ToValidUTF8(text, "\uFFFD"), 200)
}

// clip cuts text to n characters.
func clip(s string, n int) string {
	i := 0
	for j := range s {
		if i == n {
			return s[:j]
		}
		i++
	}
	return s
}
