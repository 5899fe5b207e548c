//go:build cgo

package kernels

import (
	"fmt"
	"math"
	"testing"
)

// gdnCase is one shape of the delta rule and the kind of its gates.
type gdnCase struct {
	s     GDNShape
	rows  []int
	gates string // weak, strong (A=16: about -25 a token), none (g = 0, beta 0 or 1), mixed
}

func (c gdnCase) String() string {
	return fmt.Sprintf("hk%d_hv%d_dk%d_dv%d_%s", c.s.Hk, c.s.Hv, c.s.Dk, c.s.Dv, c.gates)
}

var gdnCases = []gdnCase{
	{GDNShape{Hk: 4, Hv: 4, Dk: 32, Dv: 32}, edgeRows, "weak"},
	{GDNShape{Hk: 2, Hv: 2, Dk: 64, Dv: 64}, []int{130, 70}, "mixed"},
	{GDNShape{Hk: 1, Hv: 2, Dk: 16, Dv: 24}, edgeRows, "mixed"},
	{GDNShape{Hk: 2, Hv: 6, Dk: 24, Dv: 16}, []int{100, 65}, "strong"},
	{GDNShape{Hk: 1, Hv: 1, Dk: 80, Dv: 128}, []int{129}, "weak"},
	{GDNShape{Hk: 1, Hv: 1, Dk: 128, Dv: 5}, []int{66}, "mixed"},
	{GDNShape{Hk: 1, Hv: 2, Dk: 7, Dv: 33}, []int{140, 3}, "none"},
}

// gdnInputs are random inputs of a case: qkv with one all-zero key and query, g and beta.
func gdnInputs(r *rig, c gdnCase, T int) (qkv, g, beta []float32) {
	qkv = r.normal(T*c.s.Channels(), 1)
	if T > 2 {
		clear(qkv[2*c.s.Channels():][:2*c.s.Hk*c.s.Dk])
	}
	g, beta = make([]float32, T*c.s.Hv), make([]float32, T*c.s.Hv)
	for i := range g {
		kind := c.gates
		if kind == "mixed" {
			kind = []string{"weak", "weak", "weak", "strong", "none"}[r.rng.IntN(5)]
		}
		beta[i] = float32(r.rng.Float64())
		switch kind {
		case "weak":
			g[i] = -float32(r.rng.ExpFloat64() * 0.1)
		case "strong":
			g[i] = -float32(20 + 10*r.rng.Float64())
		default:
			beta[i] = float32(r.rng.IntN(2))
		}
	}
	return qkv, g, beta
}

// gdnRun is forward and backward on one backend: o, dqkv, dg, dbeta.
func gdnRun(r *rig, s GDNShape, seg Segments, qkv, g, beta, do []float32) [][]float32 {
	T, nan := seg.Tokens(), float32(math.NaN())
	o, saved := r.fill(T*s.Hv*s.Dv, nan), r.fill(r.GDNSaved(s, seg), nan)
	dqkv, dg, dbeta := r.fill(len(qkv), nan), r.fill(len(g), nan), r.fill(len(g), nan)
	in, gb, bb := r.buf(qkv), r.buf(g), r.buf(beta)
	r.GDN(o, saved, in, gb, bb, s, seg)
	r.GDNBackward(dqkv, dg, dbeta, r.buf(do), saved, in, gb, bb, s, seg)
	return [][]float32{r.get(o), r.get(dqkv), r.get(dg), r.get(dbeta)}
}

// TestGDNReference compares with the float64 recurrence, per head. Chains here are up to 128 terms of rounding 6e-8
// each, through up to three chunks: errors of some 1e-6 of a head's largest value are expected, ten times that is
// allowed. A missing decay, mask or factor is off by 1e-2 at least.
func TestGDNReference(t *testing.T) {
	eachISA(t, func(t *testing.T, isa string) {
		for _, c := range gdnCases {
			t.Run(c.String(), func(t *testing.T) {
				r := newRig(t, isa, 2)
				seg := segments(c.rows...)
				T, s := seg.Tokens(), c.s
				qkv, g, beta := gdnInputs(r, c, T)
				do := r.normal(T*s.Hv*s.Dv, 1)
				out := gdnRun(r, s, seg, qkv, g, beta, do)
				ref := refGDN(f64(qkv), f64(g), f64(beta), f64(do), s, seg)
				const tol = 2e-5
				nearHeads(t, "o", out[0], ref.o, s.Hv, s.Dv, tol, 1e-3)
				nearGDNChannels(t, out[1], ref.dqkv, s, T, tol)
				nearHeads(t, "dg", out[2], ref.dg, s.Hv, 1, tol, 1e-3)
				nearHeads(t, "dbeta", out[3], ref.dbeta, s.Hv, 1, tol, 1e-3)
			})
		}
	})
}

