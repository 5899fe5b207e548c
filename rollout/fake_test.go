package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"harness-s/model/chat"
	"harness-s/rollout/harness"
)

// A scripted world: a token is a rune, a turn ends with ';'. A policy writes calls as "name arg;" on lines of their
// own, "?x" is a turn part that cannot be parsed.

type fakeRenderer struct{}

func ids(s string) []int32 {
	var out []int32
	for _, r := range s {
		out = append(out, int32(r))
	}
	return out
}

func str(tokens []int32) string {
	var b strings.Builder
	for _, t := range tokens {
		b.WriteRune(rune(t))
	}
	return b.String()
}

func (fakeRenderer) Start(msgs []chat.Message, tools []chat.Tool) ([]int32, error) {
	var b strings.Builder
	for _, m := range msgs {
		fmt.Fprintf(&b, "<%s>%s\n", m.Role, m.Content)
	}
	return ids(b.String() + "<a>"), nil
}

func (fakeRenderer) CloseTurn(sampled []int32) []int32 {
	if sampled[len(sampled)-1] != ';' {
		return ids(";\n")
	}
	return ids("\n")
}

func (fakeRenderer) ToolResults(results []string) []int32 {
	return ids("<t>" + strings.Join(results, "|") + "\n<a>")
}
func (fakeRenderer) User(text string) []int32 { return ids("<u>" + text + "\n<a>") }
func (fakeRenderer) Stop() []int32            { return []int32{';'} }
func (fakeRenderer) Text(t []int32) string    { return strings.TrimSuffix(str(t), ";") }
func (fakeRenderer) Parse(text string, _ []chat.Tool) (p chat.Parsed) {
	for _, line := range strings.Split(text, "\n") {
		name, arg, ok := strings.Cut(line, " ")
		switch {
		case strings.HasPrefix(line, "?"):
			p.Errors = append(p.Errors, "cannot read "+line)
		case ok && strings.HasPrefix(name, "!"):
			v, _ := json.Marshal(arg)
			p.Calls = append(p.Calls, chat.ToolCall{Name: name[1:], Args: []chat.Arg{{Key: "q", Value: v}}})
		}
	}
	return p
}

// fakePolicy says turn i of its script; log-probs tell the seed, so that tests see which one was used.
type fakePolicy struct {
	script  []string
	reply   func(r Request, turn int) (Reply, error) // instead of script
	prompts []string
	seeds   []int64
}

func (p *fakePolicy) Generate(ctx context.Context, r Request) (Reply, error) {
	turn := len(p.prompts)
	p.prompts = append(p.prompts, str(r.Prompt))
	p.seeds = append(p.seeds, r.Seed)
	if p.reply != nil {
		return p.reply(r, turn)
	}
	return say(p.script[turn], r), nil
}

// say is the reply that samples text within the request's limit.
func say(text string, r Request) Reply {
	t := ids(text)
	finish := "stop"
	if len(t) > r.MaxTokens {
		t, finish = t[:r.MaxTokens], "length"
	}
	lp := make([]float32, len(t))
	for i := range lp {
		lp[i] = -0.1 * float32(i+1)
	}
	return Reply{Tokens: t, Logprobs: lp, FinishReason: finish, PolicyVersion: 3, CachedTokens: 1}
}

// fakeEnv answers "sql X" with what the table says and ends at "commit"; success when it commits "42".
type fakeEnv struct {
	answers map[string]Observation
	act     func(ctx context.Context, call chat.ToolCall) (Observation, error)
	open    func() error
	grade   func() (Grade, error)
	opened  atomic.Int32
	closed  atomic.Int32
	ran     []string
}

func (e *fakeEnv) Name() string { return "fake" }
func (e *fakeEnv) Tier() string { return "test" }
func (e *fakeEnv) Tools() []chat.Tool {
	schema := json.RawMessage(`{"type":"object","properties":{"q":{"type":"string"}},"required":["q"]}`)
	return []chat.Tool{{Name: "sql", Parameters: schema}, {Name: "commit", Parameters: schema}}
}

func (e *fakeEnv) Open(context.Context, Task) (Session, error) {
	if e.open != nil {
		if err := e.open(); err != nil {
			return nil, err
		}
	}
	e.opened.Add(1)
	return &fakeSession{env: e}, nil
}

type fakeSession struct {
	env    *fakeEnv
	answer string
}

func (s *fakeSession) Act(ctx context.Context, call chat.ToolCall) (Observation, error) {
	if s.env.act != nil {
		return s.env.act(ctx, call)
	}
	var q string
	json.Unmarshal(call.Args[0].Value, &q)
	s.env.ran = append(s.env.ran, call.Name+" "+q)
	if call.Name == "commit" {
		s.answer = q
		return Observation{Text: "committed", Done: true, Kind: "answer", Rows: -1}, nil
	}
	if o, ok := s.env.answers[q]; ok {
		return o, nil
	}
	return Observation{Text: "got " + q, Kind: "select", Rows: 1}, nil
}

func (s *fakeSession) Catalogue() string { return "t(a, b)" }
func (s *fakeSession) Grade(context.Context) (Grade, error) {
	if s.env.grade != nil {
		return s.env.grade()
	}
	ok := s.answer == "42"
	g := Grade{Success: ok, Detail: map[string]any{"answer": s.answer}}
	if ok {
		g.Reward = 1
	}
	return g, nil
}
func (s *fakeSession) Close() error { s.env.closed.Add(1); return nil }

func spec(t testing.TB, extra string) *harness.Spec {
	t.Helper()
	s, err := harness.Parse("test.yaml", []byte("id: h0\nprompt: {system: Sys, user: \"{{question}}\"}\n"+extra))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func options(s *harness.Spec, e Environment, p Policy) RunOptions {
	return RunOptions{
		Spec: s, Task: Task{ID: "t1", Kind: "count", Vars: map[string]string{"question": "Q"}}, Env: e, Policy: p, Renderer: fakeRenderer{},
		Seed: func(turn int) int64 { return 100 + int64(turn) }, Temperature: 1, ID: "r1", Group: "0-t1", Phase: "train",
		Limits: Limits{MaxTurns: 6, MaxTokensPerTurn: 400, MaxContextTokens: 10_000, ToolDeadline: time.Minute, RolloutDeadline: time.Minute},
	}
}

var errBoom = errors.New("boom")
