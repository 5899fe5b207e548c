//go:build cgo

package kernels

import (
	"fmt"
	"math"
	"testing"
)

// deviceConv is y, dx and dw (which starts at 1).
func deviceConv(r *deviceRig, seg Segments, ch, k int, x, dy, w []float32) outputs {
	T := seg.Tokens()
	y, dx, dw := r.fillAct(T*ch), r.fillAct(T*ch), r.fill(ch*k, 1)
	xb, wt := r.act(x), r.weight(w, ch, k)
	r.ConvSiLU(y, xb, wt, seg)
	r.ConvSiLUBackward(dx, dw, r.act(dy), xb, wt, seg)
	return outputs{r.getAct(y, T*ch), r.getAct(dx, T*ch), r.get(dw)}
}

func TestDeviceConvSiLU(t *testing.T) {
	eachDType(t, func(t *testing.T, dtype DType) {
		for _, c := range [][2]int{{96, 4}, {8, 1}, {24, 2}, {40, 3}, {1032, 4}, {16, 5}, {136, 8}} {
			t.Run(fmt.Sprintf("ch%d_k%d", c[0], c[1]), func(t *testing.T) {
				r, ch, k := newDeviceRig(t, dtype), c[0], c[1]
				lens := edgeRows
				if ch > 500 {
					lens = []int{1, 2, 0, 3, 41}
				}
				seg := segments(lens...)
				x, dy, w := r.normal(seg.Tokens()*ch, 2), r.normal(seg.Tokens()*ch, 1), r.normal(ch*k, 1)
				out := deviceConv(r, seg, ch, k, x, dy, w)
				y, dx, dw := refConv(f64(x), f64(w), f64(dy), seg, ch, k)
				for i := range dw {
					dw[i]++
				}
				r.nearStored("y", out[0], y, 4e-6, 1)
				r.nearStored("dx", out[1], dx, 8e-6, 1)
				near(t, "dw", out[2], dw, 1e-5, 30) // sums of up to 500 terms of size 2
				r.packedAndAlone(seg, [][]float32{x, dy}, []int{ch, ch}, []int{ch, ch}, func(seg Segments, v [][]float32) outputs {
					return deviceConv(r, seg, ch, k, v[0], v[1], w)[:2]
				})
			})
		}
		// more tokens than a run of the gradient has, and none
		r := newDeviceRig(t, dtype)
		const ch, k = 8, 4
		seg := segments(4000, 3, 900)
		x, dy, w := r.normal(seg.Tokens()*ch, 1), r.normal(seg.Tokens()*ch, 1), r.normal(ch*k, 1)
		out := deviceConv(r, seg, ch, k, x, dy, w)
		y, dx, dw := refConv(f64(x), f64(w), f64(dy), seg, ch, k)
		r.nearStored("y", out[0], y, 4e-6, 1)
		r.nearStored("dx", out[1], dx, 8e-6, 1)
		near(t, "dw", out[2], sumOf(dw, f64(r.get(r.fill(ch*k, 1)))), 1e-5, 70)
		sameBits(t, "dw of nothing", deviceConv(r, segments(0, 0), ch, k, nil, nil, w)[2], r.get(r.fill(ch*k, 1)))
	})
}

// packedAndAlone wants equal bits from a packed batch and from its rows alone, and the rows beside a NaN row to keep
// their bits.
func (r *deviceRig) packedAndAlone(seg Segments, ins [][]float32, inWidths, outWidths []int, op func(seg Segments, ins [][]float32) outputs) {
	r.Helper()
	packed := op(seg, ins)
	alone := separately(seg, ins, inWidths, outWidths, func(row [][]float32, n int) [][]float32 { return op(segments(n), row) })
	sameOutputs(r.TB, "packed and alone", packed, alone)
	odd := seg.Rows() / 2
	spoiled := make([][]float32, len(ins))
	for i := range ins {
		spoiled[i] = append([]float32(nil), ins[i]...)
		row := rowSlice(spoiled[i], seg, odd, inWidths[i])
		for j := range row {
			row[j] = nan32
		}
	}
	after := op(seg, spoiled)
	for i := range packed {
		for row := range seg.Rows() {
			if row != odd {
				sameBits(r.TB, fmt.Sprintf("output %d, row %d beside NaN", i, row),
					rowSlice(after[i], seg, row, outWidths[i]), rowSlice(packed[i], seg, row, outWidths[i]))
			}
		}
	}
}

