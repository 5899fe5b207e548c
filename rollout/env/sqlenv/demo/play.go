package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"harness-s/model/chat"
	"harness-s/model/tokenizer"
	"harness-s/rollout"
	"harness-s/rollout/env/sqlenv/taskgen"
	"harness-s/rollout/harness"
)

// Encoder writes a turn as the policy would have: its text and the token that ends it.
type Encoder func(note string, call chat.ToolCall) []int32

// NewEncoder writes turns with a tokenizer; end is the token that ends a turn.
func NewEncoder(tok *tokenizer.Tokenizer, end int32) Encoder {
	return func(note string, call chat.ToolCall) []int32 {
		text, err := chat.FormatCall(call)
		if err != nil {
			panic("demonstrations: " + err.Error()) // a script's arguments are JSON
		}
		if note != "" {
			text = note + "\n\n" + text
		}
		return append(tok.Encode(text, true), end)
	}
}

// Options of a demonstration.
type Options struct {
	Obedience float64 // chance that each thing asked is done, below 1: a policy that always obeys has nothing to learn
	Env       rollout.Environment
	Renderer  rollout.Renderer
	Encode    Encoder
	Limits    rollout.Limits
}

// MaxObedience is where siblings are saturated: rescue then has no contrast within a sibling to learn from.
const MaxObedience = 0.98

// DefaultLimits are wide enough for every script.
func DefaultLimits() rollout.Limits {
	return rollout.Limits{MaxTurns: 12, MaxTokensPerTurn: 512, MaxContextTokens: 4096, ToolDeadline: time.Minute, RolloutDeadline: 5 * time.Minute}
}

// Play demonstrates a task under a harness. rng decides what is obeyed, nothing else.
func Play(ctx context.Context, o Options, spec *harness.Spec, task rollout.Task, rng *rand.Rand) (*rollout.Record, error) {
	if !(o.Obedience >= 0 && o.Obedience <= MaxObedience) {
		return nil, fmt.Errorf("demonstrations: obedience %v, want 0 to %v: siblings that always obey leave nothing to learn", o.Obedience, MaxObedience)
	}
	t, ok := task.Data.(*taskgen.Task)
	if !ok {
		return nil, fmt.Errorf("demonstrations: task %s is not a generated one", task.ID)
	}
	want, err := Asked(spec.ID)
	if err != nil {
		return nil, err
	}
	return play(ctx, o, spec, task, newScript(t, obey(want, o.Obedience, rng)))
}

// play runs a script as the policy of an ordinary rollout.
func play(ctx context.Context, o Options, spec *harness.Spec, task rollout.Task, s *script) (*rollout.Record, error) {
	p := &player{script: s, encode: o.Encode}
	rec, err := rollout.Run(ctx, rollout.RunOptions{
		Spec: spec, Task: task, Env: watched{o.Env, p}, Policy: p, Renderer: o.Renderer,
		Seed: func(int) int64 { return 0 }, Temperature: 1, Limits: o.Limits, ID: "demo-" + task.ID + "-" + spec.ID, Phase: "demo",
	})
	if err != nil {
		return nil, err
	}
	if rec.Status.Broken() {
		return nil, fmt.Errorf("demonstration %s: %s", rec.ID, rec.Error)
	}
	return rec, nil
}

// player is the script as a policy.
type player struct {
	script *script
	encode Encoder
	last   rollout.Observation
}

// Generate says the script's next turn.
func (p *player) Generate(_ context.Context, r rollout.Request) (rollout.Reply, error) {
	t := p.script.next(p.last)
	tokens := p.encode(t.note, t.call)
	if len(tokens) > r.MaxTokens {
		return rollout.Reply{}, errors.New("demonstrations: a turn does not fit the limits")
	}
	return rollout.Reply{Tokens: tokens, Logprobs: make([]float32, len(tokens)), FinishReason: "stop"}, nil
}

// watched is an environment whose observations the player sees.
type watched struct {
	rollout.Environment
	p *player
}

func (w watched) Open(ctx context.Context, t rollout.Task) (rollout.Session, error) {
	s, err := w.Environment.Open(ctx, t)
	return watchedSession{s, w.p}, err
}

type watchedSession struct {
	rollout.Session
	p *player
}

func (w watchedSession) Act(ctx context.Context, c chat.ToolCall) (rollout.Observation, error) {
	o, err := w.Session.Act(ctx, c)
	w.p.last = o
	return o, err
}
