package rollout

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"harness-s/model/chat"
	"harness-s/rollout/harness"
)

func mustRun(t *testing.T, o RunOptions) *Record {
	t.Helper()
	r, err := Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Validate(); err != nil {
		t.Fatal(err)
	}
	return r
}

// sampledParts is the text of each turn in a row's bounds.
func sampledParts(r Row) []string {
	var out []string
	for _, b := range r.TurnBounds {
		out = append(out, str(r.Tokens[b[0]:b[1]]))
	}
	return out
}

func TestRunAppendsOnly(t *testing.T) {
	p := &fakePolicy{script: []string{"look\n!sql a\n!sql b;", "!commit 42;"}}
	e := &fakeEnv{}
	r := mustRun(t, options(spec(t, ""), e, p))
	if r.Status != Completed || !r.Success || r.Reward != 1 || string(r.Grader) != `{"answer":"42"}` {
		t.Errorf("outcome %s %v %v %s", r.Status, r.Success, r.Reward, r.Grader)
	}
	const first = "<system>Sys\n<user>Q\n<a>"
	const second = first + "look\n!sql a\n!sql b;\n<t>got a|got b\n<a>"
	if !reflect.DeepEqual(p.prompts, []string{first, second}) {
		t.Errorf("prompts %q", p.prompts)
	}
	if !reflect.DeepEqual(p.seeds, []int64{100, 101}) {
		t.Errorf("seeds %v", p.seeds)
	}
	if len(r.Rows) != 1 || str(r.Rows[0].Tokens) != second+"!commit 42;" {
		t.Fatalf("row %q", str(r.Rows[0].Tokens))
	}
	if got := sampledParts(r.Rows[0]); !reflect.DeepEqual(got, p.script) {
		t.Errorf("policy turns %q", got)
	}
	if got := r.Rows[0].Logprobs[len(first)+2]; got != -0.1*3 {
		t.Errorf("log-prob of the third sampled token %v", got)
	}
	want := Usage{PromptTokens: len(first), PolicyTokens: len("look\n!sql a\n!sql b;!commit 42;"), CachedTokens: 2}
	if r.Usage != want {
		t.Errorf("usage %+v, want %+v", r.Usage, want)
	}
	if r.PolicyVersion != 3 || r.Harness != "h0" || len(r.HarnessHash) != 64 || r.Seed != 100 || r.TaskKind != "count" {
		t.Errorf("labels %+v", r)
	}
	roles := ""
	for _, turn := range r.Turns {
		roles += turn.Role + " "
	}
	if roles != "assistant tool tool assistant tool " {
		t.Errorf("turns %s", roles)
	}
	if e.opened.Load() != 1 || e.closed.Load() != 1 {
		t.Error("the session must be closed once")
	}
}

func TestRunAnswersBadTurns(t *testing.T) {
	for _, c := range []struct{ name, spec, turn, want string }{
		{"no call", "", "hello;", "<u>No tool call found. Call a tool."},
		{"unreadable", "", "?x;", "<u>cannot read ?x"},
		{"unreadable beside a call", "", "!sql a\n?x;", "<t>got a|cannot read ?x"},
		{"unknown tool", "", "!drop a;", `<t>Unknown tool "drop". The tools are: sql, commit.`},
		{"hidden tool", "tools: [{name: commit}]\n", "!sql a;", `<t>Unknown tool "sql". The tools are: commit.`},
		{"format repair", "rules: {format_repair: {text: FIX}}\n", "?x;", "<u>cannot read ?x\nFIX"},
		{"format repair, no call", "rules: {format_repair: {text: FIX}}\n", "hi;", "<u>No tool call found. Call a tool.\nFIX"},
		{"format repair beside a call", "rules: {format_repair: {text: FIX}}\n", "!sql a\n?x;", "<t>got a|cannot read ?x\nFIX"},
		{"cut turn", "", strings.Repeat("x", 401), "<u>No tool call found. Call a tool.\nYour turn was cut at its length limit."},
		{"many calls", "", strings.Repeat("!sql a\n", 17) + ";", "<t>" + strings.Repeat("got a|", 16) + "Only the first 16 calls of a turn are run."},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &fakePolicy{script: []string{c.turn, "!commit 42;"}}
			r := mustRun(t, options(spec(t, c.spec), &fakeEnv{}, p))
			if r.Status != Completed || !strings.HasSuffix(p.prompts[1], c.want+"\n<a>") {
				t.Errorf("status %s, prompt %q", r.Status, p.prompts[1])
			}
			closed := strings.Contains(p.prompts[1], "x;\n<u>")
			if c.name == "cut turn" && !closed {
				t.Error("a cut turn must be closed before the answer")
			}
			if errs := strings.Count(c.turn, "?"); r.Usage.ParseErrors != errs {
				t.Errorf("%d parse errors, want %d", r.Usage.ParseErrors, errs)
			}
		})
	}
}

