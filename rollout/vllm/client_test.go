package vllm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"harness-s/internal/testutil"
	"harness-s/rollout"
)

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// scripted is a server whose generation routes the test writes; the rest is as vLLM answers.
type scripted struct {
	t        *testing.T
	mu       sync.Mutex
	bodies   []map[string]any // of generation requests
	generate http.HandlerFunc
	complete http.HandlerFunc
	control  map[string]http.HandlerFunc
	calls    []string // control calls, in order
}

func (s *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, _ := io.ReadAll(r.Body)
	note := func() {
		var b map[string]any
		json.Unmarshal(raw, &b)
		s.mu.Lock()
		s.bodies = append(s.bodies, b)
		s.mu.Unlock()
	}
	switch r.URL.Path {
	case "/health":
	case "/version":
		io.WriteString(w, `{"version":"0.32.0"}`)
	case "/v1/models":
		io.WriteString(w, `{"object":"list","data":[{"id":"tiny-policy","max_model_len":512}]}`)
	case "/inference/v1/generate":
		note()
		s.generate(w, r)
	case "/v1/completions":
		note()
		s.complete(w, r)
	default:
		s.mu.Lock()
		s.calls = append(s.calls, r.URL.Path)
		s.mu.Unlock()
		if f := s.control[r.URL.Path]; f != nil {
			f(w, r)
			return
		}
		io.WriteString(w, `{}`)
	}
}

func (s *scripted) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.bodies)
}