// deviceGates is g, beta, da, db, and dALog (from 1) and dDtBias (from 2).
func deviceGates(r *deviceRig, T, hv int, a, b, dg, dbeta, aLog, dt []float32) outputs {
	n := T * hv
	ab, bb, lb, tb := r.act(a), r.act(b), r.buf(aLog), r.buf(dt)
	g, beta, da, db, dl, ddt := r.fill(n, nan32), r.fill(n, nan32), r.fillAct(n), r.fillAct(n), r.fill(hv, 1), r.fill(hv, 2)
	r.GDNGates(g, beta, ab, bb, lb, tb, T, hv)
	r.GDNGatesBackward(da, db, dl, ddt, r.buf(dg), r.buf(dbeta), ab, bb, lb, tb, T, hv)
	return outputs{r.get(g), r.get(beta), r.getAct(da, n), r.getAct(db, n), r.get(dl), r.get(ddt)}
}

func TestDeviceGDNGates(t *testing.T) {
	eachDType(t, func(t *testing.T, dtype DType) {
		r := newDeviceRig(t, dtype)
		for i, T := range append([]int{1100}, tokenCounts...) {
			hv := []int{6, 1, 32, 33, 48}[i%5]
			n := T * hv
			a, b, dg, dbeta := r.normal(n, 4), r.normal(n, 3), r.normal(n, 1), r.normal(n, 1)
			if n > 2 {
				a[0], a[1], b[0], b[1] = 60, -60, 60, -60 // both ends
			}
			aLog, dt := r.normal(hv, 1), r.normal(hv, 1)
			aLog[0] = float32(math.Log(16))
			out := deviceGates(r, T, hv, a, b, dg, dbeta, aLog, dt)
			g, beta := refGates(f64(a), f64(b), f64(aLog), f64(dt), T, hv)
			da, db, dl, ddt := refGatesBackward(f64(dg), f64(dbeta), f64(a), f64(b), f64(aLog), f64(dt), T, hv)
			for h := range hv {
				dl[h], ddt[h] = dl[h]+1, ddt[h]+2
			}
			near(t, "g", out[0], g, 1e-6, 1)
			near(t, "beta", out[1], beta, 1e-6, 1e-3)
			r.nearStored("da", out[2], da, 1e-6, 1)
			r.nearStored("db", out[3], db, 1e-6, 1)
			near(t, "dALog", out[4], dl, 1e-5, 100) // sums of up to 1100 terms up to 100
			near(t, "dDtBias", out[5], ddt, 1e-5, 30)
		}
		const T, hv = 70, 6
		aLog, dt := r.normal(hv, 1), r.normal(hv, 1)
		in := make([][]float32, 4)
		for i := range in {
			in[i] = r.normal(T*hv, 1)
		}
		w := []int{hv, hv, hv, hv}
		r.rowsAlone(T, in, w, w, func(T int, v [][]float32) outputs {
			return deviceGates(r, T, hv, v[0], v[1], v[2], v[3], aLog, dt)[:4]
		})
	})
}

// deviceGatedNorm is y, dx, dz and dw (which starts at 1).
func deviceGatedNorm(r *deviceRig, N, D int, x, z, dy, w []float32) outputs {
	y, dx, dz, dw := r.fillAct(N*D), r.fillAct(N*D), r.fillAct(N*D), r.fill(D, 1)
	xb, zb, wb := r.act(x), r.act(z), r.buf(w)
	r.GatedRMSNorm(y, xb, zb, wb, N, D, 1e-6)
	r.GatedRMSNormBackward(dx, dz, dw, r.act(dy), xb, zb, wb, N, D, 1e-6)
	return outputs{r.getAct(y, N*D), r.getAct(dx, N*D), r.getAct(dz, N*D), r.get(dw)}
}

func TestDeviceGatedRMSNorm(t *testing.T) {
	eachDType(t, func(t *testing.T, dtype DType) {
		r := newDeviceRig(t, dtype)
		for _, D := range []int{8, 16, 24, 64, 128, 136, 256} {
			for _, N := range []int{1, 3, 65, 257} {
				x, z, dy, w := r.normal(N*D, 2), r.normal(N*D, 3), r.normal(N*D, 1), r.normal(D, 1)
				out := deviceGatedNorm(r, N, D, x, z, dy, w)
				y, dx, dz, dw := refGatedNorm(f64(x), f64(z), f64(w), f64(dy), N, D, 1e-6)
				for i := range dw {
					dw[i]++
				}
				r.nearStored("y", out[0], y, 4e-6, 1)
				r.nearStored("dx", out[1], dx, 8e-6, 1)
				r.nearStored("dz", out[2], dz, 8e-6, 1)
				near(t, "dw", out[3], dw, 1e-5, 30) // sums of up to 257 terms of size 2
			}
		}
		const N, D = 9000, 8 // more rows than a run's groups take at a time
		x, z, dy, w := r.normal(N*D, 1), r.normal(N*D, 1), r.normal(N*D, 1), r.normal(D, 1)
		out := deviceGatedNorm(r, N, D, x, z, dy, w)
		_, _, _, dw := refGatedNorm(f64(x), f64(z), f64(w), f64(dy), N, D, 1e-6)
		near(t, "dw", out[3], sumOf(dw, f64(r.get(r.fill(D, 1)))), 1e-5, 100)
		sameBits(t, "dw of nothing", deviceGatedNorm(r, 0, D, nil, nil, nil, w)[3], r.get(r.fill(D, 1)))
		const rows, width = 60, 24
		in := [][]float32{r.normal(rows*width, 1), r.normal(rows*width, 1), r.normal(rows*width, 1)}
		w = r.normal(width, 1)
		ws := []int{width, width, width}
		r.rowsAlone(rows, in, ws, ws, func(n int, v [][]float32) outputs { return deviceGatedNorm(r, n, width, v[0], v[1], v[2], w)[:3] })
	})
}

