package dbbench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"os"
	"strings"

	"harness-s/rollout"
	"harness-s/rollout/env/sqlenv"
)

// Report is what Check found, by the strict grader.
type Report struct {
	Rows        int   `json:"rows"`
	GoldPass    int   `json:"gold_pass"`
	NoopPass    int   `json:"noop_pass"`
	SpoiledPass int   `json:"spoiled_pass"`
	FailedRows  []int `json:"failed_rows"` // 0-based rows whose gold fails
}

// Check replays each row three times: gold (the labels committed, or a change's label SQL run), nothing (no SQL, no
// answers), and spoiled (every label made wrong, or the label SQL and a row too many).
func Check(ctx context.Context, path string) (Report, error) {
	rows, err := LoadRows(path)
	if err != nil {
		return Report{}, err
	}
	rep := Report{Rows: len(rows), FailedRows: []int{}}
	for _, r := range rows {
		p := &Problem{Row: r}
		gold, err := attempt(ctx, p, goldTry(r))
		if err != nil {
			return rep, fmt.Errorf("%s:%d: %w", path, r.Index+1, err)
		}
		noop, err := attempt(ctx, p, try{Answer: json.RawMessage(`[]`)})
		if err != nil {
			return rep, fmt.Errorf("%s:%d: %w", path, r.Index+1, err)
		}
		spoiled, err := attempt(ctx, p, spoiledTry(r))
		if err != nil {
			return rep, fmt.Errorf("%s:%d: %w", path, r.Index+1, err)
		}
		if gold.Success {
			rep.GoldPass++
		} else {
			rep.FailedRows = append(rep.FailedRows, r.Index)
		}
		rep.NoopPass += count(noop.Success)
		rep.SpoiledPass += count(spoiled.Success)
	}
	return rep, nil
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// try is one line of Grade's input, and what Check replays.
type try struct {
	Index  *int            `json:"index"`
	SQL    []string        `json:"sql"`
	Answer json.RawMessage `json:"answer"`
}

func goldTry(r *Row) try {
	if r.Changes() {
		return try{SQL: r.goldSQL(), Answer: json.RawMessage(`["done"]`)}
	}
	return try{Answer: r.Label}
}

func spoiledTry(r *Row) try {
	if r.Changes() {
		return try{SQL: spoilSQL(r), Answer: json.RawMessage(`["done"]`)}
	}
	wrong := make([]string, len(r.Labels))
	for i, l := range r.Labels {
		wrong[i] = spoilText(l)
	}
	data, err := json.Marshal(wrong)
	if err != nil {
		panic(err) // a list of texts always encodes
	}
	return try{Answer: data}
}

// spoilText makes a value wrong: a number one greater, a text longer. All of them move the same way, so
// they never are the same multiset again.
func spoilText(s string) string {
	if n, ok := sqlenv.Number(strings.TrimSpace(s)); ok {
		return n.Add(n, big.NewRat(1, 1)).FloatString(6)
	}
	return s + "~"
}

// spoilSQL is the label SQL and then a row that no label asks for.
func spoilSQL(r *Row) []string {
	t := r.Tabs[0]
	name, col := sqlenv.QuoteName(t.Name), sqlenv.QuoteName(t.Columns[0].Name)
	return append(append([]string{}, r.goldSQL()...), fmt.Sprintf("INSERT INTO %s (%s) VALUES ('spoiled~')", name, col))
}

// attempt replays a try on a fresh database and grades it. SQL errors do not stop it.
func attempt(ctx context.Context, p *Problem, t try) (rollout.Grade, error) {
	s, err := sqlenv.New(sqlenv.Options{}).OpenProblem(ctx, p)
	if err != nil {
		return rollout.Grade{}, err
	}
	defer s.Close()
	var failed []string
	for i, q := range t.SQL {
		o, err := s.Execute(ctx, q)
		if err != nil {
			return rollout.Grade{}, err
		}
		if o.Error {
			failed = append(failed, fmt.Sprintf("sql %d: %s", i, o.Text))
		}
	}
	if o := s.Commit(t.Answer); o.Error {
		return p.grade(false, false, map[string]any{"reason": o.Text}), nil
	}
	g, err := s.Grade(ctx)
	if err == nil && len(failed) > 0 {
		g.Detail["sql_errors"] = failed
	}
	return g, err
}

// Graded is one line of Grade's output.
type Graded struct {
	Index   int            `json:"index"`
	Success bool           `json:"success"` // strict
	Compat  bool           `json:"compat"`
	Detail  map[string]any `json:"detail"`
}

// Grade reads lines {"index", "sql": [...], "answer": [...]} and writes a Graded for each, in input order. An answer that is absent counts
// as an empty list.
func Grade(ctx context.Context, dataPath string, answers io.Reader, w io.Writer) error {
	rows, err := LoadRows(dataPath)
	if err != nil {
		return err
	}
	problems := make([]Problem, len(rows))
	for i, r := range rows {
		problems[i].Row = r
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return eachLine(answers, answersName(answers), func(line []byte, _ int) error {
		var t try
		if err := decodeOne(line, &t); err != nil {
			return err
		}
		if t.Index == nil || *t.Index < 0 || *t.Index >= len(problems) {
			return fmt.Errorf(`key "index" must be a line of the data, 0 to %d`, len(problems)-1)
		}
		if len(t.Answer) == 0 {
			t.Answer = json.RawMessage(`[]`)
		}
		p := &problems[*t.Index]
		g, err := attempt(ctx, p, t)
		if err != nil {
			return err
		}
		compat, _ := g.Detail["compat"].(bool)
		if err := enc.Encode(Graded{Index: p.Index, Success: g.Success, Compat: compat, Detail: g.Detail}); err != nil {
			return fmt.Errorf("write a grade: %w", err)
		}
		return nil
	})
}

func answersName(r io.Reader) string {
	if f, ok := r.(*os.File); ok {
		return f.Name()
	}
	return "answers"
}