// nearGDNChannels checks dqkv by part and head. The zero vectors of gdnInputs get the gradient of the l2 norm's
// epsilon, a thousand times the others: they are measured apart, lest they hide the rest.
func nearGDNChannels(t *testing.T, got []float32, want []float64, s GDNShape, T int, tol float64) {
	t.Helper()
	pick := func(off, n, from, to int) (a []float32, b []float64) {
		for i := from; i < to; i++ {
			a = append(a, got[i*s.Channels()+off:][:n]...)
			b = append(b, want[i*s.Channels()+off:][:n]...)
		}
		return a, b
	}
	for _, span := range [][2]int{{0, min(2, T)}, {2, min(3, T)}, {3, T}} {
		if span[0] >= span[1] {
			continue
		}
		for i, name := range []string{"dq", "dk"} {
			a, b := pick(i*s.Hk*s.Dk, s.Hk*s.Dk, span[0], span[1])
			nearHeads(t, fmt.Sprint(name, span), a, b, s.Hk, s.Dk, tol, 1e-3)
		}
	}
	a, b := pick(2*s.Hk*s.Dk, s.Hv*s.Dv, 0, T)
	nearHeads(t, "dv", a, b, s.Hv, s.Dv, tol, 1e-3)
}

// TestGDNReferenceGradients holds the reference itself to central differences.
func TestGDNReferenceGradients(t *testing.T) {
	r := newRig(t, "base", 1)
	s, seg := GDNShape{Hk: 1, Hv: 2, Dk: 3, Dv: 4}, segments(5, 0, 1, 9)
	q32, g32, b32 := gdnInputs(r, gdnCase{s, nil, "weak"}, seg.Tokens())
	q32 = r.normal(len(q32), 1) // no zero vectors: the eps makes them too steep for differences
	qkv, g, beta, do := f64(q32), f64(g32), f64(b32), f64(r.normal(seg.Tokens()*s.Hv*s.Dv, 1))
	ref := refGDN(qkv, g, beta, do, s, seg)
	f := func() float64 { return dot64(refGDN(qkv, g, beta, nil, s, seg).o, do) }
	checkGradient(t, "qkv", qkv, ref.dqkv, f)
	checkGradient(t, "g", g, ref.dg, f)
	checkGradient(t, "beta", beta, ref.dbeta, f)
}

// TestGDNRowsAlone: packing, neighbours and threads change no bit.
func TestGDNRowsAlone(t *testing.T) {
	eachISA(t, func(t *testing.T, isa string) {
		c := gdnCase{GDNShape{Hk: 2, Hv: 4, Dk: 16, Dv: 24}, edgeRows, "mixed"}
		seg, s := segments(c.rows...), c.s
		run := func(r *rig) ([][]float32, func(seg Segments, ins [][]float32) [][]float32) {
			qkv, g, beta := gdnInputs(r, c, seg.Tokens())
			ins := [][]float32{qkv, g, beta, r.normal(seg.Tokens()*s.Hv*s.Dv, 1)}
			return ins, func(seg Segments, v [][]float32) [][]float32 { return gdnRun(r, s, seg, v[0], v[1], v[2], v[3]) }
		}
		r := newRig(t, isa, 2)
		ins, op := run(r)
		widths := []int{s.Channels(), s.Hv, s.Hv, s.Hv * s.Dv}
		checkRowsAlone(r, seg, ins, widths, []int{s.Hv * s.Dv, s.Channels(), s.Hv, s.Hv}, op)
		onThreads(t, isa, func(r *rig) [][]float32 {
			ins, op := run(r)
			return op(seg, ins)
		})
	})
}
