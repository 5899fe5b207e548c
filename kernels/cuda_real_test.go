//go:build cgo

package kernels

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// realSizes are the shapes of TestDeviceAgainstCPU: a 9B model's widths on a device, small ones on the simulator.
type realSizes struct {
	T, H, I, V, repeats int
	gdn                 GDNShape
	attn                AttnShape
	rows                []int
}

func checkSizes() realSizes {
	if testDevice() == "cuda" {
		return realSizes{T: 1024, H: 4096, I: 12288, V: 248320, repeats: 100, rows: []int{1, 63, 704, 256},
			gdn:  GDNShape{Hk: 16, Hv: 32, Dk: 128, Dv: 128, K: 4, Eps: 1e-6},
			attn: AttnShape{Hq: 16, Hk: 4, D: 256, Rotary: 64, Theta: 1e7, Eps: 1e-6}}
	}
	return realSizes{T: 96, H: 64, I: 96, V: 352, repeats: 2, rows: []int{1, 3, 66, 26},
		gdn:  GDNShape{Hk: 1, Hv: 2, Dk: 32, Dv: 32, K: 4, Eps: 1e-6},
		attn: AttnShape{Hq: 2, Hk: 1, D: 32, Rotary: 8, Theta: 1e7, Eps: 1e-6}}
}

// side is one of the two backends that run the same operation on the same numbers.
type side struct {
	Backend
	act     func(v []float32) Buffer // activations
	words   func(v []float32) Buffer // fp32
	weight  func(v []float32, out, in int) Weight
	getAct  func(b Buffer, n int) []float32
	outputs []sideOutput
	before  []func() // make accumulators zero again
}

type sideOutput struct {
	name string
	get  func() []float32
}

func (s *side) ids(v []int32) Buffer {
	b := s.words(make([]float32, len(v)))
	s.UploadInts(b, v)
	return b
}

// out is n activations that the operation writes.
func (s *side) out(name string, n int) Buffer {
	b := s.act(make([]float32, n))
	s.outputs = append(s.outputs, sideOutput{name, func() []float32 { return s.getAct(b, n) }})
	return b
}

// sum is n words of fp32 that the operation writes or adds to.
func (s *side) sum(name string, n int) Buffer {
	b := s.words(make([]float32, n))
	s.before = append(s.before, func() { s.Zero(b) })
	s.outputs = append(s.outputs, sideOutput{name, func() []float32 {
		v := make([]float32, n)
		s.Download(v, b)
		return v
	}})
	return b
}

func cpuSide(t *testing.T) *side {
	be, err := NewCPU(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { be.Close() })
	words := func(v []float32) Buffer {
		b, err := be.Alloc("test", max(1, len(v)))
		if err != nil {
			t.Fatal(err)
		}
		be.Upload(b, v)
		return b
	}
	get := func(b Buffer, n int) []float32 {
		v := make([]float32, n)
		be.Download(v, b)
		return v
	}
	weight := func(v []float32, out, in int) Weight {
		w := Weight{Master: words(v), Compute: words(make([]float32, be.PackSize(out, in))), Out: out, In: in}
		be.Pack(w)
		return w
	}
	return &side{Backend: be, act: words, words: words, weight: weight, getAct: get}
}

func deviceSide(r *deviceRig) *side {
	return &side{Backend: r.cudaBackend, act: r.act, words: r.buf, weight: r.weight, getAct: r.getAct}
}

// numbers draws the same values for both sides, rounded to what the device stores.
type numbers struct {
	rng   *rand.Rand
	dtype DType
}

func (d numbers) normal(n int, std float64) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(std * d.rng.NormFloat64())
		if d.dtype == BF16 {
			v[i] = math.Float32frombits(uint32(roundBF16(v[i])) << 16)
		}
	}
	return v
}

func (d numbers) uniform(n int, lo, hi float64) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(lo + (hi-lo)*d.rng.Float64())
	}
	return v
}

