package kernels

import (
	"fmt"

	"harness-s/cuda"
)

// Rows of logits that exist at a time: headRows, or as many as fit into headBytes. More rows at a time mean fewer passes
// over dw (8 bytes an element and pass), fewer mean less memory; products are at full speed from some 2,000 on.
const (
	headRows  = 2048
	headBytes = 2 << 30
)

func headChunk(V int) int { return max(1, min(headRows, headBytes/(4*V))) }

type headStatsArgs struct {
	z, index, targets, logp, entropy, lse uintptr
	ldz                                   int64
	V                                     int32
	invTemp                               float32
}

type headGradArgs struct {
	z, index, from, targets, lse, coef uintptr
	ldz                                int64
	V                                  int32
	invTemp                            float32
}

var (
	kHeadStats = newKernel[headStatsArgs]("head_stats")
	kHeadGrad  = newKernel[headGradArgs]("head_grad")
)

// headInput is what every pass over the head reads.
type headInput struct {
	op         string
	h, targets Buffer // (T,H); int32 [T]
	w          Weight
	T          int
	invTemp    float32
	chunk      int // most rows of logits at a time
}

// headStats is where log-prob, entropy and lse of each token go, [T] each.
type headStats struct{ logp, entropy, lse Buffer }

// HeadForward writes log-prob, entropy and lse of every row with a target, 0 elsewhere.
func (b *cudaBackend) HeadForward(logp, entropy, lse, h Buffer, w Weight, targets Buffer, T int, invTemp float32) {
	in := headInput{"HeadForward", h, targets, w, T, invTemp, headChunk(w.Out)}
	b.headForward(headStats{logp, entropy, lse}, in)
}

func (b *cudaBackend) headForward(out headStats, in headInput) {
	b.checkHead(in)
	b.zeroStats(out, in)
	k := b.openHead(in, b.headTargets(in, nil))
	for at := 0; at < k.live; at += k.rows {
		n := min(k.rows, k.live-at)
		k.logits(k.hidden(at, n), n)
		k.stats(out, at, n)
	}
}

// HeadBackward: dh = ..., dw += ..., logits recomputed.
func (b *cudaBackend) HeadBackward(dh, dw, h Buffer, w Weight, targets, lse Buffer, coef []float32, invTemp float32) {
	in := headInput{"HeadBackward", h, targets, w, len(coef), invTemp, headChunk(w.Out)}
	b.headBackward(dh, dw, lse, coef, in)
}

func (b *cudaBackend) headBackward(dh, dw, lse Buffer, coef []float32, in headInput) {
	b.checkHead(in)
	b.checkHeadGrads(dh, dw, in)
	need(in.op, "lse", lse, in.T)
	k := b.openHead(in, b.headTargets(in, coef))
	if k.live < in.T {
		b.Zero(dh.Slice(0, b.Words(in.T*in.w.In)))
	}
	if k.live == 0 {
		return
	}
	b.Upload(k.coef, coef)
	for at := 0; at < k.live; at += k.rows {
		n := min(k.rows, k.live-at)
		h, index := k.hidden(at, n), k.index.Slice(at, n)
		k.logits(h, n)
		k.grad(lse, k.coef, index, Buffer{}, n)
		k.weightGrad(dw, h, n)
		if k.all() {
			k.inputGrad(k.ownRows(dh, at, n), n)
		} else {
			k.inputGrad(k.dhc, n)
			k.scatter(dh, index, n)
		}
	}
}

// Logits: z [T,V] = h Wᵀ.
func (b *cudaBackend) Logits(z, h Buffer, w Weight, T int) {
	in := headInput{op: "Logits", h: h, w: w, T: T}
	need(in.op, "z", z, T*w.Out)
	b.checkWeight(in)
	b.headProduct(z, h, w, T, w.Out)
}

