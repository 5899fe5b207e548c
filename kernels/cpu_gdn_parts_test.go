//go:build cgo

package kernels

import (
	"fmt"
	"math"
	"testing"
)

// convRun is forward and backward: y, dx, dw (which starts at 1).
func convRun(r *rig, seg Segments, ch, k int, x, dy, w []float32) [][]float32 {
	nan := float32(math.NaN())
	y, dx, dw := r.fill(len(x), nan), r.fill(len(x), nan), r.fill(len(w), 1)
	xb, wb := r.buf(x), r.buf(w)
	r.ConvSiLU(y, xb, Weight{Master: wb, Out: ch, In: k}, seg)
	r.ConvSiLUBackward(dx, dw, r.buf(dy), xb, Weight{Master: wb, Out: ch, In: k}, seg)
	return [][]float32{r.get(y), r.get(dx), r.get(dw)}
}

func TestConvSiLU(t *testing.T) {
	eachISA(t, func(t *testing.T, isa string) {
		for _, c := range [][2]int{{96, 4}, {33, 4}, {17, 3}, {40, 2}, {5, 1}, {16, 6}} {
			t.Run(fmt.Sprintf("ch%d_k%d", c[0], c[1]), func(t *testing.T) {
				r, ch, k := newRig(t, isa, 2), c[0], c[1]
				seg := segments(edgeRows...)
				x, dy, w := r.normal(seg.Tokens()*ch, 2), r.normal(seg.Tokens()*ch, 1), r.normal(ch*k, 1)
				out := convRun(r, seg, ch, k, x, dy, w)
				y, dx, dw := refConv(f64(x), f64(w), f64(dy), seg, ch, k)
				for i := range dw {
					dw[i]++
				}
				near(t, "y", out[0], y, 2e-6, 1)
				near(t, "dx", out[1], dx, 4e-6, 1)
				near(t, "dw", out[2], dw, 1e-5, 30) // sums of 500 terms of size 2
				checkRowsAlone(r, seg, [][]float32{x, dy}, []int{ch, ch}, []int{ch, ch}, func(seg Segments, v [][]float32) [][]float32 {
					return convRun(r, seg, ch, k, v[0], v[1], w)[:2]
				})
			})
		}
		onThreads(t, isa, func(r *rig) [][]float32 {
			seg := segments(300, 5, 80)
			return convRun(r, seg, 72, 4, r.normal(seg.Tokens()*72, 1), r.normal(seg.Tokens()*72, 1), r.normal(72*4, 1))
		})
	})
}

func TestGDNGates(t *testing.T) {
	eachISA(t, func(t *testing.T, isa string) {
		for _, hv := range []int{1, 3, 4, 16, 33} {
			r := newRig(t, isa, 2)
			const T = 530
			n := T * hv
			a, b, dg, dbeta := r.normal(n, 4), r.normal(n, 3), r.normal(n, 1), r.normal(n, 1)
			a[0], a[1] = 60, -60 // softplus at both ends
			aLog, dt := r.normal(hv, 1), r.normal(hv, 1)
			aLog[0] = float32(math.Log(16))
			ab, bb, lb, tb := r.buf(a), r.buf(b), r.buf(aLog), r.buf(dt)
			g, beta, da, db := r.fill(n, 0), r.fill(n, 0), r.fill(n, 0), r.fill(n, 0)
			dl, ddt := r.fill(hv, 1), r.fill(hv, 2)
			r.GDNGates(g, beta, ab, bb, lb, tb, T, hv)
			r.GDNGatesBackward(da, db, dl, ddt, r.buf(dg), r.buf(dbeta), ab, bb, lb, tb, T, hv)
			rg, rb := refGates(f64(a), f64(b), f64(aLog), f64(dt), T, hv)
			rda, rdb, rdl, rdt := refGatesBackward(f64(dg), f64(dbeta), f64(a), f64(b), f64(aLog), f64(dt), T, hv)
			for h := range hv {
				rdl[h], rdt[h] = rdl[h]+1, rdt[h]+2
			}
			near(t, "g", r.get(g), rg, 1e-6, 1)
			near(t, "beta", r.get(beta), rb, 1e-6, 1e-3)
			near(t, "da", r.get(da), rda, 1e-6, 1)
			near(t, "db", r.get(db), rdb, 1e-6, 1)
			near(t, "dALog", r.get(dl), rdl, 1e-5, 100) // sums of 530 terms up to 100
			near(t, "dDtBias", r.get(ddt), rdt, 1e-5, 30)
		}
		onThreads(t, isa, func(r *rig) [][]float32 {
			const T, hv = 1500, 6
			da, db, dl, ddt := r.fill(T*hv, 0), r.fill(T*hv, 0), r.fill(hv, 0), r.fill(hv, 0)
			v := r.normal(4*T*hv, 1)
			in := r.buf(v)
			r.GDNGatesBackward(da, db, dl, ddt, in.Slice(0, T*hv), in.Slice(T*hv, T*hv), in.Slice(2*T*hv, T*hv),
				in.Slice(3*T*hv, T*hv), r.buf(v[:hv]), r.buf(v[hv:2*hv]), T, hv)
			return [][]float32{r.get(da), r.get(db), r.get(dl), r.get(ddt)}
		})
	})
}

