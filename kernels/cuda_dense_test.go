//go:build cgo

package kernels

import (
	"fmt"
	"math"
	"slices"
	"testing"
)

// pickRows is rows of w [.,H], NaN for a number outside [0, limit).
func pickRows(w []float32, rows []int32, limit, H int) []float32 {
	var out []float32
	for _, id := range rows {
		if id < 0 || int(id) >= limit {
			out = append(out, slices.Repeat([]float32{nan32}, H)...)
		} else {
			out = append(out, part(w, int(id), int(id)+1, H)...)
		}
	}
	return out
}

// sameValues is sameBits with every NaN equal.
func sameValues(t testing.TB, what string, got, want []float32) {
	t.Helper()
	for i := range want {
		if got[i] != want[i] && !(got[i] != got[i] && want[i] != want[i]) {
			t.Fatalf("%s: at %d: %v, want %v", what, i, got[i], want[i])
		}
	}
}

func TestDeviceRows(t *testing.T) {
	eachDType(t, func(t *testing.T, dtype DType) {
		r := newDeviceRig(t, dtype)
		const V = 19
		for i, T := range tokenCounts {
			H := []int{8, 32, 264, 2056}[i%4]
			ids := make([]int32, T)
			for i := range ids {
				ids[i] = int32(r.rng.IntN(V))
			}
			w := r.normal(V*H, 1)
			y := r.fillAct(T * H)
			r.Embed(y, r.ints(ids), r.weight(w, V, H), T)
			sameBits(t, "embed", r.getAct(y, T*H), pickRows(w, ids, V, H))

			rows := make([]int32, T) // distinct, out of more
			for i, p := range r.rng.Perm(T + 5)[:T] {
				rows[i] = int32(p)
			}
			x, dy := r.normal((T+5)*H, 1), r.normal(T*H, 1)
			g, dx := r.fillAct(T*H), r.fillAct((T+5)*H)
			r.Gather(g, r.act(x), r.ints(rows), T, T+5, H)
			sameBits(t, "gather", r.getAct(g, T*H), pickRows(x, rows, T+5, H))
			r.Scatter(dx, r.act(dy), r.ints(rows), T, T+5, H)
			want := make([]float32, (T+5)*H)
			for i, to := range rows {
				copy(want[int(to)*H:], part(dy, i, i+1, H))
			}
			sameBits(t, "scatter", r.getAct(dx, (T+5)*H), want)
		}
		bad := []int32{3, -1, V, 0, math.MaxInt32, math.MinInt32}
		w, y := r.normal(V*16, 1), r.fillAct(6*16)
		r.Embed(y, r.ints(bad), r.weight(w, V, 16), 6)
		sameValues(t, "ids out of range", r.getAct(y, 6*16), pickRows(w, bad, V, 16))
	})
}

// TestDeviceEmbedBackward wants the bits of a plain loop over tokens: ids once, often, next to each other and beyond the
// tile of ids that a block looks at; ids out of range add nothing.
func TestDeviceEmbedBackward(t *testing.T) {
	eachDType(t, func(t *testing.T, dtype DType) {
		r := newDeviceRig(t, dtype)
		for _, c := range []struct{ T, H, V int }{{0, 8, 3}, {1, 8, 3}, {3, 2056, 3}, {63, 32, 50}, {65, 264, 7}, {257, 16, 90}, {1025, 8, 2}, {2500, 8, 1200}} {
			ids := make([]int32, c.T)
			for i := range ids {
				ids[i] = int32(r.rng.IntN(c.V+2) - 1)
			}
			before, dy := r.normal(c.V*c.H, 1), r.normal(c.T*c.H, 1)
			dw := r.buf(before)
			r.EmbedBackward(dw, r.act(dy), r.ints(ids), c.T, c.H, c.V)
			want := slices.Clone(before)
			for i, id := range ids {
				for j := range c.H {
					if id >= 0 && int(id) < c.V {
						want[int(id)*c.H+j] += dy[i*c.H+j]
					}
				}
			}
			sameBits(t, fmt.Sprint(c), r.get(dw), want)
		}
	})
}

