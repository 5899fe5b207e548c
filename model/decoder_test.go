package model

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"harness-s/kernels"
)

func newDecoder(t testing.TB, m *Model, tokens, seqs int) *Decoder {
	t.Helper()
	d, err := NewDecoder(m, DecoderOptions{MaxTokens: tokens, MaxSeqs: seqs})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Free)
	return d
}

// request is one generation of the scheduler below.
type request struct {
	prompt []int32
	params kernels.SampleParams
	want   int // tokens to sample

	seq     *Seq
	feed    []int32 // not processed yet
	sampled []int32
	logps   []float32
	entropy []float32
}

// play runs requests on a decoder under a random schedule: prompts in random pieces, random subsets in each step.
func play(t *testing.T, rng *rand.Rand, d *Decoder, requests []*request) (cached int) {
	t.Helper()
	waiting := slices.Clone(requests)
	var running []*request
	for len(waiting)+len(running) > 0 {
		for len(waiting) > 0 && (len(running) == 0 || rng.IntN(3) > 0) {
			r := waiting[0]
			seq, n, err := d.Open(r.prompt)
			if errors.Is(err, ErrFull) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			cached += n
			r.seq, r.feed = seq, r.prompt[n:]
			if err := d.Reserve(seq, len(r.prompt)+r.want); err != nil {
				d.Close(seq)
				break
			}
			waiting, running = waiting[1:], append(running, r)
		}
		running = playStep(t, rng, d, running)
	}
	return cached
}

// playStep is one step over a random subset; it returns who still runs.
func playStep(t *testing.T, rng *rand.Rand, d *Decoder, running []*request) []*request {
	rng.Shuffle(len(running), func(i, j int) { running[i], running[j] = running[j], running[i] })
	var work []Work
	for _, r := range running[:1+rng.IntN(len(running))] {
		n := 1 + rng.IntN(min(len(r.feed), 150))
		w := Work{Seq: r.seq, Tokens: r.feed[:n]}
		if n == len(r.feed) {
			r.params.Counter = uint64(len(r.sampled))
			w.Sample, w.TopK = &r.params, 3
		}
		work = append(work, w)
	}
	results, err := d.Step(work)
	if err != nil {
		t.Fatal(err)
	}
	var next []*request
	for i, r := range running {
		if i < len(work) {
			r.feed = r.feed[len(work[i].Tokens):]
			if work[i].Sample != nil {
				s := results[i].Sample
				r.sampled, r.logps, r.entropy = append(r.sampled, s.ID), append(r.logps, s.Logprob), append(r.entropy, s.Entropy)
				r.feed = []int32{s.ID}
				checkTop(t, results[i])
			}
		}
		if len(r.sampled) < r.want {
			next = append(next, r)
		} else {
			d.Close(r.seq)
		}
	}
	return next
}

func checkTop(t *testing.T, r Result) {
	if len(r.Top) != 3 || r.Top[0].Logprob < r.Top[1].Logprob || r.Top[1].Logprob < r.Top[2].Logprob {
		t.Fatalf("top %v", r.Top)
	}
	for _, top := range r.Top {
		if top.ID == r.Sample.ID && top.Logprob != r.Sample.Logprob {
			t.Errorf("log-prob %g when sampled, %g in the list", r.Sample.Logprob, top.Logprob)
		}
	}
}

// family makes requests that share prefixes: the same prompts, and prompts that go on from others' answers.
func family(rng *rand.Rand, vocab int) []*request {
	base := randomTokens(rng, 150, vocab)
	var out []*request
	for i := range 8 {
		cut := []int{1, 63, 64, 65, 128, 129, 150, 150}[i]
		prompt := slices.Clone(base[:cut])
		if i%3 == 2 {
			prompt = append(prompt, randomTokens(rng, rng.IntN(90), vocab)...)
		}
		out = append(out, &request{prompt: prompt, want: 1 + rng.IntN(70),
			params: kernels.SampleParams{Temperature: 0.7, TopP: 1, Seed: uint64(i / 2)}})
	}
	return out
}

