package dbbench

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"sort"
	"strings"

	"harness-s/rollout/env/sqlenv"
	"harness-s/rollout/env/sqlenv/pylit"
)

// groupConcatMax is MySQL's group_concat_max_len: of long tables only the first rows' hashes count.
const groupConcatMax = 1024

// tableHash is DBBench's state of a table: md5 of the sorted 5-digit md5 prefixes of the rows, joined by commas and
// cut at groupConcatMax bytes. "None" stands for an empty table, whose hash is NULL.
func tableHash(rows [][]any) string {
	if len(rows) == 0 {
		return "None"
	}
	hashes := make([]string, len(rows))
	for i, r := range rows {
		sum := md5.Sum([]byte(concatWS(r)))
		hashes[i] = hex.EncodeToString(sum[:])[:5]
	}
	sort.Strings(hashes)
	all := strings.Join(hashes, ",")
	sum := md5.Sum([]byte(all[:min(len(all), groupConcatMax)]))
	return hex.EncodeToString(sum[:])
}

// concatWS is CONCAT_WS(',', cells): NULLs are left out, commas and all.
func concatWS(row []any) string {
	var parts []string
	for _, v := range row {
		switch v := v.(type) {
		case nil:
		case []byte:
			parts = append(parts, string(v))
		case string:
			parts = append(parts, v)
		default:
			parts = append(parts, pylit.Str(v))
		}
	}
	return strings.Join(parts, ",")
}

// state is what a change leaves behind: the combined hash DBBench compares, and the rows themselves.
type state struct {
	hash   string
	tables []string // per table: the columns and the sorted rows, for an exact comparison
}

// readState reads all tables of a row. reason is set when the policy dropped or bloated one: the attempt failed.
func readState(ctx context.Context, r *Row, f sqlenv.Final) (st state, reason string, err error) {
	var hashes []string
	for _, t := range r.Tabs {
		cols, rows, err := f.Table(ctx, t.Name)
		if errors.Is(err, sqlenv.ErrGone) || errors.Is(err, sqlenv.ErrTooBig) {
			return st, fmt.Sprintf("table %s: %v", t.Name, err), nil
		}
		if err != nil {
			return st, "", err
		}
		own, ok := ownColumns(t, cols, rows)
		if !ok {
			return st, fmt.Sprintf("table %s: a column is gone", t.Name), nil
		}
		hashes = append(hashes, tableHash(own))
		st.tables = append(st.tables, sqlenv.Canonical(cols, rows))
	}
	sort.Strings(hashes)
	st.hash = strings.Join(hashes, "_")
	return st, "", nil
}

// ownColumns picks the row's declared columns in their order; DBBench's hash sees no others.
func ownColumns(t sqlenv.Table, cols []string, rows [][]any) ([][]any, bool) {
	at := map[string]int{}
	for i, c := range cols {
		at[strings.ToLower(c)] = i
	}
	pick := make([]int, len(t.Columns))
	for i, c := range t.Columns {
		j, ok := at[strings.ToLower(c.Name)]
		if !ok {
			return nil, false
		}
		pick[i] = j
	}
	out := make([][]any, len(rows))
	for i, r := range rows {
		out[i] = make([]any, len(pick))
		for k, j := range pick {
			out[i][k] = r[j]
		}
	}
	return out, true
}
