package kernels

import "harness-s/cuda"

// attentionSM90Args is AttentionSm90Args of cu/attention_sm90.cu.
type attentionSM90Args struct {
	q, k, v cuda.TensorMap
	o, lse  uintptr
	rows    attentionRows
	hq, hk  int32
	scale   float32
	_       [3]int32 // to a multiple of 64 bytes
}

// attentionSM90 is one entry of the table at the end of cu/attention_sm90.cu: the head dim, tiles of own tokens that a block
// keeps against tiles of other tokens that pass by in a ring of stages.
type attentionSM90[A any] struct {
	d, own, other, stages int
	kernel                kernel[A]
}

var attentionForwardSM90 = []attentionSM90[attentionSM90Args]{
	{128, 128, 128, 2, newSM90Kernel[attentionSM90Args]("attention_sm90_128_bf16")},
	{256, 128, 80, 2, newSM90Kernel[attentionSM90Args]("attention_sm90_256_bf16")},
}

const (
	panelSM90   = 64         // columns of a box: rows of 128 bytes, as wide as the swizzle
	alignedSM90 = 1024       // tiles in shared memory start at multiples of it
	threadsSM90 = 3 * 4 * 32 // two warpgroups multiply, a third one loads
)

// attentionPath says which kernels attention may take.
type attentionPath struct {
	limit int  // bytes of shared memory a block
	sm90  bool // those of compute capability 9.0
}

func (b *cudaBackend) attentionPath() attentionPath {
	return attentionPath{b.dev.Info().SharedOptin, b.sm90}
}

// chooseSM90 is the table's kernel for a head dim, nil where there is none or the path or the storage type forbids it.
func chooseSM90[A any](table []attentionSM90[A], dtype DType, d int, path attentionPath) *attentionSM90[A] {
	for i := range table {
		if k := &table[i]; path.sm90 && dtype == BF16 && k.d == d {
			return k
		}
	}
	return nil
}

// tokenMap lets kernels copy boxes of `box` tokens of one head from a buffer [T, heads, d] of bf16.
func (b *cudaBackend) tokenMap(p uintptr, T, heads, d, box int) cuda.TensorMap {
	return b.dev.TensorMap(cuda.Ptr(p), T, heads*d, box, panelSM90)
}

func (k *attentionSM90[A]) launchTiles(b *cudaBackend, chunks, heads, shared int, a A) {
	k.kernel.launch(b, grid(chunks*max(1, ChunkLen/k.own)*heads, 1, 1), threadsSM90, shared, a)
}

func (b *cudaBackend) launchAttentionSM90(k *attentionSM90[attentionSM90Args], a attentionArgs, T, chunks int) {
	hq, hk, d := int(a.hq), int(a.hk), int(a.d)
	shared := alignedSM90 + 2*d*(k.own+2*k.stages*k.other)
	k.launchTiles(b, chunks, hq, shared, attentionSM90Args{
		q: b.tokenMap(a.q, T, hq, d, k.own), k: b.tokenMap(a.k, T, hk, d, k.other), v: b.tokenMap(a.v, T, hk, d, k.other),
		o: a.o, lse: a.lse, rows: a.rows, hq: a.hq, hk: a.hk, scale: a.scale,
	})
}