// TestDecodingDoesNotDependOnTheSchedule: whatever the batches, splits and kept prefixes, a request samples the same
// tokens, and their log-probs have the bits of one forward pass over the whole row.
func TestDecodingDoesNotDependOnTheSchedule(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 9))
			cfg := smallConfig()
			if seed > 1 {
				cfg = randomConfig(rng)
			}
			m := newModelFor(t, cfg, 2, Options{})
			requests := family(rng, cfg.Vocab)
			cached := play(t, rng, newDecoder(t, m, 1024, 4), requests)
			var again []*request
			for _, r := range requests {
				again = append(again, &request{prompt: r.prompt, want: r.want, params: r.params})
			}
			small := newDecoder(t, m, 320, 3) // room for one long request at a time: prefixes are evicted
			cached += play(t, rng, small, again)
			for i, r := range requests {
				if !slices.Equal(r.sampled, again[i].sampled) || sameBits(r.logps, again[i].logps) >= 0 || sameBits(r.entropy, again[i].entropy) >= 0 {
					t.Errorf("request %d: two schedules sampled differently: %v, %v", i, r.sampled, again[i].sampled)
				}
				checkAgainstForward(t, m, r)
			}
			if cached == 0 {
				t.Error("no prefix was ever reused: the test shows nothing")
			}
			if used := small.Used(); used != 0 {
				t.Errorf("%g of the cache is in use though every sequence is closed", used)
			}
		})
	}
}

func checkAgainstForward(t *testing.T, m *Model, r *request) {
	t.Helper()
	var b Batch
	b.Add(slices.Concat(r.prompt, r.sampled), nil)
	stats, err := m.Forward(b, ForwardOptions{Temperature: r.params.Temperature})
	if err != nil {
		t.Fatal(err)
	}
	if at := sameBits(stats.Logp[len(r.prompt):], r.logps); at >= 0 {
		t.Errorf("prompt of %d, token %d: log-prob %g sampled, %g by Forward", len(r.prompt), at, r.logps[at], stats.Logp[len(r.prompt)+at])
	}
	if at := sameBits(stats.Entropy[len(r.prompt):], r.entropy); at >= 0 {
		t.Errorf("prompt of %d, token %d: entropy differs from Forward's", len(r.prompt), at)
	}
}

func TestKeptPrefixes(t *testing.T) {
	m := newModelFor(t, smallConfig(), 1, Options{})
	d := newDecoder(t, m, 256, 2)
	rng := rand.New(rand.NewPCG(1, 1))
	prompt := randomTokens(rng, 129, 61)
	open := func(p []int32, want int) *Seq { t.Helper(); return openAndFill(t, d, p, want) }
	first := open(prompt, 0)
	second := open(prompt, 128) // shared while the first is still open
	if got := d.Used(); got != 1 {
		t.Errorf("used %g, want 1: two shared blocks and two own", got)
	}
	if _, _, err := d.Open(prompt); !errors.Is(err, ErrFull) {
		t.Errorf("a third sequence: %v", err)
	}
	if _, err := d.Step([]Work{{Seq: second, Tokens: make([]int32, 64)}}); !errors.Is(err, ErrFull) || second.Len() != 129 {
		t.Errorf("a step without room: %v, length %d", err, second.Len())
	}
	d.Close(first)
	d.Close(first)
	d.Close(second)
	d.Close(open(prompt[:128], 64)) // at most all but the last token comes from a prefix
	other := slices.Clone(prompt)
	other[70]++
	other[70] %= 61
	d.Close(open(other, 64))
	d.Close(open(randomTokens(rng, 256, 61), 0)) // takes every block
	d.Close(open(prompt, 0))
	d.Close(open(prompt, 128))
}

