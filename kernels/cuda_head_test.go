//go:build cgo

package kernels

import (
	"fmt"
	"math"
	"slices"
	"testing"
)

var deviceHeadCases = []headCase{
	{T: 5, V: 1031, H: 24, invTemp: 1, scale: 0.3},
	{T: 40, V: 352, H: 32, invTemp: 1 / 0.7, scale: 0.5},
	{T: 9, V: 4096, H: 16, invTemp: 0.5, scale: 1},
	{T: 17, V: 15, H: 32, invTemp: 1, scale: 6},     // peaked
	{T: 33, V: 257, H: 64, invTemp: 1, scale: 0.01}, // flat
	{T: 3, V: 1, H: 8, invTemp: 1, scale: 1},
	{T: 1, V: 2, H: 8, invTemp: 1, scale: 1},
}

// deviceHead is a head on a device with the inputs and outputs of a pass. Every third token has no target, and every token
// with t%5 == 1 no gradient.
type deviceHead struct {
	*deviceRig
	c       headCase
	h, m    []float32 // as stored
	targets []int32
	coef    []float32
	in      headInput
	out     headStats
	dh, dw  Buffer
}

func newDeviceHead(t testing.TB, dtype DType, c headCase) *deviceHead {
	r := &deviceHead{deviceRig: newDeviceRig(t, dtype), c: c}
	r.h, r.m = r.normal(c.T*c.H, 1), r.normal(c.V*c.H, c.scale)
	r.coef = make([]float32, c.T)
	r.targets = make([]int32, c.T)
	for i := range r.targets {
		r.coef[i] = float32(r.rng.NormFloat64())
		r.targets[i] = int32(r.rng.IntN(c.V))
		switch {
		case i == 0:
			r.targets[i] = int32(c.V - 1)
		case i == 3:
			r.targets[i] = 0
		case i%3 == 2:
			r.targets[i] = -1
		}
		if i%5 == 1 {
			r.coef[i] = 0
		}
	}
	r.in = headInput{"test", r.act(r.h), r.ints(r.targets), r.weight(r.m, c.V, c.H), c.T, c.invTemp, headChunk(c.V)}
	r.out = headStats{r.fill(c.T, nan32), r.fill(c.T, nan32), r.fill(c.T, nan32)}
	r.dh, r.dw = r.fillAct(c.T*c.H), r.fill(c.V*c.H, 0)
	return r
}

func (r *deviceHead) run() {
	in := r.in
	r.HeadForward(r.out.logp, r.out.entropy, r.out.lse, in.h, in.w, in.targets, in.T, in.invTemp)
	r.HeadBackward(r.dh, r.dw, in.h, in.w, in.targets, r.out.lse, r.coef, in.invTemp)
}

// live says whether token i has a target and a gradient.
func (r *deviceHead) live(i int) bool { return r.targets[i] >= 0 && r.coef[i] != 0 }

// outputs are all results of a pass.
func (r *deviceHead) outputs() map[string][]float32 {
	return map[string][]float32{"logp": r.get(r.out.logp), "entropy": r.get(r.out.entropy), "lse": r.get(r.out.lse),
		"dh": r.getAct(r.dh, r.c.T*r.c.H), "dw": r.get(r.dw)}
}

// sum is a sum of products and the sum of their magnitudes, which bounds its rounding error.
type sum struct{ value, size float64 }

func (s *sum) add(a, b float64) {
	s.value += a * b
	s.size += math.Abs(a * b)
}

// headRef is the head in float64, on the inputs as stored.
type headRef struct {
	logp, entropy, lse []float64
	dh, dw             []sum
	size               float64 // the largest logit
}

func (r *deviceHead) reference() headRef {
	c := r.c
	ref := headRef{logp: make([]float64, c.T), entropy: make([]float64, c.T), lse: make([]float64, c.T),
		dh: make([]sum, c.T*c.H), dw: make([]sum, c.V*c.H), size: 1}
	for i, y := range r.targets {
		if y < 0 {
			continue
		}
		z := make([]float64, c.V)
		for v := range z {
			for j := range c.H {
				z[v] += float64(r.h[i*c.H+j]) * float64(r.m[v*c.H+j]) * float64(c.invTemp)
			}
			ref.size = max(ref.size, math.Abs(z[v]))
		}
		var dz []float64
		ref.logp[i], ref.entropy[i], ref.lse[i], dz = refHead(z, int(y))
		for v := range z {
			g := dz[v] * float64(r.coef[i]) * float64(c.invTemp)
			for j := range c.H {
				ref.dh[i*c.H+j].add(g, float64(r.m[v*c.H+j]))
				ref.dw[v*c.H+j].add(g, float64(r.h[i*c.H+j]))
			}
		}
	}
	return ref
}

