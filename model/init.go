package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"

	"harness-s/kernels"
)

// New makes a model with random weights, the same for a seed on every backend: matrices N(0, 1/fan-in), those that
// write to the stream (out, o and down projections) a quarter of that, embedding N(0, 0.12²), conv N(0, 0.3²) with 1
// added to the last tap (so that a layer starts near the identity in time), A uniform in [1, 16], dt_bias such that
// dt is log-uniform in [0.001, 0.1], zero-centred norms 0, gated norms 1.
func New(cfg Config, be kernels.Backend, seed uint64, opt Options) (*Model, error) {
	rng := rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))
	return NewWith(cfg, be, opt, func(p *Param, values []float32) error {
		initParam(p, values, cfg.K, rng)
		return nil
	})
}

// NewWith makes a model whose values fill gives, a parameter at a time in the order of Params; without fill they are zero.
func NewWith(cfg Config, be kernels.Backend, opt Options, fill func(p *Param, values []float32) error) (*Model, error) {
	m, err := newModel(cfg, be, opt)
	if err == nil && fill != nil {
		if err = m.setValues(fill); err != nil {
			m.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("new model: %w", err)
	}
	return m, nil
}

func initParam(p *Param, values []float32, taps int, rng *rand.Rand) {
	normal := func(std float64) {
		for i := range values {
			values[i] = float32(rng.NormFloat64() * std)
		}
	}
	switch has := func(s string) bool { return strings.HasSuffix(p.Name, s) }; {
	case has("embed_tokens.weight"):
		normal(0.12)
	case has("conv1d.weight"):
		normal(0.3)
		for i := taps - 1; i < len(values); i += taps {
			values[i]++
		}
	case has("A_log"):
		for i := range values {
			values[i] = float32(math.Log(1 + 15*rng.Float64()))
		}
	case has("dt_bias"):
		for i := range values {
			dt := math.Exp(math.Log(0.001) + rng.Float64()*math.Log(0.1/0.001))
			values[i] = float32(math.Log(math.Expm1(dt))) // softplus(dt_bias) = dt
		}
	case has("linear_attn.norm.weight"):
		for i := range values {
			values[i] = 1
		}
	case has("out_proj.weight"), has("o_proj.weight"), has("down_proj.weight"):
		normal(0.25 / math.Sqrt(float64(p.Shape[1])))
	case len(p.Shape) == 2:
		normal(1 / math.Sqrt(float64(p.Shape[1])))
	}
}
