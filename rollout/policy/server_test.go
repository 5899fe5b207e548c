package policy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"harness-s/internal/testutil"
	"harness-s/rollout/policy/policytest"
)

// testServer serves a fake decoder as the recorded server was: model tiny-policy, vocabulary 1024, length 512.
func testServer(t *testing.T, d *fakeDecoder, opt EngineOptions) (*Server, *httptest.Server) {
	t.Helper()
	tok := policytest.Tokenizer(t)
	opt.Tokenizer, opt.MaxModelLen = tok, 512
	if opt.Score == nil {
		opt.Score = func(ids []int32) ([]float32, error) {
			out := make([]float32, len(ids))
			for i := range out {
				out[i] = -float32(i) / 3
			}
			return out, nil
		}
	}
	e := testEngine(t, d, opt)
	s, err := NewServer(e, tok, ServerOptions{Model: "tiny-policy", Dev: true})
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(s.Handler())
	t.Cleanup(h.Close)
	return s, h
}

func call(t *testing.T, method, url, body string) (int, map[string]any, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(testContext(t), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	json.Unmarshal(raw, &out)
	return resp.StatusCode, out, string(raw)
}

// exchange is one recorded request and reply of a real server.
type exchange struct {
	Case    string
	Request struct {
		Method, Path string
		Body         json.RawMessage
		BodyRaw      *string `json:"body_raw"`
	}
	Response struct {
		Status int
		Body   any
	}
}

func recorded(t *testing.T, pattern string) []exchange {
	t.Helper()
	dir, ok := testutil.SharedDir(t)
	if !ok {
		t.Skip("no recorded exchanges here")
	}
	files, err := filepath.Glob(filepath.Join(dir, "data", "vllm", pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("no recording matches %s: %v", pattern, err)
	}
	var out []exchange
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		var x exchange
		if err := json.Unmarshal(raw, &x); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		out = append(out, x)
	}
	return out
}

func (x *exchange) body() string {
	if x.Request.BodyRaw != nil {
		return *x.Request.BodyRaw
	}
	return string(x.Request.Body)
}

// The same wrong requests get the same status, type, param and code as from the real server.
func TestRefusesAsVLLMDoes(t *testing.T) {
	_, h := testServer(t, newFake(t, 1024, 1<<20), EngineOptions{})
	for _, x := range recorded(t, "err_*.json") {
		switch x.Case {
		case "err_engine_dead", "err_scale_out_disabled":
			continue // not about the request
		}
		t.Run(x.Case, func(t *testing.T) {
			status, got, raw := call(t, x.Request.Method, h.URL+x.Request.Path, x.body())
			if status != x.Response.Status {
				t.Fatalf("status %d, want %d: %s", status, x.Response.Status, raw)
			}
			want := x.Response.Body.(map[string]any)
			if want["detail"] != nil {
				if got["detail"] != want["detail"] {
					t.Errorf("detail %v, want %v", got["detail"], want["detail"])
				}
				return
			}
			g, _ := got["error"].(map[string]any)
			w := want["error"].(map[string]any)
			for _, k := range []string{"type", "param", "code"} {
				if g[k] != w[k] && !(x.Case == "err_bad_json" && k == "param") {
					t.Errorf("%s %v, want %v (%s)", k, g[k], w[k], raw)
				}
			}
			if m, _ := g["message"].(string); w["type"] == "BadRequestError" && m != w["message"] {
				t.Errorf("message %q, want %q", m, w["message"])
			}
		})
	}
}

// keys lists the paths of a reply's fields, arrays by their first element.
func keys(v any, at string, into map[string]bool) {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			if strings.HasSuffix(at, "top_logprobs[]") && !strings.Contains(at, "content") || strings.HasSuffix(at, "prompt_logprobs[]") {
				k = "*"
			}
			into[at+"."+k] = true
			keys(e, at+"."+k, into)
		}
	case []any:
		for _, e := range v {
			keys(e, at+"[]", into)
		}
	}
}