// nearSums fails where a value is off by more than tol of its terms' magnitudes, or the whole by more than a third of that in
// the mean.
func nearSums(t testing.TB, what string, got []float32, want []sum, tol float64) {
	t.Helper()
	var off, all float64
	for i, w := range want {
		d := math.Abs(float64(got[i]) - w.value)
		if !(d <= tol*w.size+1e-30) {
			t.Fatalf("%s: at %d: %v, want %v (off by %.3g of %.3g)", what, i, got[i], w.value, d, w.size)
		}
		off += d * d
		all += w.size * w.size
	}
	if !(math.Sqrt(off) <= tol/3*math.Sqrt(all)+1e-30) {
		t.Errorf("%s: off by %.3g in the mean, want %.3g", what, math.Sqrt(off/all), tol/3)
	}
}

// headTolerance is for gradients, of their terms' magnitudes. fp32: sums of rounded products, powers of rounded exponents.
// bf16: dz is rounded by up to 2^-8 of itself, dh once more, and a little for the rest.
var headTolerance = map[DType]float64{F32: 3e-6, BF16: 1.0 / 120}

func TestDeviceHead(t *testing.T) {
	eachDType(t, func(t *testing.T, dtype DType) {
		tol := headTolerance[dtype]
		for _, c := range deviceHeadCases {
			r := newDeviceHead(t, dtype, c)
			r.run()
			ref, got, what := r.reference(), r.outputs(), fmt.Sprintf("%+v ", c)
			near(t, what+"logp", got["logp"], ref.logp, 1e-6, ref.size)
			near(t, what+"entropy", got["entropy"], ref.entropy, 2e-6, ref.size)
			near(t, what+"lse", got["lse"], ref.lse, 1e-6, ref.size)
			nearSums(t, what+"dh", got["dh"], ref.dh, tol*max(1, ref.size/3))
			nearSums(t, what+"dw", got["dw"], ref.dw, tol*max(1, ref.size/3))
			for i, l := range got["logp"] {
				if l > 0 {
					t.Errorf("%slog-prob %v at %d is above 0", what, l, i)
				}
			}
		}
	})
}

// TestDeviceHeadVocabulary meets a real vocabulary, and the accuracy of its sums.
func TestDeviceHeadVocabulary(t *testing.T) {
	eachDType(t, func(t *testing.T, dtype DType) {
		r := newDeviceHead(t, dtype, headCase{T: 4, V: 248320, H: 16, invTemp: 1, scale: 0.3})
		r.run()
		ref, got := r.reference(), r.outputs()
		near(t, "logp", got["logp"], ref.logp, 1e-6, 1)
		near(t, "entropy", got["entropy"], ref.entropy, 1e-6, 1)
		tol := headTolerance[dtype]
		nearSums(t, "dh", got["dh"], ref.dh, tol)
		nearSums(t, "dw", got["dw"], ref.dw, tol)
	})
}

// TestDeviceHeadChunks: how many rows of logits exist at a time changes no bit but those of dw, a sum over rows.
func TestDeviceHeadChunks(t *testing.T) {
	c := headCase{T: 29, V: 1031, H: 16, invTemp: 1.25, scale: 0.5}
	eachDType(t, func(t *testing.T, dtype DType) {
		r := newDeviceHead(t, dtype, c)
		r.run()
		want := r.outputs()
		for _, chunk := range []int{1, 2, 7, 16, 19, 20, 4096} {
			r := newDeviceHead(t, dtype, c)
			r.in.chunk = chunk
			r.headForward(r.out, r.in)
			r.headBackward(r.dh, r.dw, r.out.lse, r.coef, r.in)
			got := r.outputs()
			for _, name := range []string{"logp", "entropy", "lse", "dh"} {
				sameBits(t, fmt.Sprintf("%s, %d rows at a time", name, chunk), got[name], want[name])
			}
			near(t, fmt.Sprintf("dw, %d rows at a time", chunk), got["dw"], f64(want["dw"]), 1e-6, 0.5)
		}
	})
}

// TestDeviceHeadRowAlone: a row has the same bits alone and in a batch, and so has the whole batch when computed again.
func TestDeviceHeadRowAlone(t *testing.T) {
	c := headCase{T: 30, V: 1031, H: 48, invTemp: 1.25, scale: 0.5}
	eachDType(t, func(t *testing.T, dtype DType) {
		r := newDeviceHead(t, dtype, c)
		r.run()
		want := r.outputs()
		again := newDeviceHead(t, dtype, c)
		again.run()
		for name, v := range again.outputs() {
			sameBits(t, name+" again", v, want[name])
		}
		for _, i := range []int{0, 7, 28} {
			one := r.in
			one.h, one.targets, one.T = r.act(r.h[i*c.H:(i+1)*c.H]), r.ints(r.targets[i:i+1]), 1
			out, dh := headStats{r.fill(1, nan32), r.fill(1, nan32), r.fill(1, nan32)}, r.fillAct(c.H)
			r.headForward(out, one)
			r.headBackward(dh, r.fill(c.V*c.H, 0), out.lse, r.coef[i:i+1], one)
			what := fmt.Sprintf("row %d alone: ", i)
			sameBits(t, what+"logp", r.get(out.logp), want["logp"][i:i+1])
			sameBits(t, what+"entropy", r.get(out.entropy), want["entropy"][i:i+1])
			sameBits(t, what+"lse", r.get(out.lse), want["lse"][i:i+1])
			sameBits(t, what+"dh", r.getAct(dh, c.H), want["dh"][i*c.H:(i+1)*c.H])
		}
	})
}