func answer(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

func dial(t *testing.T, servers ...*scripted) *Client {
	t.Helper()
	opt := Options{Model: "tiny-policy"}
	for _, s := range servers {
		s.t = t
		h := httptest.NewServer(s)
		t.Cleanup(h.Close)
		opt.URLs = append(opt.URLs, h.URL)
	}
	c, err := Dial(testContext(t), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

var req = rollout.Request{RolloutID: "r", Prompt: []int32{1, 2, 3}, MaxTokens: 4, Temperature: 1, Seed: 7, Stop: []int32{9}}

const good = `{"model":"tiny-policy","prompt_token_ids":[1,2,3],"usage":{"prompt_tokens_details":{"cached_tokens":64}},"choices":[{"finish_reason":"length","token_ids":[5,6],
	"weight_versions":[{"version":"3","start":0,"end":1},{"version":"4","start":1,"end":2}],
	"logprobs":{"content":[{"token_id":5,"logprob":-0.1},{"token_id":6,"logprob":-12.214489}]}}]}`

func TestNewAndOldLogprobs(t *testing.T) {
	old := strings.NewReplacer(`"token_id":5`, `"token":"token_id:5"`, `"token_id":6`, `"token":"token_id:6"`).Replace(good)
	for name, body := range map[string]string{"new": good, "old": old} {
		c := dial(t, &scripted{generate: answer(200, body)})
		got, err := c.Generate(testContext(t), req)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want := rollout.Reply{Tokens: []int32{5, 6}, Logprobs: []float32{-0.1, -12.214489}, FinishReason: "length", PolicyVersion: 3, CachedTokens: 64}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

// Whatever a server sends that is not a sound sample is an error that blames the server.
func TestHostileReplies(t *testing.T) {
	replace := func(old, new string) string {
		if !strings.Contains(good, old) {
			t.Fatalf("%q is not in the good reply", old)
		}
		return strings.Replace(good, old, new, 1)
	}
	cases := map[string]string{
		"too few log-probs":     replace(`,{"token_id":6,"logprob":-12.214489}`, ``),
		"NaN":                   replace(`-0.1`, `NaN`),
		"null log-prob":         replace(`-0.1`, `null`),
		"minus infinity":        replace(`-0.1`, `-9999.0`),
		"out of range":          replace(`-0.1`, `-1e300`),
		"positive":              replace(`-0.1`, `0.1`),
		"other token":           replace(`"token_id":5`, `"token_id":7`),
		"unlabelled log-prob":   replace(`"token_id":5,`, ``),
		"other prompt":          replace(`[1,2,3]`, `[1,2,4]`),
		"other model":           replace(`tiny-policy`, `big-policy`),
		"aborted":               replace(`"length"`, `"abort"`),
		"unknown finish":        replace(`"length"`, `"repetition"`),
		"no finish":             replace(`"finish_reason":"length",`, ``),
		"no tokens":             `{"model":"tiny-policy","choices":[{"finish_reason":"stop","token_ids":[],"logprobs":{"content":[]}}]}`,
		"no log-probs":          `{"choices":[{"finish_reason":"stop","token_ids":[5]}]}`,
		"more than asked":       `{"choices":[{"finish_reason":"stop","token_ids":[1,1,1,1,1],"logprobs":{"content":[]}}]}`,
		"no choice":             `{"choices":[]}`,
		"two choices":           `{"choices":[{},{}]}`,
		"negative id":           strings.NewReplacer(`[5,6]`, `[-5,6]`, `"token_id":5`, `"token_id":-5`).Replace(good),
		"huge id":               replace(`[5,6]`, `[4294967301,6]`),
		"garbage":               `<html>bad gateway</html>`,
		"cut":                   good[:len(good)/2],
		"empty":                 ``,
		"an error behind a 200": `{"error":{"message":"x","code":500}}`,
	}
	for name, body := range cases {
		t.Run(name, func(t *testing.T) {
			s := &scripted{generate: answer(200, body)}
			_, err := dial(t, s).Generate(testContext(t), req)
			if !errors.Is(err, rollout.ErrServer) {
				t.Fatalf("error %v, want one that wraps ErrServer", err)
			}
			if s.count() != 1+repeats {
				t.Errorf("asked %d times, want %d", s.count(), 1+repeats)
			}
		})
	}
}

func TestSendsEveryField(t *testing.T) {
	s := &scripted{generate: answer(403, `{"error":{"message":"Scale-out endpoints are disabled.","type":"PermissionDeniedError","param":null,"code":403}}`),
		complete: answer(200, `{"model":"tiny-policy","choices":[{"finish_reason":"stop","token_ids":[9],"prompt_token_ids":[1,2,3],"logprobs":{"token_logprobs":[-1]}}]}`)}
	c := dial(t, s)
	for range 2 {
		if _, err := c.Generate(testContext(t), req); err != nil {
			t.Fatal(err)
		}
	}
	if s.count() != 3 {
		t.Errorf("%d requests; the missing route must be tried once", s.count())
	}
	inner := s.bodies[0]["sampling_params"].(map[string]any)
	for _, b := range []map[string]any{inner, s.bodies[1]} {
		for _, k := range []string{"n", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed",
			"max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "logprobs", "skip_special_tokens"} {
			if _, ok := b[k]; !ok {
				t.Errorf("%s is not sent", k)
			}
		}
		if b["top_k"] != -1.0 || b["top_p"] != 1.0 || b["repetition_penalty"] != 1.0 || b["seed"] != 7.0 {
			t.Errorf("sampling %v", b)
		}
	}
	if a, b := s.bodies[1]["cache_salt"], s.bodies[2]["cache_salt"]; a == "" || a != b {
		t.Errorf("salts %v and %v of one weight version", a, b)
	}
}

func TestRetries(t *testing.T) {
	var n atomic.Int32
	failing := func(times int32, bad http.HandlerFunc) *scripted {
		n.Store(0)
		return &scripted{generate: func(w http.ResponseWriter, r *http.Request) {
			if n.Add(1) <= times {
				bad(w, r)
				return
			}
			answer(200, good)(w, r)
		}}
	}
	hangUp := func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			conn.Close()
		}
	}
	cutBody := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "1000")
		io.WriteString(w, good[:50])
	}
	overloaded := answer(503, `{"error":{"message":"queue full","type":"ServiceUnavailableError","param":null,"code":503}}`)
	fault := answer(500, `{"error":{"message":"EngineCore encountered an issue.","type":"InternalServerError","param":null,"code":500}}`)
	refusal := answer(400, `{"error":{"message":"Token id 5000 is out of vocabulary","type":"BadRequestError","param":null,"code":400}}`)
	for _, c := range []struct {
		name   string
		times  int32
		bad    http.HandlerFunc
		ok     bool
		blamed bool
		asked  int32
	}{
		{"busy three times", 3, overloaded, true, false, 4},
		{"always busy", 99, overloaded, false, true, 4},
		{"connection lost", 2, hangUp, true, false, 3},
		{"body cut", 1, cutBody, true, false, 2},
		{"one fault", 1, fault, true, false, 2},
		{"a lasting fault", 99, fault, false, true, 2},
		{"refused", 99, refusal, false, false, 1},
		{"plain text", 99, answer(502, "no upstream"), false, true, 2},
	} {
		cl := dial(t, failing(c.times, c.bad))
		_, err := cl.Generate(testContext(t), req)
		if (err == nil) != c.ok || errors.Is(err, rollout.ErrServer) != c.blamed || n.Load() != c.asked {
			t.Errorf("%s: %v after %d requests; want ok %v, server blamed %v, %d requests", c.name, err, n.Load(), c.ok, c.blamed, c.asked)
		}
	}
}

func TestDeadlineAndRefusedConnection(t *testing.T) {
	block := make(chan struct{})
	s := &scripted{generate: func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-block:
		}
	}}
	c := dial(t, s)
	ctx, cancel := context.WithTimeout(testContext(t), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Generate(ctx, req); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, rollout.ErrServer) {
		t.Errorf("deadline: %v", err)
	}
	close(block)

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if _, err := Dial(testContext(t), Options{URLs: []string{"http://" + l.Addr().String()}}); err == nil || !errors.Is(err, rollout.ErrServer) {
		t.Errorf("nobody listens: %v", err)
	}
	for _, bad := range []string{"", "localhost:8000", "ftp://x"} {
		if _, err := Dial(testContext(t), Options{URLs: []string{bad}}); err == nil {
			t.Errorf("URL %q was taken", bad)
		}
	}
}

