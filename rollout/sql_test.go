package rollout_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"harness-s/internal/testutil"
	"harness-s/rollout"
	"harness-s/rollout/env/sqlenv"
	"harness-s/rollout/harness"
)

// cities is a small problem of the real environment.
type cities struct{}

func (cities) Tables() []sqlenv.Table {
	return []sqlenv.Table{{Name: "cities", Columns: []sqlenv.Column{{Name: "name", Type: "TEXT"}, {Name: "k7", Type: "INTEGER", Comment: "height"}},
		Rows: [][]any{{" Bern", int64(540)}, {"Rome", int64(21)}, {"Oslo", int64(23)}, {"Lima", int64(161)}}}}
}
func (cities) View() sqlenv.View { return sqlenv.View{MaxRows: 2} }
func (cities) Grade(_ context.Context, f sqlenv.Final) (rollout.Grade, error) {
	ok := len(f.Answers) == 1 && f.Answers[0] == "540"
	return rollout.Grade{Success: ok}, nil
}

// scripted says its turns in order and keeps the last context it saw.
type scripted struct {
	turns []string
	seen  string
}

func (s *scripted) Generate(_ context.Context, r rollout.Request) (rollout.Reply, error) {
	s.seen = rollout.FakeRenderer{}.Text(r.Prompt)
	turn := []rune(s.turns[0])
	s.turns = s.turns[1:]
	reply := rollout.Reply{FinishReason: "stop"}
	for _, c := range turn {
		reply.Tokens, reply.Logprobs = append(reply.Tokens, int32(c)), append(reply.Logprobs, -1)
	}
	return reply, nil
}

// Each shipped rule speaks at the place it is meant for, in the real environment.
func TestShippedSiblingsInTheSQLEnvironment(t *testing.T) {
	pool, err := harness.LoadPool(filepath.Join(testutil.Root(t), "recipes", "pools", "sql"))
	if err != nil {
		t.Fatal(err)
	}
	const commit = "!commit_final_answer [\"540\"];"
	for _, c := range []struct {
		sibling string
		turns   []string
		heard   string // in the last context
	}{
		{"h0", []string{"!execute_sql SELECT height FROM cities;", commit}, "no such column: height\n<a>"},
		{"retry", []string{"!execute_sql SELECT height FROM cities;", commit}, "\nSchema:\n"},
		{"retry", []string{"!execute_sql SELECT height FROM cities;", commit}, "height k7"},
		{"page", []string{"!execute_sql SELECT name FROM cities;", commit}, "[TRUNCATED]\nThe result is cut. Read the next page."},
		{"values", []string{"!execute_sql SELECT k7 FROM cities WHERE name = 'Bern';", commit}, "[]\nThe result is empty."},
		{"clean", []string{"!execute_sql SELECT k7 FROM cities WHERE lower(trim(name)) = 'bern';", commit}, "540"},
		{"verify", []string{commit, commit}, "Check the result first, then commit."},
		{"steady", []string{"!execute_sql SELECT x FROM y;", "!execute_sql SELECT x FROM y;", commit}, "You ran this before."},
	} {
		t.Run(c.sibling, func(t *testing.T) {
			spec, _ := pool.Get(c.sibling)
			p := &scripted{turns: c.turns}
			r, err := rollout.Run(context.Background(), rollout.RunOptions{
				Spec: spec, Task: rollout.Task{ID: "t", Vars: map[string]string{"question": "How high is Bern?"}, Data: cities{}},
				Env: sqlenv.New(sqlenv.Options{}), Policy: p, Renderer: rollout.FakeRenderer{}, Seed: func(int) int64 { return 0 }, ID: "r",
				Limits: rollout.Limits{MaxTurns: 6, MaxTokensPerTurn: 200, MaxContextTokens: 5000, ToolDeadline: time.Minute, RolloutDeadline: time.Minute},
			})
			if err != nil {
				t.Fatal(err)
			}
			if r.Status != rollout.Completed || !r.Success {
				t.Errorf("status %s %s", r.Status, r.Error)
			}
			if !strings.Contains(p.seen, c.heard) {
				t.Errorf("context %q lacks %q", p.seen, c.heard)
			}
		})
	}
}
