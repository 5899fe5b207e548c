package kernels

import (
	"fmt"
	"math"
)

// attentionRows is AttentionRows of cu/attention.cuh.
type attentionRows struct {
	cu, firstChunk, chunkRow uintptr
}

// attentionArgs is AttentionArgs of cu/attention.cu.
type attentionArgs struct {
	o, lse, q, k, v uintptr
	rows            attentionRows
	hq, hk, d       int32
	scale           float32
}

// attentionBackwardArgs is AttentionBackwardArgs of cu/attention_backward.cu.
type attentionBackwardArgs struct {
	dq, dk, dv, do, o, q, k, v, lse, delta uintptr
	rows                                   attentionRows
	n                                      int64
	hq, hk, d                              int32
	scale                                  float32
}

// attentionKernel is one entry of the tables at the end of cu/attention.cu and cu/attention_backward.cu: head dims up to
// d, tiles of own tokens that a block keeps (queries; keys in attention_dkv) against tiles of other tokens that pass by,
// of which attention_dkv holds one for each stage.
type attentionKernel[A any] struct {
	dtype                        DType
	d, own, other, warps, stages int
	kernel                       kernel[A]
}

var (
	attentionForward = []attentionKernel[attentionArgs]{
		{F32, 32, 32, 32, 4, 1, newPlainKernel[attentionArgs]("attention_32_f32")},
		{F32, 64, 32, 32, 4, 1, newPlainKernel[attentionArgs]("attention_64_f32")},
		{F32, 128, 32, 32, 4, 1, newPlainKernel[attentionArgs]("attention_128_f32")},
		{F32, 256, 32, 16, 4, 1, newPlainKernel[attentionArgs]("attention_256_f32")},
		{BF16, 32, 64, 64, 4, 1, newPlainKernel[attentionArgs]("attention_32_bf16")},
		{BF16, 64, 64, 64, 4, 1, newPlainKernel[attentionArgs]("attention_64_bf16")},
		{BF16, 128, 128, 64, 8, 1, newPlainKernel[attentionArgs]("attention_128_bf16")},
		{BF16, 256, 128, 64, 8, 1, newPlainKernel[attentionArgs]("attention_256_large_bf16")},
		{BF16, 256, 64, 32, 4, 1, newPlainKernel[attentionArgs]("attention_256_bf16")},
	}
	attentionDq = []attentionKernel[attentionBackwardArgs]{
		{F32, 32, 32, 32, 4, 1, newPlainKernel[attentionBackwardArgs]("attention_dq_32_f32")},
		{F32, 64, 32, 32, 4, 1, newPlainKernel[attentionBackwardArgs]("attention_dq_64_f32")},
		{F32, 128, 32, 32, 4, 1, newPlainKernel[attentionBackwardArgs]("attention_dq_128_f32")},
		{F32, 256, 16, 16, 2, 1, newPlainKernel[attentionBackwardArgs]("attention_dq_256_f32")},
		{BF16, 32, 64, 64, 4, 1, newPlainKernel[attentionBackwardArgs]("attention_dq_32_bf16")},
		{BF16, 64, 64, 64, 4, 1, newPlainKernel[attentionBackwardArgs]("attention_dq_64_bf16")},
		{BF16, 128, 64, 64, 4, 1, newPlainKernel[attentionBackwardArgs]("attention_dq_128_bf16")},
		{BF16, 256, 128, 64, 8, 1, newPlainKernel[attentionBackwardArgs]("attention_dq_256_huge_bf16")},
		{BF16, 256, 64, 64, 8, 1, newPlainKernel[attentionBackwardArgs]("attention_dq_256_large_bf16")},
		{BF16, 256, 32, 32, 4, 1, newPlainKernel[attentionBackwardArgs]("attention_dq_256_bf16")},
	}
	attentionDkv = []attentionKernel[attentionBackwardArgs]{
		{F32, 32, 32, 32, 4, 1, newPlainKernel[attentionBackwardArgs]("attention_dkv_32_f32")},
		{F32, 64, 32, 32, 4, 1, newPlainKernel[attentionBackwardArgs]("attention_dkv_64_f32")},
		{F32, 128, 32, 32, 4, 1, newPlainKernel[attentionBackwardArgs]("attention_dkv_128_f32")},
		{F32, 256, 16, 16, 2, 1, newPlainKernel[attentionBackwardArgs]("attention_dkv_256_f32")},
		{BF16, 32, 64, 64, 4, 2, newPlainKernel[attentionBackwardArgs]("attention_dkv_32_bf16")},
		{BF16, 64, 64, 64, 4, 2, newPlainKernel[attentionBackwardArgs]("attention_dkv_64_bf16")},
		{BF16, 128, 64, 32, 4, 2, newPlainKernel[attentionBackwardArgs]("attention_dkv_128_bf16")},
		{BF16, 256, 64, 64, 8, 2, newPlainKernel[attentionBackwardArgs]("attention_dkv_256_huge_bf16")},
		{BF16, 256, 64, 32, 8, 2, newPlainKernel[attentionBackwardArgs]("attention_dkv_256_large_bf16")},
		{BF16, 256, 32, 32, 4, 1, newPlainKernel[attentionBackwardArgs]("attention_dkv_256_bf16")},
	}
	kAttentionDelta = newKernel[attentionBackwardArgs]("attention_delta")
)