// gnormRun is forward and backward: y, dx, dz, dw (which starts at 1).
func gnormRun(r *rig, N, D int, x, z, dy, w []float32) [][]float32 {
	nan := float32(math.NaN())
	y, dx, dz, dw := r.fill(N*D, nan), r.fill(N*D, nan), r.fill(N*D, nan), r.fill(D, 1)
	xb, zb, wb := r.buf(x), r.buf(z), r.buf(w)
	r.GatedRMSNorm(y, xb, zb, wb, N, D, 1e-6)
	r.GatedRMSNormBackward(dx, dz, dw, r.buf(dy), xb, zb, wb, N, D, 1e-6)
	return [][]float32{r.get(y), r.get(dx), r.get(dz), r.get(dw)}
}

func TestGatedRMSNorm(t *testing.T) {
	eachISA(t, func(t *testing.T, isa string) {
		for _, D := range []int{32, 64, 24, 5, 128} {
			r := newRig(t, isa, 2)
			const N = 600
			x, z, dy, w := r.normal(N*D, 2), r.normal(N*D, 3), r.normal(N*D, 1), r.normal(D, 1)
			out := gnormRun(r, N, D, x, z, dy, w)
			y, dx, dz, dw := refGatedNorm(f64(x), f64(z), f64(w), f64(dy), N, D, 1e-6)
			for i := range dw {
				dw[i]++
			}
			near(t, "y", out[0], y, 2e-6, 1)
			near(t, "dx", out[1], dx, 5e-6, 1)
			near(t, "dz", out[2], dz, 5e-6, 1)
			near(t, "dw", out[3], dw, 1e-5, 50) // sums of 600 terms of size 2
		}
		onThreads(t, isa, func(r *rig) [][]float32 {
			const N, D = 2000, 24
			return gnormRun(r, N, D, r.normal(N*D, 1), r.normal(N*D, 1), r.normal(N*D, 1), r.normal(D, 1))
		})
	})
}

func TestGDNPartsReferenceGradients(t *testing.T) {
	r := newRig(t, "base", 1)
	seg, ch, k := segments(4, 0, 1, 6), 3, 4
	x, w, dy := f64(r.normal(seg.Tokens()*ch, 1)), f64(r.normal(ch*k, 1)), f64(r.normal(seg.Tokens()*ch, 1))
	_, dx, dw := refConv(x, w, dy, seg, ch, k)
	conv := func() float64 { y, _, _ := refConv(x, w, nil, seg, ch, k); return dot64(y, dy) }
	checkGradient(t, "conv x", x, dx, conv)
	checkGradient(t, "conv w", w, dw, conv)

	const T, hv = 5, 3
	in := f64(r.normal(4*T*hv, 1))
	a, b, dg, db, aLog, dt := in[:15], in[15:30], in[30:45], in[45:60], f64(r.normal(hv, 1)), f64(r.normal(hv, 1))
	da, dbb, dl, ddt := refGatesBackward(dg, db, a, b, aLog, dt, T, hv)
	gates := func() float64 { g, beta := refGates(a, b, aLog, dt, T, hv); return dot64(g, dg) + dot64(beta, db) }
	checkGradient(t, "gates a", a, da, gates)
	checkGradient(t, "gates b", b, dbb, gates)
	checkGradient(t, "gates aLog", aLog, dl, gates)
	checkGradient(t, "gates dtBias", dt, ddt, gates)

	const N, D = 3, 7
	in = f64(r.normal(3*N*D, 1))
	nx, nz, nd, nw := in[:21], in[21:42], in[42:], f64(r.normal(D, 1))
	_, ndx, ndz, ndw := refGatedNorm(nx, nz, nw, nd, N, D, 1e-6)
	norm := func() float64 { y, _, _, _ := refGatedNorm(nx, nz, nw, nil, N, D, 1e-6); return dot64(y, nd) }
	checkGradient(t, "norm x", nx, ndx, norm)
	checkGradient(t, "norm z", nz, ndz, norm)
	checkGradient(t, "norm w", nw, ndw, norm)
}
