//go:build cgo

package kernels

import (
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
)

// deviceRig is one device backend under test, with buffers between guard words and scratch memory full of NaN.
type deviceRig struct {
	testing.TB
	*cudaBackend
	rng    *rand.Rand
	guards []Buffer // whole allocations: guardWords, the data, guardWords
}

// testDevice is the device backend that tests run on: the simulator, or a real device where HARNESS_S_TEST_DEVICE=cuda.
func testDevice() string {
	if name := os.Getenv("HARNESS_S_TEST_DEVICE"); name != "" {
		return name
	}
	return "sim"
}

// eachDType runs f in both storage types.
func eachDType(t *testing.T, f func(t *testing.T, dtype DType)) {
	for _, d := range []DType{F32, BF16} {
		t.Run(d.String(), func(t *testing.T) { f(t, d) })
	}
}

// newDeviceRig opens one device.
func newDeviceRig(t testing.TB, dtype DType) *deviceRig {
	t.Helper()
	list, err := OpenDevices(DeviceOptions{Name: testDevice(), DType: dtype})
	if err != nil {
		t.Fatal(err)
	}
	b := list[0].(*cudaBackend)
	b.poisoned = true
	r := &deviceRig{TB: t, cudaBackend: b, rng: rand.New(rand.NewPCG(rigSeed, 2))}
	t.Cleanup(func() {
		r.checkGuards()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// guarded is a buffer of n words whose content is arbitrary, between guard words.
func (r *deviceRig) guarded(n int) Buffer {
	r.Helper()
	whole, err := r.Alloc("test", n+2*guardWords)
	if err != nil {
		r.Fatal(err)
	}
	r.fillWords(whole, guardBits)
	r.guards = append(r.guards, whole)
	return whole.Slice(guardWords, n)
}

// buf is a guarded buffer of fp32 words that holds v.
func (r *deviceRig) buf(v []float32) Buffer {
	r.Helper()
	b := r.guarded(len(v))
	r.Upload(b, v)
	return b
}

// ints is buf for int32.
func (r *deviceRig) ints(v []int32) Buffer {
	r.Helper()
	b := r.guarded(len(v))
	r.UploadInts(b, v)
	return b
}

// fill is a guarded buffer of n fp32 words of x; NaN shows what an op failed to write.
func (r *deviceRig) fill(n int, x float32) Buffer {
	r.Helper()
	b := r.guarded(n)
	r.fillWords(b, math.Float32bits(x))
	return b
}

// get is the fp32 words of b.
func (r *deviceRig) get(b Buffer) []float32 {
	v := make([]float32, b.Len())
	r.Download(v, b)
	return v
}

// act is a guarded buffer of activations that holds v in the storage type.
func (r *deviceRig) act(v []float32) Buffer {
	r.Helper()
	b := r.guarded(r.Words(len(v)))
	r.setAct(b, v)
	return b
}

func (r *deviceRig) setAct(b Buffer, v []float32) {
	if r.dtype == F32 {
		r.Upload(b, v)
		return
	}
	w := make([]uint32, r.Words(len(v)))
	for i, x := range v {
		w[i/2] |= uint32(roundBF16(x)) << (16 * (i % 2))
	}
	upload(r.cudaBackend, "act", b, w)
}

// fillAct is a guarded buffer of n activations full of NaN.
func (r *deviceRig) fillAct(n int) Buffer {
	r.Helper()
	b := r.guarded(r.Words(n))
	r.fillWords(b, 0xffffffff)
	return b
}

// getAct is the first n activations of b.
func (r *deviceRig) getAct(b Buffer, n int) []float32 {
	if r.dtype == F32 {
		return r.get(b.Slice(0, n))
	}
	w := make([]uint32, r.Words(n))
	download(r.cudaBackend, "getAct", w, b)
	v := make([]float32, n)
	for i := range v {
		v[i] = math.Float32frombits(w[i/2] >> (16 * (i % 2)) << 16)
	}
	return v
}

// stored is v as the storage type holds it.
func (r *deviceRig) stored(v []float32) []float32 {
	out := append([]float32(nil), v...)
	if r.dtype == BF16 {
		for i, x := range out {
			out[i] = math.Float32frombits(uint32(roundBF16(x)) << 16)
		}
	}
	return out
}

// normal is n values of N(0, scale²), rounded to the storage type.
func (r *deviceRig) normal(n int, scale float64) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(r.rng.NormFloat64() * scale)
	}
	return r.stored(v)
}

// weight is the compute copy of a matrix v [out,in].
func (r *deviceRig) weight(v []float32, out, in int) Weight {
	return Weight{Compute: r.act(v), Out: out, In: in}
}

func (r *deviceRig) checkGuards() {
	for _, g := range r.guards {
		w := make([]uint32, g.Len())
		download(r.cudaBackend, "guards", w, g)
		for i := range guardWords {
			if w[i] != guardBits || w[len(w)-1-i] != guardBits {
				r.Errorf("a guard word of a buffer of %d words was overwritten", len(w)-2*guardWords)
				return
			}
		}
	}
}

// TestCheckShapes: what the kernels do not take is said before anything runs.
func TestCheckShapes(t *testing.T) {
	b := newDeviceRig(t, BF16)
	g, a := GDNShape{Hk: 1, Hv: 3, Dk: 128, Dv: 16, K: 4}, AttnShape{Hq: 3, Hk: 1, D: 256}
	if err := b.CheckShapes(40, 88, g, a); err != nil {
		t.Error(err)
	}
	for name, f := range map[string]func() error{
		"hidden size":             func() error { return b.CheckShapes(36, 88, g, a) },
		"hidden size is 8200":     func() error { return b.CheckShapes(8200, 88, g, a) },
		"mlp width":               func() error { return b.CheckShapes(40, 87, g, a) },
		"conv width":              func() error { g := g; g.K = 9; return b.CheckShapes(40, 88, g, a) },
		"gated delta net key dim": func() error { g := g; g.Dk = 144; return b.CheckShapes(40, 88, g, a) },
		"value dim":               func() error { g := g; g.Dv = 24; return b.CheckShapes(40, 88, g, a) },
		"attention head dim":      func() error { a := a; a.D = 272; return b.CheckShapes(40, 88, g, a) },
	} {
		if err := f(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
