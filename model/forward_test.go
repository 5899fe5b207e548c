package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"harness-s/kernels"
)

// testBatch packs rows of the given lengths.
func testBatch(rng *rand.Rand, vocab int, lengths ...int) Batch {
	var b Batch
	for _, n := range lengths {
		b.Add(randomTokens(rng, n, vocab), nil)
	}
	return b
}

func coefficients(rng *rand.Rand, n int) []float32 {
	c := make([]float32, n)
	for i := range c {
		c[i] = float32(rng.NormFloat64())
	}
	return c
}

// run is one forward and backward from zero gradients.
func run(t testing.TB, m *Model, b Batch, coef []float32) (Stats, [][]float32) {
	t.Helper()
	m.ZeroGrad()
	stats, err := m.Forward(b, ForwardOptions{Grad: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Backward(coef); err != nil {
		t.Fatal(err)
	}
	return stats, allGrads(m)
}

func newModelFor(t testing.TB, cfg Config, threads int, opt Options) *Model {
	t.Helper()
	m, err := New(cfg, newBackend(t, threads), 7, opt)
	return closing(t, m, err)
}

// sameGrads compares gradients bit for bit.
func sameGrads(t *testing.T, m *Model, what string, a, b [][]float32) {
	t.Helper()
	for i := range a {
		if at := sameBits(a[i], b[i]); at >= 0 {
			t.Errorf("%s: gradient of %s differs at %d: %g and %g", what, m.params[i].Name, at, a[i][at], b[i][at])
		}
	}
}

// TestReferenceMatchesGoldens proves the float64 oracle of the other tests against data that others made.
func TestReferenceMatchesGoldens(t *testing.T) {
	for _, dir := range goldenDirs(t) {
		g := openGolden(t, dir)
		loaded, err := Load(dir, newBackend(t, 1), Options{})
		m := closing(t, loaded, err)
		ref := newReference(m)
		for k := range 3 {
			logp, entropy := ref.logp(toIDs(g.npy(t, "seq%d_input_ids", k)), 1)
			for i, want := range g.npy(t, "seq%d_logp_f64", k) {
				if e := math.Abs(logp[i] - want); !(e < 1e-10) {
					t.Fatalf("%s, sequence %d, token %d: off by %g", dir, k, i, e)
				}
				if e := math.Abs(entropy[i] - g.npy(t, "seq%d_entropy_f64", k)[i]); !(e < 1e-10) {
					t.Fatalf("%s, sequence %d, token %d: entropy off by %g", dir, k, i, e)
				}
			}
		}
	}
}

// TestOddConfigurations compares forward and backward with the float64 oracle on random shapes. The bound on log-probs is
// a few times what fp32 reaches on models of this size; gradients are compared along a random direction, by central
// differences in float64, whose own error is far below the bound.
func TestOddConfigurations(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			cfg := randomConfig(rng)
			t.Logf("%+v", cfg)
			m := newModelFor(t, cfg, 2, Options{Train: true})
			b := testBatch(rng, cfg.Vocab, 1, 2+rng.IntN(5), 66+rng.IntN(8))
			coef := coefficients(rng, len(b.Tokens))
			temperature := 0.5 + rng.Float64()
			stats, err := m.Forward(b, ForwardOptions{Temperature: float32(temperature), Grad: true})
			if err != nil {
				t.Fatal(err)
			}
			if err := m.Backward(coef); err != nil {
				t.Fatal(err)
			}
			temperature = float64(float32(temperature))
			ref := newReference(m)
			for row := range b.Rows() {
				lo, hi := b.Cu[row], b.Cu[row+1]
				logp, entropy := ref.logp(b.Tokens[lo:hi], temperature)
				for i := range logp {
					e := max(math.Abs(logp[i]-float64(stats.Logp[int(lo)+i+1])), math.Abs(entropy[i]-float64(stats.Entropy[int(lo)+i+1])))
					if !(e < 5e-5) {
						t.Fatalf("row %d, token %d: log-prob or entropy off by %g", row, i+1, e)
					}
				}
			}
			checkDirections(t, rng, m, ref, b, coef, temperature)
		})
	}
}

