//go:build cgo

package kernels

import (
	"fmt"
	"math"
	"testing"
)

var attnCases = []AttnShape{
	{Hq: 4, Hk: 2, D: 32, Rotary: 8, Theta: 1e7, Eps: 1e-6},
	{Hq: 1, Hk: 1, D: 16, Rotary: 16, Theta: 1e4, Eps: 1e-6},
	{Hq: 4, Hk: 1, D: 24, Rotary: 0, Theta: 1e4, Eps: 1e-6},
	{Hq: 2, Hk: 2, D: 80, Rotary: 20, Theta: 1e4, Eps: 1e-5},
	{Hq: 2, Hk: 1, D: 256, Rotary: 64, Theta: 1e7, Eps: 1e-6},
	{Hq: 3, Hk: 1, D: 5, Rotary: 2, Theta: 1e4, Eps: 1e-6},
}

func attnName(s AttnShape) string { return fmt.Sprintf("hq%d_hk%d_d%d_r%d", s.Hq, s.Hk, s.D, s.Rotary) }

// attnRun is forward and backward: o, lse, dq, dk, dv.
func attnRun(r *rig, s AttnShape, seg Segments, q, k, v, do []float32) [][]float32 {
	T, nan := seg.Tokens(), float32(math.NaN())
	o, lse := r.fill(T*s.Hq*s.D, nan), r.fill(T*s.Hq, nan)
	dq, dk, dv := r.fill(len(q), nan), r.fill(len(k), nan), r.fill(len(v), nan)
	qb, kb, vb := r.buf(q), r.buf(k), r.buf(v)
	r.Attention(o, lse, qb, kb, vb, s, seg)
	r.AttentionBackward(dq, dk, dv, r.buf(do), o, lse, qb, kb, vb, s, seg)
	return [][]float32{r.get(o), r.get(lse), r.get(dq), r.get(dk), r.get(dv)}
}

func attnInputs(r *rig, s AttnShape, T int) [][]float32 {
	// Scores of some units: softmax rows from flat to peaked.
	return [][]float32{r.normal(T*s.Hq*s.D, 1.5), r.normal(T*s.Hk*s.D, 1.5), r.normal(T*s.Hk*s.D, 1), r.normal(T*s.Hq*s.D, 1)}
}

// TestAttentionReference: scores of up to 20 carry rounding of 2e-6, which the exponential passes on.
func TestAttentionReference(t *testing.T) {
	eachISA(t, func(t *testing.T, isa string) {
		for _, s := range attnCases {
			t.Run(attnName(s), func(t *testing.T) {
				r := newRig(t, isa, 2)
				seg := segments(1, 0, 2, 3, 63, 64, 65, 130)
				if s.D > 64 {
					seg = segments(17, 70)
				}
				in := attnInputs(r, s, seg.Tokens())
				out := attnRun(r, s, seg, in[0], in[1], in[2], in[3])
				ref := refAttention(f64(in[0]), f64(in[1]), f64(in[2]), f64(in[3]), s, seg)
				const tol = 1e-5
				nearHeads(t, "o", out[0], ref.o, s.Hq, s.D, tol, 1e-3)
				nearHeads(t, "lse", out[1], ref.lse, s.Hq, 1, tol, 1)
				nearHeads(t, "dq", out[2], ref.dq, s.Hq, s.D, tol, 1e-3)
				nearHeads(t, "dk", out[3], ref.dk, s.Hk, s.D, tol, 1e-3)
				nearHeads(t, "dv", out[4], ref.dv, s.Hk, s.D, tol, 1e-3)
			})
		}
	})
}

