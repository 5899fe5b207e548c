package bench

import (
	"math"
	"math/rand/v2"
	"sync"

	"harness-s/kernels"
)

// deviceArena makes the operands of one case and frees them together. Operands are random: products of zeros run up to a
// tenth faster than any real ones.
type deviceArena struct {
	be   kernels.Flat
	bufs []kernels.Buffer
	err  error // the first; what is made afterwards is empty, and nothing may be run
}

func (d *deviceArena) words(n int) int { return d.be.Words(n) }

// empty is n words of zeros.
func (d *deviceArena) empty(n int) kernels.Buffer {
	if d.err != nil {
		return kernels.Buffer{}
	}
	b, err := d.be.Alloc("bench", n)
	if err != nil {
		d.err = err
		return b
	}
	d.bufs = append(d.bufs, b)
	return b
}

// fill uploads words and repeats them, by copies that double, to the end of b.
func (d *deviceArena) fill(b kernels.Buffer, words []int32) {
	if d.err != nil {
		return
	}
	d.be.UploadInts(b, words)
	for n := len(words); n < b.Len(); {
		more := min(n, b.Len()-n)
		d.be.Copy(b.Slice(n, more), b.Slice(0, more))
		n += more
	}
}

// normals are the numbers that operands are made of: N(0, 1), a prime number of them, so that rows differ.
var normals = sync.OnceValue(func() []float32 {
	rng := rand.New(rand.NewPCG(7, 8))
	v := make([]float32, 1048573)
	for i := range v {
		v[i] = float32(rng.NormFloat64())
	}
	return v
})

// fp32 is n words around mean, within std of it.
func (d *deviceArena) fp32(n int, mean, std float32) kernels.Buffer {
	b := d.empty(n)
	words := make([]int32, min(n, len(normals())))
	for i := range words {
		words[i] = int32(math.Float32bits(mean + std*max(-1, min(1, normals()[i]))))
	}
	d.fill(b, words)
	return b
}

// acts is n activations in the backend's storage type, N(0, std²).
func (d *deviceArena) acts(n int, std float32) kernels.Buffer {
	b := d.empty(d.words(n))
	v := normals()
	words := make([]int32, min(b.Len(), len(v)))
	half := func(i int) uint32 { return math.Float32bits(std*v[i%len(v)]) >> 16 }
	for i := range words {
		if d.words(2) == 1 {
			words[i] = int32(half(2*i) | half(2*i+1)<<16)
		} else {
			words[i] = int32(half(i) << 16)
		}
	}
	d.fill(b, words)
	return b
}

// ids is n random numbers below limit.
func (d *deviceArena) ids(n, limit int) kernels.Buffer {
	b, rng := d.empty(n), rand.New(rand.NewPCG(9, uint64(n)))
	words := make([]int32, n)
	for i := range words {
		words[i] = int32(rng.IntN(limit))
	}
	d.fill(b, words)
	return b
}

// weight is a matrix with its compute copy alone, scaled as a layer's.
func (d *deviceArena) weight(out, in int) kernels.Weight {
	return kernels.Weight{Compute: d.acts(out*in, float32(1/math.Sqrt(float64(in)))), Out: out, In: in}
}

func (d *deviceArena) free() {
	for _, b := range d.bufs {
		d.be.Free(b)
	}
	d.bufs = nil
}