// checkDirections compares, tensor by tensor, the gradient along a random direction with a central difference.
func checkDirections(t *testing.T, rng *rand.Rand, m *Model, ref *reference, b Batch, coef []float32, temperature float64) {
	loss := func() float64 {
		sum := 0.0
		for row := range b.Rows() {
			lo, hi := b.Cu[row], b.Cu[row+1]
			logp, _ := ref.logp(b.Tokens[lo:hi], temperature)
			for i, l := range logp {
				sum += float64(coef[int(lo)+i+1]) * l
			}
		}
		return sum
	}
	const h = 1e-5
	for i, grad := range allGrads(m) {
		p := &m.params[i]
		w := ref.w[strings.TrimPrefix(p.Name, m.Config.textPrefix())]
		dir, slope, norm := make([]float64, len(w)), 0.0, 0.0
		for j := range dir {
			dir[j] = rng.NormFloat64()
			slope += dir[j] * float64(grad[j])
			norm += float64(grad[j]) * float64(grad[j])
		}
		shift := func(by float64) float64 {
			for j := range w {
				w[j] += by * dir[j]
			}
			return loss()
		}
		up := shift(h)
		down := shift(-2 * h)
		shift(h)
		if diff := math.Abs((up-down)/(2*h) - slope); !(diff <= 2e-4*(math.Sqrt(norm)+1e-2)) {
			t.Errorf("%s: slope %g, finite difference %g, gradient norm %g", p.Name, slope, (up-down)/(2*h), math.Sqrt(norm))
		}
	}
}

