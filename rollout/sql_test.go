package rollout_test

import (
	"context"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"harness-s/internal/testutil"
	"harness-s/model/chat"
	"harness-s/model/tokenizer"
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

// renderer is the real one over a tokenizer of bytes and Qwen's added tokens.
func renderer(t *testing.T) (*chat.Renderer, *tokenizer.Tokenizer) {
	t.Helper()
	tok, err := tokenizer.Train(slices.Values([]string{"select the name"}), 300, chat.AddedTokens())
	if err != nil {
		t.Fatal(err)
	}
	r, err := chat.NewRenderer(tok, false)
	if err != nil {
		t.Fatal(err)
	}
	return r, tok
}

// scripted says its turns in order and keeps the last context it saw.
type scripted struct {
	tok   *tokenizer.Tokenizer
	turns []string
	seen  []int32
}

func (s *scripted) Generate(_ context.Context, r rollout.Request) (rollout.Reply, error) {
	s.seen = slices.Clone(r.Prompt)
	reply := rollout.Reply{FinishReason: "stop", Tokens: s.tok.Encode(s.turns[0]+chat.EOS, true)}
	s.turns = s.turns[1:]
	reply.Logprobs = slices.Repeat([]float32{-1}, len(reply.Tokens))
	return reply, nil
}

func call(t *testing.T, name, key string, value any) string {
	t.Helper()
	raw, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	text, err := chat.FormatCall(chat.ToolCall{Name: name, Args: []chat.Arg{{Key: key, Value: raw}}})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Each shipped rule speaks at the place it is meant for, in the real environment.
func TestShippedSiblingsInTheSQLEnvironment(t *testing.T) {
	pool, err := harness.LoadPool(filepath.Join(testutil.Root(t), "recipes", "pools", "sql"))
	if err != nil {
		t.Fatal(err)
	}
	format, tok := renderer(t)
	sql := func(query string) string { return call(t, sqlenv.ToolSQL, "query", query) }
	commit := call(t, sqlenv.ToolCommit, "answers", []string{"540"})
	for _, c := range []struct {
		sibling string
		turns   []string
		heard   string // in the last context
	}{
		{"h0", []string{sql("SELECT height FROM cities"), commit}, "no such column: height\n</tool_response>"},
		{"retry", []string{sql("SELECT height FROM cities"), commit}, "\nSchema:\n"},
		{"retry", []string{sql("SELECT height FROM cities"), commit}, "height k7"},
		{"page", []string{sql("SELECT name FROM cities"), commit}, "[TRUNCATED]\nThe result is cut. Read the next page."},
		{"values", []string{sql("SELECT k7 FROM cities WHERE name = 'Bern'"), commit}, "[]\nThe result is empty."},
		{"clean", []string{sql("SELECT k7 FROM cities WHERE lower(trim(name)) = 'bern'"), commit}, "540"},
		{"verify", []string{commit, commit}, "Check the result first, then commit."},
		{"steady", []string{sql("SELECT x FROM y"), sql("SELECT x FROM y"), commit}, "You ran this before."},
	} {
		t.Run(c.sibling, func(t *testing.T) {
			spec, _ := pool.Get(c.sibling)
			p := &scripted{tok: tok, turns: slices.Clone(c.turns)}
			r, err := rollout.Run(context.Background(), rollout.RunOptions{
				Spec: spec, Task: rollout.Task{ID: "t", Vars: map[string]string{"question": "How high is Bern?"}, Data: cities{}},
				Env: sqlenv.New(sqlenv.Options{}), Policy: p, Renderer: format, Seed: func(int) int64 { return 0 }, ID: "r",
				Limits: rollout.Limits{MaxTurns: 6, MaxTokensPerTurn: 1000, MaxContextTokens: 20_000, ToolDeadline: time.Minute, RolloutDeadline: time.Minute},
			})
			if err != nil {
				t.Fatal(err)
			}
			if r.Status != rollout.Completed || !r.Success {
				t.Errorf("status %s %s", r.Status, r.Error)
			}
			seen := tok.Decode(p.seen)
			if !strings.Contains(seen, c.heard) {
				t.Errorf("context %q lacks %q", seen, c.heard)
			}
			checkAgainstTemplate(t, seen+commit+chat.EOS, spec, r)
		})
	}
}

// checkAgainstTemplate compares the row, built by appending, with the whole conversation rendered at once.
func checkAgainstTemplate(t *testing.T, got string, spec *harness.Spec, r *rollout.Record) {
	t.Helper()
	var tools []chat.Tool
	if spec.Prompt.ToolsBlock != harness.ToolsNone {
		tools = sqlenv.New(sqlenv.Options{}).Tools()
	}
	msgs, err := spec.Messages(map[string]string{"question": "How high is Bern?"})
	if err != nil {
		t.Fatal(err)
	}
	for _, turn := range r.Turns {
		switch turn.Role {
		case "assistant":
			msgs = append(msgs, chat.Message{Role: "assistant", Calls: turn.Calls})
		case "tool":
			msgs = append(msgs, chat.Message{Role: "tool", Content: turn.Observation})
		}
	}
	msgs = msgs[:len(msgs)-1] // the answer to the last call is not part of the row
	want, err := chat.Render(msgs, tools, chat.RenderOptions{KeepThinking: true})
	if err != nil {
		t.Fatal(err)
	}
	if want = strings.TrimSuffix(want, "\n"); got != want {
		t.Errorf("row and template differ:\n%q\n%q", got, want)
	}
}