func TestSeveralServers(t *testing.T) {
	ok := func() *scripted { return &scripted{generate: answer(200, good)} }
	a, b := ok(), ok()
	c := dial(t, a, b)
	r := req
	for turn := range 6 { // a rollout stays where its prefix is
		for _, id := range []string{"x", "y"} {
			r.RolloutID = id
			if _, err := c.Generate(testContext(t), r); err != nil {
				t.Fatalf("turn %d: %v", turn, err)
			}
		}
	}
	if n := a.count(); n%6 != 0 {
		t.Errorf("server a had %d of 12 requests: a rollout changed servers", n)
	}
	dead := &scripted{generate: answer(500, `gone`)}
	c = dial(t, dead, b)
	before := b.count()
	for i := range 4 {
		r.RolloutID = fmt.Sprint("z", i)
		if _, err := c.Generate(testContext(t), r); err != nil {
			t.Errorf("with one dead server: %v", err)
		}
	}
	if dead.count() > 2 || b.count()-before != 4 {
		t.Errorf("the dead server was asked %d times, the other %d", dead.count(), b.count()-before)
	}
}

func TestSyncLeavesNoServerPausedWithGoodWeights(t *testing.T) {
	failed := answer(500, `{"error":{"message":"Worker failed","type":"InternalServerError","param":null,"code":500}}`)
	intact := func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X-Weights-Intact", "true"); failed(w, r) }
	var tries atomic.Int32
	secondTime := func(w http.ResponseWriter, r *http.Request) {
		if tries.Add(1) == 1 {
			failed(w, r)
			return
		}
		io.WriteString(w, `{"results":[null]}`)
	}
	for _, c := range []struct {
		name    string
		reload  http.HandlerFunc
		loadDir string
		ok      bool
		resumed bool
	}{
		{"all well", nil, "", true, true},
		{"failed, weights lost", failed, "", false, false},
		{"failed, weights intact", intact, "", false, true},
		{"failed, old folder loaded again", secondTime, "/first", false, true},
	} {
		s := &scripted{generate: answer(200, strings.Replace(good, `"weight_versions":[{"version":"3","start":0,"end":1},{"version":"4","start":1,"end":2}],`, "", 1)), control: map[string]http.HandlerFunc{"/collective_rpc": c.reload}}
		cl := dial(t, s)
		cl.good = c.loadDir
		err := cl.Sync(testContext(t), "/step_5", 5)
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
		if s.calls[0] != "/pause" || slices.Contains(s.calls, "/resume") != c.resumed {
			t.Errorf("%s: calls %v", c.name, s.calls)
		}
		reply, err := cl.Generate(testContext(t), req)
		if (err == nil) != c.resumed {
			t.Errorf("%s: generation afterwards: %v", c.name, err)
		}
		if c.ok && reply.PolicyVersion != 5 {
			t.Errorf("%s: version %d", c.name, reply.PolicyVersion)
		}
	}
	// Even a canceled sync resumes.
	ctx, cancel := context.WithCancel(testContext(t))
	s := &scripted{generate: answer(200, good), control: map[string]http.HandlerFunc{"/pause": func(w http.ResponseWriter, r *http.Request) { cancel(); <-r.Context().Done() }}}
	if err := dial(t, s).Sync(ctx, "/step", 1); err == nil || s.calls[len(s.calls)-1] != "/resume" {
		t.Errorf("canceled: %v, calls %v", err, s.calls)
	}
}

