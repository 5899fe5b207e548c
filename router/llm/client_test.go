package llm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"harness-s/router/llm/llmtest"
)

// clock takes the waits of a client instead of real time.
type clock struct {
	mu    sync.Mutex
	waits []time.Duration
}

func (k *clock) sleep(ctx context.Context, d time.Duration) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.waits = append(k.waits, d)
	return ctx.Err()
}

func client(t *testing.T, s *llmtest.Server, change ...func(*Options)) (*Client, *clock) {
	t.Helper()
	k := &clock{}
	o := Options{URL: s.URL, Model: "judge", Timeout: 20 * time.Second, Retries: 2, MaxTokens: 64, Sleep: k.sleep}
	for _, f := range change {
		f(&o)
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, k
}

func ask(text string) Request {
	return Request{Messages: []Message{{"system", "Answer in JSON."}, {"user", text}}, Seed: 5}
}

func TestAsk(t *testing.T) {
	s := llmtest.New(t, llmtest.Text("hello"))
	c, k := client(t, s, func(o *Options) { o.URL += "/" })
	got, err := c.Ask(t.Context(), ask("hi"))
	if err != nil || got != (Reply{Text: "hello", PromptTokens: 100, ReplyTokens: 20}) {
		t.Errorf("got %+v, %v", got, err)
	}
	q := s.Questions()[0]
	if q.Model != "judge" || len(q.Messages) != 2 || q.Messages[1].Content != "hi" || q.Format != "" || q.Auth != "" ||
		string(q.Fields["max_tokens"]) != "64" || string(q.Fields["seed"]) != "5" || string(q.Fields["temperature"]) != "0" {
		t.Errorf("the server got %+v", q)
	}
	if n := c.Counters(); n != (Counters{Calls: 1, PromptTokens: 100, ReplyTokens: 20}) || len(k.waits) != 0 {
		t.Errorf("counters %+v, waits %v", n, k.waits)
	}
}

// TestAskBadAnswers: every bad HTTP answer is retried or given up within bounds, with one clear and short error, and a good
// answer after it is taken where a retry can help.
func TestAskBadAnswers(t *testing.T) {
	final := map[string]string{"400": "the prompt is too long", "401": "bad key", "redirect": "redirects are not followed"}
	for name, bad := range llmtest.BadAnswers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			short := func(o *Options) {
				if strings.HasPrefix(name, "stall") {
					o.Timeout = 50 * time.Millisecond
				}
			}
			c, _ := client(t, llmtest.New(t, bad), short)
			_, err := c.Ask(t.Context(), ask("hi"))
			if err == nil {
				t.Fatal("no error")
			}
			if len(err.Error()) > maxText+200 || strings.Contains(err.Error(), "\n") {
				t.Errorf("the error is long: %v", err)
			}
			want, n := 3, c.Counters()
			if final[name] != "" {
				want = 1
			}
			if n.Calls != want || n.Retries != want-1 || n.Failed != 1 || !strings.Contains(err.Error(), final[name]) {
				t.Errorf("counters %+v, want %d calls; %v", n, want, err)
			}
			if final[name] != "" || strings.HasPrefix(name, "stall") { // a good answer may take longer than the short timeout
				return
			}
			c, _ = client(t, llmtest.New(t, bad, llmtest.Text("good")), short)
			if got, err := c.Ask(t.Context(), ask("hi")); err != nil || got.Text != "good" {
				t.Errorf("after a retry: %+v, %v", got, err)
			}
		})
	}
}

