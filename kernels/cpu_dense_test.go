//go:build cgo

package kernels

import (
	"fmt"
	"math"
	"slices"
	"testing"
)

var nan32 = float32(math.NaN())

// oddSizes meets every tail: of vectors, of tiles, of panels, of blocks.
var oddSizes = []int{1, 2, 3, 15, 17, 31, 33, 65}

func TestVecFunctions(t *testing.T) {
	logistic := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	cases := []struct {
		f      vecFunc
		name   string
		ref    func(float64) float64
		lo, hi float64
		tol    float64 // relative
	}{
		{vecExp, "exp", math.Exp, -87, 88.7, 2.4e-7},
		{vecLog, "log", math.Log, 1e-40, 10, 2.4e-7},
		{vecLog, "log", math.Log, 1, 3e38, 2.4e-7},
		{vecSigmoid, "sigmoid", logistic, -87, 87, 4e-7},
		{vecSilu, "silu", func(x float64) float64 { return x * logistic(x) }, -80, 80, 4e-7},
		{vecSoftplus, "softplus", func(x float64) float64 { return math.Log1p(math.Exp(x)) }, -60, 60, 4e-7},
		{vecRsqrt, "rsqrt", func(x float64) float64 { return 1 / math.Sqrt(x) }, 1e-30, 1e30, 1.8e-7},
	}
	eachISA(t, func(t *testing.T, isa string) {
		r := newRig(t, isa, 1)
		for _, c := range cases {
			const n = 40003
			x := make([]float32, n)
			for i := range x {
				u := r.rng.Float64()
				if c.lo > 0 { // spread over the exponents
					x[i] = float32(math.Exp(math.Log(c.lo) + u*(math.Log(c.hi)-math.Log(c.lo))))
				} else {
					x[i] = float32(c.lo + u*(c.hi-c.lo))
				}
			}
			in, out := r.buf(x), r.fill(n, nan32)
			r.vec(c.f, out, in, n)
			want := make([]float64, n)
			for i := range x {
				want[i] = c.ref(float64(x[i]))
			}
			near(t, c.name, r.get(out), want, c.tol, 1e-37)
			// One lane, in any place, has the bits of the vector.
			r.vec(c.f, out.Slice(7, 1), in.Slice(1234, 1), 1)
			got := r.get(out)
			sameBits(t, c.name+" alone", got[7:8], got[1234:1235])
		}
	})
}

func TestVecSpecialValues(t *testing.T) {
	inf := float32(math.Inf(1))
	eachISA(t, func(t *testing.T, isa string) {
		r := newRig(t, isa, 1)
		run := func(f vecFunc, x float32) float32 {
			out := r.fill(1, 7)
			r.vec(f, out, r.buf([]float32{x}), 1)
			return r.get(out)[0]
		}
		for _, c := range []struct {
			f    vecFunc
			x, y float32
		}{
			{vecExp, -inf, 0}, {vecExp, inf, inf}, {vecExp, 0, 1}, {vecExp, -1e30, 0}, {vecExp, 1e30, inf}, {vecExp, nan32, nan32},
			{vecExp, 89, inf}, {vecExp, -104, 0}, {vecLog, 0, -inf}, {vecLog, inf, inf}, {vecLog, -1, nan32},
			{vecLog, nan32, nan32}, {vecLog, 1, 0}, {vecSigmoid, 1e30, 1}, {vecSigmoid, -1e30, 0}, {vecSilu, -1e30, 0},
			{vecSilu, 1e30, 1e30}, {vecSoftplus, 1e30, 1e30}, {vecSoftplus, 21, 21}, {vecSoftplus, -1e30, 0}, {vecSigmoid, nan32, nan32},
		} {
			got := run(c.f, c.x)
			if got != c.y && !(got != got && c.y != c.y) {
				t.Errorf("function %d of %v = %v, want %v", c.f, c.x, got, c.y)
			}
		}
	})
}

// matmul is the float64 reference: C[m,n] = sum over k of a(i,k)·b(k,j), and the sum of absolute products.
func matmul(m, n, k int, a, b func(i, j int) float64) (c, mag []float64) {
	c, mag = make([]float64, m*n), make([]float64, m*n)
	for i := range m {
		for j := range n {
			for p := range k {
				x := a(i, p) * b(p, j)
				c[i*n+j] += x
				mag[i*n+j] += math.Abs(x)
			}
		}
	}
	return c, mag
}