func (d numbers) below(n, limit int) []int32 {
	v := make([]int32, n)
	for i := range v {
		v[i] = int32(d.rng.IntN(limit))
	}
	return v
}

// realOps are forward and backward of every operation: make allocates on a side and gives what runs it.
var realOps = []struct {
	name string
	// largest relative L2 error of an output in bf16: of one rounding of the result, or of a chain of products whose
	// factors are rounded
	tol  float64
	make func(s *side, d numbers, z realSizes) func()
}{
	{"linear", 4e-3, func(s *side, d numbers, z realSizes) func() {
		x, dy, w := s.act(d.normal(z.T*z.H, 1)), s.act(d.normal(z.T*z.I, 1)), s.weight(d.normal(z.I*z.H, 0.02), z.I, z.H)
		y, dx, dw := s.out("y", z.T*z.I), s.out("dx", z.T*z.H), s.sum("dw", z.I*z.H)
		return func() {
			s.Linear(y, x, w, z.T)
			s.LinearBackwardInput(dx, dy, w, z.T, false)
			s.LinearBackwardWeight(dw, dy, x, z.T, z.I, z.H)
		}
	}},
	{"head", 8e-3, func(s *side, d numbers, z realSizes) func() {
		T := min(z.T, 256)
		h, w, targets := s.act(d.normal(T*z.H, 1)), s.weight(d.normal(z.V*z.H, 0.02), z.V, z.H), s.ids(d.below(T, z.V))
		coef := d.uniform(T, -1, 1)
		for t := range coef {
			if t%3 == 0 {
				coef[t] = 0
			}
		}
		logp, entropy, lse := s.sum("logp", T), s.sum("entropy", T), s.sum("lse", T)
		dh, dw := s.out("dh", T*z.H), s.sum("dw", z.V*z.H)
		return func() {
			s.HeadForward(logp, entropy, lse, h, w, targets, T, 1)
			s.HeadBackward(dh, dw, h, w, targets, lse, coef, 1)
		}
	}},
	{"gdn", 2e-2, func(s *side, d numbers, z realSizes) func() {
		g, seg := z.gdn, segments(z.rows...)
		T, ch := seg.Tokens(), g.Channels()
		qkv, do := s.act(d.normal(T*ch, 1)), s.act(d.normal(T*g.Hv*g.Dv, 1))
		decay, beta := s.words(d.uniform(T*g.Hv, -0.5, 0)), s.words(d.uniform(T*g.Hv, 0, 1))
		saved := s.words(make([]float32, s.GDNSaved(g, seg)))
		o, dqkv, dg, dbeta := s.out("o", T*g.Hv*g.Dv), s.out("dqkv", T*ch), s.sum("dg", T*g.Hv), s.sum("dbeta", T*g.Hv)
		return func() {
			s.GDN(o, saved, qkv, decay, beta, g, seg)
			s.GDNBackward(dqkv, dg, dbeta, do, saved, qkv, decay, beta, g, seg)
		}
	}},
	{"attention", 1e-2, func(s *side, d numbers, z realSizes) func() {
		a, seg := z.attn, segments(z.rows...)
		T := seg.Tokens()
		nq, nk := T*a.Hq*a.D, T*a.Hk*a.D
		q, k, v, do := s.act(d.normal(nq, 1)), s.act(d.normal(nk, 1)), s.act(d.normal(nk, 1)), s.act(d.normal(nq, 1))
		o, lse, dq, dk, dv := s.out("o", nq), s.sum("lse", T*a.Hq), s.out("dq", nq), s.out("dk", nk), s.out("dv", nk)
		return func() {
			s.Attention(o, lse, q, k, v, a, seg)
			s.AttentionBackward(dq, dk, dv, do, o, lse, q, k, v, a, seg)
		}
	}},
	{"conv", 4e-3, func(s *side, d numbers, z realSizes) func() {
		g, seg := z.gdn, segments(z.rows...)
		T, ch := seg.Tokens(), g.Channels()
		x, dy, values := s.act(d.normal(T*ch, 1)), s.act(d.normal(T*ch, 1)), d.normal(ch*g.K, 0.3)
		w := s.weight(values, ch, g.K)
		y, dx, dw := s.out("y", T*ch), s.out("dx", T*ch), s.sum("dw", ch*g.K)
		return func() {
			s.ConvSiLU(y, x, w, seg)
			s.ConvSiLUBackward(dx, dw, dy, x, w, seg)
		}
	}},
	{"rmsnorm", 4e-3, func(s *side, d numbers, z realSizes) func() {
		x, dy, w := s.act(d.normal(z.T*z.H, 1)), s.act(d.normal(z.T*z.H, 1)), s.words(d.normal(z.H, 0.1))
		y, rstd, dx, dw := s.out("y", z.T*z.H), s.sum("rstd", z.T), s.out("dx", z.T*z.H), s.sum("dw", z.H)
		s.before = append(s.before, func() { s.Zero(dx) })
		return func() {
			s.RMSNorm(y, rstd, x, w, z.T, z.H, 1e-6)
			s.RMSNormBackward(dx, dw, dy, x, rstd, w, z.T, z.H)
		}
	}},
	{"gated rmsnorm", 4e-3, func(s *side, d numbers, z realSizes) func() {
		N, D := z.T*z.gdn.Hv, z.gdn.Dv
		x, gate, dy, w := s.act(d.normal(N*D, 1)), s.act(d.normal(N*D, 1)), s.act(d.normal(N*D, 1)), s.words(d.uniform(D, 0.5, 1.5))
		y, dx, dz, dw := s.out("y", N*D), s.out("dx", N*D), s.out("dz", N*D), s.sum("dw", D)
		return func() {
			s.GatedRMSNorm(y, x, gate, w, N, D, 1e-6)
			s.GatedRMSNormBackward(dx, dz, dw, dy, x, gate, w, N, D, 1e-6)
		}
	}},
	{"swiglu", 4e-3, func(s *side, d numbers, z realSizes) func() {
		n := z.T * z.I
		gate, up, dy := s.act(d.normal(n, 1)), s.act(d.normal(n, 1)), s.act(d.normal(n, 1))
		y, dgate, dup := s.out("y", n), s.out("dgate", n), s.out("dup", n)
		return func() {
			s.SwiGLU(y, gate, up, n)
			s.SwiGLUBackward(dgate, dup, dy, gate, up, n)
		}
	}},
	{"qk norm and rope", 4e-3, func(s *side, d numbers, z realSizes) func() {
		a := z.attn
		nq, nk := z.T*a.Hq*a.D, z.T*a.Hk*a.D
		qg, k, dq, dk := s.act(d.normal(2*nq, 1)), s.act(d.normal(nk, 1)), s.act(d.normal(nq, 1)), s.act(d.normal(nk, 1))
		wq, wk, pos := s.words(d.normal(a.D, 0.1)), s.words(d.normal(a.D, 0.1)), s.ids(d.below(z.T, 100000))
		q, kk, dqg, dkk, dwq, dwk := s.out("q", nq), s.out("k", nk), s.out("dqg", 2*nq), s.out("dk", nk), s.sum("dwq", a.D), s.sum("dwk", a.D)
		return func() {
			s.QKNormRope(q, kk, qg, k, wq, wk, pos, z.T, a)
			s.QKNormRopeBackward(dqg, dkk, dwq, dwk, dq, dk, qg, k, wq, wk, pos, z.T, a)
		}
	}},
	{"gates", 4e-3, func(s *side, d numbers, z realSizes) func() {
		hv, n := z.gdn.Hv, z.T*z.gdn.Hv
		a, b, dg, dbeta := s.act(d.normal(n, 1)), s.act(d.normal(n, 1)), s.words(d.normal(n, 1)), s.words(d.normal(n, 1))
		aLog, dt := s.words(d.uniform(hv, 0, 2.7)), s.words(d.uniform(hv, -7, 0))
		g, beta, da, db := s.sum("g", n), s.sum("beta", n), s.out("da", n), s.out("db", n)
		dA, dDt := s.sum("dA", hv), s.sum("ddt", hv)
		return func() {
			s.GDNGates(g, beta, a, b, aLog, dt, z.T, hv)
			s.GDNGatesBackward(da, db, dA, dDt, dg, dbeta, a, b, aLog, dt, z.T, hv)
		}
	}},
	{"embedding gradient", 1e-6, func(s *side, d numbers, z realSizes) func() {
		dy, ids, dw := s.act(d.normal(z.T*z.H, 1)), s.ids(d.below(z.T, z.T/4)), s.sum("dw", z.V*z.H)
		return func() { s.EmbedBackward(dw, dy, ids, z.T, z.H, z.V) }
	}},
}