// Replies have every field that the real server's have.
func TestRepliesHaveVLLMsShape(t *testing.T) {
	_, h := testServer(t, newFake(t, 1024, 1<<20), EngineOptions{})
	skip := []string{"completions_render", "completions_stream", "completions_prompt_logprobs", "generate_prompt_logprobs", "completions_logit_bias_eos",
		"completions_logprob_token_ids", "generate_text", "generate_abort_scale_out_route", "generate_aborted_by_id"}
	unused := []string{".choices[].message.refusal", ".choices[].message.annotations", ".choices[].message.audio", ".choices[].message.function_call"}
	var all []exchange
	for _, p := range []string{"completions_*.json", "generate_*.json", "get_*.json", "tokenize_*.json", "detokenize.json", "dev_pause_*.json", "dev_resume*.json", "dev_is_paused.json",
		"dev_reset_prefix_cache*.json", "dev_update_weight_version*.json", "dev_weight_info*.json", "dev_get_world_size.json", "dev_collective_rpc_missing_method.json", "unknown_field_ignored.json", "chat_logprobs.json"} {
		all = append(all, recorded(t, p)...)
	}
	for _, x := range all {
		if slices.Contains(skip, x.Case) || strings.HasSuffix(x.Case, "_inflight") {
			continue
		}
		t.Run(x.Case, func(t *testing.T) {
			status, got, raw := call(t, x.Request.Method, h.URL+x.Request.Path, x.body())
			if status != x.Response.Status {
				t.Fatalf("status %d, want %d: %s", status, x.Response.Status, raw)
			}
			want, have := map[string]bool{}, map[string]bool{}
			keys(x.Response.Body, "", want)
			keys(any(got), "", have)
			for k := range want {
				if !have[k] && !strings.Contains(k, ".permission[]") && !slices.Contains(unused, k) {
					t.Errorf("field %s is missing: %.300s", k, raw)
				}
			}
			if strings.HasPrefix(x.Case, "dev_pause") {
				call(t, "POST", h.URL+"/resume", "")
			}
		})
	}
}