func TestDeviceLinear(t *testing.T) {
	eachDType(t, func(t *testing.T, dtype DType) {
		r := newDeviceRig(t, dtype)
		for i, T := range tokenCounts {
			out, in := []int{2, 40, 65, 16}[i%4], []int{24, 8, 72}[i%3]
			x, m, dy := r.normal(T*in, 1), r.normal(out*in, 1), r.normal(T*out, 1)
			master := r.buf(m)
			w := Weight{Master: master, Compute: r.fillAct(out * in), Out: out, In: in}
			r.Pack(w)
			sameBits(t, "pack", r.getAct(w.Compute, out*in), m)
			xb, dyb, y := r.act(x), r.act(dy), r.fillAct(T*out)
			r.Linear(y, xb, w, T)
			want, mag := matmul(T, out, in,
				func(i, p int) float64 { return float64(x[i*in+p]) }, func(p, j int) float64 { return float64(m[j*in+p]) })
			r.nearProduct("linear", r.getAct(y, T*out), want, mag, in)

			at := func(i, o int) float64 { return float64(dy[i*out+o]) }
			want, mag = matmul(T, in, out, at, func(o, j int) float64 { return float64(m[o*in+j]) })
			dx := r.fillAct(T * in)
			r.LinearBackwardInput(dx, dyb, w, T, false)
			r.nearProduct("dx", r.getAct(dx, T*in), want, mag, out)
			before := r.normal(T*in, 1)
			r.setAct(dx, before)
			r.LinearBackwardInput(dx, dyb, w, T, true)
			addTo(want, mag, before)
			r.nearProduct("dx, added", r.getAct(dx, T*in), want, mag, out)

			before = r.normal(out*in, 1)
			dw := r.buf(before)
			r.LinearBackwardWeight(dw, dyb, xb, T, out, in)
			want, mag = matmul(out, in, T, func(o, i int) float64 { return at(i, o) }, func(i, j int) float64 { return float64(x[i*in+j]) })
			addTo(want, mag, before)
			nearProduct(t, "dw", r.get(dw), want, mag, T)
		}
	})
}

// One chain would lose every term but the first: each is less than half of its last place.
func TestDeviceLinearLongSum(t *testing.T) {
	r := newDeviceRig(t, F32)
	for _, in := range []int{48, 1000, 4096} {
		const T, out = 3, 8
		x, m := make([]float32, T*in), make([]float32, out*in)
		for i := range x {
			x[i] = 1
		}
		for i := range m {
			m[i] = 0x1p-25
			if i%in == 0 {
				m[i] = 1
			}
		}
		w := Weight{Master: r.buf(m), Compute: r.fillAct(out * in), Out: out, In: in}
		r.Pack(w)
		y := r.fillAct(T * out)
		r.Linear(y, r.act(x), w, T)
		want, allowed := 1+float64(in-1)*0x1p-25, float64(productRun(in)+in/productRun(in))*0x1p-24
		for i, got := range r.getAct(y, T*out) {
			if !(math.Abs(float64(got)-want) <= allowed) {
				t.Errorf("sum of %d terms, value %d: %.9g, want %.9g within %.2g", in, i, got, want, allowed)
			}
		}
	}
}

func addTo(want, mag []float64, v []float32) {
	for i, x := range v {
		want[i] += float64(x)
		mag[i] += math.Abs(float64(x))
	}
}

// nearProduct is the float32 chain's tolerance, and in bf16 the rounding of the result.
func (r *deviceRig) nearProduct(what string, got []float32, want, mag []float64, k int) {
	r.Helper()
	if r.dtype == F32 {
		nearProduct(r.TB, what, got, want, mag, k)
		return
	}
	for i := range got {
		allowed := math.Abs(want[i])/256 + 1e-5*mag[i]
		if d := math.Abs(float64(got[i]) - want[i]); !(d <= allowed) {
			r.Fatalf("%s: at %d: %v, want %v (off by %.3g, allowed %.3g)", what, i, got[i], want[i], d, allowed)
		}
	}
}

