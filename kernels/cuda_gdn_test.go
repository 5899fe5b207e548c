//go:build cgo

package kernels

import (
	"fmt"
	"math"
	"testing"
)

// gdnDeviceCases are the shapes of gdnCases that the device takes, and ones with padded dims.
var gdnDeviceCases = []gdnCase{
	{GDNShape{Hk: 2, Hv: 2, Dk: 32, Dv: 32}, edgeRows, "weak"},
	{GDNShape{Hk: 2, Hv: 2, Dk: 64, Dv: 64}, []int{130, 70}, "mixed"},
	{GDNShape{Hk: 1, Hv: 2, Dk: 16, Dv: 48}, edgeRows, "mixed"},
	{GDNShape{Hk: 1, Hv: 3, Dk: 48, Dv: 16}, []int{100, 65}, "strong"},
	{GDNShape{Hk: 1, Hv: 1, Dk: 80, Dv: 128}, []int{129}, "weak"},
	{GDNShape{Hk: 1, Hv: 2, Dk: 128, Dv: 80}, []int{66, 128}, "none"},
	{GDNShape{Hk: 1, Hv: 1, Dk: 128, Dv: 128}, []int{200}, "mixed"},
}

// gdnTolerance is how far a head's tensor may be off: in fp32 the largest error of its largest value, in bf16 the L2
// norm of its error of its L2 norm.
type gdnTolerance struct{ o, grad, gate float64 }

// In fp32 chains are up to 128 terms of rounding 6e-8 each, through three chunks. In bf16 q, k, A, P, e, u, S, D and the
// results are rounded to 2^-9 each; a plain chain of such products would be off by as much.
var gdnTolerances = map[DType]gdnTolerance{F32: {2e-5, 2e-5, 2e-5}, BF16: {4e-3, 6e-3, 1e-2}}

func TestDeviceGDNReference(t *testing.T) {
	eachDType(t, func(t *testing.T, dtype DType) {
		for _, c := range gdnDeviceCases {
			t.Run(c.String(), func(t *testing.T) {
				r := newDeviceRig(t, dtype)
				in := r.gdnInputs(c)
				got := r.gdnRun(c.s, in)
				want := refGDN(f64(in.qkv), f64(in.g), f64(in.beta), f64(in.do), c.s, in.seg)
				compareGDN(t, dtype, c.s, in.seg, got, want)
			})
		}
	})
}

type gdnIn struct {
	seg              Segments
	qkv, g, beta, do []float32
}

func (r *deviceRig) gdnInputs(c gdnCase) gdnIn {
	in := gdnIn{seg: segments(c.rows...)}
	T := in.seg.Tokens()
	in.qkv, in.g, in.beta = gdnInputs(&rig{TB: r.TB, rng: r.rng}, c, T)
	in.qkv = r.stored(in.qkv)
	in.do = r.normal(T*c.s.Hv*c.s.Dv, 1)
	return in
}

// gdnRun is forward and backward: o, dqkv, dg, dbeta.
func (r *deviceRig) gdnRun(s GDNShape, in gdnIn) [][]float32 {
	return r.gdnRunWith(s, in, gdnOptions{})
}

func (r *deviceRig) gdnRunWith(s GDNShape, in gdnIn, around gdnOptions) [][]float32 {
	T := in.seg.Tokens()
	o, dqkv, dg, dbeta := r.fillAct(T*s.Hv*s.Dv), r.fillAct(T*s.Channels()), r.fill(T*s.Hv, nan32), r.fill(T*s.Hv, nan32)
	saved := r.fill(r.GDNSaved(s, in.seg), nan32)
	qkv, g, beta := r.act(in.qkv), r.buf(in.g), r.buf(in.beta)
	r.gdn(o, saved, qkv, g, beta, s, in.seg, around)
	r.gdnBackward(dqkv, dg, dbeta, r.act(in.do), saved, qkv, g, beta, s, in.seg, around)
	out := [][]float32{r.getAct(o, T*s.Hv*s.Dv), r.getAct(dqkv, T*s.Channels()), r.get(dg), r.get(dbeta)}
	if err := r.Sync(); err != nil {
		r.Fatal(err)
	}
	return out
}

