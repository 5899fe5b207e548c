package model

import (
	"math/rand/v2"
	"testing"
)

// TestMemoryIsWhatTrainingTakes compares the estimate with what the CPU backend allocated.
func TestMemoryIsWhatTrainingTakes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, recompute := range []bool{false, true} {
		for _, tied := range []bool{false, true} {
			cfg := smallConfig()
			cfg.Hidden, cfg.MLP, cfg.Vocab, cfg.Tied = 64, 96, 128, tied
			m := newModelFor(t, cfg, 1, Options{Train: true, Recompute: recompute})
			run(t, m, testBatch(rng, cfg.Vocab, 1024, 300), coefficients(rng, 1324))
			if err := m.moments(); err != nil {
				t.Fatal(err)
			}
			got := m.be.Usage()
			for part, want := range Memory(cfg, 1324, recompute) {
				// Narrower vectors need less padding of the compute weights.
				if ratio := float64(want) / float64(got[part]); !(ratio > 0.97 && ratio < 1.25) {
					t.Errorf("recompute=%t, tied=%t: %s is estimated at %d bytes and takes %d", recompute, tied, part, want, got[part])
				}
			}
		}
	}
}

func TestFLOPs(t *testing.T) {
	cfg := benchConfig()
	forward, training := cfg.FLOPs(256)
	if n := int64(cfg.NumParams()); n != 2082288 || forward < 2*(n-131072) || forward > 3*n || training != 3*forward {
		t.Errorf("%d parameters, %d and %d operations a token", n, forward, training)
	}
}