// refRMSNormBackward: dx = r(q - xh·mean(q·xh)), dw = sum of dy·xh, with xh = x·r and q = dy·(1+w).
func refRMSNormBackward(dy, x, w []float64, H int, eps float64) (dx, dw []float64) {
	_, rstd := refRMSNorm(x, w, H, eps)
	dx, dw = make([]float64, len(x)), make([]float64, H)
	for t, r := range rstd {
		dot := 0.0
		for j := range H {
			dw[j] += dy[t*H+j] * x[t*H+j] * r
			dot += dy[t*H+j] * (1 + w[j]) * x[t*H+j] * r
		}
		for j := range H {
			dx[t*H+j] = r * (dy[t*H+j]*(1+w[j]) - x[t*H+j]*r*dot/float64(H))
		}
	}
	return dx, dw
}

func TestRMSNormReferenceGradients(t *testing.T) {
	r := newRig(t, "base", 1)
	const T, H, eps = 3, 8, 1e-3
	x, w, dy := f64(r.normal(T*H, 1)), f64(r.normal(H, 1)), f64(r.normal(T*H, 1))
	dx, dw := refRMSNormBackward(dy, x, w, H, eps)
	f := func() float64 { y, _ := refRMSNorm(x, w, H, eps); return dot64(y, dy) }
	checkGradient(t, "x", x, dx, f)
	checkGradient(t, "w", w, dw, f)
}

// sumOf is a + b, element by element.
func sumOf(a, b []float64) []float64 {
	out := slices.Clone(a)
	for i := range b {
		out[i] += b[i]
	}
	return out
}

func TestDeviceRMSNorm(t *testing.T) {
	const eps = 1e-6
	eachDType(t, func(t *testing.T, dtype DType) {
		r := newDeviceRig(t, dtype)
		for i, T := range tokenCounts {
			H := []int{8, 32, 520, 1032, 2056}[i%5]
			x, res, dy, before := r.normal(T*H, 1), r.normal(T*H, 1), r.normal(T*H, 1), r.normal(T*H, 1)
			w, beforeW := r.normal(H, 0.5), r.normal(H, 1)
			xb, wb := r.act(x), r.buf(w)
			y, rstd := r.fillAct(T*H), r.fill(T, nan32)
			r.RMSNorm(y, rstd, xb, wb, T, H, eps)
			wantY, wantR := refRMSNorm(f64(x), f64(w), H, eps)
			r.nearAct("y", y, wantY, 2e-6, 1e-3)
			near(t, "rstd", r.get(rstd), wantR, 1e-6, 0)

			dx, dw := r.act(before), r.buf(beforeW)
			r.RMSNormBackward(dx, dw, r.act(dy), xb, rstd, wb, T, H)
			wantX, wantW := refRMSNormBackward(f64(dy), f64(x), f64(w), H, eps)
			r.nearAct("dx", dx, sumOf(f64(before), wantX), 3e-6, 1)
			near(t, "dw", r.get(dw), sumOf(f64(beforeW), wantW), 3e-6, math.Sqrt(float64(T+1)))

			sum := make([]float32, T*H)
			for i := range sum {
				sum[i] = x[i] + res[i]
			}
			sum = r.stored(sum)
			y, rstd = r.fillAct(T*H), r.fill(T, nan32)
			r.AddRMSNorm(y, rstd, xb, r.act(res), wb, T, H, eps)
			sameBits(t, "x + res", r.getAct(xb, T*H), sum)
			wantY, wantR = refRMSNorm(f64(sum), f64(w), H, eps)
			r.nearAct("y of the sum", y, wantY, 2e-6, 1e-3)
			near(t, "rstd of the sum", r.get(rstd), wantR, 1e-6, 0)
		}
		const T, H = 130, 520
		r.rowsAlone(T, [][]float32{r.normal(T*H, 1), r.normal(T*H, 1), r.normal(T*H, 1)}, []int{H, H, H}, []int{H, H, H, 1, H},
			func(T int, v [][]float32) outputs { return rmsNormRun(r, T, H, v) })
	})
}