// gdnOddCase has several chunks, an empty row, a padded key dim and a half-used block of value columns.
func gdnOddCase() gdnCase {
	return gdnCase{GDNShape{Hk: 2, Hv: 4, Dk: 16, Dv: 48}, edgeRows, "mixed"}
}

// TestDeviceGDNRowsAlone: packed and separate rows have the same bits, and NaN stays in its row.
func TestDeviceGDNRowsAlone(t *testing.T) {
	eachDType(t, func(t *testing.T, dtype DType) {
		r, c := newDeviceRig(t, dtype), gdnOddCase()
		in, s := r.gdnInputs(c), c.s
		ins := [][]float32{in.qkv, in.g, in.beta, in.do}
		checkRowsAlone(&rig{TB: t}, in.seg, ins, []int{s.Channels(), s.Hv, s.Hv, s.Hv * s.Dv}, []int{s.Hv * s.Dv, s.Channels(), s.Hv, s.Hv},
			func(seg Segments, v [][]float32) [][]float32 {
				return r.gdnRun(s, gdnIn{seg, v[0], v[1], v[2], v[3]})
			})
	})
}

// TestDeviceGDNOrder: the order in which blocks, threads and copies run, and how many chunks shared memory has room for,
// change no bit.
func TestDeviceGDNOrder(t *testing.T) {
	eachDType(t, func(t *testing.T, dtype DType) {
		for _, c := range []gdnCase{gdnOddCase(), {GDNShape{Hk: 1, Hv: 2, Dk: 128, Dv: 128}, []int{140}, "mixed"}} {
			var first outputs
			for _, seed := range []string{"0", "1", "77"} { // 0: in order, every copy as late as it may be
				t.Setenv("HARNESS_S_SIM_SEED", seed)
				r := newDeviceRig(t, dtype)
				in := r.gdnInputs(c)
				for _, limit := range []int{limit86, limit80, limit90} {
					got := outputs(r.gdnRunWith(c.s, in, gdnOptions{shared: limit}))
					if first == nil {
						first = got
					}
					sameOutputs(t, fmt.Sprintf("%v, seed %s, %d bytes", c, seed, limit), got, first)
				}
			}
		}
	})
}

// TestDeviceGDNStates: a row cut at a chunk's end and continued from its state, and its gradient from the state's
// gradient, has the bits of the whole row.
func TestDeviceGDNStates(t *testing.T) {
	eachDType(t, func(t *testing.T, dtype DType) {
		for _, s := range []GDNShape{{Hk: 1, Hv: 2, Dk: 48, Dv: 16}, {Hk: 1, Hv: 1, Dk: 128, Dv: 80}} {
			const n, at = 150, 64
			r := newDeviceRig(t, dtype)
			in := r.gdnInputs(gdnCase{s, []int{n}, "weak"})
			whole := r.gdnRun(s, in)
			widths, outWidths := []int{s.Channels(), s.Hv, s.Hv, s.Hv * s.Dv}, []int{s.Hv * s.Dv, s.Channels(), s.Hv, s.Hv}
			piece := func(lo, hi int) gdnIn {
				v := make([][]float32, 4)
				for i, all := range [][]float32{in.qkv, in.g, in.beta, in.do} {
					v[i] = part(all, lo, hi, widths[i])
				}
				return gdnIn{segments(hi - lo), v[0], v[1], v[2], v[3]}
			}
			state := func() Buffer { return r.fill(s.Hv*s.Dk*s.Dv, nan32) }
			mid, dmid, end := state(), state(), r.fill(s.Hv*s.Dk*s.Dv, 0)
			r.gdnRunWith(s, piece(0, at), gdnOptions{last: mid}) // for the state; its gradients lack what follows
			after := r.gdnRunWith(s, piece(at, n), gdnOptions{first: mid, dfirst: dmid, dlast: end})
			before := r.gdnRunWith(s, piece(0, at), gdnOptions{dlast: dmid})
			for i, w := range outWidths {
				sameBits(t, fmt.Sprintf("output %d before the cut", i), before[i], part(whole[i], 0, at, w))
				sameBits(t, fmt.Sprintf("output %d after the cut", i), after[i], part(whole[i], at, n, w))
			}
		}
	})
}

