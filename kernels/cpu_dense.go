//go:build cgo

package kernels

/*
#include "cpu.h"
*/
import "C"

import "fmt"

var _ Dense = (*cpuBackend)(nil)

// shape panics unless all sizes are at least 1, except T and n, which may be 0.
func shape(op string, sizes ...int) {
	for _, s := range sizes {
		if s < 1 {
			panic(fmt.Sprintf("kernels: %s: sizes %v: want each at least 1", op, sizes))
		}
	}
}

// checkIDs panics unless the first n ids are within [low, v): an id outside would read foreign memory.
func checkIDs(op string, ids Buffer, n int, low, v int32) {
	need(op, "ids", ids, n)
	for t, id := range words[int32](ids.Slice(0, n)) {
		if id < low || id >= v {
			panic(fmt.Sprintf("kernels: %s: id %d at %d: want %d to %d", op, id, t, low, v-1))
		}
	}
}

// Embed: y[t,:] = w[ids[t],:].
func (b *cpuBackend) Embed(y, ids Buffer, w Weight, T int) {
	b.gather("Embed", y, w.Master, ids, T, w.Out, w.In)
}

// Gather: y[i,:] = x[rows[i],:].
func (b *cpuBackend) Gather(y, x, rows Buffer, N, T, H int) { b.gather("Gather", y, x, rows, N, T, H) }

func (b *cpuBackend) gather(op string, y, x, rows Buffer, N, T, H int) {
	shape(op, H, T)
	checkIDs(op, rows, N, 0, int32(T))
	need(op, "y", y, N*H)
	need(op, "x", x, T*H)
	C.hs_embed(b.ctx, addr(y), addr(rows), addr(x), C.int64_t(N), C.int64_t(H), C.int64_t(T))
}

// Scatter: dx[rows[i],:] = dy[i,:], all other rows 0.
func (b *cpuBackend) Scatter(dx, dy, rows Buffer, N, T, H int) {
	b.Zero(dx.Slice(0, T*H))
	b.EmbedBackward(dx, dy, rows, N, H, T)
}

// EmbedBackward: dw[ids[t],:] += dy[t,:], in token order.
func (b *cpuBackend) EmbedBackward(dw, dy, ids Buffer, T, H, V int) {
	shape("EmbedBackward", H, V)
	checkIDs("EmbedBackward", ids, T, 0, int32(V))
	need("EmbedBackward", "dw", dw, V*H)
	need("EmbedBackward", "dy", dy, T*H)
	C.hs_embed_bwd(b.ctx, addr(dw), addr(dy), addr(ids), C.int64_t(T), C.int64_t(H), C.int64_t(V))
}

// PackSize is the words of a weight's panels.
func (b *cpuBackend) PackSize(out, in int) int {
	shape("PackSize", out, in)
	return int(C.hs_pack_size(b.ctx, C.int64_t(out), C.int64_t(in)))
}

// Pack fills w.Compute with the panels of w.Master.
func (b *cpuBackend) Pack(w Weight) {
	need("Pack", "master", w.Master, w.Out*w.In)
	need("Pack", "compute", w.Compute, b.PackSize(w.Out, w.In))
	C.hs_pack(b.ctx, addr(w.Compute), addr(w.Master), C.int64_t(w.Out), C.int64_t(w.In))
}

// Linear: y[T,Out] = x[T,In] Masterᵀ, from the panels.
func (b *cpuBackend) Linear(y, x Buffer, w Weight, T int) {
	need("Linear", "compute", w.Compute, b.PackSize(w.Out, w.In))
	need("Linear", "x", x, T*w.In)
	need("Linear", "y", y, T*w.Out)
	C.hs_linear(b.ctx, addr(y), addr(x), addr(w.Compute), C.int64_t(T), C.int64_t(w.Out), C.int64_t(w.In))
}

// LinearBackwardInput: dx[T,In] = (or +=, when add) dy[T,Out] Master.
func (b *cpuBackend) LinearBackwardInput(dx, dy Buffer, w Weight, T int, add bool) {
	const op = "LinearBackwardInput"
	shape(op, w.Out, w.In)
	need(op, "master", w.Master, w.Out*w.In)
	need(op, "dx", dx, T*w.In)
	need(op, "dy", dy, T*w.Out)
	var more C.int
	if add {
		more = 1
	}
	C.hs_linear_bwd_input(b.ctx, addr(dx), addr(dy), addr(w.Master), C.int64_t(T), C.int64_t(w.Out), C.int64_t(w.In), more)
}