func TestRules(t *testing.T) {
	env := func() *fakeEnv {
		return &fakeEnv{answers: map[string]Observation{
			"bad":   {Text: "no such column", Error: true, Rows: -1},
			"none":  {Text: "[]", Kind: "select", Rows: 0},
			"upd":   {Text: "[]", Kind: "change", Rows: 0},
			"long":  {Text: strings.Repeat("é", 40), Kind: "select", Rows: 9},
			"cut":   {Text: "[(1,)[TRUNCATED]", Kind: "select", Rows: 9},
			"wrong": {Text: "x\xff\x00y", Kind: "select", Rows: 1},
		}}
	}
	for _, c := range []struct {
		name, spec string
		script     []string
		want       []string // answers, in order
		ran        string
		status     Status
	}{
		{"schema on error", "rules: {schema_on_error: {text: \"Schema:\"}}\n", []string{"!sql bad;", "!commit 42;"},
			[]string{"no such column\nSchema:\nt(a, b)"}, "sql bad,commit 42", Completed},
		{"schema only on error", "rules: {schema_on_error: {text: \"Schema:\"}}\n", []string{"!sql a;", "!commit 42;"}, []string{"got a"}, "sql a,commit 42", Completed},
		{"empty hint", "rules: {empty_hint: {text: EMPTY}}\n", []string{"!sql none;", "!sql upd;", "!commit 42;"}, []string{"[]\nEMPTY", "[]"}, "sql none,sql upd,commit 42", Completed},
		{"truncated by the environment", "rules: {truncated_hint: {text: MORE}}\n", []string{"!sql cut;", "!sql a;", "!commit 42;"},
			[]string{"[(1,)[TRUNCATED]\nMORE", "got a"}, "sql cut,sql a,commit 42", Completed},
		{"truncated by memory", "memory: {max_observation_chars: 32}\nrules: {truncated_hint: {text: MORE}}\n", []string{"!sql long;", "!commit 42;"},
			[]string{strings.Repeat("é", 32) + "[TRUNCATED]\nMORE"}, "sql long,commit 42", Completed},
		{"invalid text", "", []string{"!sql wrong;", "!commit 42;"}, []string{"x\uFFFD\x00y"}, "sql wrong,commit 42", Completed},
		{"verify once", "rules: {verify_before_finish: {tool: commit, text: SURE}}\n", []string{"!commit 41;", "!commit 42;"}, []string{"SURE"}, "commit 42", Completed},
		{"refuse repeat", "rules: {refuse_repeat: {text: AGAIN}}\n", []string{"!sql a;", "!sql a\n!sql b;", "!commit 42;"},
			[]string{"got a", "AGAIN|got b"}, "sql a,sql b,commit 42", Completed},
		{"repeat after a change", "rules: {refuse_repeat: {text: AGAIN}}\n", []string{"!sql a\n!sql upd\n!sql a\n!sql upd;", "!commit 42;"},
			[]string{"got a|[]|got a|AGAIN"}, "sql a,sql upd,sql a,commit 42", Completed},
		{"nudge", "rules: {nudge_before_limit: {turns: 1, text: HURRY}, max_turns: {turns: 3}}\n", []string{"!sql a;", "hm;", "!sql b;"},
			[]string{"got a", "No tool call found. Call a tool.\nHURRY"}, "sql a,sql b", TurnLimit},
		{"max turns cannot be raised", "rules: {max_turns: {turns: 50}}\n", []string{"a;", "b;", "c;", "d;", "e;", "f;"}, nil, "", TurnLimit},
		{"nothing runs after the end", "", []string{"!commit 42\n!sql a;"}, nil, "commit 42", Completed},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &fakePolicy{script: c.script}
			e := env()
			r := mustRun(t, options(spec(t, c.spec), e, p))
			if r.Status != c.status || r.Success != (c.status == Completed) {
				t.Errorf("status %s, success %v", r.Status, r.Success)
			}
			if got := strings.Join(e.ran, ","); got != c.ran {
				t.Errorf("ran %q, want %q", got, c.ran)
			}
			for i, want := range c.want {
				_, after, _ := strings.Cut(p.prompts[i+1][len(p.prompts[i]):], ";\n")
				after = strings.TrimSuffix(after[3:], "\n<a>")
				if after != want {
					t.Errorf("answer %d: %q, want %q", i, after, want)
				}
			}
		})
	}
}