func TestBadBodies(t *testing.T) {
	_, h := testServer(t, newFake(t, 300, 1<<20), EngineOptions{})
	long := "[" + strings.Repeat("5,", 511) + "5]"
	cases := []struct {
		path, body  string
		status      int
		param, text string
	}{
		{"/v1/completions", ``, 400, "", "Invalid JSON"},
		{"/v1/completions", `[]`, 400, "body", "dictionary"},
		{"/v1/completions", `{"prompt":[1]} x`, 400, "body.16", "json_invalid"},
		{"/v1/completions", `{"prompt":[1,]}`, 400, "body.14", "json_invalid"},
		{"/v1/completions", `{"prompt":[1.5]}`, 400, "body.prompt.0", "integer"},
		{"/v1/completions", `{"prompt":[[1],[]]}`, 400, "", "empty"},
		{"/v1/completions", `{"prompt":[[1],"x",{}]}`, 400, "body.prompt.2", "list"},
		{"/v1/completions", `{"prompt":[99999999999999999999]}`, 400, "body.prompt.0", "integer"},
		{"/v1/completions", `{"prompt":[4294967297]}`, 400, "", "out of vocabulary"},
		{"/v1/completions", `{"prompt":{"a":1}}`, 400, "body.prompt", "string"},
		{"/v1/completions", `{"prompt":` + long + `}`, 400, "input_tokens", "maximum context length is 512"},
		{"/v1/completions", `{"prompt":[1],"n":0}`, 400, "n", "at least 1"},
		{"/v1/completions", `{"prompt":[1],"n":65}`, 400, "", "max_num_seqs (64), got 65"},
		{"/v1/completions", `{"prompt":[1],"max_tokens":-3}`, 400, "max_tokens", "at least 1"},
		{"/v1/completions", `{"prompt":[1],"top_k":-2}`, 400, "top_k", "got -2"},
		{"/v1/completions", `{"prompt":[1],"top_p":1.5}`, 400, "top_p", "got 1.5"},
		{"/v1/completions", `{"prompt":[1],"logprobs":21}`, 400, "logprobs", "max allowed: 20"},
		{"/v1/completions", `{"prompt":[1],"stop":[""]}`, 400, "stop", "empty string"},
		{"/v1/completions", `{"prompt":[1],"stop":7}`, 400, "body.stop", ""},
		{"/v1/completions", `{"prompt":[1],"repetition_penalty":1.1}`, 400, "repetition_penalty", "not supported"},
		{"/v1/completions", `{"prompt":[1],"min_p":0.1}`, 400, "min_p", "not supported"},
		{"/v1/completions", `{"prompt":[1],"stop_token_ids":[1,null]}`, 400, "body.stop_token_ids.1", "valid integer"},
		{"/v1/completions", `{"prompt":[1],"allowed_token_ids":[null]}`, 400, "body.allowed_token_ids.0", "valid integer"},
		{"/v1/completions", `{"prompt":[1],"response_format":{"type":"json_object"}}`, 400, "response_format", "not supported"},
		{"/inference/v1/generate", `{"token_ids":[1],"sampling_params":{"response_format":{"type":"json_object"}}}`, 400, "response_format", "not supported"},
		{"/v1/completions", `{"prompt":[1],"logit_bias":{"5":1}}`, 400, "logit_bias", "not supported"},
		{"/v1/completions", `{"prompt":[1],"allowed_token_ids":[300]}`, 400, "allowed_token_ids", "300"},
		{"/v1/completions", `{"prompt":[1],"cache_salt":""}`, 400, "cache_salt", "1 to 1024"},
		{"/v1/completions", `{"prompt":[1],"stream_options":{}}`, 400, "stream_options", ""},
		{"/v1/completions", `{"prompt":[1],"seed":"x"}`, 400, "body.seed", "integer"},
		{"/v1/completions", `{"prompt":[1],"temperature":1e400}`, 400, "body.temperature", ""},
		{"/inference/v1/generate", `{"sampling_params":{}}`, 400, "body.token_ids", "required"},
		{"/inference/v1/generate", `{"token_ids":[1]}`, 400, "body.sampling_params", "required"},
		{"/inference/v1/generate", `{"token_ids":[1],"sampling_params":{"n":[]}}`, 400, "body.sampling_params.n", ""},
		{"/inference/v1/generate", `{"token_ids":[1],"sampling_params":{},"stream":true}`, 400, "stream", "not supported"},
		{"/v1/chat/completions", `{}`, 400, "body.messages", "required"},
		{"/v1/chat/completions", `{"messages":[{"role":"king","content":"x"}]}`, 400, "body.messages.0", "king"},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, 400, "body.messages.0", "image_url"},
		{"/tokenize", `{}`, 400, "body.prompt", "required"},
		{"/detokenize", `{"tokens":[300]}`, 400, "", "out of vocabulary"},
		{"/pause?mode=nope", ``, 400, "query.mode", "keep"},
		{"/collective_rpc", `{"method":"eval"}`, 501, "method", "not supported"},
		{"/collective_rpc", `{"method":"reload_weights","args":["x"]}`, 400, "args", "kwargs only"},
		{"/collective_rpc", `{"method":"reload_weights"}`, 501, "", "not supported"},
	}
	for _, c := range cases {
		status, got, raw := call(t, "POST", h.URL+c.path, c.body)
		e, _ := got["error"].(map[string]any)
		param, _ := e["param"].(string)
		message, _ := e["message"].(string)
		if status != c.status || param != c.param || !strings.Contains(message, c.text) || e["code"] != float64(status) {
			t.Errorf("%s %.80s: %d %s; want %d with param %q and %q", c.path, c.body, status, raw, c.status, c.param, c.text)
		}
	}
	if status, _, _ := call(t, "POST", h.URL+"/v1/completions", `{"prompt":"`+strings.Repeat("x", 17<<20)+`"}`); status != 413 {
		t.Errorf("a body of 17 MiB: %d", status)
	}
	if status, _, raw := call(t, "GET", h.URL+"/health", ""); status != 200 || raw != "" {
		t.Errorf("health after all that: %d %q", status, raw)
	}
}