// Shared memory of the three kernels, as their structs of tiles lay it out: rows of ld and of one tile's width, padded by
// 16 bytes.
func (k *attentionKernel[A]) ld(width int) int { return width*k.dtype.Bytes() + 16 }

func forwardShared(k *attentionKernel[attentionArgs]) int {
	return (k.own+2*k.other)*k.ld(k.d) + k.own*k.ld(k.other) + 2*4*k.own
}

func dqShared(k *attentionKernel[attentionBackwardArgs]) int {
	return 2*(k.own+k.other)*k.ld(k.d) + k.own*k.ld(k.other) + 2*4*k.own
}

func dkvShared(k *attentionKernel[attentionBackwardArgs]) int {
	return 2*(k.own+k.stages*k.other)*k.ld(k.d) + 2*k.other*k.ld(k.own)
}

// chooseAttention is the first kernel of the smallest sufficient head dim that fits into limit bytes of shared memory. A
// table has the larger tiles first.
func chooseAttention[A any](table []attentionKernel[A], shared func(*attentionKernel[A]) int, dtype DType, d, limit int) *attentionKernel[A] {
	for i := range table {
		if k := &table[i]; k.dtype == dtype && k.d >= d && shared(k) <= limit {
			return k
		}
	}
	panic(fmt.Sprintf("kernels: Attention: head dim %d in %s needs more than %d bytes of shared memory a block", d, dtype, limit))
}

// launchTiles gives a block to every tile of every row and each of heads.
func (k *attentionKernel[A]) launchTiles(b *cudaBackend, chunks, heads, shared int, a A) {
	tiles := chunks * max(1, ChunkLen/k.own)
	k.kernel.launch(b, grid(tiles*heads, 1, 1), 32*k.warps, shared, a)
}

// needAttention checks an op's shape and the sizes of its (T,Hq,D) and (T,Hk,D) buffers.
func (b *cudaBackend) needAttention(op string, s AttnShape, T int, queries, keys map[string]Buffer) {
	if s.D%16 != 0 || s.D <= 0 || s.D > 256 || s.Hk <= 0 || s.Hq%s.Hk != 0 {
		panic(fmt.Sprintf("kernels: %s: head dim %d, %d query heads, %d kv heads: want a multiple of 16 up to 256, and whole groups", op, s.D, s.Hq, s.Hk))
	}
	for name, buf := range queries {
		need(op, name, buf, b.Words(T*s.Hq*s.D))
	}
	for name, buf := range keys {
		need(op, name, buf, b.Words(T*s.Hk*s.D))
	}
}

// Attention: causal within each row, scale D^-0.5. A row's bits depend on the row and on the device, which chooses the
// kernel and its tiles.
func (b *cudaBackend) Attention(o, lse, q, k, v Buffer, s AttnShape, seg Segments) {
	b.attention(o, lse, q, k, v, s, seg, b.attentionPath())
}

