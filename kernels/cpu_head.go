//go:build cgo

package kernels

/*
#include "cpu.h"
*/
import "C"

import "fmt"

var (
	_ Head    = (*cpuBackend)(nil)
	_ Sampler = (*cpuBackend)(nil)
)

// HeadForward writes log-prob, entropy and lse of every row with a target, 0 elsewhere.
func (b *cpuBackend) HeadForward(logp, entropy, lse, h Buffer, w Weight, targets Buffer, T int, invTemp float32) {
	const op = "HeadForward"
	need(op, "logp", logp, T)
	need(op, "entropy", entropy, T)
	need(op, "lse", lse, T)
	need(op, "h", h, T*w.In)
	need(op, "compute", w.Compute, b.PackSize(w.Out, w.In))
	checkTargets(op, targets, T, w.Out)
	C.hs_head_fwd(b.ctx, addr(logp), addr(entropy), addr(lse), addr(h), addr(w.Compute), addr(targets),
		C.int64_t(T), C.int64_t(w.Out), C.int64_t(w.In), C.float(invTemp))
}

// HeadBackward: dh = ..., dw += ..., logits recomputed.
func (b *cpuBackend) HeadBackward(dh, dw, h Buffer, w Weight, targets, lse Buffer, coef []float32, invTemp float32) {
	const op = "HeadBackward"
	T := len(coef)
	if T == 0 {
		return
	}
	need(op, "dh", dh, T*w.In)
	need(op, "dw", dw, w.Out*w.In)
	need(op, "h", h, T*w.In)
	need(op, "compute", w.Compute, b.PackSize(w.Out, w.In))
	need(op, "master", w.Master, w.Out*w.In)
	need(op, "lse", lse, T)
	checkTargets(op, targets, T, w.Out)
	C.hs_head_bwd(b.ctx, addr(dh), addr(dw), addr(h), addr(w.Compute), addr(w.Master), addr(targets), addr(lse), (*C.float)(&coef[0]),
		C.int64_t(T), C.int64_t(w.Out), C.int64_t(w.In), C.float(invTemp))
}

// checkTargets panics on a target of v or more; negative ones mean "none".
func checkTargets(op string, targets Buffer, n, v int) {
	need(op, "targets", targets, n)
	for t, id := range words[int32](targets.Slice(0, n)) {
		if int(id) >= v {
			panic(fmt.Sprintf("kernels: %s: target %d at %d: the vocabulary has %d", op, id, t, v))
		}
	}
}

// Logits: z [T,V] = h Wᵀ.
func (b *cpuBackend) Logits(z, h Buffer, w Weight, T int) { b.Linear(z, h, w, T) }

// Sample draws one token per row of z [N,V], N = len(p). A row whose logits are not finite (NaN, +inf, or all -inf),
// or of which no allowed id is within the vocabulary, gives ID -1 and a NaN log-prob.
func (b *cpuBackend) Sample(z Buffer, p []SampleParams, V int) []Sample {
	shape("Sample", V)
	need("Sample", "z", z, len(p)*V)
	if len(p) == 0 {
		return nil
	}
	in := make([]C.hs_sample_in, len(p))
	allowed := []int32{0} // never empty, so that its address can be taken
	for i, r := range p {
		in[i] = sampleIn(r)
		if r.Allowed != nil {
			in[i].allowed_off, in[i].allowed_len = C.int64_t(len(allowed)), C.int64_t(len(r.Allowed))
			allowed = append(allowed, r.Allowed...)
		}
	}
	drawn := make([]C.hs_sample_out, len(p))
	C.hs_sample(b.ctx, addr(z), &in[0], (*C.int32_t)(&allowed[0]), &drawn[0], C.int64_t(len(p)), C.int64_t(V))
	out := make([]Sample, len(p))
	for i, d := range drawn {
		out[i] = Sample{ID: int32(d.id), Logprob: float32(d.logprob), Entropy: float32(d.entropy)}
	}
	return out
}

func sampleIn(p SampleParams) C.hs_sample_in {
	r := C.hs_sample_in{
		inv_temp: 1, top_p: C.float(p.TopP), top_k: C.int32_t(min(max(p.TopK, 0), 1<<30)),
		seed: C.uint64_t(p.Seed), counter: C.uint64_t(p.Counter), allowed_len: -1,
	}
	if p.Temperature == 0 {
		r.argmax = 1
	} else {
		r.inv_temp = C.float(1 / p.Temperature)
	}
	return r
}

// TopLogprobs is the k most likely ids of row z [V], best first.
func (b *cpuBackend) TopLogprobs(z Buffer, k, V int, invTemp float32) ([]int32, []float32) {
	shape("TopLogprobs", V)
	need("TopLogprobs", "z", z, V)
	if k = min(k, V); k <= 0 {
		return nil, nil
	}
	ids, lps := make([]int32, k), make([]float32, k)
	C.hs_top_logprobs(b.ctx, addr(z), C.int64_t(k), C.int64_t(V), C.float(invTemp), (*C.int32_t)(&ids[0]), (*C.float)(&lps[0]))
	return ids, lps
}
