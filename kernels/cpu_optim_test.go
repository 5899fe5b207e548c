//go:build cgo

package kernels

import (
	"math"
	"testing"
)

// TestAdamW follows ten updates of PyTorch's AdamW written out in float64.
func TestAdamW(t *testing.T) {
	eachISA(t, func(t *testing.T, isa string) {
		for _, n := range append([]int{40000}, oddSizes...) {
			r := newRig(t, isa, 2)
			w, m, v := r.normal(n, 1), make([]float32, n), make([]float32, n)
			W, M, S := f64(w), f64(m), f64(v)
			wb, mb, vb := r.buf(w), r.buf(m), r.buf(v)
			for step := 1; step <= 10; step++ {
				p := AdamWParams{LR: 1e-2, Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, WeightDecay: 0.1, Step: step, GradScale: 0.5}
				g := r.normal(n, 1)
				r.AdamW(wb, mb, vb, r.buf(g), n, p)
				c1, c2 := 1-math.Pow(0.9, float64(step)), 1-math.Pow(0.99, float64(step))
				for i := range W {
					d := float64(g[i]) * 0.5
					W[i] *= 1 - 1e-2*0.1
					M[i] = 0.9*M[i] + 0.1*d
					S[i] = 0.99*S[i] + 0.01*d*d
					W[i] -= 1e-2 / c1 * M[i] / (math.Sqrt(S[i])/math.Sqrt(c2) + 1e-8)
				}
			}
			near(t, "w", r.get(wb), W, 1e-5, 0.1)
			near(t, "m", r.get(mb), M, 1e-5, 0.1)
			near(t, "v", r.get(vb), S, 1e-5, 0.1)
		}
	})
}

func TestReductions(t *testing.T) {
	eachISA(t, func(t *testing.T, isa string) {
		for _, n := range append([]int{0, 4095, 4096, 4097, 100003}, oddSizes...) {
			var first float64
			for threads := 1; threads <= 3; threads++ {
				r := newRig(t, isa, threads)
				g := r.normal(n, 3)
				want := 0.0
				for _, x := range g {
					want += float64(x) * float64(x)
				}
				b := r.buf(g)
				got := r.SumSquares(b, n)
				if threads == 1 {
					first = got
				}
				if got != first || math.Abs(got-want) > 1e-12*want {
					t.Fatalf("%d words, %d threads: sum of squares %v, on one thread %v, want %v", n, threads, got, first, want)
				}
				if bad := r.NonFinite(b, n); bad != 0 {
					t.Fatalf("%d non-finite of finite numbers", bad)
				}
				if n > 2 {
					g[0], g[n/2], g[n-1] = nan32, float32(math.Inf(1)), float32(math.Inf(-1))
					if bad := r.NonFinite(r.buf(g), n); bad != 3 {
						t.Fatalf("%d non-finite, want 3", bad)
					}
					if s := r.SumSquares(r.buf(g), n); s == s {
						t.Fatalf("sum of squares with a NaN is %v", s)
					}
				}
			}
		}
	})
}
