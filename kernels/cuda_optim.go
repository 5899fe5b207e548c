package kernels

import (
	"math"
	"unsafe"
)

// Go twins of the parameter structs of cu/optim.cu and util.cu.
type (
	adamWArgs struct {
		w, m, v, g, compute                                  uintptr
		n                                                    int64
		beta1, beta2, eps, step, decay, vscale, gradScale, _ float32
	}
	reduceArgs struct {
		part, x uintptr
		n, per  int64
	}
)

var (
	kAdamW      = newKernel[adamWArgs]("adamw")
	kSumSquares = newPlainKernel[reduceArgs]("sum_squares")
	kSumDoubles = newPlainKernel[reduceArgs]("sum_doubles")
	kNonFinite  = newPlainKernel[reduceArgs]("non_finite")
	kSumCounts  = newPlainKernel[reduceArgs]("sum_counts")
)

// AdamW: one update of n words. Bias corrections are formed in float64.
func (b *cudaBackend) AdamW(w, m, v, g Buffer, n int, p AdamWParams) {
	b.adamW("AdamW", Buffer{}, w, m, v, g, n, p)
}

// AdamWCast is AdamW, and compute = the new w in the storage type.
func (b *cudaBackend) AdamWCast(compute, w, m, v, g Buffer, n int, p AdamWParams) {
	b.needActs("AdamWCast", "compute", compute, n)
	b.adamW("AdamWCast", compute, w, m, v, g, n, p)
}

func (b *cudaBackend) adamW(op string, compute, w, m, v, g Buffer, n int, p AdamWParams) {
	needWords(op, "w", w, n)
	needWords(op, "m", m, n)
	needWords(op, "v", v, n)
	needWords(op, "g", g, n)
	shape(op+" step", p.Step)
	kAdamW.launch(b, vecGrid(n), vecThreads, 0, adamWArgs{w: w.ptr, m: m.ptr, v: v.ptr, g: g.ptr, compute: compute.ptr, n: int64(n),
		beta1: p.Beta1, beta2: p.Beta2, eps: p.Eps, gradScale: p.GradScale,
		step:   float32(float64(p.LR) / (1 - math.Pow(float64(p.Beta1), float64(p.Step)))),
		decay:  float32(float64(p.LR) * float64(p.WeightDecay)),
		vscale: float32(1 / math.Sqrt(1-math.Pow(float64(p.Beta2), float64(p.Step))))})
}

// SumSquares of n words in float64, in an order that n alone decides.
func (b *cudaBackend) SumSquares(g Buffer, n int) float64 {
	return math.Float64frombits(b.reduce("SumSquares", kSumSquares, kSumDoubles, g, n))
}

// NonFinite counts NaN and infinities.
func (b *cudaBackend) NonFinite(g Buffer, n int) int {
	return int(b.reduce("NonFinite", kNonFinite, kSumCounts, g, n))
}

// reduce runs a sum over n words in two stages and waits for its 8 bytes.
func (b *cudaBackend) reduce(op string, first, second kernel[reduceArgs], g Buffer, n int) uint64 {
	const threads, least, most = 256, 8192, 2048
	needWords(op, "g", g, n)
	if n == 0 {
		return 0
	}
	per, _ := split(n, most)
	per = roundUp(max(per, least), vec*threads)
	runs := blocks(n, per)
	part := b.scratch(2 * (runs + 1)) // 8 bytes a run, then the total
	total := part.Slice(2*runs, 2)
	first.launch(b, grid(runs, 1, 1), threads, 0, reduceArgs{part.ptr, g.ptr, int64(n), int64(per)})
	second.launch(b, grid(1, 1, 1), threads, 0, reduceArgs{total.ptr, part.ptr, int64(runs), 0})
	var bits uint64
	b.stream.CopyOut(unsafe.Pointer(&bits), ptr(total), 8)
	return bits
}