// Log-probs and ids pass through JSON unchanged, whoever else is served meanwhile.
func TestHTTPKeepsBits(t *testing.T) {
	s, h := testServer(t, newFake(t, 300, 1<<20), EngineOptions{StepTokens: 40})
	want, err := s.eng.Generate(testContext(t), Request{Prompt: ids(100, 0), Params: greedy(50)})
	if err != nil {
		t.Fatal(err)
	}
	prompt, _ := json.Marshal(ids(100, 0))
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			path, body := "/v1/completions", fmt.Sprintf(`{"prompt":%s,"seed":7,"max_tokens":50,"ignore_eos":true,"logprobs":0,"return_token_ids":true}`, prompt)
			if i%2 == 1 {
				path, body = "/inference/v1/generate", fmt.Sprintf(`{"token_ids":%s,"sampling_params":{"seed":7,"max_tokens":50,"ignore_eos":true,"logprobs":0}}`, prompt)
			}
			resp, err := http.Post(h.URL+path, "application/json", strings.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			var got struct {
				Choices []struct {
					TokenIDs []int32 `json:"token_ids"`
					Logprobs struct {
						Values  []float32 `json:"token_logprobs"`
						Content []struct{ Logprob float32 }
					}
				}
			}
			if err := json.NewDecoder(resp.Body).Decode(&got); err != nil || len(got.Choices) != 1 {
				t.Errorf("%s: %v", path, err)
				return
			}
			c := got.Choices[0]
			for _, l := range c.Logprobs.Content {
				c.Logprobs.Values = append(c.Logprobs.Values, l.Logprob)
			}
			if !slices.Equal(c.TokenIDs, want[0].Tokens) || !sameBits(c.Logprobs.Values, want[0].Logprobs) {
				t.Errorf("%s: other ids or log-probs", path)
			}
		})
	}
	wg.Wait()
}

// events reads a stream up to [DONE].
func events(t *testing.T, url, body string) []map[string]any {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if ct := resp.Header.Get("Content-Type"); resp.StatusCode != 200 || !strings.HasPrefix(ct, "text/event-stream") {
		t.Fatalf("status %d, %s", resp.StatusCode, ct)
	}
	var out []map[string]any
	for sc := bufio.NewScanner(resp.Body); sc.Scan(); {
		data, ok := strings.CutPrefix(sc.Text(), "data: ")
		if data == "[DONE]" {
			return out
		}
		var ev map[string]any
		if ok {
			if err := json.Unmarshal([]byte(data), &ev); err != nil {
				t.Fatalf("%q: %v", data, err)
			}
			out = append(out, ev)
		}
	}
	t.Fatal("the stream ended without [DONE]")
	return nil
}