// AttentionBackward: dq, dk, dv = ....
func (b *cudaBackend) AttentionBackward(dq, dk, dv, do, o, lse, q, k, v Buffer, s AttnShape, seg Segments) {
	b.attentionBackward(dq, dk, dv, do, o, lse, q, k, v, s, seg, b.attentionPath())
}

func (b *cudaBackend) attention(o, lse, q, k, v Buffer, s AttnShape, seg Segments, path attentionPath) {
	T := seg.Tokens()
	b.needAttention("Attention", s, T, map[string]Buffer{"o": o, "q": q}, map[string]Buffer{"k": k, "v": v})
	if !lse.IsNil() {
		need("Attention", "lse", lse, T*s.Hq)
	}
	rows := b.segments(seg)
	b.launchAttention(attentionArgs{
		o: o.ptr, lse: lse.ptr, q: q.ptr, k: k.ptr, v: v.ptr, rows: rows.attention(),
		hq: int32(s.Hq), hk: int32(s.Hk), d: int32(s.D), scale: attentionScale(s),
	}, T, rows.chunks, path)
}

// launchAttention runs the forward pass over buffers of T tokens.
func (b *cudaBackend) launchAttention(a attentionArgs, T, chunks int, path attentionPath) {
	if k := chooseSM90(attentionForwardSM90, b.dtype, int(a.d), path); k != nil {
		b.launchAttentionSM90(k, a, T, chunks)
		return
	}
	k := chooseAttention(attentionForward, forwardShared, b.dtype, int(a.d), path.limit)
	k.launchTiles(b, chunks, int(a.hq), forwardShared(k), a)
}

func (b *cudaBackend) attentionBackward(dq, dk, dv, do, o, lse, q, k, v Buffer, s AttnShape, seg Segments, path attentionPath) {
	const op = "AttentionBackward"
	T := seg.Tokens()
	b.needAttention(op, s, T, map[string]Buffer{"dq": dq, "do": do, "o": o, "q": q}, map[string]Buffer{"dk": dk, "dv": dv, "k": k, "v": v})
	need(op, "lse", lse, T*s.Hq)
	rows, delta := b.segments(seg), b.scratch(T*s.Hq)
	args := attentionBackwardArgs{
		dq: dq.ptr, dk: dk.ptr, dv: dv.ptr, do: do.ptr, o: o.ptr, q: q.ptr, k: k.ptr, v: v.ptr, lse: lse.ptr, delta: delta.ptr,
		rows: rows.attention(), n: int64(T) * int64(s.Hq),
		hq: int32(s.Hq), hk: int32(s.Hk), d: int32(s.D), scale: attentionScale(s),
	}
	const deltaThreads = 256 // a warp an element
	kAttentionDelta.launch(b, grid(blocks(T*s.Hq, deltaThreads/32), 1, 1), deltaThreads, 0, args)
	b.launchAttentionGradients(args, T, rows.chunks, path)
}

// launchAttentionGradients is the backward pass after delta.
func (b *cudaBackend) launchAttentionGradients(a attentionBackwardArgs, T, chunks int, path attentionPath) {
	if q, kv := chooseSM90(attentionDqSM90, b.dtype, int(a.d), path), chooseSM90(attentionDkvSM90, b.dtype, int(a.d), path); q != nil && kv != nil {
		b.launchAttentionGradientsSM90(q, kv, a, T, chunks)
		return
	}
	kq := chooseAttention(attentionDq, dqShared, b.dtype, int(a.d), path.limit)
	kq.launchTiles(b, chunks, int(a.hq), dqShared(kq), a)
	kkv := chooseAttention(attentionDkv, dkvShared, b.dtype, int(a.d), path.limit)
	kkv.launchTiles(b, chunks, int(a.hk), dkvShared(kkv), a)
}

func (d deviceSegments) attention() attentionRows {
	return attentionRows{d.cu.ptr, d.firstChunk.ptr, d.chunkRow.ptr}
}

func attentionScale(s AttnShape) float32 { return float32(1 / math.Sqrt(float64(s.D))) }
