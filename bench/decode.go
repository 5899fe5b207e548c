package bench

import (
	"fmt"
	"math/rand/v2"

	"harness-s/kernels"
	"harness-s/model"
)

// Sequences and lengths of the decoding benchmarks.
const (
	decodeSeqs   = 64
	decodePrompt = 64
	decodeNew    = 64
)

// Decode times 64 sequences from 64 prompt tokens to 64 new ones in process, prefill included, nothing kept between
// runs. It counts new tokens.
func Decode(o Options) (Result, error) {
	r := Result{Bench: "decode", Shape: fmt.Sprintf("%d x (%d -> %d)", decodeSeqs, decodePrompt, decodeNew), Threads: o.Threads}
	err := withModel(o, false, func(m *model.Model) error {
		d, err := model.NewDecoder(m, model.DecoderOptions{MaxTokens: decodeSeqs * (decodePrompt + decodeNew + kernels.ChunkLen), MaxSeqs: decodeSeqs})
		if err != nil {
			return err
		}
		defer d.Free()
		prompts := randomPrompts(m.Config.Vocab)
		r.Runs, err = measure(o.repeat(), decodeSeqs*decodeNew, func() error { return decodeAll(d, prompts) })
		return err
	})
	if err == nil {
		r.TokensPerS = median(r.Runs)
	}
	return r, err
}

func randomPrompts(vocab int) [][]int32 {
	rng := rand.New(rand.NewPCG(3, 4))
	prompts := make([][]int32, decodeSeqs)
	for i := range prompts {
		prompts[i] = make([]int32, decodePrompt)
		for t := range prompts[i] {
			prompts[i][t] = int32(rng.IntN(vocab))
		}
	}
	return prompts
}

func decodeAll(d *model.Decoder, prompts [][]int32) error {
	d.Reset()
	work := make([]model.Work, len(prompts))
	params := make([]kernels.SampleParams, len(prompts))
	for i, p := range prompts {
		seq, cached, err := d.Open(p)
		if err != nil {
			return err
		}
		defer d.Close(seq)
		params[i] = kernels.SampleParams{Temperature: 1, TopP: 1, Seed: uint64(i)}
		work[i] = model.Work{Seq: seq, Tokens: p[cached:], Sample: &params[i]}
	}
	for n := range decodeNew {
		results, err := d.Step(work)
		if err != nil {
			return err
		}
		for i := range work {
			params[i].Counter = uint64(n + 1)
			work[i].Tokens = []int32{results[i].Sample.ID}
		}
	}
	return nil
}