func TestMemoryLastK(t *testing.T) {
	p := &fakePolicy{script: []string{"!sql aaaaaaaa;", "hm;", "!sql b;", "!sql cccccccc;", "!commit 42;"}}
	r := mustRun(t, options(spec(t, "memory: {mode: last_k, keep: 1}\n"), &fakeEnv{}, p))
	const head = "<system>Sys\n<user>Q\n<a>"
	want := []string{
		head,
		head + "!sql aaaaaaaa;\n<t>got aaaaaaaa\n<a>",
		head + "!sql aaaaaaaa;\n<t>[omitted]\n<a>hm;\n<u>No tool call found. Call a tool.\n<a>", // rewritten
		head + "!sql aaaaaaaa;\n<t>[omitted]\n<a>hm;\n<u>No tool call found. Call a tool.\n<a>!sql b;\n<t>got b\n<a>",
		head + "!sql aaaaaaaa;\n<t>[omitted]\n<a>hm;\n<u>No tool call found. Call a tool.\n<a>!sql b;\n<t>got b\n<a>!sql cccccccc;\n<t>got cccccccc\n<a>", // got b is short
	}
	if !reflect.DeepEqual(p.prompts, want) {
		t.Errorf("prompts %q", p.prompts)
	}
	if r.Usage.Rewrites != 1 || len(r.Rows) != 2 {
		t.Fatalf("%d rewrites, %d rows", r.Usage.Rewrites, len(r.Rows))
	}
	if a, b := sampledParts(r.Rows[0]), sampledParts(r.Rows[1]); !reflect.DeepEqual(append(a, b...), p.script) || len(a) != 2 {
		t.Errorf("each turn must be trained on once: %q %q", a, b)
	}
	if r.Usage.PromptTokens != len(want[0])+len(want[2]) {
		t.Errorf("prompt tokens %d", r.Usage.PromptTokens)
	}
}

func TestMemoryNotes(t *testing.T) {
	p := &fakePolicy{script: []string{"note: a is k7\n!sql a;", "NOTE: second \n!sql b;", "!sql c;", "!commit 42;"}}
	r := mustRun(t, options(spec(t, "memory: {mode: notes, keep: 1}\n"), &fakeEnv{}, p))
	want := []string{
		"<system>Sys\n<user>Q\n<a>",
		"<system>Sys\n<user>Q\n<a>note: a is k7\n!sql a;\n<t>got a\n<a>",
		"<system>Sys\n<user>Q\n\nNotes:\na is k7\n<a>NOTE: second \n!sql b;\n<t>got b\n<a>",
		"<system>Sys\n<user>Q\n\nNotes:\na is k7\nsecond\n<a>!sql c;\n<t>got c\n<a>",
	}
	if !reflect.DeepEqual(p.prompts, want) {
		t.Errorf("prompts %q", p.prompts)
	}
	if len(r.Rows) != 3 || r.Usage.Rewrites != 2 {
		t.Errorf("%d rows, %d rewrites", len(r.Rows), r.Usage.Rewrites)
	}
	var turns []string
	for _, row := range r.Rows {
		turns = append(turns, sampledParts(row)...)
	}
	if !reflect.DeepEqual(turns, p.script) {
		t.Errorf("policy turns %q", turns)
	}
}