// Nothing is left behind: goroutines and connections end with Close.
func TestNoLeaks(t *testing.T) {
	before := runtime.NumGoroutine()
	func() {
		s := &scripted{generate: answer(200, good)}
		h := httptest.NewServer(s)
		defer h.Close()
		c, err := Dial(testContext(t), Options{URLs: []string{h.URL}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		var wg sync.WaitGroup
		for range 40 {
			wg.Go(func() {
				if _, err := c.Generate(testContext(t), req); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}()
	for end := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			buf := make([]byte, 1<<16)
			t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
		}
	}
}

// What a real server sent is understood.
func TestRecordedReplies(t *testing.T) {
	shared, ok := testutil.SharedDir(t)
	if !ok {
		t.Skip("no recorded exchanges here")
	}
	type recording struct {
		Request  struct{ Body json.RawMessage }
		Response struct {
			Status int
			Body   json.RawMessage
		}
	}
	load := func(name string) (r recording) {
		raw, err := os.ReadFile(filepath.Join(shared, "data", "vllm", name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(raw, &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	prompt := []int32{60, 110, 300, 401, 512, 77, 88, 99, 640, 700, 33, 21}
	disabled := load("err_scale_out_disabled")
	want := rollout.Reply{}
	for _, name := range []string{"generate_tokens", "completions_ids_logprobs0", "completions_ids_logprobs1"} {
		x := load(name)
		s := &scripted{generate: answer(200, string(x.Response.Body))}
		if strings.HasPrefix(name, "completions") {
			s.generate, s.complete = answer(disabled.Response.Status, string(disabled.Response.Body)), answer(200, string(x.Response.Body))
		}
		got, err := dial(t, s).Generate(testContext(t), rollout.Request{Prompt: prompt, MaxTokens: 8, Temperature: 1, Seed: 7})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if want.Tokens == nil {
			want = got
		}
		if len(got.Tokens) != 8 || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	for _, name := range []string{"dev_pause_abort_inflight", "generate_aborted_by_id"} {
		x := load(name)
		s := &scripted{generate: answer(404, `{"detail":"Not Found"}`), complete: answer(200, string(x.Response.Body))}
		if strings.HasPrefix(name, "generate") {
			s.generate = s.complete
		}
		if _, err := dial(t, s).Generate(testContext(t), rollout.Request{Prompt: prompt, MaxTokens: 400, Temperature: 1}); !errors.Is(err, rollout.ErrServer) {
			t.Errorf("%s: %v", name, err)
		}
	}
	x := load("completions_echo_score")
	lp, err := dial(t, &scripted{complete: answer(200, string(x.Response.Body))}).Score(testContext(t), prompt)
	if err != nil || len(lp) != 12 || lp[0] != 0 || lp[1] != -12.214489 {
		t.Errorf("scores %v, %v", lp, err)
	}
	for _, name := range []string{"err_token_out_of_vocab", "err_generate_too_long", "err_unknown_model_generate"} {
		x := load(name)
		_, err := dial(t, &scripted{generate: answer(x.Response.Status, string(x.Response.Body))}).Generate(testContext(t), req)
		var status *StatusError
		if !errors.As(err, &status) || status.Status != x.Response.Status || errors.Is(err, rollout.ErrServer) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
