//go:build cgo

package kernels

import (
	"math"
	"testing"
)

// adamRef is PyTorch's AdamW written out in float64.
type adamRef struct{ w, m, v []float64 }

func (a *adamRef) step(g []float32, p AdamWParams) {
	lr, b1, b2 := float64(p.LR), float64(p.Beta1), float64(p.Beta2)
	c1, c2 := 1-math.Pow(b1, float64(p.Step)), 1-math.Pow(b2, float64(p.Step))
	for i := range a.w {
		d := float64(g[i]) * float64(p.GradScale)
		a.w[i] *= 1 - lr*float64(p.WeightDecay)
		a.m[i] = b1*a.m[i] + (1-b1)*d
		a.v[i] = b2*a.v[i] + (1-b2)*d*d
		a.w[i] -= lr / c1 * a.m[i] / (math.Sqrt(a.v[i])/math.Sqrt(c2) + float64(p.Eps))
	}
}

// TestDeviceAdamW follows ten updates, each with the cast of the new weights.
func TestDeviceAdamW(t *testing.T) {
	eachDType(t, func(t *testing.T, dtype DType) {
		r := newDeviceRig(t, dtype)
		for _, n := range append([]int{0, 8, 2049, 9003}, oddSizes...) {
			w := r.normal(n, 1)
			ref := adamRef{f64(w), make([]float64, n), make([]float64, n)}
			wb, mb, vb, cb := r.buf(w), r.fill(n, 0), r.fill(n, 0), r.fillAct(n)
			plain := []Buffer{r.buf(w), r.fill(n, 0), r.fill(n, 0)}
			for step := 1; step <= 10; step++ {
				p := AdamWParams{LR: 1e-2, Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, WeightDecay: 0.1, Step: step, GradScale: 0.5}
				g := r.normal(n, 1)
				gb := r.buf(g)
				r.AdamWCast(cb, wb, mb, vb, gb, n, p)
				r.AdamW(plain[0], plain[1], plain[2], gb, n, p)
				ref.step(g, p)
			}
			near(t, "w", r.get(wb), ref.w, 1e-5, 0.1)
			near(t, "m", r.get(mb), ref.m, 1e-5, 0.1)
			near(t, "v", r.get(vb), ref.v, 1e-5, 0.1)
			sameBits(t, "w in the storage type", r.getAct(cb, n), r.stored(r.get(wb)))
			for i, b := range []Buffer{wb, mb, vb} {
				sameBits(t, "AdamW and AdamWCast", r.get(plain[i]), r.get(b))
			}
		}
	})
}

// TestDeviceCast: to nearest, ties to even; infinities and NaN stay.
func TestDeviceCast(t *testing.T) {
	eachDType(t, func(t *testing.T, dtype DType) {
		r := newDeviceRig(t, dtype)
		inf := float32(math.Inf(1))
		bits := []uint32{0x3f808000, 0x3f818000, 0x3f808001, 0x3f80ffff, 0x7f7fffff, 0x00000001, 0x80008000, 0x80000000}
		v := []float32{inf, -inf, 1, -1.5, 3e38}
		for _, b := range bits {
			v = append(v, math.Float32frombits(b))
		}
		y := r.fillAct(len(v) + 1)
		r.Cast(y, r.buf(append(v, nan32)), len(v)+1)
		sameValues(t, "cast", r.getAct(y, len(v)+1), append(r.stored(v), nan32))
	})
}

func TestDeviceReductions(t *testing.T) {
	r := newDeviceRig(t, BF16)
	for _, n := range append([]int{0, 4095, 8192, 8193, 100003}, oddSizes...) {
		g := r.normal(n, 3)
		want := 0.0
		for _, x := range g {
			want += float64(x) * float64(x)
		}
		b := r.buf(g)
		got := r.SumSquares(b, n)
		if math.Abs(got-want) > 1e-12*want {
			t.Fatalf("%d words: sum of squares %v, want %v", n, got, want)
		}
		if again := r.SumSquares(b, n); again != got {
			t.Fatalf("%d words: sum of squares %v, then %v", n, got, again)
		}
		if bad := r.NonFinite(b, n); bad != 0 {
			t.Fatalf("%d non-finite of finite numbers", bad)
		}
		if n > 2 {
			g[0], g[n/2], g[n-1] = nan32, float32(math.Inf(1)), float32(math.Inf(-1))
			if bad := r.NonFinite(r.buf(g), n); bad != 3 {
				t.Fatalf("%d words: %d non-finite, want 3", n, bad)
			}
			if s := r.SumSquares(r.buf(g), n); s == s {
				t.Fatalf("%d words: sum of squares with a NaN is %v", n, s)
			}
		}
	}
}