// TestDeviceGDNUnsaved: without a backward pass o has the same bits; a batch without tokens is nothing to do.
func TestDeviceGDNUnsaved(t *testing.T) {
	eachDType(t, func(t *testing.T, dtype DType) {
		r, c := newDeviceRig(t, dtype), gdnOddCase()
		in := r.gdnInputs(c)
		n := in.seg.Tokens() * c.s.Hv * c.s.Dv
		o := r.fillAct(n)
		r.GDN(o, Buffer{}, r.act(in.qkv), r.buf(in.g), r.buf(in.beta), c.s, in.seg)
		sameBits(t, "o", r.getAct(o, n), r.gdnRun(c.s, in)[0])
		r.gdnRun(c.s, gdnIn{seg: segments(0, 0)})
	})
}

// compareGDN checks o, dq, dk, dv, dg and dbeta head by head. The zero vectors of gdnInputs get the gradient of the l2
// norm's epsilon, a thousand times the others: they are measured apart.
func compareGDN(t *testing.T, dtype DType, s GDNShape, seg Segments, got [][]float32, want refGDNGrads) {
	t.Helper()
	T, tol := seg.Tokens(), gdnTolerances[dtype]
	near := func(what string, got []float32, want []float64, heads, dim int, tol float64) {
		t.Helper()
		if dtype == F32 {
			nearHeads(t, what, got, want, heads, dim, tol, 1e-3)
		} else {
			nearHeadsL2(t, what, got, want, heads, dim, tol)
		}
	}
	near("o", got[0], want.o, s.Hv, s.Dv, tol.o)
	pick := func(off, n, from, to int) (a []float32, b []float64) {
		for i := from; i < to; i++ {
			a = append(a, got[1][i*s.Channels()+off:][:n]...)
			b = append(b, want.dqkv[i*s.Channels()+off:][:n]...)
		}
		return a, b
	}
	for i, name := range []string{"dq", "dk"} {
		a, b := pick(i*s.Hk*s.Dk, s.Hk*s.Dk, 2, min(3, T))
		near(name+" of zero", a, b, s.Hk, s.Dk, tol.grad)
		a, b = pick(i*s.Hk*s.Dk, s.Hk*s.Dk, 0, min(2, T))
		a2, b2 := pick(i*s.Hk*s.Dk, s.Hk*s.Dk, min(3, T), T)
		near(name, append(a, a2...), append(b, b2...), s.Hk, s.Dk, tol.grad)
	}
	a, b := pick(2*s.Hk*s.Dk, s.Hv*s.Dv, 0, T)
	near("dv", a, b, s.Hv, s.Dv, tol.grad)
	near("dg", got[2], want.dg, s.Hv, 1, tol.gate)
	near("dbeta", got[3], want.dbeta, s.Hv, 1, tol.gate)
}

// nearHeadsL2 compares got with want [T,heads,dim] head by head: the L2 norm of the error is at most tol of want's.
func nearHeadsL2(t testing.TB, what string, got []float32, want []float64, heads, dim int, tol float64) {
	t.Helper()
	for h := range heads {
		err, size := 0.0, 1e-12
		for i := h * dim; i < len(got); i += heads * dim {
			for j := i; j < i+dim; j++ {
				d := float64(got[j]) - want[j]
				err, size = err+d*d, size+want[j]*want[j]
			}
		}
		rel := math.Sqrt(err / size)
		if testing.Verbose() {
			t.Logf("%s: head %d: relative L2 error %.2g", what, h, rel)
		}
		if !(rel <= tol) {
			t.Errorf("%s: head %d: relative L2 error %.3g > %.3g", what, h, rel, tol)
		}
	}
}
