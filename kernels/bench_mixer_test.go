//go:build cgo

package kernels

import "testing"

// Shapes of the bench: 16 rows of 256 tokens, GDN with 4 heads of 32 (or 2 of 64), attention with 4/2 heads of 32.
var (
	benchSeg  = segments(256, 256, 256, 256, 256, 256, 256, 256, 256, 256, 256, 256, 256, 256, 256, 256)
	benchAttn = AttnShape{Hq: 4, Hk: 2, D: 32, Rotary: 8, Theta: 1e7, Eps: 1e-6}
)

const benchThreads = 2

// benchRig is a backend without poisoned scratch.
func benchRig(b *testing.B) *rig {
	r := newRig(b, "", benchThreads)
	r.poison(false)
	return r
}

// timed reports tokens/s, and GFLOP/s when flops (of one call) is not 0.
func timed(b *testing.B, tokens int, flops float64, op func()) {
	op()
	b.ResetTimer()
	for b.Loop() {
		op()
	}
	n, s := float64(b.N), b.Elapsed().Seconds()
	b.ReportMetric(n*float64(tokens)/s, "tokens/s")
	if flops > 0 {
		b.ReportMetric(n*flops/s/1e9, "GFLOP/s")
	}
}

// gdnFlops counts the chunked form's products, triangles at half, per call.
func gdnFlops(s GDNShape, T int) (forward, backward float64) {
	dk, dv, t := float64(s.Dk), float64(s.Dv), float64(T)
	const c = ChunkLen
	perKey := 2 * c * dk                         // k·k, q·k
	perHead := 2*2*dk*dv + 2*c*dv + 2*dk*dv      // S'k, S'q; two triangles with u; the fold
	back := 2*6*dk*dv + 4*c*dv + c*dk*3 + perKey // K D, dO S', dV S', u D', two for D; dU, solve, R, dM; dP K, dP'Q, Z, Z'
	return t * (float64(s.Hk)*perKey + float64(s.Hv)*perHead), t * (float64(s.Hk)*perKey + float64(s.Hv)*back)
}

func BenchmarkGDN(b *testing.B) {
	for _, s := range []GDNShape{{Hk: 4, Hv: 4, Dk: 32, Dv: 32}, {Hk: 2, Hv: 2, Dk: 64, Dv: 64}} {
		r := benchRig(b)
		T := benchSeg.Tokens()
		q, g, bt := gdnInputs(r, gdnCase{s, nil, "weak"}, T)
		qkv, gb, beta, do := r.buf(q), r.buf(g), r.buf(bt), r.buf(r.normal(T*s.Hv*s.Dv, 1))
		o, saved := r.fill(T*s.Hv*s.Dv, 0), r.fill(r.GDNSaved(s, benchSeg), 0)
		dqkv, dg, db := r.fill(len(q), 0), r.fill(len(g), 0), r.fill(len(g), 0)
		fwd, bwd := gdnFlops(s, T)
		name := gdnCase{s, nil, "weak"}.String()
		b.Run("forward/"+name, func(b *testing.B) {
			timed(b, T, fwd, func() { r.GDN(o, saved, qkv, gb, beta, s, benchSeg) })
		})
		b.Run("backward/"+name, func(b *testing.B) {
			timed(b, T, bwd, func() { r.GDNBackward(dqkv, dg, db, do, saved, qkv, gb, beta, s, benchSeg) })
		})
		b.Run("decode64/"+name, func(b *testing.B) {
			st := states(r, 64, r.GDNState(s))
			spans := make([]Span, 64)
			for i := range spans {
				spans[i] = Span{Row: i, Len: 1}
			}
			timed(b, 64, 0, func() {
				r.GDNExtend(o, qkv, gb, beta, st, spans, s)
				for i := range spans {
					spans[i].Pos++
				}
			})
		})
	}
}

