package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"time"

	"harness-s/model/chat"
	"harness-s/rollout/harness"
)

// Limits bound one attempt.
type Limits struct {
	MaxTurns         int           // policy turns; a harness may lower it
	MaxTokensPerTurn int           // tokens sampled in one turn
	MaxContextTokens int           // prompt and turns of one row together
	ToolDeadline     time.Duration // one call of the environment, opening and grading included
	RolloutDeadline  time.Duration // the whole attempt
}

// RunOptions says what to attempt and how.
type RunOptions struct {
	Spec        *harness.Spec
	Task        Task
	Env         Environment
	Policy      Policy
	Renderer    Renderer
	Seed        func(turn int) int64
	Temperature float64
	Limits      Limits

	// Copied into the record.
	ID, Group, Phase string
	Step, Attempt    int
}

const (
	maxCallsPerTurn     = 16       // further calls of one turn are not run
	maxObservationBytes = 64 << 10 // guard against an environment that bounds nothing
	maxCatalogueBytes   = 8 << 10
	maxErrorBytes       = 4 << 10
)

// Run makes one attempt at one task under one harness.
//
// The policy speaks, its calls are run in the order written, what they return is appended, and so on until a call
// ends the episode, or a limit does. A turn without a call is answered by saying so and costs a turn; what cannot be
// parsed and tools that do not exist are answered in text. An episode that no call ended has reward 0.
//
// The record's status tells a failed attempt from a broken one. A Policy's error that does not wrap ErrServer means that
// the request itself is wrong, and is returned. Run's error means that no attempt was made or may be
// made again: ctx was cancelled, the spec does not fit the task or environment, or the policy refused the request.
func Run(ctx context.Context, o RunOptions) (*Record, error) {
	began := time.Now()
	a, err := newAttempt(&o)
	if err != nil {
		return nil, fmt.Errorf("rollout %s: %w", o.ID, err)
	}
	inner, cancel := context.WithTimeout(ctx, o.Limits.RolloutDeadline)
	defer cancel()
	err = a.run(inner)
	if cause := ctx.Err(); cause != nil {
		return nil, cause
	}
	if err := a.settle(err); err != nil {
		return nil, fmt.Errorf("rollout %s: %w", o.ID, err)
	}
	a.rec.WallMS = ms(time.Since(began))
	return a.rec, nil
}

// attempt is the state of one Run.
type attempt struct {
	o        *RunOptions
	rec      *Record
	tools    []chat.Tool
	conv     *conversation
	session  Session
	maxTurns int
	rules    ruleState
	done     bool
}

func newAttempt(o *RunOptions) (*attempt, error) {
	l := o.Limits
	if l.MaxTurns < 1 || l.MaxTokensPerTurn < 1 || l.MaxContextTokens < 1 || l.ToolDeadline <= 0 || l.RolloutDeadline <= 0 {
		return nil, fmt.Errorf("limits %+v: every limit must be positive", l)
	}
	tools, err := o.Spec.Offer(o.Env.Tools())
	if err != nil {
		return nil, err
	}
	msgs, err := o.Spec.Messages(o.Task.Vars)
	if err != nil {
		return nil, err
	}
	described := tools
	if o.Spec.Prompt.ToolsBlock == harness.ToolsNone {
		described = nil // the policy may call them all the same
	}
	conv, err := newConversation(o.Renderer, o.Spec.Memory, msgs, described)
	if err != nil {
		return nil, fmt.Errorf("harness %s: prompt: %w", o.Spec.ID, err)
	}
	a := &attempt{o: o, tools: tools, conv: conv, maxTurns: l.MaxTurns}
	if r := o.Spec.Rules.MaxTurns; r != nil {
		a.maxTurns = min(a.maxTurns, r.Turns)
	}
	a.rec = &Record{
		ID: o.ID, Step: o.Step, Group: o.Group, Task: o.Task.ID, TaskKind: o.Task.Kind, Env: o.Env.Name(),
		Harness: o.Spec.ID, HarnessHash: o.Spec.Hash(), Phase: o.Phase, Attempt: o.Attempt, Seed: o.Seed(0),
	}
	return a, nil
}

// run plays the episode and grades it. Its error is a broken attempt or, unclassified, a fault of the caller.
func (a *attempt) run(ctx context.Context) (err error) {
	if err := a.environment(ctx, "open", func(ctx context.Context) (err error) {
		a.session, err = a.o.Env.Open(ctx, a.o.Task)
		return err
	}); err != nil {
		return err
	}
	defer func() {
		// Close frees the environment's things even when the attempt's time is over.
		e := a.environment(context.WithoutCancel(ctx), "close", func(context.Context) error { return a.session.Close() })
		if err == nil {
			err = e
		}
	}()
	if err := a.play(ctx); err != nil {
		return err
	}
	if a.rec.Status != Completed {
		return nil
	}
	return a.grade(ctx)
}

// play runs turns until the episode is over and sets the status.
func (a *attempt) play(ctx context.Context) error {
	for turn := 0; ; turn++ {
		room := a.o.Limits.MaxContextTokens - len(a.conv.prompt())
		if room <= 0 {
			a.rec.Status = TokenLimit
			return nil
		}
		answer, err := a.generate(ctx, turn, min(room, a.o.Limits.MaxTokensPerTurn))
		if err != nil {
			return err
		}
		if answer.FinishReason == "length" && len(answer.Tokens) >= room {
			a.rec.Status = TokenLimit // cut by the context's end, not by the turn's: nothing more fits
			return nil
		}
		r, err := a.respond(ctx, answer)
		if err != nil {
			return err
		}
		left := a.maxTurns - turn - 1
		switch {
		case a.done:
			a.rec.Status = Completed
			return nil
		case left == 0:
			a.rec.Status = TurnLimit
			return nil
		}
		a.nudge(&r, left)
		if err := a.conv.answer(r); err != nil {
			return err
		}
	}
}