// nearProduct allows each element the error of a float32 chain of k products.
func nearProduct(t testing.TB, what string, got []float32, want, mag []float64, k int) {
	t.Helper()
	for i := range got {
		tol := 6e-8 * (4 + math.Sqrt(float64(k))) * (mag[i] + math.Abs(want[i]) + 1e-30)
		if d := math.Abs(float64(got[i]) - want[i]); !(d <= tol) {
			t.Fatalf("%s: at %d: %v, want %v (off by %.3g, allowed %.3g)", what, i, got[i], want[i], d, tol)
		}
	}
}

type linearCase struct{ T, out, in int }

func (c linearCase) String() string { return fmt.Sprintf("T%d_%dx%d", c.T, c.out, c.in) }

func linearCases() []linearCase {
	cs := []linearCase{{130, 70, 300}, {33, 160, 256}, {40, 512, 200}, {29, 65, 513}, {300, 40, 64}, {600, 33, 31}}
	for i, T := range oddSizes {
		for j, out := range oddSizes {
			cs = append(cs, linearCase{T, out, oddSizes[(i+3*j)%len(oddSizes)]})
		}
	}
	for T := 1; T <= 30; T++ {
		cs = append(cs, linearCase{T, 49, 37})
	}
	return cs
}

func (r *rig) weight(master []float32, out, in int) Weight {
	w := Weight{Master: r.buf(master), Compute: r.fill(r.PackSize(out, in), nan32), Out: out, In: in}
	r.Pack(w)
	return w
}

func TestLinear(t *testing.T) {
	eachISA(t, func(t *testing.T, isa string) {
		r := newRig(t, isa, 2)
		for _, c := range linearCases() {
			x, m := r.normal(c.T*c.in, 1), r.normal(c.out*c.in, 1)
			w := r.weight(m, c.out, c.in)
			y := r.fill(c.T*c.out, nan32)
			r.Linear(y, r.buf(x), w, c.T)
			want, mag := matmul(c.T, c.out, c.in,
				func(i, p int) float64 { return float64(x[i*c.in+p]) }, func(p, j int) float64 { return float64(m[j*c.in+p]) })
			nearProduct(t, c.String(), r.get(y), want, mag, c.in)
		}
	})
}

func TestLinearBackward(t *testing.T) {
	eachISA(t, func(t *testing.T, isa string) {
		r := newRig(t, isa, 2)
		for _, c := range linearCases() {
			x, m, dy := r.normal(c.T*c.in, 1), r.normal(c.out*c.in, 1), r.normal(c.T*c.out, 1)
			w := r.weight(m, c.out, c.in)
			at := func(i, o int) float64 { return float64(dy[i*c.out+o]) }
			want, mag := matmul(c.T, c.in, c.out, at, func(o, j int) float64 { return float64(m[o*c.in+j]) })
			dx := r.fill(c.T*c.in, nan32)
			r.LinearBackwardInput(dx, r.buf(dy), w, c.T, false)
			nearProduct(t, c.String()+" dx", r.get(dx), want, mag, c.out)

			before := r.normal(c.T*c.in, 1)
			dx = r.buf(before)
			r.LinearBackwardInput(dx, r.buf(dy), w, c.T, true)
			for i := range want {
				want[i] += float64(before[i])
				mag[i] += math.Abs(float64(before[i]))
			}
			nearProduct(t, c.String()+" dx, added", r.get(dx), want, mag, c.out)

			before = r.normal(c.out*c.in, 1)
			dw := r.buf(before)
			r.LinearBackwardWeight(dw, r.buf(dy), r.buf(x), c.T, c.out, c.in)
			want, mag = matmul(c.out, c.in, c.T,
				func(o, i int) float64 { return at(i, o) }, func(i, j int) float64 { return float64(x[i*c.in+j]) })
			for i := range want {
				want[i] += float64(before[i])
				mag[i] += math.Abs(float64(before[i]))
			}
			nearProduct(t, c.String()+" dw", r.get(dw), want, mag, c.T)
		}
	})
}