// deviceRope is qOut, kOut, dqg (whose gate halves stay 7), dk, dwq (from 1) and dwk (from 2).
func deviceRope(r *deviceRig, s AttnShape, T int, qg, k, dqOut, dkOut, wq, wk []float32, pos []int32) outputs {
	qOut, kOut := r.fillAct(T*s.Hq*s.D), r.fillAct(T*s.Hk*s.D)
	sevens := make([]float32, len(qg))
	for i := range sevens {
		sevens[i] = 7
	}
	dqg, dk, dwq, dwk := r.act(sevens), r.fillAct(len(k)), r.fill(s.D, 1), r.fill(s.D, 2)
	qb, kb, wqb, wkb, pb := r.act(qg), r.act(k), r.buf(wq), r.buf(wk), r.ints(pos)
	r.QKNormRope(qOut, kOut, qb, kb, wqb, wkb, pb, T, s)
	r.QKNormRopeBackward(dqg, dk, dwq, dwk, r.act(dqOut), r.act(dkOut), qb, kb, wqb, wkb, pb, T, s)
	return outputs{r.getAct(qOut, T*s.Hq*s.D), r.getAct(kOut, T*s.Hk*s.D), r.getAct(dqg, len(qg)), r.getAct(dk, len(k)), r.get(dwq), r.get(dwk)}
}

// halves splits [rows,2D] into the first and the second half of each row.
func halves(v []float32, D int) (first, second []float32) {
	for i := 0; i < len(v); i += 2 * D {
		first = append(first, v[i:i+D]...)
		second = append(second, v[i+D:i+2*D]...)
	}
	return first, second
}

// deviceHeads are attention shapes of one to 32 lanes a head, some of them not a power of two.
var deviceHeads = []AttnShape{
	{Hq: 4, Hk: 2, D: 32, Rotary: 8, Theta: 1e7, Eps: 1e-6},
	{Hq: 1, Hk: 1, D: 8, Rotary: 8, Theta: 1e4, Eps: 1e-6},
	{Hq: 4, Hk: 1, D: 24, Rotary: 0, Theta: 1e4, Eps: 1e-6},
	{Hq: 2, Hk: 2, D: 80, Rotary: 20, Theta: 1e4, Eps: 1e-5},
	{Hq: 2, Hk: 1, D: 256, Rotary: 64, Theta: 1e7, Eps: 1e-6},
	{Hq: 1, Hk: 1, D: 256, Rotary: 256, Theta: 1e4, Eps: 1e-6},
	{Hq: 3, Hk: 1, D: 128, Rotary: 2, Theta: 1e4, Eps: 1e-6},
}