// generate samples one turn and appends it to the row.
func (a *attempt) generate(ctx context.Context, turn, maxTokens int) (Reply, error) {
	began := time.Now()
	reply, err := a.o.Policy.Generate(ctx, Request{
		RolloutID: a.o.ID, Prompt: a.conv.prompt(), MaxTokens: maxTokens, Temperature: a.o.Temperature,
		Seed: a.o.Seed(turn), Stop: a.o.Renderer.Stop(),
	})
	switch {
	case err == nil:
		err = checkReply(&reply, maxTokens)
	case ctx.Err() != nil:
		return reply, brokenAs(Deadline, fmt.Errorf("turn %d: the attempt's time is over: %w", turn, err))
	}
	if errors.Is(err, ErrServer) {
		return reply, brokenAs(ServerError, fmt.Errorf("turn %d: %w", turn, err))
	} else if err != nil {
		return reply, fmt.Errorf("turn %d: %w", turn, err)
	}
	text := a.o.Renderer.Text(reply.Tokens)
	a.conv.sampled(reply.Tokens, reply.Logprobs, text)
	u := &a.rec.Usage
	u.PolicyTokens += len(reply.Tokens)
	u.CachedTokens += reply.CachedTokens
	if turn == 0 || reply.PolicyVersion < a.rec.PolicyVersion {
		a.rec.PolicyVersion = reply.PolicyVersion
	}
	a.rec.Turns = append(a.rec.Turns, Turn{Role: "assistant", Text: text, GenerateMS: ms(time.Since(began))})
	return reply, nil
}

// checkReply refuses what would spoil a training row. A log-prob a rounding error above 0 becomes 0.
func checkReply(r *Reply, maxTokens int) error {
	if len(r.Tokens) == 0 || len(r.Tokens) > maxTokens || len(r.Logprobs) != len(r.Tokens) {
		return fmt.Errorf("%w: %d tokens and %d log-probs for a turn of 1 to %d", ErrServer, len(r.Tokens), len(r.Logprobs), maxTokens)
	}
	if r.FinishReason != "stop" && r.FinishReason != "length" {
		return fmt.Errorf("%w: the turn ended with %q; want stop or length", ErrServer, r.FinishReason)
	}
	const rounding = 1e-4
	for t, lp := range r.Logprobs {
		x := float64(lp)
		if math.IsNaN(x) || math.IsInf(x, 0) || x > rounding || r.Tokens[t] < 0 {
			return fmt.Errorf("%w: token %d of the turn is %d with log-prob %v", ErrServer, t, r.Tokens[t], lp)
		}
		r.Logprobs[t] = min(lp, 0)
	}
	return nil
}

// grade asks the environment for the outcome of a completed episode.
func (a *attempt) grade(ctx context.Context) error {
	var g Grade
	if err := a.environment(ctx, "grade", func(ctx context.Context) (err error) {
		g, err = a.session.Grade(ctx)
		return err
	}); err != nil {
		return err
	}
	if math.IsNaN(g.Reward) || math.IsInf(g.Reward, 0) {
		return brokenAs(EnvError, fmt.Errorf("grade: reward %v", g.Reward))
	}
	if g.Detail != nil {
		detail, err := json.Marshal(g.Detail)
		if err != nil {
			return brokenAs(EnvError, fmt.Errorf("grade: detail: %w", err))
		}
		a.rec.Grader = detail
	}
	a.rec.Reward, a.rec.Success = g.Reward, g.Success
	return nil
}

// environment runs one call of the environment within the tool deadline. Its errors and its panics are the
// environment's fault, or the clock's.
func (a *attempt) environment(ctx context.Context, what string, call func(context.Context) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, a.o.Limits.ToolDeadline)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			err = brokenAs(EnvError, fmt.Errorf("rollout %s: environment %s: %s panicked: %v\n%s", a.o.ID, a.o.Env.Name(), what, p, debug.Stack()))
		}
	}()
	err = call(ctx)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil:
		return brokenAs(Deadline, fmt.Errorf("environment %s: %s: %w", a.o.Env.Name(), what, err))
	}
	return brokenAs(EnvError, fmt.Errorf("environment %s: %s: %w", a.o.Env.Name(), what, err))
}

// settle completes the record from how the attempt went; an error that breaks nothing in particular is returned.
func (a *attempt) settle(err error) error {
	var b *broken
	if errors.As(err, &b) {
		a.rec.Status, a.rec.Error = b.status, cut(b.err.Error(), maxErrorBytes)
		a.rec.Reward, a.rec.Success = 0, false
	} else if err != nil {
		return err
	}
	a.rec.Rows = a.conv.finish()
	for i := range a.rec.Rows {
		a.rec.Usage.PromptTokens += a.rec.Rows[i].TurnBounds[0][0]
	}
	a.rec.Usage.Rewrites = max(0, len(a.rec.Rows)-1)
	return a.rec.Validate()
}

// broken is an attempt that says nothing about the policy.
type broken struct {
	status Status
	err    error
}

func brokenAs(s Status, err error) error { return &broken{s, err} }

func (b *broken) Error() string { return string(b.status) + ": " + b.err.Error() }
func (b *broken) Unwrap() error { return b.err }

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