// TestLinearRowAlone: a row has the same bits alone, in its batch and in any slice of it.
func TestLinearRowAlone(t *testing.T) {
	eachISA(t, func(t *testing.T, isa string) {
		for _, c := range []linearCase{{67, 130, 300}, {250, 96, 512}, {40, 33, 1}} {
			r := newRig(t, isa, 3)
			w := r.weight(r.normal(c.out*c.in, 1), c.out, c.in)
			x, dy := r.buf(r.normal(c.T*c.in, 1)), r.buf(r.normal(c.T*c.out, 1))
			y, dx := r.fill(c.T*c.out, nan32), r.fill(c.T*c.in, nan32)
			r.Linear(y, x, w, c.T)
			r.LinearBackwardInput(dx, dy, w, c.T, false)
			for _, part := range [][2]int{{0, 1}, {c.T - 1, 1}, {5, 3}, {7, 14}, {11, 29}} {
				at, n := part[0], part[1]
				yp, dxp := r.fill(n*c.out, nan32), r.fill(n*c.in, nan32)
				r.Linear(yp, x.Slice(at*c.in, n*c.in), w, n)
				r.LinearBackwardInput(dxp, dy.Slice(at*c.out, n*c.out), w, n, false)
				what := fmt.Sprintf("%v rows %d+%d", c, at, n)
				sameBits(t, what, r.get(yp), r.get(y.Slice(at*c.out, n*c.out)))
				sameBits(t, what+" dx", r.get(dxp), r.get(dx.Slice(at*c.in, n*c.in)))
			}
		}
	})
}

func TestDenseThreads(t *testing.T) {
	eachISA(t, func(t *testing.T, isa string) {
		onThreads(t, isa, func(r *rig) [][]float32 {
			const T, out, in, vocab = 700, 150, 96, 301
			w := r.weight(r.normal(out*in, 1), out, in)
			x, dy := r.buf(r.normal(T*in, 1)), r.buf(r.normal(T*out, 1))
			y, dx, dw := r.fill(T*out, nan32), r.fill(T*in, nan32), r.fill(out*in, 0)
			r.Linear(y, x, w, T)
			r.LinearBackwardInput(dx, dy, w, T, false)
			r.LinearBackwardWeight(dw, dy, x, T, out, in)
			nw := r.buf(r.normal(in, 1))
			ny, rstd, ndx, ndw := r.fill(T*in, nan32), r.fill(T, nan32), r.fill(T*in, 1), r.fill(in, 1)
			r.RMSNorm(ny, rstd, x, nw, T, in, 1e-6)
			r.RMSNormBackward(ndx, ndw, dx, x, rstd, nw, T, in)
			ids := make([]int32, T)
			for i := range ids {
				ids[i] = int32(r.rng.IntN(9))
			}
			dwe := r.fill(vocab*in, 0)
			r.EmbedBackward(dwe, dx, r.ints(ids), T, in, vocab)
			return [][]float32{r.get(y), r.get(dx), r.get(dw), r.get(ny), r.get(rstd), r.get(ndx), r.get(ndw), r.get(dwe)}
		})
	})
}

func TestEmbed(t *testing.T) {
	eachISA(t, func(t *testing.T, isa string) {
		for _, H := range oddSizes {
			r := newRig(t, isa, 2)
			const T, V = 40, 7
			ids := make([]int32, T)
			for i := range ids {
				ids[i] = int32(r.rng.IntN(V))
			}
			w, dy, before := r.normal(V*H, 1), r.normal(T*H, 1), r.normal(V*H, 1)
			y, dw := r.fill(T*H, nan32), r.buf(before)
			r.Embed(y, r.ints(ids), Weight{Master: r.buf(w), Out: V, In: H}, T)
			r.EmbedBackward(dw, r.buf(dy), r.ints(ids), T, H, V)
			wantY, wantDW := []float32{}, slices.Clone(before)
			for i, id := range ids {
				wantY = append(wantY, w[int(id)*H:(int(id)+1)*H]...)
				for j := range H {
					wantDW[int(id)*H+j] += dy[i*H+j] // token order: equal bits
				}
			}
			sameBits(t, "embed", r.get(y), wantY)
			sameBits(t, "embed backward", r.get(dw), wantDW)
		}
	})
}

// refRMSNorm is L = sum of dy·y in float64, with y = x·r·(1+w).
func refRMSNorm(x, w []float64, H int, eps float64) (y, rstd []float64) {
	y = make([]float64, len(x))
	for t := 0; t < len(x)/H; t++ {
		s := 0.0
		for j := range H {
			s += x[t*H+j] * x[t*H+j]
		}
		r := 1 / math.Sqrt(s/float64(H)+eps)
		rstd = append(rstd, r)
		for j := range H {
			y[t*H+j] = x[t*H+j] * r * (1 + w[j])
		}
	}
	return y, rstd
}