// rmsNormRun is y, x+res, its y, rstd and dx.
func rmsNormRun(r *deviceRig, T, H int, v [][]float32) outputs {
	x, wb := r.act(v[0]), r.fill(H, 0.5)
	y, sumY, rstd, dx := r.fillAct(T*H), r.fillAct(T*H), r.fill(T, nan32), r.act(v[2])
	r.RMSNorm(y, Buffer{}, x, wb, T, H, 1e-6)
	r.AddRMSNorm(sumY, rstd, x, r.act(v[1]), wb, T, H, 1e-6)
	r.RMSNormBackward(dx, r.fill(H, 0), y, x, rstd, wb, T, H)
	return outputs{r.getAct(y, T*H), r.getAct(x, T*H), r.getAct(sumY, T*H), r.get(rstd), r.getAct(dx, T*H)}
}

// refSwiGLU is y, da and db.
func refSwiGLU(a, b, dy []float64) (y, da, db []float64) {
	for i := range a {
		y = append(y, refSilu(a[i])*b[i])
		da = append(da, dy[i]*b[i]*refSiluGrad(a[i]))
		db = append(db, dy[i]*refSilu(a[i]))
	}
	return y, da, db
}

func TestDeviceElementwise(t *testing.T) {
	eachDType(t, func(t *testing.T, dtype DType) {
		r := newDeviceRig(t, dtype)
		for _, n := range append([]int{0, 7, 8, 2047, 2049, 9001}, oddSizes...) {
			a, b, dy := r.normal(n, 2), r.normal(n, 1), r.normal(n, 1)
			if n > 4 { // far ends of the sigmoid
				copy(a, r.stored([]float32{90, -90, 30, -30, 0}))
			}
			y, da, db := refSwiGLU(f64(a), f64(b), f64(dy))
			yb, ab, bb, dyb := r.fillAct(n), r.act(a), r.act(b), r.act(dy)
			r.SwiGLU(yb, ab, bb, n)
			r.nearAct("swiglu", yb, y, 2e-6, 1e-3)
			dab, dbb := r.fillAct(n), r.fillAct(n)
			r.SwiGLUBackward(dab, dbb, dyb, ab, bb, n)
			r.nearAct("dgate", dab, da, 2e-6, 1)
			r.nearAct("dup", dbb, db, 2e-6, 1e-3)
			r.SwiGLUBackward(ab, bb, dyb, ab, bb, n)
			sameBits(t, "dgate in place", r.getAct(ab, n), r.getAct(dab, n))
			sameBits(t, "dup in place", r.getAct(bb, n), r.getAct(dbb, n))
			sum := r.getAct(yb, n)
			for i := range sum {
				sum[i] += dy[i]
			}
			r.Add(dyb, yb, n)
			sameBits(t, "add", r.getAct(dyb, n), r.stored(sum))
		}
	})
}

func TestDeviceDenseOrder(t *testing.T) {
	eachDType(t, func(t *testing.T, dtype DType) {
		underSeeds(t, dtype, func(r *deviceRig) outputs {
			const T, H, V = 600, 72, 31
			x, dy, w := r.act(r.normal(T*H, 1)), r.act(r.normal(T*H, 1)), r.buf(r.normal(H, 1))
			ids := make([]int32, T)
			for i := range ids {
				ids[i] = int32(r.rng.IntN(V))
			}
			y, rstd, dx, dw, de := r.fillAct(T*H), r.fill(T, 0), r.act(r.normal(T*H, 1)), r.fill(H, 1), r.fill(V*H, 1)
			dlin := r.fill(H*H, 1)
			r.RMSNorm(y, rstd, x, w, T, H, 1e-6)
			r.RMSNormBackward(dx, dw, dy, x, rstd, w, T, H)
			r.EmbedBackward(de, dx, r.ints(ids), T, H, V)
			r.LinearBackwardWeight(dlin, dy, x, T, H, H)
			return outputs{r.getAct(y, T*H), r.getAct(dx, T*H), r.get(dw), r.get(de), r.get(dlin)}
		})
	})
}
