package policy

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"harness-s/internal/testutil"
	"harness-s/kernels"
	"harness-s/model"
	"harness-s/rollout/policy/policytest"
)

func openTiny(t *testing.T, dir string, opt OpenOptions) *Server {
	t.Helper()
	opt.Dev, opt.Threads = true, 2
	s, err := Open(dir, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// A sampled token's log-prob has the bits of the trainer's forward pass, however it was batched, cached or
// preempted, before and after new weights.
func TestLogprobsAreTheTrainers(t *testing.T) {
	dirs := []string{policytest.TinyModel(t, 1), policytest.TinyModel(t, 2)}
	s := openTiny(t, dirs[0], OpenOptions{CacheTokens: 1024, StepTokens: 70, MaxSeqs: 8})
	be, err := kernels.NewCPU(1)
	if err != nil {
		t.Fatal(err)
	}
	defer be.Close()
	for version, dir := range dirs {
		if version > 0 {
			if err := s.eng.ReloadWeights(testContext(t), dir); err != nil {
				t.Fatal(err)
			}
		}
		trainer, err := model.Load(dir, be, model.Options{})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		outs, prompts := make([]Completion, 12), make([][]int32, 12)
		for i := range outs {
			prompts[i] = ids(30+60*(i%4), i%3)
			wg.Go(func() {
				p := greedy(40)
				p.Seed, p.Temperature = uint64(i), 0.8
				out, err := s.eng.Generate(testContext(t), Request{Prompt: prompts[i], Params: p})
				if err != nil {
					t.Error(err)
					return
				}
				outs[i] = out[0]
			})
		}
		wg.Wait()
		for i, out := range outs {
			var b model.Batch
			b.Add(append(slices.Clone(prompts[i]), out.Tokens...), nil)
			st, err := trainer.Forward(b, model.ForwardOptions{Temperature: 0.8})
			if err != nil {
				t.Fatal(err)
			}
			if !sameBits(st.Logp[len(prompts[i]):], out.Logprobs) {
				t.Errorf("weights %d, sample %d: log-probs differ from the trainer's", version, i)
			}
		}
		trainer.Close()
	}
}

// A folder that cannot be loaded leaves the old weights serving.
func TestBadReloadKeepsOldWeights(t *testing.T) {
	s := openTiny(t, policytest.TinyModel(t, 1), OpenOptions{})
	sample := func() Completion {
		out, err := s.eng.Generate(testContext(t), Request{Prompt: ids(20, 0), Params: greedy(5)})
		if err != nil {
			t.Fatal(err)
		}
		return out[0]
	}
	before := sample()
	tok := policytest.Tokenizer(t)
	other := policytest.Shape(tok.VocabSize())
	other.Hidden = 48
	truncated := policytest.TinyModel(t, 3)
	weights, err := filepath.Glob(filepath.Join(truncated, "*.safetensors"))
	if err != nil || len(weights) == 0 {
		t.Fatal("no weights written")
	}
	if err := os.Truncate(weights[0], 5000); err != nil {
		t.Fatal(err)
	}
	for name, dir := range map[string]string{"missing": filepath.Join(t.TempDir(), "no"), "another shape": policytest.Write(t, other, 1), "truncated": truncated} {
		if err := s.eng.ReloadWeights(testContext(t), dir); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if after := sample(); !slices.Equal(after.Tokens, before.Tokens) || !sameBits(after.Logprobs, before.Logprobs) {
		t.Error("a refused folder changed the samples")
	}
}

func TestChatOverHTTP(t *testing.T) {
	s := openTiny(t, policytest.TinyModel(t, 1), OpenOptions{Name: "tiny"})
	url, stop, err := s.StartLocal()
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	body := `{"messages":[{"role":"system","content":"You answer."},{"role":"user","content":[{"type":"text","text":"how many rows"}]},
		{"role":"assistant","content":"","tool_calls":[{"id":"c","type":"function","function":{"name":"run","arguments":"{\"b\":1,\"a\":[2]}"}}]},
		{"role":"tool","tool_call_id":"c","content":"7"}],
		"tools":[{"type":"function","function":{"name":"run","description":"runs","parameters":{"type":"object","properties":{"b":{"type":"integer"}}}}}],
		"max_completion_tokens":12,"seed":3,"logprobs":true,"top_logprobs":2,"return_token_ids":true%s}`
	status, whole, raw := call(t, "POST", url+"/v1/chat/completions", fmt.Sprintf(body, ""))
	if status != 200 {
		t.Fatal(raw)
	}
	prompt := whole["prompt_token_ids"].([]any)
	list := make([]int32, len(prompt))
	for i, v := range prompt {
		list[i] = int32(v.(float64))
	}
	text := s.tok.Decode(list)
	for _, part := range []string{"<|im_start|>system", "how many rows", "<function=run>", "<parameter=b>", "<tool_response>", "<|im_start|>assistant"} {
		if !strings.Contains(text, part) {
			t.Errorf("the prompt lacks %q:\n%s", part, text)
		}
	}
	if b, a := strings.Index(text, "<parameter=b>"), strings.Index(text, "<parameter=a>"); a < b {
		t.Error("the arguments changed their order")
	}
	evs := events(t, url+"/v1/chat/completions", fmt.Sprintf(body, `,"stream":true`))
	var streamed []any
	for _, ev := range evs {
		c := ev["choices"].([]any)[0].(map[string]any)
		if l, ok := c["token_ids"].([]any); ok {
			streamed = append(streamed, l...)
		}
	}
	if want := whole["choices"].([]any)[0].(map[string]any)["token_ids"]; fmt.Sprint(streamed) != fmt.Sprint(want) {
		t.Errorf("streamed ids %v, want %v", streamed, want)
	}
	if status, got, raw := call(t, "POST", url+"/tokenize", `{"prompt":"select the <|im_end|>","return_token_strs":true}`); status != 200 || got["count"] == float64(0) ||
		!strings.Contains(raw, "<|im_end|>") {
		t.Errorf("tokenize: %s", raw)
	}
}

func TestToolCallsAreParsed(t *testing.T) {
	s := openTiny(t, policytest.TinyModel(t, 1), OpenOptions{})
	c := &chatting{s: s, format: s.plain}
	text := "I look.\n<tool_call>\n<function=run>\n<parameter=q>\nselect 1\n</parameter>\n</function>\n</tool_call>"
	if err := json.Unmarshal([]byte(`{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"run","parameters":{"type":"object","properties":{"q":{"type":"string"}}}}}]}`), &c.body); err != nil {
		t.Fatal(err)
	}
	if err := c.prepare(); err != nil {
		t.Fatal(err)
	}
	end, _ := s.tok.ID("<|im_end|>")
	out := Completion{Tokens: append(s.tok.Encode(text, true), end), Finish: "stop", StopID: -1, Cut: -1}
	m := c.message(0, &out)
	if len(m.Calls) != 1 || m.Calls[0].Function.Name != "run" || m.Calls[0].Function.Arguments != `{"q": "select 1"}` || m.finish("stop") != "tool_calls" {
		raw, _ := json.Marshal(m)
		t.Errorf("%s", raw)
	}
	if m := c.message(0, &Completion{Tokens: s.tok.Encode("<tool_call>\n<function=", true), Finish: "length", StopID: -1, Cut: -1}); len(m.Calls) != 0 || m.Content == nil {
		t.Error("half a call must stay text")
	}
}

func TestOpenErrors(t *testing.T) {
	if _, err := Open(t.TempDir(), OpenOptions{}); err == nil {
		t.Error("an empty folder was served")
	}
	if _, err := Open(policytest.Write(t, policytest.Shape(100), 1), OpenOptions{}); err == nil || !strings.Contains(err.Error(), "vocab_size") {
		t.Errorf("a tokenizer of another model: error %v", err)
	}
	var log bytes.Buffer
	if _, err := Open(policytest.TinyModel(t, 1), OpenOptions{Threads: -1, Log: &log}); err == nil {
		t.Error("minus one thread was accepted")
	}
}

// A folder without a tokenizer is served by token ids; greedy decoding follows the reference model's.
func TestGoldenGreedyWithoutTokenizer(t *testing.T) {
	shared, ok := testutil.SharedDir(t)
	if !ok {
		t.Skip("no golden models here")
	}
	golden, err := filepath.Glob(filepath.Join(shared, "data", "golden", "*", "greedy_tokens.npy"))
	if err != nil || len(golden) == 0 {
		t.Fatal("no golden continuation")
	}
	for _, file := range golden {
		dir := filepath.Dir(file)
		prompt, want := readInts(t, filepath.Join(dir, "greedy_prompt.npy")), readInts(t, file)
		s := openTiny(t, dir, OpenOptions{})
		url, stop, err := s.StartLocal()
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		body, _ := json.Marshal(map[string]any{"prompt": prompt, "max_tokens": len(want), "temperature": 0, "logprobs": 1, "ignore_eos": true, "return_token_ids": true})
		_, got, raw := call(t, "POST", url+"/v1/completions", string(body))
		if choices, ok := got["choices"].([]any); !ok || fmt.Sprint(choices[0].(map[string]any)["token_ids"]) != strings.ReplaceAll(fmt.Sprint(want), ",", "") {
			t.Errorf("%s: %s\nwant ids %v", dir, raw, want)
		}
		for path, body := range map[string]string{"/v1/completions": `{"prompt":"text"}`, "/tokenize": `{"prompt":"text"}`, "/inference/v1/generate": `{"token_ids":[1],"sampling_params":{"stop":"x"}}`} {
			if status, _, raw := call(t, "POST", url+path, body); status != 400 || !strings.Contains(raw, "tokenizer.json") {
				t.Errorf("%s with text: %d %s", path, status, raw)
			}
		}
	}
}

// readInts reads a little-endian .npy of int32 or int64.
func readInts(t *testing.T, path string) []int64 {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	start := 10 + int(binary.LittleEndian.Uint16(raw[8:]))
	head, data := string(raw[10:start]), raw[start:]
	var out []int64
	switch {
	case strings.Contains(head, "<i8"):
		for ; len(data) >= 8; data = data[8:] {
			out = append(out, int64(binary.LittleEndian.Uint64(data)))
		}
	case strings.Contains(head, "<i4"):
		for ; len(data) >= 4; data = data[4:] {
			out = append(out, int64(int32(binary.LittleEndian.Uint32(data))))
		}
	default:
		t.Fatalf("%s: %s", path, head)
	}
	return out
}