func TestTokenLimit(t *testing.T) {
	p := &fakePolicy{script: []string{"!sql a;", "!sql b;", "!commit 42;"}}
	o := options(spec(t, ""), &fakeEnv{}, p)
	o.Limits.MaxContextTokens = len("<system>Sys\n<user>Q\n<a>") + len("!sql a;\n<t>got a\n<a>") + 3
	r := mustRun(t, o)
	if r.Status != TokenLimit || r.Success || r.Reward != 0 {
		t.Errorf("status %s", r.Status)
	}
	if got := sampledParts(r.Rows[0]); !reflect.DeepEqual(got, []string{"!sql a;", "!sq"}) {
		t.Errorf("turns %q", got)
	}
	// An observation may fill the context: then no turn is sampled, and the row ends with the last policy token.
	p = &fakePolicy{script: []string{"!sql a;"}}
	o = options(spec(t, ""), &fakeEnv{}, p)
	o.Limits.MaxContextTokens = len("<system>Sys\n<user>Q\n<a>") + len("!sql a;") + 2
	r = mustRun(t, o)
	if r.Status != TokenLimit || !strings.HasSuffix(str(r.Rows[0].Tokens), "!sql a;") {
		t.Errorf("status %s, row %q", r.Status, str(r.Rows[0].Tokens))
	}
}

func TestBrokenAttempts(t *testing.T) {
	server := fmt.Errorf("%w: gone", ErrServer)
	act := func(f func(ctx context.Context) (Observation, error)) *fakeEnv {
		return &fakeEnv{act: func(ctx context.Context, _ chat.ToolCall) (Observation, error) { return f(ctx) }}
	}
	spoil := func(f func(*Reply)) *fakePolicy {
		return &fakePolicy{reply: func(r Request, _ int) (Reply, error) {
			out := say("!commit 42;", r)
			f(&out)
			return out, nil
		}}
	}
	good := func() *fakePolicy { return &fakePolicy{script: []string{"!sql a;", "!commit 42;"}} }
	for _, c := range []struct {
		name   string
		env    *fakeEnv
		policy *fakePolicy
		status Status
		text   string
	}{
		{"server error", &fakeEnv{}, &fakePolicy{reply: func(r Request, turn int) (Reply, error) {
			if turn == 1 {
				return Reply{}, server
			}
			return say("!sql a;", r), nil
		}}, ServerError, "turn 1: policy server"},
		{"act fails", act(func(context.Context) (Observation, error) { return Observation{}, errBoom }), good(), EnvError, "environment fake: sql: boom"},
		{"act panics", act(func(context.Context) (Observation, error) { panic("aargh") }), good(), EnvError, "rollout r1: environment fake: sql panicked: aargh"},
		{"act hangs", act(func(ctx context.Context) (Observation, error) { <-ctx.Done(); return Observation{}, ctx.Err() }), good(), Deadline, "environment fake: sql: context deadline"},
		{"open fails", &fakeEnv{open: func() error { return errBoom }}, good(), EnvError, "open: boom"},
		{"open panics", &fakeEnv{open: func() error { panic(1) }}, good(), EnvError, "open panicked: 1"},
		{"grade fails", &fakeEnv{grade: func() (Grade, error) { return Grade{}, errBoom }}, good(), EnvError, "grade: boom"},
		{"grade not finite", &fakeEnv{grade: func() (Grade, error) { return Grade{Reward: math.NaN()}, nil }}, good(), EnvError, "reward NaN"},
		{"grade detail", &fakeEnv{grade: func() (Grade, error) { return Grade{Detail: map[string]any{"x": math.Inf(1)}}, nil }}, good(), EnvError, "detail"},
		{"no tokens", &fakeEnv{}, spoil(func(r *Reply) { r.Tokens, r.Logprobs = nil, nil }), ServerError, "0 tokens"},
		{"lengths differ", &fakeEnv{}, spoil(func(r *Reply) { r.Logprobs = r.Logprobs[1:] }), ServerError, "log-probs"},
		{"aborted", &fakeEnv{}, spoil(func(r *Reply) { r.FinishReason = "abort" }), ServerError, `ended with "abort"`},
		{"nan", &fakeEnv{}, spoil(func(r *Reply) { r.Logprobs[1] = float32(math.NaN()) }), ServerError, "log-prob NaN"},
		{"minus infinity", &fakeEnv{}, spoil(func(r *Reply) { r.Logprobs[1] = float32(math.Inf(-1)) }), ServerError, "-Inf"},
		{"positive", &fakeEnv{}, spoil(func(r *Reply) { r.Logprobs[1] = 0.5 }), ServerError, "log-prob 0.5"},
		{"negative id", &fakeEnv{}, spoil(func(r *Reply) { r.Tokens[1] = -1 }), ServerError, "is -1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := options(spec(t, ""), c.env, c.policy)
			if c.status == Deadline {
				o.Limits.ToolDeadline = 5 * time.Millisecond
			}
			r := mustRun(t, o)
			if r.Status != c.status || !r.Status.Broken() || r.Success || r.Reward != 0 || !strings.Contains(r.Error, c.text) {
				t.Errorf("status %s, reward %v, error %q", r.Status, r.Reward, r.Error)
			}
			if c.env.opened.Load() != c.env.closed.Load() {
				t.Error("session left open")
			}
		})
	}
}