// TestBitsDoNotDependOnTheBatch: a row alone, packed with others in any order, on any number of threads.
func TestBitsDoNotDependOnTheBatch(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	cfg := smallConfig()
	lengths := []int{1, 2, 63, 64, 65, 130, 7, 200}
	b := testBatch(rng, cfg.Vocab, lengths...)
	coef := coefficients(rng, len(b.Tokens))
	m := newModelFor(t, cfg, 1, Options{Train: true})
	stats, grads := run(t, m, b, coef)
	for row := range lengths {
		lo, hi := b.Cu[row], b.Cu[row+1]
		alone, err := m.Forward(Batch{Tokens: b.Tokens[lo:hi], Cu: []int32{0, hi - lo}}, ForwardOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if at := sameBits(alone.Logp, stats.Logp[lo:hi]); at >= 0 {
			t.Errorf("row %d alone: log-prob differs at %d", row, at)
		}
		if at := sameBits(alone.Entropy, stats.Entropy[lo:hi]); at >= 0 {
			t.Errorf("row %d alone: entropy differs at %d", row, at)
		}
	}
	for _, threads := range []int{2, 3} {
		other := newModelFor(t, cfg, threads, Options{Train: true})
		s, g := run(t, other, b, coef)
		if sameBits(s.Logp, stats.Logp) >= 0 || sameBits(s.Entropy, stats.Entropy) >= 0 {
			t.Errorf("%d threads: other log-probs", threads)
		}
		sameGrads(t, m, fmt.Sprintf("%d threads", threads), grads, g)
	}
	recompute := newModelFor(t, cfg, 2, Options{Train: true, Recompute: true})
	s, g := run(t, recompute, b, coef)
	if sameBits(s.Logp, stats.Logp) >= 0 {
		t.Error("recompute: other log-probs")
	}
	sameGrads(t, m, "recompute", grads, g)
	again, g := run(t, m, b, coef)
	if sameBits(again.Logp, stats.Logp) >= 0 {
		t.Error("second run: other log-probs")
	}
	sameGrads(t, m, "second run", grads, g)
}

// TestMicroBatches: gradients of parts add up to the whole's, up to the order of fp32 sums.
func TestMicroBatches(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	cfg := smallConfig()
	m := newModelFor(t, cfg, 2, Options{Train: true})
	b := testBatch(rng, cfg.Vocab, 30, 65, 1, 12, 70, 5)
	coef := coefficients(rng, len(b.Tokens))
	_, whole := run(t, m, b, coef)
	m.ZeroGrad()
	for row := range b.Rows() {
		lo, hi := b.Cu[row], b.Cu[row+1]
		if _, err := m.Forward(Batch{Tokens: b.Tokens[lo:hi], Cu: []int32{0, hi - lo}}, ForwardOptions{Grad: true}); err != nil {
			t.Fatal(err)
		}
		if err := m.Backward(coef[lo:hi]); err != nil {
			t.Fatal(err)
		}
	}
	for i, g := range allGrads(m) {
		var d, n float64
		for j := range g {
			d += math.Pow(float64(g[j]-whole[i][j]), 2)
			n += math.Pow(float64(whole[i][j]), 2)
		}
		if !(math.Sqrt(d/n) < 1e-5) {
			t.Errorf("%s: relative difference %g", m.params[i].Name, math.Sqrt(d/n))
		}
	}
}

// TestMaskedTokens: tokens that are not wanted, or have coefficient 0, change nothing and cost nothing.
func TestMaskedTokens(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	cfg := smallConfig()
	m := newModelFor(t, cfg, 2, Options{Train: true})
	b := testBatch(rng, cfg.Vocab, 40, 3, 80)
	coef := coefficients(rng, len(b.Tokens))
	masked := b
	masked.Want = make([]bool, len(b.Tokens))
	for i := range coef {
		masked.Want[i] = rng.IntN(3) == 0
		if !masked.Want[i] {
			coef[i] = 0
		}
	}
	all, want := run(t, m, b, coef)
	for i := range coef {
		if !masked.Want[i] || i == 0 || i == 40 {
			coef[i] = []float32{float32(math.NaN()), float32(math.Inf(1)), -1e30}[rng.IntN(3)]
		}
	}
	some, got := run(t, m, masked, coef)
	sameGrads(t, m, "masked", want, got)
	for i := range some.Logp {
		wantLogp := all.Logp[i]
		if !masked.Want[i] {
			wantLogp = 0
		}
		if some.Logp[i] != wantLogp {
			t.Errorf("token %d: log-prob %g, want %g", i, some.Logp[i], wantLogp)
		}
	}
	masked.Want = make([]bool, len(b.Tokens))
	_, none := run(t, m, masked, coef)
	_, zero := run(t, m, b, make([]float32, len(b.Tokens)))
	for i := range none {
		for j := range none[i] {
			if none[i][j] != 0 || zero[i][j] != 0 {
				t.Fatalf("%s has a gradient though no token counts", m.params[i].Name)
			}
		}
	}
}

func TestForwardErrors(t *testing.T) {
	cfg := smallConfig()
	m := newModelFor(t, cfg, 1, Options{Train: true})
	ok := Batch{Tokens: []int32{1, 2, 3}, Cu: []int32{0, 3}}
	if err := m.Backward(make([]float32, 3)); err == nil || !strings.Contains(err.Error(), "no Forward") {
		t.Errorf("backward without forward: %v", err)
	}
	for want, b := range map[string]Batch{
		"row bounds":                   {Tokens: []int32{1}},
		"must run from 0":              {Tokens: []int32{1, 2}, Cu: []int32{0, 1}},
		"row 0 is empty":               {Tokens: []int32{1}, Cu: []int32{0, 0, 1}},
		"row 1 is empty":               {Tokens: []int32{1}, Cu: []int32{0, 1, 1}},
		"row 1, token 1: id 61":        {Tokens: []int32{1, 2, 61}, Cu: []int32{0, 1, 3}},
		"row 0, token 0: id -1":        {Tokens: []int32{-1}, Cu: []int32{0, 1}},
		"2 want flags":                 {Tokens: []int32{1}, Cu: []int32{0, 1}, Want: make([]bool, 2)},
		"batch row 0 is empty":         {Tokens: []int32{1, 2}, Cu: []int32{0, -1, 2}},
		"batch of 0 tokens: row bound": {},
	} {
		if _, err := m.Forward(b, ForwardOptions{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	for _, temperature := range []float32{-1, float32(math.NaN()), float32(math.Inf(1))} {
		if _, err := m.Forward(ok, ForwardOptions{Temperature: temperature}); err == nil {
			t.Errorf("temperature %g was accepted", temperature)
		}
	}
	if _, err := m.Forward(ok, ForwardOptions{Grad: true}); err != nil {
		t.Fatal(err)
	}
	if err := m.Backward(make([]float32, 2)); err == nil {
		t.Error("two coefficients for three tokens were accepted")
	}
	frozen := newModelFor(t, cfg, 1, Options{})
	if _, err := frozen.Forward(ok, ForwardOptions{Grad: true}); err == nil {
		t.Error("gradients of a model without Train")
	}
	if err := frozen.Update(kernels.AdamWParams{}); err == nil {
		t.Error("update of a model without Train")
	}
}
