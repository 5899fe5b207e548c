//go:build cgo

package kernels

/*
#include "cpu.h"
*/
import "C"

import "math"

var _ Optimizer = (*cpuBackend)(nil)

// AdamW: one update of n words. Bias corrections are formed in float64.
func (b *cpuBackend) AdamW(w, m, v, g Buffer, n int, p AdamWParams) {
	need("AdamW", "w", w, n)
	need("AdamW", "m", m, n)
	need("AdamW", "v", v, n)
	need("AdamW", "g", g, n)
	shape("AdamW step", p.Step)
	step := float64(p.LR) / (1 - math.Pow(float64(p.Beta1), float64(p.Step)))
	vscale := 1 / math.Sqrt(1-math.Pow(float64(p.Beta2), float64(p.Step)))
	C.hs_adamw(b.ctx, addr(w), addr(m), addr(v), addr(g), C.int64_t(n), C.float(p.Beta1), C.float(p.Beta2), C.float(p.Eps),
		C.float(step), C.float(float64(p.LR)*float64(p.WeightDecay)), C.float(vscale), C.float(p.GradScale))
}

// SumSquares of n words, in blocks of 4096, in float64.
func (b *cpuBackend) SumSquares(g Buffer, n int) float64 {
	need("SumSquares", "g", g, n)
	return float64(C.hs_sum_squares(b.ctx, addr(g), C.int64_t(n)))
}

// NonFinite counts NaN and infinities.
func (b *cpuBackend) NonFinite(g Buffer, n int) int {
	need("NonFinite", "g", g, n)
	return int(C.hs_nonfinite(b.ctx, addr(g), C.int64_t(n)))
}