// TestDeviceQKNormRope: positions up to a million are exact to float32, because angles are formed in double.
func TestDeviceQKNormRope(t *testing.T) {
	eachDType(t, func(t *testing.T, dtype DType) {
		for i, s := range deviceHeads {
			t.Run(attnName(s), func(t *testing.T) {
				r := newDeviceRig(t, dtype)
				T := []int{257, 4*maxRuns + 70, 64, 63, 66, 3, 1}[i] // the second one gives a block several rounds of angles
				qg, k, wq, wk := r.normal(T*s.Hq*2*s.D, 1), r.normal(T*s.Hk*s.D, 1), r.normal(s.D, 0.3), r.normal(s.D, 0.3)
				dq, dk, pos := r.normal(T*s.Hq*s.D, 1), r.normal(T*s.Hk*s.D, 1), make([]int32, T)
				for i := range pos {
					pos[i] = int32(r.rng.IntN(1 << (1 + r.rng.IntN(20))))
				}
				pos[T-1] = 1_000_000
				out := deviceRope(r, s, T, qg, k, dq, dk, wq, wk, pos)
				rq, rk := refQKNormRope(f64(qg), f64(k), f64(wq), f64(wk), pos, T, s)
				r.nearStored("q", out[0], rq, 2e-6, 1)
				r.nearStored("k", out[1], rk, 2e-6, 1)
				gq, gk, gwq, gwk := refQKNormRopeBackward(f64(dq), f64(dk), f64(qg), f64(k), f64(wq), f64(wk), pos, T, s)
				query, gate := halves(out[2], s.D)
				for _, x := range gate {
					if x != 7 {
						t.Fatal("QKNormRopeBackward wrote a gate half")
					}
				}
				for i := range s.D {
					gwq[i], gwk[i] = gwq[i]+1, gwk[i]+2
				}
				r.nearStored("dq", query, gq, 5e-6, 1)
				r.nearStored("dk", out[3], gk, 5e-6, 1)
				near(t, "dwq", out[4], gwq, 1e-5, 10) // sums of up to 2000 terms
				near(t, "dwk", out[5], gwk, 1e-5, 10)
			})
		}
		r, s := newDeviceRig(t, dtype), deviceHeads[0]
		const T = 40
		wq, wk := r.normal(s.D, 1), r.normal(s.D, 1)
		in := [][]float32{r.normal(T*s.Hq*2*s.D, 1), r.normal(T*s.Hk*s.D, 1), r.normal(T*s.Hq*s.D, 1), r.normal(T*s.Hk*s.D, 1)}
		q, kw := s.Hq*s.D, s.Hk*s.D
		r.rowsAlone(T, in, []int{2 * q, kw, q, kw}, []int{q, kw, 2 * q, kw}, func(T int, v [][]float32) outputs {
			pos := make([]int32, T)
			for i := range pos {
				pos[i] = 77
			}
			return deviceRope(r, s, T, v[0], v[1], v[2], v[3], wq, wk, pos)[:4]
		})
		sameBits(t, "dwq of nothing", deviceRope(r, s, 0, nil, nil, nil, nil, wq, wk, nil)[4], r.get(r.fill(s.D, 1)))
	})
}

func TestDeviceOutputGate(t *testing.T) {
	eachDType(t, func(t *testing.T, dtype DType) {
		r := newDeviceRig(t, dtype)
		for i, T := range tokenCounts {
			s := deviceHeads[i%len(deviceHeads)]
			n := T * s.Hq * s.D
			o, qg, dy := r.normal(n, 1), r.normal(2*n, 3), r.normal(n, 1)
			ob, qb, dyb := r.act(o), r.act(qg), r.act(dy)
			y, do := r.fillAct(n), r.fillAct(n)
			dqg := r.act(qg) // query halves must stay as they are
			r.OutputGate(y, ob, qb, T, s)
			r.OutputGateBackward(do, dqg, dyb, ob, qb, T, s)
			ry, rdo, rdg := refOutputGate(f64(o), f64(qg), f64(dy), T, s)
			query, gate := halves(r.getAct(dqg, 2*n), s.D)
			before, _ := halves(qg, s.D)
			sameBits(t, "query halves", query, before)
			r.nearAct("y", y, ry, 2e-6, 1)
			r.nearAct("do", do, rdo, 2e-6, 1)
			r.nearStored("dgate", gate, rdg, 2e-6, 1)
			r.OutputGateBackward(ob, dqg, dyb, ob, qb, T, s)
			sameBits(t, "do in o's place", r.getAct(ob, n), r.getAct(do, n))
		}
	})
}

func TestDeviceMixerPartsOrder(t *testing.T) {
	eachDType(t, func(t *testing.T, dtype DType) {
		underSeeds(t, dtype, func(r *deviceRig) outputs {
			seg, s := segments(300, 5, 80), deviceHeads[0]
			const ch, D, hv = 72, 24, 5
			T := seg.Tokens()
			q, k := T*s.Hq*s.D, T*s.Hk*s.D
			out := deviceConv(r, seg, ch, 4, r.normal(T*ch, 1), r.normal(T*ch, 1), r.normal(ch*4, 1))
			out = append(out, deviceGatedNorm(r, T, D, r.normal(T*D, 1), r.normal(T*D, 1), r.normal(T*D, 1), r.normal(D, 1))...)
			out = append(out, deviceGates(r, T, hv, r.normal(T*hv, 1), r.normal(T*hv, 1), r.normal(T*hv, 1), r.normal(T*hv, 1), r.normal(hv, 1), r.normal(hv, 1))...)
			return append(out, deviceRope(r, s, T, r.normal(2*q, 1), r.normal(k, 1), r.normal(q, 1), r.normal(k, 1), r.normal(s.D, 1), r.normal(s.D, 1), make([]int32, T))...)
		})
	})
}
