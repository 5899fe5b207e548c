package sqlenv

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"harness-s/model/chat"
	"harness-s/rollout"
)

// Options of an environment.
type Options struct {
	Name    string        // "" = "dbbench"
	Timeout time.Duration // wall clock of one statement; 0 = 2 s (DBBench allows 60 on a MySQL server)
}

// Env opens tasks whose Data is a Problem. It is safe for concurrent use.
type Env struct{ opt Options }

var _ rollout.Environment = (*Env)(nil)

// New makes the environment; zero options take their defaults.
func New(opt Options) *Env {
	if opt.Name == "" {
		opt.Name = "dbbench"
	}
	if opt.Timeout <= 0 {
		opt.Timeout = 2 * time.Second
	}
	return &Env{opt}
}

// Name is the environment's name in tasks and records.
func (e *Env) Name() string { return e.opt.Name }

// Tier is "sqlite": MySQL's dialect is understood where it is cheap, its arithmetic and collations are not.
func (e *Env) Tier() string { return "sqlite" }

// The names of the two tools.
const (
	ToolSQL    = "execute_sql"
	ToolCommit = "commit_final_answer"
)

// Tools are DBBench's two.
func (e *Env) Tools() []chat.Tool {
	return []chat.Tool{
		{
			Name:        ToolSQL,
			Description: "Run one SQL statement on the database and see its result.",
			Parameters: json.RawMessage(`{"type":"object","properties":{"query":{"type":"string","description":"One SQL statement in one line."}},` +
				`"required":["query"],"additionalProperties":false}`),
		},
		{
			Name:        ToolCommit,
			Description: "Commit the final answer and end the task. After a change of the database the answer can be anything.",
			Parameters: json.RawMessage(`{"type":"object","properties":{"answers":{"type":"array","items":{"type":"string"},"description":"The values asked for."}},` +
				`"required":["answers"],"additionalProperties":false}`),
		},
	}
}

// Open makes a fresh database with the task's tables.
func (e *Env) Open(ctx context.Context, t rollout.Task) (rollout.Session, error) {
	p, ok := t.Data.(Problem)
	if !ok {
		return nil, fmt.Errorf("environment %s: task %s carries %T, not an sqlenv.Problem", e.opt.Name, t.ID, t.Data)
	}
	s, err := e.OpenProblem(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("environment %s: task %s: %w", e.opt.Name, t.ID, err)
	}
	return s, nil
}

// OpenProblem is Open without a task, for graders and checks.
func (e *Env) OpenProblem(ctx context.Context, p Problem) (*Session, error) {
	c, err := openConn(ctx, p.Tables(), e.opt.Timeout)
	if err != nil {
		return nil, err
	}
	v := p.View()
	if v.MaxChars <= 0 {
		v.MaxChars = 800
	}
	return &Session{problem: p, view: v, conn: c}, nil
}
