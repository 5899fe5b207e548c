package policy

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"harness-s/rollout/policy/policytest"
)

// BenchmarkHTTP is the server's own cost: 64 concurrent requests of 64 -> 64 tokens over a decoder that costs next
// to nothing.
func BenchmarkHTTP(b *testing.B) {
	tok := policytest.Tokenizer(b)
	d := newFake(b, 300, 1<<20)
	e := testEngine(b, d, EngineOptions{Tokenizer: tok})
	s, err := NewServer(e, tok, ServerOptions{Model: "m"})
	if err != nil {
		b.Fatal(err)
	}
	h := httptest.NewServer(s.Handler())
	defer h.Close()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer client.CloseIdleConnections()
	const concurrent, tokens = 64, 64
	b.ReportAllocs()
	for b.Loop() {
		var wg sync.WaitGroup
		for i := range concurrent {
			wg.Go(func() {
				prompt, _ := json.Marshal(ids(tokens, i))
				body := fmt.Sprintf(`{"prompt":%s,"seed":%d,"max_tokens":%d,"ignore_eos":true,"logprobs":0,"return_token_ids":true}`, prompt, i, tokens)
				resp, err := client.Post(h.URL+"/v1/completions", "application/json", strings.NewReader(body))
				if err != nil {
					b.Error(err)
					return
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			})
		}
		wg.Wait()
	}
	b.ReportMetric(float64(b.N*concurrent*tokens)/b.Elapsed().Seconds(), "tokens/s")
}