// openAndFill opens a prompt, of which want tokens must come from a kept prefix, and processes the rest.
func openAndFill(t *testing.T, d *Decoder, prompt []int32, want int) *Seq {
	t.Helper()
	seq, cached, err := d.Open(prompt)
	if err != nil || cached != want {
		t.Fatalf("opened with %d cached, want %d: %v", cached, want, err)
	}
	if _, err := d.Step([]Work{{Seq: seq, Tokens: prompt[cached:]}}); err != nil {
		t.Fatal(err)
	}
	return seq
}

func TestResetDropsPrefixes(t *testing.T) {
	d := newDecoder(t, newModelFor(t, smallConfig(), 1, Options{}), 1024, 2)
	rng := rand.New(rand.NewPCG(1, 1))
	prompt := randomTokens(rng, 129, 61)
	live := openAndFill(t, d, prompt, 0)
	d.Reset()
	d.Close(openAndFill(t, d, prompt, 0))
	if _, err := d.Step([]Work{{Seq: live, Tokens: randomTokens(rng, 63, 61)}}); err != nil {
		t.Fatal(err)
	}
	longer := append(slices.Clone(live.tokens), 1)
	d.Close(live)
	d.Close(openAndFill(t, d, longer, 128)) // what the stale sequence went on to compute was not kept
	d.Close(openAndFill(t, d, longer, 192))
	if d.Used() != 0 {
		t.Errorf("%g of the cache is in use though every sequence is closed", d.Used())
	}
}

func TestDecoderErrors(t *testing.T) {
	m := newModelFor(t, smallConfig(), 1, Options{})
	if _, err := NewDecoder(m, DecoderOptions{MaxTokens: 1}); err == nil {
		t.Error("no sequences were accepted")
	}
	d := newDecoder(t, m, 128, 2)
	for _, p := range [][]int32{nil, {-1}, {61}, make([]int32, 129)} {
		if _, _, err := d.Open(p); err == nil || errors.Is(err, ErrFull) {
			t.Errorf("prompt %v: %v", p[:min(3, len(p))], err)
		}
	}
	seq, _, err := d.Open([]int32{1})
	if err != nil {
		t.Fatal(err)
	}
	closed, _, _ := d.Open([]int32{2})
	d.Close(closed)
	ok := &kernels.SampleParams{TopP: 1}
	for name, work := range map[string][]Work{
		"no sequence":  {{Tokens: []int32{1}}},
		"closed":       {{Seq: closed, Tokens: []int32{1}}},
		"twice":        {{Seq: seq, Tokens: []int32{1}}, {Seq: seq, Tokens: []int32{1}}},
		"no tokens":    {{Seq: seq}},
		"bad token":    {{Seq: seq, Tokens: []int32{99}}},
		"too long":     {{Seq: seq, Tokens: make([]int32, 200)}},
		"top_p":        {{Seq: seq, Tokens: []int32{1}, Sample: &kernels.SampleParams{}}},
		"temperature":  {{Seq: seq, Tokens: []int32{1}, Sample: &kernels.SampleParams{TopP: 1, Temperature: -1}}},
		"no allowed":   {{Seq: seq, Tokens: []int32{1}, Sample: &kernels.SampleParams{TopP: 1, Allowed: []int32{}}}},
		"bad allowed":  {{Seq: seq, Tokens: []int32{1}, Sample: &kernels.SampleParams{TopP: 1, Allowed: []int32{61}}}},
		"top too long": {{Seq: seq, Tokens: []int32{1}, Sample: ok, TopK: 62}},
	} {
		if _, err := d.Step(work); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	if r, err := d.Step(nil); err != nil || len(r) != 0 {
		t.Errorf("empty step: %v", err)
	}
	if _, err := d.Step([]Work{{Seq: seq, Tokens: []int32{1}, Sample: ok}}); err != nil || seq.Len() != 1 {
		t.Errorf("after the errors: %v, length %d", err, seq.Len())
	}
}
