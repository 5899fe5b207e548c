package sqlenv

import (
	"strings"

	"github.com/mattn/go-sqlite3"
)

// deniedFuncs reach outside the database, give other answers each time (an attempt must be repeatable), or make
// big values cheaply.
var deniedFuncs = map[string]bool{
	"load_extension": true, "readfile": true, "writefile": true, "edit": true, "fts3_tokenizer": true,
	"random": true, "randomblob": true, "zeroblob": true,
	"date": true, "time": true, "datetime": true, "julianday": true, "strftime": true, "unixepoch": true, "timediff": true,
	"current_date": true, "current_time": true, "current_timestamp": true,
	"rtreecheck": true, "rtreedepth": true, "rtreenode": true,
	"sqlite_log": true, "sqlite_compileoption_get": true, "sqlite_source_id": true,
}

// readPragmas only read the catalogue.
var readPragmas = map[string]bool{"table_info": true, "table_xinfo": true, "table_list": true, "index_list": true, "index_info": true}

// actRecursive is SQLite's code for a recursive CTE, which the driver does not name.
const actRecursive = 33

// authorize is asked about each thing a statement does, while it is compiled. Whatever is not listed is refused.
func (k *conn) authorize(op int, a, b, _ string) int {
	switch op {
	case sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, actRecursive,
		sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE,
		sqlite3.SQLITE_CREATE_TABLE, sqlite3.SQLITE_DROP_TABLE, sqlite3.SQLITE_ALTER_TABLE,
		sqlite3.SQLITE_CREATE_INDEX, sqlite3.SQLITE_DROP_INDEX, sqlite3.SQLITE_REINDEX:
		return sqlite3.SQLITE_OK
	case sqlite3.SQLITE_FUNCTION:
		if !deniedFuncs[strings.ToLower(b)] {
			return sqlite3.SQLITE_OK
		}
		k.denied = "the function " + strings.ToLower(b) + " is not available"
	case sqlite3.SQLITE_PRAGMA:
		if readPragmas[strings.ToLower(a)] {
			return sqlite3.SQLITE_OK
		}
		k.denied = "this PRAGMA is not allowed"
	case sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_SAVEPOINT:
		k.denied = "transactions are not available: every statement is committed at once"
	default:
		k.denied = "this statement is not allowed"
	}
	return sqlite3.SQLITE_DENY
}