func (b *cudaBackend) checkWeight(in headInput) {
	shape(in.op, in.w.Out)
	rowWidth(in.op, in.w.In, maxRow)
	b.needActs(in.op, "h", in.h, in.T*in.w.In)
	b.needActs(in.op, "compute", in.w.Compute, in.w.Out*in.w.In)
}

func (b *cudaBackend) checkHead(in headInput) {
	b.checkWeight(in)
	need(in.op, "targets", in.targets, in.T)
}

func (b *cudaBackend) checkHeadGrads(dh, dw Buffer, in headInput) {
	b.needActs(in.op, "dh", dh, in.T*in.w.In)
	needWords(in.op, "dw", dw, in.w.Out*in.w.In)
}

func (b *cudaBackend) zeroStats(out headStats, in headInput) {
	for _, o := range []struct {
		name string
		buf  Buffer
	}{{"logp", out.logp}, {"entropy", out.entropy}, {"lse", out.lse}} {
		need(in.op, o.name, o.buf, in.T)
		b.Zero(o.buf.Slice(0, in.T))
	}
}

// headTargets is the tokens that have a target and, when coef is given, a gradient, in order. Their number decides the size
// of the products, so the host must know it: copying T targets costs what copying a count would, and their range is checked
// on the way. Rows left out are never read.
func (b *cudaBackend) headTargets(in headInput, coef []float32) []int32 {
	targets := make([]int32, in.T)
	b.DownloadInts(targets, in.targets)
	live := make([]int32, 0, in.T)
	for t, y := range targets {
		if int(y) >= in.w.Out {
			panic(fmt.Sprintf("kernels: %s: target %d at %d: the vocabulary has %d", in.op, y, t, in.w.Out))
		}
		if y >= 0 && (coef == nil || coef[t] != 0) {
			live = append(live, int32(t))
		}
	}
	return live
}

// headWork is a head call's scratch memory and the sizes that go with it.
type headWork struct {
	headInput
	b      *cudaBackend
	tokens []int32 // the live rows
	live   int     // their number
	rows   int     // of a chunk
	ldz    int     // floats from one row of logits to the next

	z     Buffer // [rows,ldz] logits; later their gradient in storage type, over the front of each row
	hc    Buffer // (rows,H) gathered hidden states
	dhc   Buffer // (rows,H) their gradients
	index Buffer // int32 [live] tokens
	coef  Buffer // [T]
	list  Buffer // [rows] HeadLoss: coefficients of a chunk
	order Buffer // int32 [2,rows] HeadLoss: a chunk's rows with a gradient
}

// all says whether every token is live.
func (k *headWork) all() bool { return k.live == k.T }

// openHead lays out scratch for the rows in live, and copies their numbers there.
func (b *cudaBackend) openHead(in headInput, live []int32) *headWork {
	k := &headWork{headInput: in, b: b, tokens: live, live: len(live), rows: min(in.chunk, len(live)), ldz: roundUp(in.w.Out, vec)}
	parts := []struct {
		buf   *Buffer
		words int
	}{
		{&k.z, k.rows * k.ldz}, {&k.hc, b.Words(k.rows * in.w.In)}, {&k.dhc, b.Words(k.rows * in.w.In)},
		{&k.index, k.live}, {&k.coef, in.T}, {&k.list, k.rows}, {&k.order, 2 * k.rows},
	}
	const align = 64 // words: 256 bytes
	total := 0
	for _, p := range parts {
		total += roundUp(p.words, align)
	}
	if k.live == 0 {
		return k
	}
	work, at := b.scratch(total), 0
	for _, p := range parts {
		*p.buf = work.Slice(at, p.words)
		at += roundUp(p.words, align)
	}
	b.UploadInts(k.index, live)
	return k
}

// hidden is the hidden states of live rows [at, at+n): the caller's own where all rows live, else a copy.
func (k *headWork) hidden(at, n int) Buffer {
	if k.all() {
		return k.ownRows(k.h, at, n)
	}
	return k.gather(k.index.Slice(at, n), n)
}