// TestDeviceAgainstCPU runs every operation at a model's widths on the device in bf16 and on the CPU in fp32 from the same
// numbers, and wants each repetition on the device to have the first one's bits.
func TestDeviceAgainstCPU(t *testing.T) {
	z := checkSizes()
	for _, op := range realOps {
		t.Run(op.name, func(t *testing.T) {
			r := newDeviceRig(t, BF16)
			dev, cpu := deviceSide(r), cpuSide(t)
			run := op.make(dev, numbers{rand.New(rand.NewPCG(rigSeed, 9)), BF16}, z)
			op.make(cpu, numbers{rand.New(rand.NewPCG(rigSeed, 9)), BF16}, z)()
			run()
			first := make([][]float32, len(dev.outputs))
			for i, o := range dev.outputs {
				first[i] = o.get()
				if err := relativeL2(first[i], cpu.outputs[i].get()); !(err <= op.tol) {
					t.Errorf("%s: relative L2 error %.3g, allowed %.3g", o.name, err, op.tol)
				}
			}
			for n := range z.repeats {
				for _, f := range dev.before {
					f()
				}
				run()
				for i, o := range dev.outputs {
					if got := o.get(); !sameWords(got, first[i]) {
						t.Fatalf("run %d: %s has other bits than in the first run", n+2, o.name)
					}
				}
			}
			if err := r.Sync(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func sameWords(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

func relativeL2(got, want []float32) float64 {
	var num, den float64
	for i := range want {
		d := float64(got[i]) - float64(want[i])
		num, den = num+d*d, den+float64(want[i])*float64(want[i])
	}
	return math.Sqrt(num / den)
}

// TestDeviceLoadsEveryKernel opens the device in both storage types, which loads every module and finds every kernel. A
// driver must report the registers of the table and no local memory.
func TestDeviceLoadsEveryKernel(t *testing.T) {
	eachDType(t, func(t *testing.T, dtype DType) {
		r := newDeviceRig(t, dtype)
		if testDevice() != "cuda" {
			return // the simulator's kernels have no registers
		}
		info := r.dev.Info()
		arch, err := moduleArch(10*info.Major + info.Minor)
		if err != nil {
			t.Fatal(err)
		}
		table := readTable(t)
		for i, k := range kernelList {
			if !k.on(arch) {
				continue
			}
			name := k.names()[0]
			if k.typed {
				name = k.names()[dtype]
			}
			got := r.functions[i].Attributes()
			if got.LocalBytes != 0 {
				t.Errorf("%s: %d bytes of local memory", name, got.LocalBytes)
			}
			if row, ok := table.Kernel(name, arch); ok && (row.Registers != got.Registers || row.Shared != got.SharedBytes) {
				t.Errorf("%s: the driver says %+v, the table %+v", name, got, row)
			}
		}
	})
}
