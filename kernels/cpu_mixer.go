//go:build cgo

package kernels

/*
#include "mixer.h"
*/
import "C"

import (
	"fmt"
	"unsafe"
)

var _ Mixer = (*cpuBackend)(nil)

// maxConv is the widest convolution kernel (HS_CONV_MAX of mixer_args.h).
const maxConv = 16

// rows checks a batch's segments and gives them as the C side takes them.
func rows(op string, seg Segments) (*C.int32_t, C.int64_t) {
	if len(seg.Cu) == 0 || seg.Cu[0] != 0 {
		panic(fmt.Sprintf("kernels: %s: segments %v: want a leading 0", op, seg.Cu))
	}
	for i := 1; i < len(seg.Cu); i++ {
		if seg.Cu[i] < seg.Cu[i-1] {
			panic(fmt.Sprintf("kernels: %s: segments descend at %d: %d after %d", op, i, seg.Cu[i], seg.Cu[i-1]))
		}
	}
	return (*C.int32_t)(unsafe.Pointer(&seg.Cu[0])), C.int64_t(seg.Rows())
}

func convShape(op string, ch, k int) {
	shape(op, ch, k)
	if k > maxConv {
		panic(fmt.Sprintf("kernels: %s: width %d: want at most %d", op, k, maxConv))
	}
}

// check panics on a GDN shape that no model has.
func (s GDNShape) check(op string) {
	shape(op, s.Hk, s.Hv, s.Dk, s.Dv)
	if s.Hv%s.Hk != 0 {
		panic(fmt.Sprintf("kernels: %s: %d value heads on %d key heads: want a multiple", op, s.Hv, s.Hk))
	}
}

// check panics on an attention shape that no model has.
func (s AttnShape) check(op string) {
	shape(op, s.Hq, s.Hk, s.D)
	if s.Hq%s.Hk != 0 {
		panic(fmt.Sprintf("kernels: %s: %d query heads on %d kv heads: want a multiple", op, s.Hq, s.Hk))
	}
	if s.Rotary < 0 || s.Rotary > s.D || s.Rotary%2 != 0 {
		panic(fmt.Sprintf("kernels: %s: %d rotary dims of %d: want an even number, at most the head's", op, s.Rotary, s.D))
	}
}

// ConvSiLU: y = silu(causal depthwise conv of x).
func (b *cpuBackend) ConvSiLU(y, x Buffer, w Weight, seg Segments) {
	ch, k := w.Out, w.In
	convShape("ConvSiLU", ch, k)
	cu, n := rows("ConvSiLU", seg)
	need("ConvSiLU", "y", y, seg.Tokens()*ch)
	need("ConvSiLU", "x", x, seg.Tokens()*ch)
	need("ConvSiLU", "master", w.Master, ch*k)
	C.hs_conv(b.ctx, addr(y), addr(x), addr(w.Master), cu, n, C.int64_t(ch), C.int64_t(k))
}

// ConvSiLUBackward: dx = ..., dw += ....
func (b *cpuBackend) ConvSiLUBackward(dx, dw, dy, x Buffer, w Weight, seg Segments) {
	ch, k := w.Out, w.In
	convShape("ConvSiLUBackward", ch, k)
	cu, n := rows("ConvSiLUBackward", seg)
	T := seg.Tokens()
	need("ConvSiLUBackward", "dx", dx, T*ch)
	need("ConvSiLUBackward", "dy", dy, T*ch)
	need("ConvSiLUBackward", "x", x, T*ch)
	need("ConvSiLUBackward", "dw", dw, ch*k)
	need("ConvSiLUBackward", "master", w.Master, ch*k)
	C.hs_conv_backward(b.ctx, addr(dx), addr(dw), addr(dy), addr(x), addr(w.Master), cu, n, C.int64_t(ch), C.int64_t(k))
}

// GDNGates: beta = sigmoid(b), g = -exp(aLog)·softplus(a+dtBias).
func (b *cpuBackend) GDNGates(g, beta, a, bb, aLog, dtBias Buffer, T, hv int) {
	shape("GDNGates", hv)
	for _, buf := range []Buffer{g, beta, a, bb} {
		need("GDNGates", "g, beta, a or b", buf, T*hv)
	}
	need("GDNGates", "aLog", aLog, hv)
	need("GDNGates", "dtBias", dtBias, hv)
	C.hs_gates(b.ctx, addr(g), addr(beta), addr(a), addr(bb), addr(aLog), addr(dtBias), C.int64_t(T), C.int64_t(hv))
}

// GDNGatesBackward: da, db = ...; dALog, dDtBias += ....
func (b *cpuBackend) GDNGatesBackward(da, db, dALog, dDtBias, dg, dbeta, a, bb, aLog, dtBias Buffer, T, hv int) {
	shape("GDNGatesBackward", hv)
	for _, buf := range []Buffer{da, db, dg, dbeta, a, bb} {
		need("GDNGatesBackward", "da, db, dg, dbeta, a or b", buf, T*hv)
	}
	for _, buf := range []Buffer{dALog, dDtBias, aLog, dtBias} {
		need("GDNGatesBackward", "dALog, dDtBias, aLog or dtBias", buf, hv)
	}
	C.hs_gates_backward(b.ctx, addr(da), addr(db), addr(dALog), addr(dDtBias), addr(dg), addr(dbeta), addr(a), addr(bb),
		addr(aLog), addr(dtBias), C.int64_t(T), C.int64_t(hv))
}

