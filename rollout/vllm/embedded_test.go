package vllm

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"sync"
	"testing"

	"harness-s/rollout"
	"harness-s/rollout/policy"
	"harness-s/rollout/policy/policytest"
)

func serve(t *testing.T, dir string) (string, *Client) {
	t.Helper()
	s, err := policy.Open(dir, policy.OpenOptions{Name: "tiny", Threads: 2, Dev: true})
	if err != nil {
		t.Fatal(err)
	}
	url, stop, err := s.StartLocal()
	if err != nil {
		s.Close()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	c, err := Dial(testContext(t), Options{URLs: []string{url}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return url, c
}

func prompt(n, from int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32((from + 11*i) % 250)
	}
	return out
}

// The client and the embedded server, end to end: what is sampled is what is scored, to the bit, whoever else is
// served, and over /v1/completions as over /inference/v1/generate.
func TestEmbeddedServer(t *testing.T) {
	_, c := serve(t, policytest.TinyModel(t, 1))
	ctx := testContext(t)
	ask := func(i int) rollout.Reply {
		r, err := c.Generate(ctx, rollout.Request{RolloutID: fmt.Sprint(i), Prompt: prompt(70+i, 0), MaxTokens: 20, Temperature: 1, Seed: int64(i)})
		if err != nil {
			t.Error(err)
		}
		return r
	}
	alone := make([]rollout.Reply, 32)
	for i := range alone {
		alone[i] = ask(i)
	}
	for _, viaCompletions := range []bool{false, true} {
		c.servers[0].completions.Store(viaCompletions)
		var wg sync.WaitGroup
		for i := range alone {
			wg.Go(func() {
				got := ask(i)
				got.CachedTokens = alone[i].CachedTokens
				if fmt.Sprint(got) != fmt.Sprint(alone[i]) {
					t.Errorf("request %d in a crowd: %v, alone: %v", i, got, alone[i])
				}
			})
		}
		wg.Wait()
	}
	for i := 0; i < len(alone); i += 7 {
		row := append(prompt(70+i, 0), alone[i].Tokens...)
		scores, err := c.Score(ctx, row)
		if err != nil {
			t.Fatal(err)
		}
		for k, lp := range alone[i].Logprobs {
			if math.Float32bits(scores[70+i+k]) != math.Float32bits(lp) {
				t.Fatalf("request %d, token %d: sampled at %v, scored at %v", i, k, lp, scores[70+i+k])
			}
		}
	}
	if n := c.MaxModelLen(); n != policytest.MaxLen {
		t.Errorf("max model length %d", n)
	}
	if _, err := c.Generate(ctx, rollout.Request{Prompt: []int32{100000}, MaxTokens: 1}); err == nil || errors.Is(err, rollout.ErrServer) {
		t.Errorf("an id outside the vocabulary is the caller's fault: %v", err)
	}
}

func TestSyncWithEmbeddedServer(t *testing.T) {
	first, second := policytest.TinyModel(t, 1), policytest.TinyModel(t, 2)
	_, c := serve(t, first)
	_, other := serve(t, second)
	ctx := testContext(t)
	row := prompt(100, 3)
	want, err := other.Score(ctx, row)
	if err != nil {
		t.Fatal(err)
	}
	before, err := c.Score(ctx, row)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Sync(ctx, filepath.Join(t.TempDir(), "nowhere"), 1); !errors.Is(err, rollout.ErrServer) {
		t.Errorf("a folder that is not there: %v", err)
	}
	if after, err := c.Score(ctx, row); err != nil || fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("a failed sync changed the weights, or %v", err)
	}

	// Sync in the middle of rollouts: every one ends, and none is lost.
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			r, err := c.Generate(ctx, rollout.Request{Prompt: prompt(30, i), MaxTokens: 200, Temperature: 1, Seed: int64(i)})
			if err != nil || (len(r.Tokens) != 200 && r.FinishReason != "stop") {
				t.Errorf("rollout %d: %d tokens, %v", i, len(r.Tokens), err)
			}
		})
	}
	if err := c.Sync(ctx, second, 7); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if v, err := c.WeightVersion(ctx); err != nil || v != "7" {
		t.Errorf("version %q, %v", v, err)
	}
	after, err := c.Score(ctx, row)
	if err != nil || fmt.Sprint(after) != fmt.Sprint(want) {
		t.Errorf("after the sync the scores are not the new weights', or %v", err)
	}
	r, err := c.Generate(ctx, rollout.Request{Prompt: row, MaxTokens: 3, Temperature: 1})
	if err != nil || r.PolicyVersion != 7 {
		t.Errorf("version of a new sample %d, %v", r.PolicyVersion, err)
	}
	if err := c.ResetPrefixCache(ctx); err != nil {
		t.Error(err)
	}
}