// TestDeviceHeadPoison: NaN in the rows without a target, and in the backward pass in those without a gradient, changes no bit.
func TestDeviceHeadPoison(t *testing.T) {
	c := headCase{T: 40, V: 130, H: 32, invTemp: 1, scale: 0.5}
	eachDType(t, func(t *testing.T, dtype DType) {
		clean := newDeviceHead(t, dtype, c)
		clean.run()
		want := clean.outputs()
		r := newDeviceHead(t, dtype, c)
		h := slices.Clone(r.h)
		r.poisonRows(h, nan32, func(i int) bool { return r.targets[i] < 0 })
		r.setAct(r.in.h, h)
		r.headForward(r.out, r.in)
		lse, coef := r.get(r.out.lse), slices.Clone(r.coef)
		r.poisonRows(h, float32(math.Inf(1)), func(i int) bool { return !r.live(i) })
		r.setAct(r.in.h, h)
		for i := range lse {
			if !r.live(i) {
				lse[i] = nan32
			}
			if r.targets[i] < 0 {
				coef[i] = nan32
			}
		}
		r.headBackward(r.dh, r.dw, r.buf(lse), coef, r.in)
		got := r.outputs()
		for name := range want {
			sameBits(t, name, got[name], want[name])
		}
		for i := range r.targets {
			for _, x := range got["dh"][i*c.H : (i+1)*c.H] {
				if x != 0 && !r.live(i) {
					t.Fatalf("row %d has no gradient, dh is %v", i, x)
				}
			}
		}
	})
}

// poisonRows sets the rows of h that are dead to x.
func (r *deviceHead) poisonRows(h []float32, x float32, dead func(i int) bool) {
	for i := range r.c.T {
		if dead(i) {
			for j := range r.c.H {
				h[i*r.c.H+j] = x
			}
		}
	}
}

// TestDeviceHeadNothing: without live rows dh is 0, dw stays and no log-prob is given; so also for no tokens at all.
func TestDeviceHeadNothing(t *testing.T) {
	eachDType(t, func(t *testing.T, dtype DType) {
		r := newDeviceHead(t, dtype, headCase{T: 7, V: 33, H: 8, invTemp: 1, scale: 1})
		clear(r.coef)
		r.run()
		got := r.outputs()
		if slices.ContainsFunc(append(got["dh"], got["dw"]...), func(x float32) bool { return x != 0 }) {
			t.Error("coefficients of 0 have a gradient")
		}
		for i := range r.targets {
			r.targets[i] = -1
		}
		r.UploadInts(r.in.targets, r.targets)
		r.run()
		if slices.ContainsFunc(slices.Concat(r.get(r.out.logp), r.get(r.out.entropy), r.get(r.out.lse)), func(x float32) bool { return x != 0 }) {
			t.Error("tokens without a target have results")
		}
		r.in.T, r.coef = 0, nil
		r.run()
		if err := r.Sync(); err != nil {
			t.Error(err)
		}
	})
}

// TestDeviceHeadPeaked: at p = 0.9999 and beyond the gradient 1-p of the target keeps its size.
func TestDeviceHeadPeaked(t *testing.T) {
	eachDType(t, func(t *testing.T, dtype DType) {
		tol := map[DType]float64{F32: 1e-5, BF16: 1.0 / 256}[dtype]
		for _, gap := range []float32{7, 10, 13} {
			r := newDeviceRig(t, dtype)
			m, one := make([]float32, 3*8), make([]float32, 8)
			m[0], one[0] = gap, 1
			in := headInput{"test", r.act(one), r.ints([]int32{0}), r.weight(m, 3, 8), 1, 1, 1}
			out, dw := headStats{r.fill(1, 0), r.fill(1, 0), r.fill(1, 0)}, r.fill(3*8, 0)
			r.headForward(out, in)
			r.headBackward(r.fillAct(8), dw, out.lse, []float32{1}, in)
			rest := 2 * math.Exp(-float64(gap)) / (1 + 2*math.Exp(-float64(gap)))
			if got := float64(r.get(dw)[0]); math.Abs(got-rest) > tol*rest {
				t.Errorf("gap %v: 1-p is %v, want %v", gap, got, rest)
			}
			if lp := float64(r.get(out.logp)[0]); math.Abs(lp-math.Log1p(-rest)) > 2.4e-7 || lp > 0 {
				t.Errorf("gap %v: log-prob %v, want %v", gap, lp, math.Log1p(-rest))
			}
		}
	})
}

