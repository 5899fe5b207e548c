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

// attentionBackwardSM90Args is AttentionBackwardSm90Args of cu/attention_backward_sm90.cu.
type attentionBackwardSM90Args struct {
	q, do, k, v            cuda.TensorMap
	dq, dk, dv, lse, delta uintptr
	rows                   attentionRows
	hq, hk                 int32
	scale                  float32
	_                      [13]int32 // to a multiple of 64 bytes
}

// attentionSM90 is one entry of the tables at the end of cu/attention_sm90.cu and cu/attention_backward_sm90.cu: the head dim,
// tiles of own tokens that a block keeps (queries; keys in attention_dkv) against tiles of other tokens that pass by, and
// the bytes of shared memory of all of them.
type attentionSM90[A any] struct {
	d, own, other, shared int
	kernel                kernel[A]
}

var (
	attentionForwardSM90 = []attentionSM90[attentionSM90Args]{
		{128, 128, 128, 2 * 128 * (128 + 4*128), newSM90Kernel[attentionSM90Args]("attention_sm90_128_bf16")}, // q, and k and v twice
		{256, 128, 80, 2 * 256 * (128 + 4*80), newSM90Kernel[attentionSM90Args]("attention_sm90_256_bf16")},
	}
	attentionDqSM90 = []attentionSM90[attentionBackwardSM90Args]{
		{128, 128, 64, 2 * 128 * (2*128 + 3*64), newSM90Kernel[attentionBackwardSM90Args]("attention_dq_sm90_128_bf16")}, // q, do, k twice, v
		{256, 128, 64, 2 * 256 * (2*128 + 3*64), newSM90Kernel[attentionBackwardSM90Args]("attention_dq_sm90_256_bf16")},
	}
	attentionDkvSM90 = []attentionSM90[attentionBackwardSM90Args]{
		{128, 64, 64, 2*128*6*64 + dkvExchangeSM90, newSM90Kernel[attentionBackwardSM90Args]("attention_dkv_sm90_128_bf16")}, // k, v, q and do twice
		{256, 64, 64, 2*256*6*64 + dkvExchangeSM90, newSM90Kernel[attentionBackwardSM90Args]("attention_dkv_sm90_256_bf16")},
	}
)

const (
	dkvExchangeSM90 = 2*64*64 + 4*4*64 // P, and lse and delta twice
	panelSM90       = 64               // columns of a box: rows of 128 bytes, as wide as the swizzle
	alignedSM90     = 1024             // tiles in shared memory start at multiples of it
	threadsSM90     = 3 * 4 * 32       // two warpgroups multiply, a third one loads
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

func (k *attentionSM90[A]) launchTiles(b *cudaBackend, chunks, heads int, a A) {
	k.kernel.launch(b, grid(chunks*max(1, ChunkLen/k.own)*heads, 1, 1), threadsSM90, alignedSM90+k.shared, a)
}

// launchAttentionSM90 is launchAttention with a kernel of compute capability 9.0.
func (b *cudaBackend) launchAttentionSM90(k *attentionSM90[attentionSM90Args], a attentionArgs, T, chunks int) {
	if T == 0 {
		return // maps of nothing there are none
	}
	hq, hk, d := int(a.hq), int(a.hk), int(a.d)
	k.launchTiles(b, chunks, hq, attentionSM90Args{
		q: b.tokenMap(a.q, T, hq, d, k.own), k: b.tokenMap(a.k, T, hk, d, k.other), v: b.tokenMap(a.v, T, hk, d, k.other),
		o: a.o, lse: a.lse, rows: a.rows, hq: a.hq, hk: a.hk, scale: a.scale,
	})
}

// launchAttentionGradientsSM90 is launchAttentionGradients with the kernels of compute capability 9.0.
func (b *cudaBackend) launchAttentionGradientsSM90(kq, kkv *attentionSM90[attentionBackwardSM90Args], a attentionBackwardArgs, T, chunks int) {
	if T == 0 {
		return
	}
	hq, hk, d := int(a.hq), int(a.hk), int(a.d)
	maps := func(queries, keys int) attentionBackwardSM90Args {
		return attentionBackwardSM90Args{
			q: b.tokenMap(a.q, T, hq, d, queries), do: b.tokenMap(a.do, T, hq, d, queries),
			k: b.tokenMap(a.k, T, hk, d, keys), v: b.tokenMap(a.v, T, hk, d, keys),
			dq: a.dq, dk: a.dk, dv: a.dv, lse: a.lse, delta: a.delta, rows: a.rows, hq: a.hq, hk: a.hk, scale: a.scale,
		}
	}
	kq.launchTiles(b, chunks, hq, maps(kq.own, kq.other))
	kkv.launchTiles(b, chunks, hk, maps(kkv.other, kkv.own))
}