// GDNSaved: the prediction errors of all tokens, [T,Hv,Dv], and the state at each chunk's start, [chunks,Hv,Dk,Dv].
// All else that the backward pass needs is cheap to compute again.
func (b *cpuBackend) GDNSaved(s GDNShape, seg Segments) int {
	s.check("GDNSaved")
	chunks := 0
	for r := range seg.Rows() {
		chunks += (int(seg.Cu[r+1]-seg.Cu[r]) + ChunkLen - 1) / ChunkLen
	}
	return seg.Tokens()*s.Hv*s.Dv + chunks*s.Hv*s.Dk*s.Dv
}

// GDN runs the gated delta rule from zero state.
func (b *cpuBackend) GDN(o, saved, qkv, g, beta Buffer, s GDNShape, seg Segments) {
	s.check("GDN")
	cu, n := rows("GDN", seg)
	T := seg.Tokens()
	need("GDN", "o", o, T*s.Hv*s.Dv)
	need("GDN", "qkv", qkv, T*s.Channels())
	need("GDN", "g", g, T*s.Hv)
	need("GDN", "beta", beta, T*s.Hv)
	if !saved.IsNil() {
		need("GDN", "saved", saved, b.GDNSaved(s, seg))
	}
	C.hs_gdn(b.ctx, addr(o), addr(saved), addr(qkv), addr(g), addr(beta), cu, n,
		C.int64_t(s.Hk), C.int64_t(s.Hv), C.int64_t(s.Dk), C.int64_t(s.Dv))
}

// GDNBackward: dqkv, dg, dbeta = ....
func (b *cpuBackend) GDNBackward(dqkv, dg, dbeta, do, saved, qkv, g, beta Buffer, s GDNShape, seg Segments) {
	s.check("GDNBackward")
	cu, n := rows("GDNBackward", seg)
	T := seg.Tokens()
	need("GDNBackward", "dqkv", dqkv, T*s.Channels())
	need("GDNBackward", "qkv", qkv, T*s.Channels())
	need("GDNBackward", "do", do, T*s.Hv*s.Dv)
	need("GDNBackward", "saved", saved, b.GDNSaved(s, seg))
	for _, buf := range []Buffer{dg, dbeta, g, beta} {
		need("GDNBackward", "dg, dbeta, g or beta", buf, T*s.Hv)
	}
	C.hs_gdn_backward(b.ctx, addr(dqkv), addr(dg), addr(dbeta), addr(do), addr(saved), addr(qkv), addr(g), addr(beta), cu, n,
		C.int64_t(s.Hk), C.int64_t(s.Hv), C.int64_t(s.Dk), C.int64_t(s.Dv))
}

// GatedRMSNorm: y = w·x·rsqrt(mean x²+eps)·silu(z).
func (b *cpuBackend) GatedRMSNorm(y, x, z, w Buffer, N, D int, eps float32) {
	shape("GatedRMSNorm", D)
	for _, buf := range []Buffer{y, x, z} {
		need("GatedRMSNorm", "y, x or z", buf, N*D)
	}
	need("GatedRMSNorm", "w", w, D)
	C.hs_gnorm(b.ctx, addr(y), addr(x), addr(z), addr(w), C.int64_t(N), C.int64_t(D), C.float(eps))
}

// GatedRMSNormBackward: dx, dz = ...; dw += ....
func (b *cpuBackend) GatedRMSNormBackward(dx, dz, dw, dy, x, z, w Buffer, N, D int, eps float32) {
	shape("GatedRMSNormBackward", D)
	for _, buf := range []Buffer{dx, dz, dy, x, z} {
		need("GatedRMSNormBackward", "dx, dz, dy, x or z", buf, N*D)
	}
	need("GatedRMSNormBackward", "dw", dw, D)
	need("GatedRMSNormBackward", "w", w, D)
	C.hs_gnorm_backward(b.ctx, addr(dx), addr(dz), addr(dw), addr(dy), addr(x), addr(z), addr(w),
		C.int64_t(N), C.int64_t(D), C.float(eps))
}

// QKNormRope norms each head and rotates it by its token's position.
func (b *cpuBackend) QKNormRope(qOut, kOut, qg, k, wq, wk, pos Buffer, T int, s AttnShape) {
	s.check("QKNormRope")
	need("QKNormRope", "qOut", qOut, T*s.Hq*s.D)
	need("QKNormRope", "kOut", kOut, T*s.Hk*s.D)
	need("QKNormRope", "qg", qg, T*s.Hq*2*s.D)
	need("QKNormRope", "k", k, T*s.Hk*s.D)
	need("QKNormRope", "wq", wq, s.D)
	need("QKNormRope", "wk", wk, s.D)
	need("QKNormRope", "pos", pos, T)
	C.hs_rope(b.ctx, addr(qOut), addr(kOut), addr(qg), addr(k), addr(wq), addr(wk), addr(pos), C.int64_t(T),
		C.int64_t(s.Hq), C.int64_t(s.Hk), C.int64_t(s.D), C.int64_t(s.Rotary), C.double(s.Theta), C.float(s.Eps))
}