func TestStreamAddsUpToTheWhole(t *testing.T) {
	s, h := testServer(t, newFake(t, 300, 1<<20), EngineOptions{})
	free, err := s.eng.Generate(testContext(t), Request{Prompt: ids(5, 0), Params: greedy(30)})
	if err != nil {
		t.Fatal(err)
	}
	text := s.tok.Decode(free[0].Tokens)
	for _, stop := range []string{"", text[len(text)/2 : len(text)/2+3]} {
		fields := `"prompt":[0,7,14,21,28],"seed":7,"max_tokens":30,"ignore_eos":true,"logprobs":1,"return_token_ids":true,"n":2,"skip_special_tokens":false`
		if stop != "" {
			q, _ := json.Marshal(stop)
			fields += `,"stop":` + string(q)
		}
		_, whole, _ := call(t, "POST", h.URL+"/v1/completions", "{"+fields+"}")
		evs := events(t, h.URL+"/v1/completions", "{"+fields+`,"stream":true,"stream_options":{"include_usage":true}}`)
		texts, finish := [2]string{}, [2]any{}
		var tokens, logprobs [2][]any
		for _, ev := range evs[:len(evs)-1] {
			c := ev["choices"].([]any)[0].(map[string]any)
			i := int(c["index"].(float64))
			texts[i] += c["text"].(string)
			tokens[i] = append(tokens[i], c["token_ids"].([]any)...)
			if lp, ok := c["logprobs"].(map[string]any); ok {
				logprobs[i] = append(logprobs[i], lp["token_logprobs"].([]any)...)
			}
			finish[i] = c["finish_reason"]
		}
		for i, c := range whole["choices"].([]any) {
			c := c.(map[string]any)
			if texts[i] != c["text"] || finish[i] != c["finish_reason"] || fmt.Sprint(tokens[i]) != fmt.Sprint(c["token_ids"]) ||
				fmt.Sprint(logprobs[i]) != fmt.Sprint(c["logprobs"].(map[string]any)["token_logprobs"]) {
				t.Errorf("stop %q, sample %d: streamed %q %v, whole %q %v", stop, i, texts[i], finish[i], c["text"], c["finish_reason"])
			}
			if stop != "" && strings.Contains(texts[i], stop) {
				t.Errorf("the text %q holds the stop string %q", texts[i], stop)
			}
		}
		u := evs[len(evs)-1]["usage"].(map[string]any)
		w := whole["usage"].(map[string]any)
		if u["completion_tokens"] != w["completion_tokens"] || u["prompt_tokens"] != float64(5) {
			t.Errorf("usage %v, want %v", u, w)
		}
	}
}

func TestStreamReportsFaults(t *testing.T) {
	d := newFake(t, 300, 1<<20)
	_, h := testServer(t, d, EngineOptions{})
	d.nan.Store(true)
	evs := events(t, h.URL+"/v1/completions", `{"prompt":[1],"stream":true}`)
	if e, _ := evs[len(evs)-1]["error"].(map[string]any); e["code"] != float64(500) {
		t.Errorf("last event %v, want an error", evs[len(evs)-1])
	}
}

func TestEchoScores(t *testing.T) {
	_, h := testServer(t, newFake(t, 300, 1<<20), EngineOptions{})
	_, got, raw := call(t, "POST", h.URL+"/v1/completions", `{"prompt":[5,6,7],"echo":true,"max_tokens":0,"logprobs":0,"return_token_ids":true}`)
	c := got["choices"].([]any)[0].(map[string]any)
	lp := c["logprobs"].(map[string]any)["token_logprobs"].([]any)
	if len(lp) != 3 || lp[0] != nil || float32(lp[1].(float64)) != -float32(1)/3 || float32(lp[2].(float64)) != -float32(2)/3 {
		t.Errorf("scores %v: %s", lp, raw)
	}
}

func TestDisconnectOverHTTP(t *testing.T) {
	d := newFake(t, 300, 1<<20)
	d.gate = make(chan struct{})
	_, h := testServer(t, d, EngineOptions{})
	for _, stream := range []bool{false, true} {
		ctx, cancel := context.WithCancel(testContext(t))
		body := fmt.Sprintf(`{"prompt":[1,2],"max_tokens":400,"ignore_eos":true,"stream":%v}`, stream)
		req, _ := http.NewRequestWithContext(ctx, "POST", h.URL+"/v1/completions", strings.NewReader(body))
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if resp, err := http.DefaultClient.Do(req); err == nil {
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		}()
		d.gate <- struct{}{}
		cancel()
		<-ended
		eventually(t, "the sequence is closed", func() bool {
			select {
			case d.gate <- struct{}{}:
			default:
			}
			return d.opened.Load() == 0
		})
	}
}