func TestRoundingAboveZeroIsClamped(t *testing.T) {
	p := &fakePolicy{reply: func(r Request, _ int) (Reply, error) {
		out := say("!commit 42;", r)
		out.Logprobs[0] = 1e-6
		return out, nil
	}}
	r := mustRun(t, options(spec(t, ""), &fakeEnv{}, p))
	if r.Rows[0].Logprobs[r.Rows[0].TurnBounds[0][0]] != 0 {
		t.Error("want 0")
	}
}

func TestRolloutDeadline(t *testing.T) {
	o := options(spec(t, ""), &fakeEnv{}, nil)
	o.Limits.RolloutDeadline = 5 * time.Millisecond
	o.Policy = waiting{}
	if r := mustRun(t, o); r.Status != Deadline {
		t.Errorf("status %s: %s", r.Status, r.Error)
	}
}

// waiting is a policy that never answers.
type waiting struct{}

func (waiting) Generate(ctx context.Context, r Request) (Reply, error) {
	<-ctx.Done()
	return Reply{}, fmt.Errorf("%w: %w", ErrServer, ctx.Err())
}

func TestRunErrors(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Run(ctx, options(spec(t, ""), &fakeEnv{}, waiting{})); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	o := options(spec(t, ""), &fakeEnv{}, &fakePolicy{reply: func(Request, int) (Reply, error) { return Reply{}, errBoom }})
	if _, err := Run(context.Background(), o); !errors.Is(err, errBoom) || !strings.Contains(err.Error(), "rollout r1") {
		t.Errorf("a refused request: %v", err)
	}
	o = options(spec(t, ""), &fakeEnv{}, waiting{})
	o.Task.Vars = nil
	if _, err := Run(context.Background(), o); err == nil || !strings.Contains(err.Error(), "{{question}}") {
		t.Errorf("missing variable: %v", err)
	}
	o = options(spec(t, "tools: [{name: nothing}]\n"), &fakeEnv{}, waiting{})
	if _, err := Run(context.Background(), o); err == nil || !strings.Contains(err.Error(), `"nothing"`) {
		t.Errorf("unknown tool: %v", err)
	}
	o = options(spec(t, ""), &fakeEnv{}, waiting{})
	o.Limits.MaxTurns = 0
	if _, err := Run(context.Background(), o); err == nil || !strings.Contains(err.Error(), "limit") {
		t.Errorf("no limit: %v", err)
	}
}

// shownTools renders as fakeRenderer does and counts the tools that the prompt describes.
type shownTools struct {
	fakeRenderer
	n *int
}

func (r shownTools) Start(msgs []chat.Message, tools []chat.Tool) ([]int32, error) {
	*r.n = len(tools)
	return r.fakeRenderer.Start(msgs, tools)
}

// Tools that the prompt does not describe can be called all the same; a tool that is not offered cannot.
func TestRunToolsBlock(t *testing.T) {
	for block, want := range map[string]int{"": len((&fakeEnv{}).Tools()), harness.ToolsFull: len((&fakeEnv{}).Tools()), harness.ToolsNone: 0} {
		s, shown := spec(t, ""), -1
		s.Prompt.ToolsBlock = block
		p := &fakePolicy{script: []string{"!sql a;", "!nothing b;", "!commit 42;"}}
		o := options(s, &fakeEnv{}, p)
		o.Renderer = shownTools{n: &shown}
		r := mustRun(t, o)
		if shown != want || !r.Success {
			t.Errorf("tools_block %q: %d tools described, want %d; success %v", block, shown, want, r.Success)
		}
		if last := p.prompts[2]; !strings.Contains(last, "got a") || !strings.Contains(last, "Unknown tool") {
			t.Errorf("tools_block %q: context %q", block, last)
		}
	}
}