func TestRetryWaits(t *testing.T) {
	busy := llmtest.Status(500, "busy")
	run := func() []time.Duration {
		c, k := client(t, llmtest.New(t, busy), func(o *Options) { o.Retries = 9 })
		c.Ask(t.Context(), ask("hi"))
		return k.waits
	}
	a, b := run(), run()
	if len(a) != 9 || fmt.Sprint(a) != fmt.Sprint(b) {
		t.Errorf("the waits of one request differ from run to run: %v, %v", a, b)
	}
	for i, d := range a {
		if top := min(firstWait<<i, maxWait); d < top/2 || d > top {
			t.Errorf("wait %d: %v, want %v..%v", i, d, top/2, top)
		}
	}
	other := wait(Request{Messages: []Message{{"user", "another"}}}, 5, 0)
	if other == a[5] {
		t.Errorf("two requests wait %v both", other)
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for v, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, " 7 ": 7 * time.Second, "3600": maxRetryAfter, "-1": 0, "99999999999999999999": 0, "soon": 0, "NaN": 0,
		now.Add(9 * time.Second).Format(http.TimeFormat): 9 * time.Second,
		now.Add(time.Hour).Format(http.TimeFormat):       maxRetryAfter,
		now.Add(-time.Hour).Format(http.TimeFormat):      0,
	} {
		if got := retryAfter(http.Header{"Retry-After": {v}}, now); got != want {
			t.Errorf("%q: %v, want %v", v, got, want)
		}
	}
	c, k := client(t, llmtest.New(t, llmtest.RetryAfter(429, "17"), llmtest.RetryAfter(503, "86400"), llmtest.Text("ok")))
	if _, err := c.Ask(t.Context(), ask("hi")); err != nil || len(k.waits) != 2 || k.waits[0] != 17*time.Second || k.waits[1] != maxRetryAfter {
		t.Errorf("waits %v, %v", k.waits, err)
	}
}

func TestDialect(t *testing.T) {
	schema := json.RawMessage(`{"type":"object"}`)
	for _, c := range []struct {
		name    string
		refuses func(q llmtest.Question) string // text of a 400
		first   int                             // requests of the first question
		format  string                          // of the second
	}{
		{"takes all", func(q llmtest.Question) string { return "" }, 1, "json_schema"},
		{"no schema", func(q llmtest.Question) string {
			if q.Format == "json_schema" {
				return "response_format: unknown type"
			}
			return ""
		}, 2, "json_object"},
		{"no format", func(q llmtest.Question) string {
			if q.Format != "" {
				return "unexpected field"
			}
			return ""
		}, 3, ""},
		{"another name for the limit", func(q llmtest.Question) string {
			if q.Fields["max_tokens"] != nil {
				return "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
			}
			return ""
		}, 2, "json_schema"},
		{"no sampling", func(q llmtest.Question) string {
			if q.Fields["temperature"] != nil {
				return "temperature does not support 0"
			}
			if q.Fields["seed"] != nil {
				return "unknown parameter seed"
			}
			return ""
		}, 3, "json_schema"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := llmtest.NewFunc(t, func(q llmtest.Question) llmtest.Answer {
				if text := c.refuses(q); text != "" {
					return llmtest.Status(400, text)
				}
				return llmtest.Text("{}")
			})
			cl, k := client(t, s)
			r := ask("hi")
			r.Schema = schema
			for range 2 {
				if _, err := cl.Ask(t.Context(), r); err != nil {
					t.Fatal(err)
				}
			}
			q := s.Questions()
			if len(q) != c.first+1 || q[len(q)-1].Format != c.format {
				t.Errorf("%d requests, the last with format %q; want %d and %q", len(q), q[len(q)-1].Format, c.first+1, c.format)
			}
			if n := cl.Counters(); n.Fallbacks != c.first-1 || n.Retries != 0 || len(k.waits) != 0 {
				t.Errorf("counters %+v, waits %v", n, k.waits)
			}
		})
	}
}

