//go:build cgo

package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// rig is one backend under test, with buffers between guard words and scratch memory full of NaN.
type rig struct {
	testing.TB
	*cpuBackend
	rng     *rand.Rand
	threads int
	guards  []Buffer // whole allocations: guardWords, the data, guardWords
}

const (
	guardWords = 16
	guardBits  = 0x7fa5a5a5 // a NaN that no kernel makes
	rigSeed    = 20250611
)

// eachISA runs f on every instruction set of this machine.
func eachISA(t *testing.T, f func(t *testing.T, isa string)) {
	for _, isa := range []string{"avx512", "avx2", "base"} {
		t.Run(isa, func(t *testing.T) { f(t, isa) })
	}
}

// newRig starts a backend; a test of an instruction set that the machine lacks is skipped.
func newRig(t testing.TB, isa string, threads int) *rig {
	t.Helper()
	b, err := newCPU(threads, isa)
	if err != nil {
		if strings.Contains(err.Error(), "does not have the instruction set") {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	b.poison(true)
	r := &rig{TB: t, cpuBackend: b, threads: threads, rng: rand.New(rand.NewPCG(rigSeed, 1))}
	t.Cleanup(func() {
		r.checkGuards()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// buf is a guarded buffer that holds v.
func (r *rig) buf(v []float32) Buffer {
	r.Helper()
	whole, err := r.Alloc("test", len(v)+2*guardWords)
	if err != nil {
		r.Fatal(err)
	}
	w := words[int32](whole)
	for i := range w {
		w[i] = guardBits
	}
	r.guards = append(r.guards, whole)
	data := whole.Slice(guardWords, len(v))
	r.Upload(data, v)
	return data
}

// ints is buf for int32.
func (r *rig) ints(v []int32) Buffer {
	b := r.buf(make([]float32, len(v)))
	r.UploadInts(b, v)
	return b
}

// fill is a guarded buffer of n times x; NaN shows what an op failed to write.
func (r *rig) fill(n int, x float32) Buffer {
	v := make([]float32, n)
	for i := range v {
		v[i] = x
	}
	return r.buf(v)
}

func (r *rig) checkGuards() {
	for _, g := range r.guards {
		w := words[int32](g)
		for i := range guardWords {
			if w[i] != guardBits || w[len(w)-1-i] != guardBits {
				r.Errorf("a guard word of a buffer of %d words was overwritten", len(w)-2*guardWords)
				return
			}
		}
	}
}

func (r *rig) get(b Buffer) []float32 {
	v := make([]float32, b.Len())
	r.Download(v, b)
	return v
}

// normal is n values of N(0, scale²).
func (r *rig) normal(n int, scale float64) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(r.rng.NormFloat64() * scale)
	}
	return v
}

// sameBits fails unless both slices are equal bit for bit.
func sameBits(t testing.TB, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	for i := range got {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Fatalf("%s: bits differ at %d: %v (%08x), want %v (%08x)", what, i, got[i], math.Float32bits(got[i]), want[i], math.Float32bits(want[i]))
		}
	}
}

// near fails where |got-want| > tol·(scale+|want|), or either is NaN.
func near(t testing.TB, what string, got []float32, want []float64, tol, scale float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	for i := range got {
		if d := math.Abs(float64(got[i]) - want[i]); !(d <= tol*(scale+math.Abs(want[i]))) {
			t.Fatalf("%s: at %d: %v, want %v (off by %.3g)", what, i, got[i], want[i], d)
		}
	}
}

// onThreads runs op on 1, 2 and 3 threads with equal random input and wants equal bits.
func onThreads(t *testing.T, isa string, op func(r *rig) [][]float32) {
	t.Helper()
	var first [][]float32
	for threads := 1; threads <= 3; threads++ {
		out := op(newRig(t, isa, threads))
		if threads == 1 {
			first = out
		}
		for i := range out {
			sameBits(t, fmt.Sprintf("output %d on %d threads", i, threads), out[i], first[i])
		}
	}
}

func f64(v []float32) []float64 {
	w := make([]float64, len(v))
	for i, x := range v {
		w[i] = float64(x)
	}
	return w
}
