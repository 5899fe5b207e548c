package dbbench

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"harness-s/rollout"
	"harness-s/rollout/env/sqlenv"
)

// Problem is a row as the environment runs it.
type Problem struct {
	*Row
	once sync.Once
	gold goldState
	err  error
}

// goldState is what the label SQL of a change leaves on this database.
type goldState struct {
	state
	ran        bool   // every statement of the label ran
	want       string // the hash to meet: the row's own, or the label's where the row has none
	reproduced bool   // the label SQL meets it here
}

var _ sqlenv.Problem = (*Problem)(nil)

// Tables are the row's tables, all columns TEXT.
func (p *Problem) Tables() []sqlenv.Table { return p.Tabs }

// View is DBBench's: MySQL's dialect, 800 characters, no count of changed rows.
func (p *Problem) View() sqlenv.View { return sqlenv.View{MySQL: true, MaxChars: 800} }

// Grade judges by both rules; reward and success are the strict one.
//
// Strict, SELECT kinds: sqlenv.MatchAnswers against the labels. Strict, changes: the official hash must be met, and,
// where the label SQL reproduces that hash on this database, every table must hold exactly the rows the label leaves
// (the hash sees 20 bits of a row, about 170 rows, and does not tell NULL from an absent cell).
func (p *Problem) Grade(ctx context.Context, f sqlenv.Final) (rollout.Grade, error) {
	if !p.Changes() {
		strict := sqlenv.MatchAnswers(f.Answers, p.Labels)
		return p.grade(strict, compatAnswer(f.Raw, p.Label), map[string]any{"answers": f.Answers, "gold": p.Labels}), nil
	}
	gold, err := p.goldState(ctx)
	if err != nil {
		return rollout.Grade{}, err
	}
	got, reason, err := readState(ctx, p.Row, f)
	if err != nil {
		return rollout.Grade{}, err
	}
	detail := map[string]any{"hash": got.hash, "gold": gold.want}
	if reason != "" {
		detail["reason"] = reason
		return p.grade(false, false, detail), nil
	}
	compat := equalHash(got.hash, gold.want)
	strict := compat
	if strict && gold.reproduced {
		strict = equalTables(got.tables, gold.tables)
	}
	return p.grade(strict, compat, detail), nil
}

func (p *Problem) grade(strict, compat bool, detail map[string]any) rollout.Grade {
	g := rollout.Grade{Success: strict, Detail: detail}
	detail["compat"] = compat
	detail["kind"] = p.Kind
	if strict {
		g.Reward = 1
	}
	return g
}

// equalHash is the official comparison of hashes: both sides cleaned like answers.
func equalHash(got, want string) bool {
	a, b := cleanAnswer(got), cleanAnswer(want)
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func equalTables(a, b []string) bool {
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return len(a) == len(b)
}

// goldSQL are the statements whose state is the gold of a change.
func (r *Row) goldSQL() []string {
	if len(r.Labels) > 0 {
		return r.Labels
	}
	return []string{r.SQL}
}

// goldState runs the label SQL once on a fresh database. A label that does not run here is no fault: the row's hash decides.
func (p *Problem) goldState(ctx context.Context) (goldState, error) {
	p.once.Do(func() { p.gold, p.err = p.computeGold(context.WithoutCancel(ctx)) })
	return p.gold, p.err
}

func (p *Problem) computeGold(ctx context.Context) (goldState, error) {
	g := goldState{want: p.AnswerMD5, ran: true}
	probe := &stateProbe{row: p.Row}
	s, err := sqlenv.New(sqlenv.Options{}).OpenProblem(ctx, probe)
	if err != nil {
		return g, fmt.Errorf("row %d: gold: %w", p.Index, err)
	}
	defer s.Close()
	for _, q := range p.goldSQL() {
		o, err := s.Execute(ctx, q)
		if err != nil {
			return g, fmt.Errorf("row %d: gold: %w", p.Index, err)
		}
		g.ran = g.ran && !o.Error
	}
	if err := probe.read(ctx, s); err != nil {
		return g, fmt.Errorf("row %d: gold: %w", p.Index, err)
	}
	g.state = probe.state
	if g.want == "" {
		if !g.ran || probe.reason != "" {
			return g, fmt.Errorf("row %d: no answer_md5, and its label SQL does not run here", p.Index)
		}
		g.want = g.hash
	}
	g.reproduced = g.ran && probe.reason == "" && equalHash(g.hash, g.want)
	return g, nil
}

// stateProbe is a problem whose grading only reads the state.
type stateProbe struct {
	row    *Row
	state  state
	reason string
}

func (p *stateProbe) Tables() []sqlenv.Table { return p.row.Tabs }
func (p *stateProbe) View() sqlenv.View      { return sqlenv.View{MySQL: true} }
func (p *stateProbe) Grade(ctx context.Context, f sqlenv.Final) (rollout.Grade, error) {
	var err error
	p.state, p.reason, err = readState(ctx, p.row, f)
	return rollout.Grade{}, err
}

func (p *stateProbe) read(ctx context.Context, s *sqlenv.Session) error {
	s.Commit(json.RawMessage(`[]`))
	_, err := s.Grade(ctx)
	return err
}
