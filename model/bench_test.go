package model

import (
	"math/rand/v2"
	"testing"

	"harness-s/kernels"
)

// benchConfig is the shape of the project's speed targets: 2.08 M parameters.
func benchConfig() Config {
	c := Config{Vocab: 1024, Hidden: 128, MLP: 384, Hq: 4, Hk: 2, D: 32, RotaryFactor: 0.25, RopeTheta: 10000,
		GDNHk: 4, GDNHv: 4, Dk: 32, Dv: 32, K: 4, Eps: 1e-6}
	for i := range 8 {
		c.LayerTypes = append(c.LayerTypes, []string{LinearAttention, FullAttention}[i%4/3])
	}
	return c
}

// BenchmarkTrainStep is forward, backward and update over 16 rows of 256 tokens.
func BenchmarkTrainStep(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	m := newModelFor(b, benchConfig(), 0, Options{Train: true})
	var batch Batch
	for range 16 {
		batch.Add(randomTokens(rng, 256, 1024), nil)
	}
	coef := coefficients(rng, len(batch.Tokens))
	step := 0
	for b.Loop() {
		step++
		run(b, m, batch, coef)
		if err := m.Update(kernels.AdamWParams{LR: 1e-4, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Step: step, GradScale: 1}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N*len(batch.Tokens))/b.Elapsed().Seconds(), "tokens/s")
}

// BenchmarkDecode samples 64 tokens after 64 different prompts of 64 tokens each.
func BenchmarkDecode(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	m := newModelFor(b, benchConfig(), 0, Options{})
	d := newDecoder(b, m, 64*192, 64)
	prompts := make([][]int32, 64)
	for i := range prompts {
		prompts[i] = randomTokens(rng, 64, 1024)
	}
	for b.Loop() {
		d.Reset()
		work := make([]Work, len(prompts))
		for i, p := range prompts {
			seq, _, err := d.Open(p)
			if err != nil {
				b.Fatal(err)
			}
			work[i] = Work{Seq: seq, Tokens: p, Sample: &kernels.SampleParams{Temperature: 1, TopP: 1, Seed: uint64(i)}}
		}
		for range 64 {
			results, err := d.Step(work)
			if err != nil {
				b.Fatal(err)
			}
			for i := range work {
				work[i].Tokens = []int32{results[i].Sample.ID}
				work[i].Sample.Counter++
			}
		}
		for _, w := range work {
			d.Close(w.Seq)
		}
	}
	b.ReportMetric(float64(b.N*64*64)/b.Elapsed().Seconds(), "tokens/s")
}