func TestAttentionReferenceGradients(t *testing.T) {
	r := newRig(t, "base", 1)
	s, seg := AttnShape{Hq: 4, Hk: 2, D: 6, Rotary: 4, Theta: 100, Eps: 1e-6}, segments(5, 0, 1, 7)
	in := attnInputs(r, s, seg.Tokens())
	q, k, v, do := f64(in[0]), f64(in[1]), f64(in[2]), f64(in[3])
	ref := refAttention(q, k, v, do, s, seg)
	f := func() float64 { return dot64(refAttention(q, k, v, nil, s, seg).o, do) }
	checkGradient(t, "q", q, ref.dq, f)
	checkGradient(t, "k", k, ref.dk, f)
	checkGradient(t, "v", v, ref.dv, f)
}

func TestAttentionRowsAlone(t *testing.T) {
	eachISA(t, func(t *testing.T, isa string) {
		s, seg := attnCases[0], segments(edgeRows...)
		op := func(r *rig) func(seg Segments, v [][]float32) [][]float32 {
			return func(seg Segments, v [][]float32) [][]float32 { return attnRun(r, s, seg, v[0], v[1], v[2], v[3]) }
		}
		r := newRig(t, isa, 2)
		w := []int{s.Hq * s.D, s.Hk * s.D, s.Hk * s.D, s.Hq * s.D}
		checkRowsAlone(r, seg, attnInputs(r, s, seg.Tokens()), w, []int{w[0], s.Hq, w[0], w[1], w[1]}, op(r))
		onThreads(t, isa, func(r *rig) [][]float32 { return op(r)(seg, attnInputs(r, s, seg.Tokens())) })
	})
}

// normRope is QKNormRope forward and backward, gate halves of dqg included.
func normRope(r *rig, s AttnShape, T int, qg, k, wq, wk, dqOut, dkOut []float32, pos []int32) [][]float32 {
	nan := float32(math.NaN())
	qOut, kOut := r.fill(T*s.Hq*s.D, nan), r.fill(T*s.Hk*s.D, nan)
	dqg, dk, dwq, dwk := r.fill(len(qg), 7), r.fill(len(k), nan), r.fill(s.D, 1), r.fill(s.D, 2)
	qb, kb, wqb, wkb, pb := r.buf(qg), r.buf(k), r.buf(wq), r.buf(wk), r.ints(pos)
	r.QKNormRope(qOut, kOut, qb, kb, wqb, wkb, pb, T, s)
	r.QKNormRopeBackward(dqg, dk, dwq, dwk, r.buf(dqOut), r.buf(dkOut), qb, kb, wqb, wkb, pb, T, s)
	return [][]float32{r.get(qOut), r.get(kOut), r.get(dqg), r.get(dk), r.get(dwq), r.get(dwk)}
}

// ropePositions are T positions, the far ones of long contexts among them.
func ropePositions(r *rig, T int) []int32 {
	pos := make([]int32, T)
	for i := range pos {
		pos[i] = int32(r.rng.IntN(1 << (1 + r.rng.IntN(18))))
	}
	return pos
}