// slope is the central difference of f in v[i].
func slope(v []float64, i int, f func() float64) float64 {
	const h = 1e-5
	old := v[i]
	v[i] = old + h
	up := f()
	v[i] = old - h
	down := f()
	v[i] = old
	return (up - down) / (2 * h)
}

func dot(a, b []float64) float64 {
	s := 0.0
	for i := range a {
		s += a[i] * b[i]
	}
	return s
}

func TestRMSNorm(t *testing.T) {
	const eps = 1e-6
	eachISA(t, func(t *testing.T, isa string) {
		for _, H := range append([]int{128, 300}, oddSizes...) {
			r := newRig(t, isa, 2)
			const T = 5
			x, w, dy := r.normal(T*H, 1), r.normal(H, 0.5), r.normal(T*H, 1)
			y, rstd := r.fill(T*H, nan32), r.fill(T, nan32)
			xb, wb := r.buf(x), r.buf(w)
			r.RMSNorm(y, rstd, xb, wb, T, H, eps)
			x64, w64, dy64 := f64(x), f64(w), f64(dy)
			wantY, wantR := refRMSNorm(x64, w64, H, eps)
			near(t, "y", r.get(y), wantY, 2e-6, 1e-3)
			near(t, "rstd", r.get(rstd), wantR, 1e-6, 0)
			alone := r.fill(H, nan32)
			r.RMSNorm(alone, Buffer{}, xb.Slice(3*H, H), wb, 1, H, eps)
			sameBits(t, "row alone", r.get(alone), r.get(y.Slice(3*H, H)))

			loss := func() float64 { y, _ := refRMSNorm(x64, w64, H, eps); return dot(y, dy64) }
			before, beforeW := r.normal(T*H, 1), r.normal(H, 1)
			dx, dw := r.buf(before), r.buf(beforeW)
			r.RMSNormBackward(dx, dw, r.buf(dy), xb, rstd, wb, T, H)
			wantX, wantW := f64(before), f64(beforeW)
			for i := range wantX {
				wantX[i] += slope(x64, i, loss)
			}
			for i := range wantW {
				wantW[i] += slope(w64, i, loss)
			}
			near(t, "dx", r.get(dx), wantX, 3e-6, 1)
			near(t, "dw", r.get(dw), wantW, 3e-6, 1)
		}
	})
}

func TestSwiGLUAndAdd(t *testing.T) {
	eachISA(t, func(t *testing.T, isa string) {
		for _, n := range append([]int{20000}, oddSizes...) {
			r := newRig(t, isa, 2)
			a, b, dy := r.normal(n, 2), r.normal(n, 1), r.normal(n, 1)
			y, da, db := make([]float64, n), make([]float64, n), make([]float64, n)
			for i := range n {
				x, up, g := float64(a[i]), float64(b[i]), float64(dy[i])
				s := 1 / (1 + math.Exp(-x))
				y[i] = x * s * up
				da[i] = g * up * s * (1 + x*(1-s))
				db[i] = g * x * s
			}
			yb := r.fill(n, nan32)
			ab, bb, dyb := r.buf(a), r.buf(b), r.buf(dy)
			r.SwiGLU(yb, ab, bb, n)
			near(t, "swiglu", r.get(yb), y, 1e-6, 1e-3)
			dab, dbb := r.fill(n, nan32), r.fill(n, nan32)
			r.SwiGLUBackward(dab, dbb, dyb, ab, bb, n)
			near(t, "dgate", r.get(dab), da, 1e-6, 1)
			near(t, "dup", r.get(dbb), db, 1e-6, 1e-3)
			r.SwiGLUBackward(ab, bb, dyb, ab, bb, n)
			sameBits(t, "dgate in place", r.get(ab), r.get(dab))
			sameBits(t, "dup in place", r.get(bb), r.get(dbb))
			r.Add(dyb, yb, n)
			sum := make([]float32, n)
			for i, v := range r.get(yb) {
				sum[i] = dy[i] + v
			}
			sameBits(t, "add", r.get(dyb), sum)
		}
	})
}