// LinearBackwardWeight: dw[Out,In] += dyᵀ x.
func (b *cpuBackend) LinearBackwardWeight(dw, dy, x Buffer, T, out, in int) {
	const op = "LinearBackwardWeight"
	shape(op, out, in)
	need(op, "dw", dw, out*in)
	need(op, "dy", dy, T*out)
	need(op, "x", x, T*in)
	C.hs_linear_bwd_weight(b.ctx, addr(dw), addr(dy), addr(x), C.int64_t(T), C.int64_t(out), C.int64_t(in))
}

// RMSNorm: y = x * rstd * (1+w).
func (b *cpuBackend) RMSNorm(y, rstd, x, w Buffer, T, H int, eps float32) {
	shape("RMSNorm", H)
	need("RMSNorm", "y", y, T*H)
	need("RMSNorm", "x", x, T*H)
	need("RMSNorm", "w", w, H)
	if !rstd.IsNil() {
		need("RMSNorm", "rstd", rstd, T)
	}
	C.hs_rmsnorm(b.ctx, addr(y), addr(rstd), addr(x), addr(w), C.int64_t(T), C.int64_t(H), C.float(eps))
}

// AddRMSNorm: x += res, then RMSNorm of x.
func (b *cpuBackend) AddRMSNorm(y, rstd, x, res, w Buffer, T, H int, eps float32) {
	b.Add(x, res, T*H)
	b.RMSNorm(y, rstd, x, w, T, H, eps)
}

// RMSNormBackward: dx += ..., dw += ....
func (b *cpuBackend) RMSNormBackward(dx, dw, dy, x, rstd, w Buffer, T, H int) {
	const op = "RMSNormBackward"
	shape(op, H)
	need(op, "dx", dx, T*H)
	need(op, "dw", dw, H)
	need(op, "dy", dy, T*H)
	need(op, "x", x, T*H)
	need(op, "rstd", rstd, T)
	need(op, "w", w, H)
	C.hs_rmsnorm_bwd(b.ctx, addr(dx), addr(dw), addr(dy), addr(x), addr(rstd), addr(w), C.int64_t(T), C.int64_t(H))
}

// Add: dst += src.
func (b *cpuBackend) Add(dst, src Buffer, n int) {
	need("Add", "dst", dst, n)
	need("Add", "src", src, n)
	C.hs_add(b.ctx, addr(dst), addr(src), C.int64_t(n))
}

// SwiGLU: y = silu(gate) * up.
func (b *cpuBackend) SwiGLU(y, gate, up Buffer, n int) {
	need("SwiGLU", "y", y, n)
	need("SwiGLU", "gate", gate, n)
	need("SwiGLU", "up", up, n)
	C.hs_swiglu(b.ctx, addr(y), addr(gate), addr(up), C.int64_t(n))
}

// SwiGLUBackward: dgate = ..., dup = ..., in place allowed.
func (b *cpuBackend) SwiGLUBackward(dgate, dup, dy, gate, up Buffer, n int) {
	const op = "SwiGLUBackward"
	need(op, "dgate", dgate, n)
	need(op, "dup", dup, n)
	need(op, "dy", dy, n)
	need(op, "gate", gate, n)
	need(op, "up", up, n)
	C.hs_swiglu_bwd(b.ctx, addr(dgate), addr(dup), addr(dy), addr(gate), addr(up), C.int64_t(n))
}

// vecFunc is a function of the SIMD layer, for tests of its accuracy.
type vecFunc int

const (
	vecExp      vecFunc = C.HS_VEC_EXP
	vecLog      vecFunc = C.HS_VEC_LOG
	vecSigmoid  vecFunc = C.HS_VEC_SIGMOID
	vecSilu     vecFunc = C.HS_VEC_SILU
	vecSoftplus vecFunc = C.HS_VEC_SOFTPLUS
	vecRsqrt    vecFunc = C.HS_VEC_RSQRT
)

func (b *cpuBackend) vec(f vecFunc, y, x Buffer, n int) {
	need("vec", "y", y, n)
	need("vec", "x", x, n)
	C.hs_vec(b.ctx, C.int(f), addr(y), addr(x), C.int64_t(n))
}