func BenchmarkAttention(b *testing.B) {
	r, s := benchRig(b), benchAttn
	T := benchSeg.Tokens()
	in := attnInputs(r, s, T)
	q, k, v, do := r.buf(in[0]), r.buf(in[1]), r.buf(in[2]), r.buf(in[3])
	o, lse := r.fill(T*s.Hq*s.D, 0), r.fill(T*s.Hq, 0)
	dq, dk, dv := r.fill(len(in[0]), 0), r.fill(len(in[1]), 0), r.fill(len(in[2]), 0)
	flops := float64(T) * 256 * 2 * float64(s.Hq*s.D) // causal: half of 4·T·len·Hq·D
	b.Run("forward", func(b *testing.B) {
		timed(b, T, flops, func() { r.Attention(o, lse, q, k, v, s, benchSeg) })
	})
	b.Run("backward", func(b *testing.B) {
		timed(b, T, 3.5*flops, func() { r.AttentionBackward(dq, dk, dv, do, o, lse, q, k, v, s, benchSeg) })
	})
	b.Run("decode64_at128", func(b *testing.B) {
		pages, spans := make([][]Buffer, 64), make([]Span, 64)
		for i := range spans {
			pages[i] = states(r, 3, r.KVPage(s))
			spans[i] = Span{Row: i, Len: 1, Pos: 128}
		}
		timed(b, 64, 0, func() { r.AttentionExtend(o, q, k, v, pages, spans, s) })
	})
}

func BenchmarkMixerElementwise(b *testing.B) {
	r := benchRig(b)
	T, nan := benchSeg.Tokens(), float32(0)
	const ch, k = 384, 4
	x, y, dy, w, dw := r.buf(r.normal(T*ch, 1)), r.fill(T*ch, nan), r.buf(r.normal(T*ch, 1)), r.buf(r.normal(ch*k, 1)), r.fill(ch*k, 0)
	conv := Weight{Master: w, Out: ch, In: k}
	b.Run("conv/forward", func(b *testing.B) { timed(b, T, 0, func() { r.ConvSiLU(y, x, conv, benchSeg) }) })
	b.Run("conv/backward", func(b *testing.B) { timed(b, T, 0, func() { r.ConvSiLUBackward(y, dw, dy, x, conv, benchSeg) }) })
	n, d := T*4, 32
	b.Run("gnorm/forward", func(b *testing.B) { timed(b, T, 0, func() { r.GatedRMSNorm(y, x, dy, w, n, d, 1e-6) }) })
	dz := r.fill(n*d, 0)
	b.Run("gnorm/backward", func(b *testing.B) {
		timed(b, T, 0, func() { r.GatedRMSNormBackward(y, dz, dw, dy, x, dy, w, n, d, 1e-6) })
	})
	g := [6]Buffer{}
	for i := range g {
		g[i] = r.buf(r.normal(T*4, 1))
	}
	b.Run("gates/forward", func(b *testing.B) { timed(b, T, 0, func() { r.GDNGates(g[0], g[1], g[2], g[3], w, w, T, 4) }) })
	b.Run("gates/backward", func(b *testing.B) {
		timed(b, T, 0, func() { r.GDNGatesBackward(g[0], g[1], dw, dw, g[4], g[5], g[2], g[3], w, w, T, 4) })
	})
	s := benchAttn
	p := make([]int32, T)
	for i := range p {
		p[i] = int32(i % 256)
	}
	pos := r.ints(p)
	qg, kk, qo, ko := r.buf(r.normal(T*256, 1)), r.buf(r.normal(T*64, 1)), r.fill(T*128, 0), r.fill(T*64, 0)
	dqg, dk := r.fill(T*256, 0), r.fill(T*64, 0)
	b.Run("rope/forward", func(b *testing.B) { timed(b, T, 0, func() { r.QKNormRope(qo, ko, qg, kk, w, w, pos, T, s) }) })
	b.Run("rope/backward", func(b *testing.B) {
		timed(b, T, 0, func() { r.QKNormRopeBackward(dqg, dk, dw, dw, qo, ko, qg, kk, w, w, pos, T, s) })
	})
	b.Run("ogate/forward", func(b *testing.B) { timed(b, T, 0, func() { r.OutputGate(y, qo, qg, T, s) }) })
	b.Run("ogate/backward", func(b *testing.B) { timed(b, T, 0, func() { r.OutputGateBackward(y, dqg, qo, qo, qg, T, s) }) })
}