func TestServeLifecycle(t *testing.T) {
	s, _ := testServer(t, newFake(t, 300, 1<<20), EngineOptions{})
	url, stop, err := s.StartLocal()
	if err != nil {
		t.Fatal(err)
	}
	other, _ := testServer(t, newFake(t, 300, 1<<20), EngineOptions{})
	addr := strings.TrimPrefix(url, "http://")
	if err := other.Serve(context.Background(), addr, nil); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a port in use: %v", err)
	}
	if status, _, _ := call(t, "GET", url+"/health", ""); status != 200 {
		t.Errorf("health %d", status)
	}
	if _, _, raw := call(t, "GET", url+"/metrics", ""); !strings.Contains(raw, `vllm:num_requests_running{engine="0",model_name="tiny-policy"} 0`) {
		t.Errorf("metrics: %.400s", raw)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if _, err := http.Get(url + "/health"); err == nil {
		t.Error("still listening after stop")
	}

	third, _ := testServer(t, newFake(t, 300, 1<<20), EngineOptions{})
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan string, 1), make(chan error, 1)
	go func() { ended <- third.Serve(ctx, ":0", func(url string) { ready <- url }) }()
	url = <-ready
	if !strings.HasPrefix(url, "http://127.0.0.1:") {
		t.Errorf("listens on %s, not on loopback", url)
	}
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("no shutdown")
	}
}

func TestDevRoutesOnlyWhenAsked(t *testing.T) {
	s, _ := testServer(t, newFake(t, 300, 1<<20), EngineOptions{})
	closed, err := NewServer(s.eng, s.tok, ServerOptions{Model: "m"})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/pause", "/resume", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/abort_requests"} {
		w := httptest.NewRecorder()
		closed.Handler().ServeHTTP(w, httptest.NewRequest("POST", path, nil))
		if w.Code != 404 {
			t.Errorf("%s answers %d", path, w.Code)
		}
	}
}

func TestAppendString(t *testing.T) {
	for _, s := range []string{"", "plain", "\"\\\n\t\x00\x7f", "é漢😀", "a\xffb", string([]byte{0xe4, 0xb8}), "\u2028"} {
		var got string
		if err := json.Unmarshal(appendString(nil, s), &got); err != nil || got != strings.ToValidUTF8(s, "\ufffd") && !strings.Contains(s, "\xe4") {
			t.Errorf("%q came back as %q, %v", s, got, err)
		}
	}
	for _, v := range []float32{0, float32(math.Copysign(0, -1)), -1e-30, -12.214489, -1.0000001, -3.4e38, math.SmallestNonzeroFloat32} {
		var got float32
		if err := json.Unmarshal(appendFloat(nil, v), &got); err != nil || got != v {
			t.Errorf("%v came back as %v, %v", v, got, err)
		}
	}
	if !bytes.Equal(appendFloat(nil, float32(math.Copysign(0, -1))), []byte("0.0")) {
		t.Error("minus zero on the wire")
	}
}

// The hand-written reader takes exactly the lists of whole numbers that are token ids.
func FuzzReadIDs(f *testing.F) {
	for _, s := range []string{`[]`, `[1, 2,3]`, `[ ]`, `[-1]`, `[1.5]`, `[1e3]`, `["a"]`, `[[1]]`, `[null]`, `[99999999999]`, `{}`, `"x"`, `[0,01]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var in struct {
			IDs json.RawMessage `json:"ids"`
		}
		if json.Unmarshal([]byte(`{"ids":`+string(raw)+`}`), &in) != nil || in.IDs == nil {
			return
		}
		got, bad := readIDs(in.IDs, "body")
		var want []int32
		err := json.Unmarshal(in.IDs, &want)
		switch {
		case err == nil && slices.Min(append(want, 0)) >= 0 && string(in.IDs) != "null" && !bytes.Contains(in.IDs, []byte("null")):
			if bad != nil || !slices.Equal(got, want) {
				t.Errorf("%s: %v %v, want %v", in.IDs, got, bad, want)
			}
		case bad == nil:
			for _, id := range got { // numbers beyond 32 bits stay beyond every vocabulary
				if id == 1<<31-1 {
					return
				}
			}
			t.Errorf("%s was read as %v", in.IDs, got)
		}
	})
}