// TestQKNormRope: positions up to 262,143 are exact to float32, because angles are formed in double.
func TestQKNormRope(t *testing.T) {
	eachISA(t, func(t *testing.T, isa string) {
		for _, s := range attnCases {
			t.Run(attnName(s), func(t *testing.T) {
				r := newRig(t, isa, 2)
				const T = 300
				qg, k := r.normal(T*s.Hq*2*s.D, 1), r.normal(T*s.Hk*s.D, 1)
				wq, wk := r.normal(s.D, 0.3), r.normal(s.D, 0.3)
				dq, dk := r.normal(T*s.Hq*s.D, 1), r.normal(T*s.Hk*s.D, 1)
				pos := ropePositions(r, T)
				out := normRope(r, s, T, qg, k, wq, wk, dq, dk, pos)
				rq, rk := refQKNormRope(f64(qg), f64(k), f64(wq), f64(wk), pos, T, s)
				near(t, "q", out[0], rq, 2e-6, 1)
				near(t, "k", out[1], rk, 2e-6, 1)
				gq, gk, gwq, gwk := refQKNormRopeBackward(f64(dq), f64(dk), f64(qg), f64(k), f64(wq), f64(wk), pos, T, s)
				var query []float32
				for i := range T * s.Hq {
					query = append(query, out[2][i*2*s.D:][:s.D]...)
					for _, x := range out[2][i*2*s.D+s.D:][:s.D] {
						if x != 7 {
							t.Fatal("QKNormRopeBackward wrote a gate half")
						}
					}
				}
				for i := range s.D {
					gwq[i], gwk[i] = gwq[i]+1, gwk[i]+2
				}
				near(t, "dq", query, gq, 5e-6, 1)
				near(t, "dk", out[3], gk, 5e-6, 1)
				near(t, "dwq", out[4], gwq, 1e-5, 10) // sums of 300 to 1200 terms
				near(t, "dwk", out[5], gwk, 1e-5, 10)
			})
		}
		onThreads(t, isa, func(r *rig) [][]float32 {
			s, T := attnCases[0], 700
			return normRope(r, s, T, r.normal(T*s.Hq*2*s.D, 1), r.normal(T*s.Hk*s.D, 1), r.normal(s.D, 1), r.normal(s.D, 1),
				r.normal(T*s.Hq*s.D, 1), r.normal(T*s.Hk*s.D, 1), ropePositions(r, T))
		})
	})
}

func TestQKNormRopeReferenceGradients(t *testing.T) {
	r := newRig(t, "base", 1)
	s, T, pos := AttnShape{Hq: 2, Hk: 1, D: 6, Rotary: 4, Theta: 100, Eps: 1e-6}, 3, []int32{0, 5, 2000}
	qg, k, wq, wk := f64(r.normal(T*s.Hq*2*s.D, 1)), f64(r.normal(T*s.Hk*s.D, 1)), f64(r.normal(s.D, 1)), f64(r.normal(s.D, 1))
	dq, dk := f64(r.normal(T*s.Hq*s.D, 1)), f64(r.normal(T*s.Hk*s.D, 1))
	gq, gk, gwq, gwk := refQKNormRopeBackward(dq, dk, qg, k, wq, wk, pos, T, s)
	var full []float64 // gradient of all of qg: gates are 0
	for i := range T * s.Hq {
		full = append(append(full, gq[i*s.D:][:s.D]...), make([]float64, s.D)...)
	}
	f := func() float64 {
		yq, yk := refQKNormRope(qg, k, wq, wk, pos, T, s)
		return dot64(yq, dq) + dot64(yk, dk)
	}
	checkGradient(t, "qg", qg, full, f)
	checkGradient(t, "k", k, gk, f)
	checkGradient(t, "wq", wq, gwq, f)
	checkGradient(t, "wk", wk, gwk, f)
}

func TestOutputGate(t *testing.T) {
	eachISA(t, func(t *testing.T, isa string) {
		for _, s := range attnCases {
			r := newRig(t, isa, 2)
			const T = 33
			o, qg, dy := r.normal(T*s.Hq*s.D, 1), r.normal(T*s.Hq*2*s.D, 3), r.normal(T*s.Hq*s.D, 1)
			y, do, dqg := r.fill(len(o), 0), r.fill(len(o), 0), r.fill(len(qg), 7)
			ob, qb := r.buf(o), r.buf(qg)
			r.OutputGate(y, ob, qb, T, s)
			r.OutputGateBackward(do, dqg, r.buf(dy), ob, qb, T, s)
			ry, rdo, rdg := refOutputGate(f64(o), f64(qg), f64(dy), T, s)
			var gate []float32
			for i, v := range r.get(dqg) {
				if i/s.D%2 == 1 {
					gate = append(gate, v)
				} else if v != 7 {
					t.Fatal("OutputGateBackward wrote a query half")
				}
			}
			near(t, "y", r.get(y), ry, 1e-6, 1)
			near(t, "do", r.get(do), rdo, 1e-6, 1)
			near(t, "dgate", gate, rdg, 1e-6, 1)
		}
	})
}