// TestDialectIsNotLearnedFromOtherFaults: a prompt that is too long says nothing about formats.
func TestDialectIsNotLearnedFromOtherFaults(t *testing.T) {
	s := llmtest.NewFunc(t, func(q llmtest.Question) llmtest.Answer {
		if strings.Contains(q.Text(), "long") {
			return llmtest.Status(400, "the prompt is too long for temperature, seed and max_completion_tokens")
		}
		return llmtest.Text("{}")
	})
	c, _ := client(t, s)
	r := ask("long")
	r.Schema = json.RawMessage(`{}`)
	if _, err := c.Ask(t.Context(), r); err == nil {
		t.Fatal("no error")
	}
	if n := c.Counters().Calls; n != 6 { // as it is, then five things fewer
		t.Errorf("%d requests of one that cannot go well", n)
	}
	r.Messages[1].Content = "short"
	if _, err := c.Ask(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	all := s.Questions()
	if q := all[len(all)-1]; q.Format != "json_schema" || q.Fields["seed"] == nil || q.Fields["max_tokens"] == nil {
		t.Errorf("it asked with %v", q.Fields)
	}
}

func TestUsage(t *testing.T) {
	r := ask("hi")
	for name, c := range map[string]struct {
		answer        llmtest.Answer
		prompt, reply int
	}{
		"counted":    {llmtest.Usage("hello", 11, 3), 11, 3},
		"missing":    {llmtest.NoUsage("12345678"), r.promptTokens(), 4},
		"zero":       {llmtest.Usage("12345678", 0, 0), r.promptTokens(), 4},
		"negative":   {llmtest.Usage("12345678", -5, -5), r.promptTokens(), 4},
		"absurd":     {llmtest.Usage("12345678", math.MaxInt64, 1), r.promptTokens(), 4},
		"cut":        {llmtest.TooLong("12"), r.promptTokens(), 64},
		"no content": {llmtest.NoUsage(""), r.promptTokens(), 64},
	} {
		b := &Budget{}
		cl, _ := client(t, llmtest.New(t, c.answer), func(o *Options) { o.Budget = b })
		got, err := cl.Ask(t.Context(), r)
		if err != nil || got.PromptTokens != c.prompt || got.ReplyTokens != c.reply {
			t.Errorf("%s: %+v, %v; want %d and %d", name, got, err, c.prompt, c.reply)
		}
		if calls, tokens := b.Spent(); calls != 1 || tokens != c.prompt+c.reply {
			t.Errorf("%s: spent %d calls, %d tokens", name, calls, tokens)
		}
	}
}

// TestLostRepliesAreCharged: a reply that was cut may be on the bill; a refused request is not.
func TestLostRepliesAreCharged(t *testing.T) {
	full := ask("hi").promptTokens() + 64
	for name, want := range map[string]int{"cut": full, "endless": full, "html": full, "stall": full, "429": 0, "500": 0, "400": 0} {
		b := &Budget{}
		c, _ := client(t, llmtest.New(t, llmtest.BadAnswers()[name]), func(o *Options) {
			o.Budget, o.Retries = b, 0
			if name == "stall" {
				o.Timeout = 50 * time.Millisecond
			}
		})
		c.Ask(t.Context(), ask("hi"))
		if calls, tokens := b.Spent(); calls != 1 || tokens != want {
			t.Errorf("%s: spent %d calls, %d tokens; want 1, %d", name, calls, tokens, want)
		}
	}
}

func TestBudget(t *testing.T) {
	s := llmtest.New(t, llmtest.Usage("ok", 10, 5))
	for name, b := range map[string]*Budget{"calls": {Calls: 7}, "tokens": {Tokens: 6*15 + ask("hi").promptTokens() + 64}} {
		c, _ := client(t, s, func(o *Options) { o.Budget = b; o.Concurrency = 8 })
		var good, over atomic.Int64
		var wg sync.WaitGroup
		for range 40 {
			wg.Go(func() {
				switch _, err := c.Ask(t.Context(), ask("hi")); {
				case err == nil:
					good.Add(1)
				case errors.Is(err, ErrBudget):
					over.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		wg.Wait()
		calls, tokens := b.Spent()
		if good.Load()+over.Load() != 40 || int(good.Load()) != calls || over.Load() == 0 {
			t.Errorf("%s: %d good, %d refused, %d spent", name, good.Load(), over.Load(), calls)
		}
		if b.Calls > 0 && calls != b.Calls || b.Tokens > 0 && tokens > b.Tokens {
			t.Errorf("%s: spent %d calls and %d tokens of %+v", name, calls, tokens, b)
		}
	}
}

func TestBudgetCharged(t *testing.T) {
	b := &Budget{Calls: 3}
	b.Charge(2, 100)
	c, _ := client(t, llmtest.New(t, llmtest.Text("ok")), func(o *Options) { o.Budget = b })
	if _, err := c.Ask(t.Context(), ask("hi")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Ask(t.Context(), ask("hi")); !errors.Is(err, ErrBudget) {
		t.Errorf("got %v", err)
	}
	if calls, tokens := b.Spent(); calls != 3 || tokens != 220 {
		t.Errorf("spent %d, %d", calls, tokens)
	}
}

func TestConcurrencyIsBounded(t *testing.T) {
	var now, most atomic.Int64
	s := llmtest.NewFunc(t, func(llmtest.Question) llmtest.Answer {
		return func(w http.ResponseWriter, r *http.Request, q llmtest.Question) {
			n := now.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			llmtest.Text("ok")(w, r, q)
			now.Add(-1)
		}
	})
	c, _ := client(t, s, func(o *Options) { o.Concurrency = 2 })
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := c.Ask(t.Context(), ask("hi")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if most.Load() > 2 {
		t.Errorf("%d requests at once; at most 2", most.Load())
	}
}

func TestCancel(t *testing.T) {
	reason := errors.New("stop it")
	for name, bad := range map[string]llmtest.Answer{"stall": llmtest.Stall(false), "endless": llmtest.Endless()} {
		ctx, cancel := context.WithCancelCause(t.Context())
		s := llmtest.NewFunc(t, func(llmtest.Question) llmtest.Answer { cancel(reason); return bad })
		c, _ := client(t, s)
		if _, err := c.Ask(ctx, ask("hi")); !errors.Is(err, reason) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	c, _ := client(t, llmtest.New(t, llmtest.Status(500, "busy")), func(o *Options) {
		o.Sleep = func(ctx context.Context, d time.Duration) error { cancel(); return sleep(ctx, d) }
	})
	if _, err := c.Ask(ctx, ask("hi")); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "busy") {
		t.Errorf("while waiting: %v", err)
	}
}

const testKey = "sk-test-0123456789"

func TestKey(t *testing.T) {
	t.Setenv("HARNESS_TEST_KEY", " "+testKey+"\n")
	withKey := func(o *Options) { o.KeyVariable, o.Retries = "HARNESS_TEST_KEY", 0 }
	s := llmtest.New(t, llmtest.Text("ok"))
	c, _ := client(t, s, withKey)
	if _, err := c.Ask(t.Context(), ask("hi")); err != nil || s.Questions()[0].Auth != "Bearer "+testKey {
		t.Errorf("%v, sent %q", err, s.Questions()[0].Auth)
	}
	other := llmtest.New(t, llmtest.Text("stolen"))
	for name, bad := range map[string]llmtest.Answer{
		"echo":     llmtest.Status(401, "the key "+testKey+" is wrong"),
		"no JSON":  func(w http.ResponseWriter, _ *http.Request, _ llmtest.Question) { fmt.Fprint(w, testKey) },
		"redirect": llmtest.Redirect(other.URL + "/chat/completions?" + testKey),
	} {
		c, _ := client(t, llmtest.New(t, bad), withKey)
		if _, err := c.Ask(t.Context(), ask("hi")); err == nil || strings.Contains(err.Error(), testKey) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(other.Questions()) != 0 {
		t.Error("a redirect to another host was followed")
	}
}

func TestNewRefuses(t *testing.T) {
	t.Setenv("HARNESS_TEST_KEY", "a\x01b")
	good := Options{URL: "http://127.0.0.1:1/v1", Model: "m"}
	for want, change := range map[string]func(*Options){
		"URL is none":                  func(o *Options) { o.URL = "127.0.0.1:8000" },
		"URL is none: write":           func(o *Options) { o.URL = "ftp://host/v1" },
		"holds a user":                 func(o *Options) { o.URL = "http://me:" + testKey + "@host/v1" },
		"a query":                      func(o *Options) { o.URL = "http://host/v1?key=" + testKey },
		"name the model":               func(o *Options) { o.Model = "" },
		"must not be negative":         func(o *Options) { o.Retries = -1 },
		"temperature NaN":              func(o *Options) { o.Temperature = math.NaN() },
		"HARNESS_NO_SUCH_KEY, named":   func(o *Options) { o.KeyVariable = "HARNESS_NO_SUCH_KEY" },
		"characters that no HTTP head": func(o *Options) { o.KeyVariable = "HARNESS_TEST_KEY" },
	} {
		o := good
		change(&o)
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), testKey) {
			t.Errorf("%q: %v", want, err)
		}
	}
	c, _ := client(t, llmtest.New(t, llmtest.Text("ok")))
	if _, err := c.Ask(t.Context(), ask(strings.Repeat("x", maxRequest))); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("a huge request: %v", err)
	}
}

// TestSum: what jitter is drawn from differs between questions.
func TestSum(t *testing.T) {
	a, b := ask("hi"), ask("hi")
	if a.sum() != b.sum() {
		t.Error("equal requests, other sums")
	}
	for name, other := range map[string]Request{"text": ask("ho"), "seed": {Messages: a.Messages, Seed: 6}, "schema": {Messages: a.Messages, Seed: 5, Schema: json.RawMessage("{}")}} {
		if other.sum() == a.sum() {
			t.Errorf("another %s, the same sum", name)
		}
	}
}