// QKNormRopeBackward: dk = ..., the query halves of dqg = ...; dwq, dwk += ....
func (b *cpuBackend) QKNormRopeBackward(dqg, dk, dwq, dwk, dqOut, dkOut, qg, k, wq, wk, pos Buffer, T int, s AttnShape) {
	s.check("QKNormRopeBackward")
	need("QKNormRopeBackward", "dqg", dqg, T*s.Hq*2*s.D)
	need("QKNormRopeBackward", "qg", qg, T*s.Hq*2*s.D)
	need("QKNormRopeBackward", "dqOut", dqOut, T*s.Hq*s.D)
	for _, buf := range []Buffer{dk, dkOut, k} {
		need("QKNormRopeBackward", "dk, dkOut or k", buf, T*s.Hk*s.D)
	}
	for _, buf := range []Buffer{dwq, dwk, wq, wk} {
		need("QKNormRopeBackward", "dwq, dwk, wq or wk", buf, s.D)
	}
	need("QKNormRopeBackward", "pos", pos, T)
	C.hs_rope_backward(b.ctx, addr(dqg), addr(dk), addr(dwq), addr(dwk), addr(dqOut), addr(dkOut), addr(qg), addr(k),
		addr(wq), addr(wk), addr(pos), C.int64_t(T), C.int64_t(s.Hq), C.int64_t(s.Hk), C.int64_t(s.D),
		C.int64_t(s.Rotary), C.double(s.Theta), C.float(s.Eps))
}

// Attention: causal within each row, scale D^-0.5.
func (b *cpuBackend) Attention(o, lse, q, k, v Buffer, s AttnShape, seg Segments) {
	s.check("Attention")
	cu, n := rows("Attention", seg)
	T := seg.Tokens()
	need("Attention", "o", o, T*s.Hq*s.D)
	need("Attention", "q", q, T*s.Hq*s.D)
	need("Attention", "k", k, T*s.Hk*s.D)
	need("Attention", "v", v, T*s.Hk*s.D)
	if !lse.IsNil() {
		need("Attention", "lse", lse, T*s.Hq)
	}
	C.hs_attn(b.ctx, addr(o), addr(lse), addr(q), addr(k), addr(v), cu, n, C.int64_t(s.Hq), C.int64_t(s.Hk), C.int64_t(s.D))
}

// AttentionBackward: dq, dk, dv = ....
func (b *cpuBackend) AttentionBackward(dq, dk, dv, do, o, lse, q, k, v Buffer, s AttnShape, seg Segments) {
	s.check("AttentionBackward")
	cu, n := rows("AttentionBackward", seg)
	T := seg.Tokens()
	for _, buf := range []Buffer{dq, do, o, q} {
		need("AttentionBackward", "dq, do, o or q", buf, T*s.Hq*s.D)
	}
	for _, buf := range []Buffer{dk, dv, k, v} {
		need("AttentionBackward", "dk, dv, k or v", buf, T*s.Hk*s.D)
	}
	need("AttentionBackward", "lse", lse, T*s.Hq)
	C.hs_attn_backward(b.ctx, addr(dq), addr(dk), addr(dv), addr(do), addr(o), addr(lse), addr(q), addr(k), addr(v), cu, n,
		C.int64_t(s.Hq), C.int64_t(s.Hk), C.int64_t(s.D))
}

// OutputGate: y = o·sigmoid(gate).
func (b *cpuBackend) OutputGate(y, o, qg Buffer, T int, s AttnShape) {
	s.check("OutputGate")
	need("OutputGate", "y", y, T*s.Hq*s.D)
	need("OutputGate", "o", o, T*s.Hq*s.D)
	need("OutputGate", "qg", qg, T*s.Hq*2*s.D)
	C.hs_ogate(b.ctx, addr(y), addr(o), addr(qg), C.int64_t(T), C.int64_t(s.Hq), C.int64_t(s.D))
}

// OutputGateBackward: do = ..., the gate halves of dqg = ....
func (b *cpuBackend) OutputGateBackward(do, dqg, dy, o, qg Buffer, T int, s AttnShape) {
	s.check("OutputGateBackward")
	for _, buf := range []Buffer{do, dy, o} {
		need("OutputGateBackward", "do, dy or o", buf, T*s.Hq*s.D)
	}
	need("OutputGateBackward", "dqg", dqg, T*s.Hq*2*s.D)
	need("OutputGateBackward", "qg", qg, T*s.Hq*2*s.D)
	C.hs_ogate_backward(b.ctx, addr(do), addr(dqg), addr(dy), addr(o), addr(qg), C.int64_t(T), C.int64_t(s.Hq), C.int64_t(s.D))
}