// TestDeviceLogprobNeverAboveZero: where nearly all probability is on one id, rounding does not lift its log-prob above 0,
// and where it is the only id, its log-prob is 0.
func TestDeviceLogprobNeverAboveZero(t *testing.T) {
	eachDType(t, func(t *testing.T, dtype DType) {
		const N = 64
		for _, V := range []int{1, 2, 3, 8, 9, 31} {
			r := newDeviceRig(t, dtype)
			targets := make([]int32, N)
			m, h := make([]float32, V*N), make([]float32, N*N) // the logits of row i are column i of m
			for i := range N {
				h[i*N+i] = 1
				targets[i] = int32(r.rng.IntN(V))
				for v := range V {
					m[v*N+i] = float32(3 * r.rng.NormFloat64())
				}
				m[int(targets[i])*N+i] += float32(12 + 8*r.rng.Float64()) // 1-p from 1e-4 to nothing
			}
			in := headInput{"test", r.act(h), r.ints(targets), r.weight(r.stored(m), V, N), N, 1, N}
			for _, temp := range []float32{1, 0.7, 1.3} {
				in.invTemp = 1 / temp
				out := headStats{r.fill(N, nan32), r.fill(N, nan32), r.fill(N, nan32)}
				r.headForward(out, in)
				for _, lp := range r.get(out.logp) {
					if !(lp <= 0) || V == 1 && lp != 0 {
						t.Fatalf("log-prob %g of %d ids at temperature %g", lp, V, temp)
					}
				}
			}
		}
	})
}

// TestDeviceHeadNotFinite: a row with a NaN or +inf logit, or with -inf alone, has NaN for results; single -inf logits are
// ids of no probability.
func TestDeviceHeadNotFinite(t *testing.T) {
	inf := float32(math.Inf(1))
	const V, N = 70, 8
	r := newDeviceRig(t, F32)
	h := make([]float32, N*N)
	m := r.normal(V*N, 1) // the logits of row i are column i of m, but 0·inf is NaN: rows are run one at a time
	for i := range N {
		h[i*N+i] = 1
	}
	run := func(column func(v int) float32) (logp, entropy float32) {
		for v := range V {
			for i := range N {
				m[v*N+i] = 0
			}
			m[v*N] = column(v)
		}
		// one hidden element, the others' weights are 0
		in := headInput{"test", r.act(h[:N]), r.ints([]int32{5}), r.weight(m, V, N), 1, 1, 1}
		out := headStats{r.fill(1, 0), r.fill(1, 0), r.fill(1, 0)}
		r.headForward(out, in)
		return r.get(out.logp)[0], r.get(out.entropy)[0]
	}
	at := func(i int, x, rest float32) func(v int) float32 {
		return func(v int) float32 {
			if v == i {
				return x
			}
			return rest
		}
	}
	for name, column := range map[string]func(v int) float32{
		"NaN first": at(0, nan32, 1), "NaN last": at(V-1, nan32, -inf), "+inf": at(40, inf, 1), "-inf alone": at(0, -inf, -inf),
	} {
		if logp, entropy := run(column); logp == logp || entropy == entropy {
			t.Errorf("%s: log-prob %v, entropy %v, want NaN", name, logp, entropy)
		}
	}
	if logp, entropy := run(at(5, 2, -inf)); logp != 0 || entropy != 0 {
		t.Errorf("one possible id: log-prob %v, entropy %v, want 0", logp, entropy)
	}
	if logp, entropy := run(at(40, -inf, 0)); math.Abs(float64(logp)+math.Log(V-1)) > 1e-6 || math.Abs(float64(entropy)-math.Log(V-1)) > 1e-6 {
		t.Errorf("an impossible id among equals: log-prob %v, entropy %v, want %v", logp, entropy, -math.Log(V-1))
	}
}

func TestDeviceLogits(t *testing.T) {
	eachDType(t, func(t *testing.T, dtype DType) {
		const T, V, H = 5, 1031, 24
		r := newDeviceRig(t, dtype)
		h, m := r.normal(T*H, 1), r.normal(V*H, 1)
		z := r.fill(T*V, nan32)
		r.Logits(z, r.act(h), r.weight(m, V, H), T)
		want := make([]sum, T*V)
		for i := range want {
			for j := range H {
				want[i].add(float64(h[i/V*H+j]), float64(m[i%V*H+j]))
			}
		}
		nearSums(t, "logits", r.get(z), want, 1e-6)
	})
}