// gather copies the hidden states of n tokens together.
func (k *headWork) gather(tokens Buffer, n int) Buffer {
	k.b.Gather(k.hc, k.h, tokens, n, k.T, k.w.In)
	return k.hc
}

// ownRows is rows [at, at+n) of x (T,H).
func (k *headWork) ownRows(x Buffer, at, n int) Buffer {
	return x.Slice(k.b.Words(at*k.w.In), k.b.Words(n*k.w.In))
}

// logits: z [n,ldz] = h Wᵀ, in fp32.
func (k *headWork) logits(h Buffer, n int) { k.b.headProduct(k.z, h, k.w, n, k.ldz) }

func (b *cudaBackend) headProduct(z, h Buffer, w Weight, n, ldz int) {
	if n == 0 {
		return
	}
	b.stream.Matmul(cuda.Matmul{M: n, N: w.Out, K: w.In, A: ptr(h), B: ptr(w.Compute), C: ptr(z), LDA: w.In, LDB: w.In, LDC: ldz,
		TransB: true, In: cuda.DType(b.dtype), Out: cuda.F32, Alpha: 1})
}

// threads of a block that goes through a row: enough for V runs of 8, at most 512. V alone decides, so that a row's sums
// have one order.
func (k *headWork) threads() int { return min(512, roundUp(blocks(k.w.Out, vec), warp)) }

// stats takes log-prob, entropy and lse of live rows [at, at+n), whose logits are in z.
func (k *headWork) stats(out headStats, at, n int) {
	kHeadStats.launch(k.b, grid(n, 1, 1), k.threads(), 0, headStatsArgs{z: k.z.ptr, index: k.index.Slice(at, n).ptr, targets: k.targets.ptr,
		logp: out.logp.ptr, entropy: out.entropy.ptr, lse: out.lse.ptr, ldz: int64(k.ldz), V: int32(k.w.Out), invTemp: k.invTemp})
}

// grad turns n rows of logits into their gradients. Row i is that of token tokens[i]; it is made from row from[i] of z, or
// from row i when from is none.
func (k *headWork) grad(lse, coef, tokens, from Buffer, n int) {
	kHeadGrad.launch(k.b, grid(n, 1, 1), k.threads(), 0, headGradArgs{z: k.z.ptr, index: tokens.ptr, from: from.ptr, targets: k.targets.ptr,
		lse: lse.ptr, coef: coef.ptr, ldz: int64(k.ldz), V: int32(k.w.Out), invTemp: k.invTemp})
}

// dz is z after grad, as a left factor.
func (k *headWork) dz() cuda.Matmul {
	t := cuda.DType(k.b.dtype)
	return cuda.Matmul{A: ptr(k.z), LDA: k.ldz * 4 / k.b.dtype.Bytes(), LDB: k.w.In, LDC: k.w.In, N: k.w.In, In: t, Out: t, Alpha: 1}
}

// weightGrad: dw [V,H] += dzᵀ h over n rows, in fp32.
func (k *headWork) weightGrad(dw, h Buffer, n int) {
	m := k.dz()
	m.M, m.K, m.TransA, m.B, m.C, m.Out, m.Beta = k.w.Out, n, true, ptr(h), ptr(dw), cuda.F32, 1
	k.b.stream.Matmul(m)
}

// inputGrad: dh (n,H) = dz W.
func (k *headWork) inputGrad(dh Buffer, n int) {
	m := k.dz()
	m.M, m.K, m.B, m.C = n, k.w.Out, ptr(k.w.Compute), ptr(dh)
	k.b.stream.Matmul(m)
}

// scatter: dh[tokens[i],:] = dhc[i,:] for n rows.
func (k *headWork) scatter(dh, tokens Buffer, n int) {
	kScatter.launch(k.b, grid(n, 1, 1), rowThreads(k.w.In), 0,
		rowsArgs{y: dh.ptr, x: k.dhc.ptr, rows: tokens.ptr, H: int64(k.w.In), limit: int32(k.T)})
}
