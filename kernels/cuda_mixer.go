package kernels

import (
	"fmt"
	"math"
)

// Go twins of the parameter structs of cu/conv.cu, gates.cu, gnorm.cu, rope.cu and gate.cu.
type (
	convArgs struct {
		y, part, dy, x, w, rowOf, cu uintptr
		T, run                       int64
		ch, k                        int32
	}
	gatesArgs struct {
		g, beta, a, b, aLog, dtBias uintptr
		n                           int64
		hv, _                       int32
	}
	gatesBackwardArgs struct {
		da, db, part, dg, dbeta, a, b, aLog, dtBias uintptr
		T, rows                                     int64
		hv, _                                       int32
	}
	gatedNormArgs struct {
		y, x, z, w uintptr
		N, rows    int64
		D, lanes   int32
		inverse    float32
		eps        float32
	}
	gatedNormBackwardArgs struct {
		dx, dz, part, dy, x, z, w uintptr
		N, rows                   int64
		D, lanes                  int32
		inverse                   float32
		eps                       float32
	}
	ropeArgs struct {
		qOut, kOut, dq, dk, qg, k, wq, wk, part, pos uintptr
		quarters                                     [maxHead / 2]float64
		T, tokens                                    int64
		hq, hk, D, half, lanes                       int32
		inverse, eps                                 float32
		_                                            int32
	}
	outputGateArgs struct {
		y, dqg, dy, o, qg uintptr
		rows              int64
		D, _              int32
	}
)

var (
	kConv4              = newKernel[convArgs]("conv4")
	kConv4Backward      = newKernel[convArgs]("conv4_backward")
	kConv8              = newKernel[convArgs]("conv8")
	kConv8Backward      = newKernel[convArgs]("conv8_backward")
	kGates              = newKernel[gatesArgs]("gdn_gates")
	kGatesBackward      = newKernel[gatesBackwardArgs]("gdn_gates_backward")
	kGatedNorm          = newKernel[gatedNormArgs]("gnorm")
	kGatedNormBackward  = newKernel[gatedNormBackwardArgs]("gnorm_backward")
	kQKNormRope         = newKernel[ropeArgs]("qk_norm_rope")
	kQKNormRopeBackward = newKernel[ropeArgs]("qk_norm_rope_backward")
	kOutputGate         = newKernel[outputGateArgs]("output_gate")
	kOutputGateBackward = newKernel[outputGateArgs]("output_gate_backward")
)

// maxHead is the widest head: a row of it belongs to at most the lanes of a warp, vec values each.
const maxHead = warp * vec

// maxRuns is into how many runs of rows the gradients of norm weights and gates are cut: a wave of blocks.
const maxRuns = 512

// lanes is how many lanes a head of D values takes: a power of two.
func lanes(D int) int {
	n := 1
	for n*vec < D {
		n *= 2
	}
	return n
}

// Of the convolution: threads of a block, and the channels of a thread in the narrow and in the wide kernel (cu/conv.cu).
const (
	convThreads   = 128
	convTile      = 4 // tokens loaded at a time
	convNarrow    = 4
	convMaxDevice = 8
	convChannels  = 4
)

// conv checks a convolution and gives its grid of runs of run tokens.
func (b *cudaBackend) conv(op string, w Weight, seg Segments, run int) (dim3, convArgs) {
	ch, k := w.Out, w.In
	rowWidth(op, ch, maxRow)
	if k < 1 || k > convMaxDevice {
		panic(fmt.Sprintf("kernels: %s: width %d: want 1 to %d", op, k, convMaxDevice))
	}
	b.needActs(op, "compute", w.Compute, ch*k)
	T := seg.Tokens()
	s := b.segments(seg)
	per := 1
	if k <= convNarrow {
		per = convChannels
	}
	return grid(blocks(T, run), blocks(ch, per*convThreads), 1),
		convArgs{w: w.Compute.ptr, rowOf: s.rowOf.ptr, cu: s.cu.ptr, T: int64(T), run: int64(run), ch: int32(ch), k: int32(k)}
}

// ConvSiLU: y = silu(causal depthwise conv of x).
func (b *cudaBackend) ConvSiLU(y, x Buffer, w Weight, seg Segments) {
	const op, run = "ConvSiLU", 32
	g, a := b.conv(op, w, seg, run)
	b.needActs(op, "y", y, seg.Tokens()*w.Out)
	b.needActs(op, "x", x, seg.Tokens()*w.Out)
	a.y, a.x = y.ptr, x.ptr
	k := kConv4
	if w.In > convNarrow {
		k = kConv8
	}
	k.launch(b, g, convThreads, 0, a)
}

// ConvSiLUBackward: dx = ..., dw += ....
func (b *cudaBackend) ConvSiLUBackward(dx, dw, dy, x Buffer, w Weight, seg Segments) {
	const op, most, least = "ConvSiLUBackward", 256, 16
	T := seg.Tokens()
	run, _ := split(T, most)
	g, a := b.conv(op, w, seg, roundUp(max(run, least), convTile))
	b.needActs(op, "dx", dx, T*w.Out)
	b.needActs(op, "dy", dy, T*w.Out)
	b.needActs(op, "x", x, T*w.Out)
	needWords(op, "dw", dw, w.Out*w.In)
	if g[0] == 0 {
		return
	}
	n := w.Out * w.In
	part := b.scratch(g[0] * n)
	a.y, a.part, a.dy, a.x = dx.ptr, part.ptr, dy.ptr, x.ptr
	k := kConv4Backward
	if w.In > convNarrow {
		k = kConv8Backward
	}
	k.launch(b, g, convThreads, 0, a)
	b.columnSum(dw, part, g[0], n, n)
}

// GDNGates: beta = sigmoid(b), g = -exp(aLog)·softplus(a+dtBias).
func (b *cudaBackend) GDNGates(g, beta, a, bb, aLog, dtBias Buffer, T, hv int) {
	const op = "GDNGates"
	shape(op, hv)
	need(op, "g", g, T*hv)
	need(op, "beta", beta, T*hv)
	need(op, "a", a, b.Words(T*hv))
	need(op, "b", bb, b.Words(T*hv))
	need(op, "aLog", aLog, hv)
	need(op, "dtBias", dtBias, hv)
	kGates.launch(b, grid(blocks(T*hv, vecThreads), 1, 1), vecThreads, 0, gatesArgs{g: g.ptr, beta: beta.ptr, a: a.ptr, b: bb.ptr,
		aLog: aLog.ptr, dtBias: dtBias.ptr, n: int64(T * hv), hv: int32(hv)})
}

// GDNGatesBackward: da, db = ...; dALog, dDtBias += ....
func (b *cudaBackend) GDNGatesBackward(da, db, dALog, dDtBias, dg, dbeta, a, bb, aLog, dtBias Buffer, T, hv int) {
	const op = "GDNGatesBackward"
	shape(op, hv)
	for _, buf := range []Buffer{da, db, a, bb} {
		need(op, "da, db, a or b", buf, b.Words(T*hv))
	}
	for _, buf := range []Buffer{dg, dbeta} {
		need(op, "dg or dbeta", buf, T*hv)
	}
	for _, buf := range []Buffer{dALog, dDtBias, aLog, dtBias} {
		need(op, "dALog, dDtBias, aLog or dtBias", buf, hv)
	}
	if T == 0 {
		return
	}
	rows, runs := split(T, maxRuns)
	part := b.scratch(runs * 2 * hv)
	kGatesBackward.launch(b, grid(runs, blocks(hv, warp), 1), vecThreads, 0, gatesBackwardArgs{da: da.ptr, db: db.ptr, part: part.ptr,
		dg: dg.ptr, dbeta: dbeta.ptr, a: a.ptr, b: bb.ptr, aLog: aLog.ptr, dtBias: dtBias.ptr, T: int64(T), rows: int64(rows), hv: int32(hv)})
	b.columnSum(dALog, part, runs, 2*hv, hv)
	b.columnSum(dDtBias, part.Slice(hv, part.n-hv), runs, 2*hv, hv)
}

// GatedRMSNorm: y = w·x·rsqrt(mean x²+eps)·silu(z).
func (b *cudaBackend) GatedRMSNorm(y, x, z, w Buffer, N, D int, eps float32) {
	const op = "GatedRMSNorm"
	rowWidth(op, D, maxHead)
	b.needActs(op, "y", y, N*D)
	b.needActs(op, "x", x, N*D)
	b.needActs(op, "z", z, N*D)
	needWords(op, "w", w, D)
	l := lanes(D)
	rows := 4 * vecThreads / l // four rows a group
	kGatedNorm.launch(b, grid(blocks(N, rows), 1, 1), vecThreads, 0, gatedNormArgs{y: y.ptr, x: x.ptr, z: z.ptr, w: w.ptr,
		N: int64(N), rows: int64(rows), D: int32(D), lanes: int32(l), inverse: 1 / float32(D), eps: eps})
}

// GatedRMSNormBackward: dx, dz = ...; dw += ....
func (b *cudaBackend) GatedRMSNormBackward(dx, dz, dw, dy, x, z, w Buffer, N, D int, eps float32) {
	const op = "GatedRMSNormBackward"
	rowWidth(op, D, maxHead)
	for _, buf := range []Buffer{dx, dz, dy, x, z} {
		b.needActs(op, "dx, dz, dy, x or z", buf, N*D)
	}
	needWords(op, "dw", dw, D)
	needWords(op, "w", w, D)
	if N == 0 {
		return
	}
	l := lanes(D)
	rows, _ := split(N, maxRuns)
	rows = roundUp(rows, vecThreads/l)
	runs := blocks(N, rows)
	part := b.scratch(runs * D)
	kGatedNormBackward.launch(b, grid(runs, 1, 1), vecThreads, 0, gatedNormBackwardArgs{dx: dx.ptr, dz: dz.ptr, part: part.ptr,
		dy: dy.ptr, x: x.ptr, z: z.ptr, w: w.ptr, N: int64(N), rows: int64(rows), D: int32(D), lanes: int32(l), inverse: 1 / float32(D), eps: eps})
	b.columnSum(dw, part, runs, D, D)
}

// rope fills in what QKNormRope and its gradient share.
func (b *cudaBackend) rope(op string, qg, k, wq, wk, pos Buffer, T, tokens int, s AttnShape) (dim3, ropeArgs) {
	s.check(op)
	rowWidth(op, s.D, maxHead)
	b.needActs(op, "qg", qg, T*s.Hq*2*s.D)
	b.needActs(op, "k", k, T*s.Hk*s.D)
	needWords(op, "wq", wq, s.D)
	needWords(op, "wk", wk, s.D)
	need(op, "pos", pos, T)
	a := ropeArgs{qg: qg.ptr, k: k.ptr, wq: wq.ptr, wk: wk.ptr, pos: pos.ptr, T: int64(T), tokens: int64(tokens),
		hq: int32(s.Hq), hk: int32(s.Hk), D: int32(s.D), half: int32(s.Rotary / 2), lanes: int32(lanes(s.D)), inverse: 1 / float32(s.D), eps: s.Eps}
	for i := range s.Rotary / 2 {
		a.quarters[i] = math.Pow(s.Theta, -2*float64(i)/float64(s.Rotary)) * 2 / math.Pi
	}
	return grid(blocks(T, tokens), 1, 1), a
}

// ropeTokens is the tokens whose angles a block of QKNormRope prepares at a time (TOKENS of cu/rope.cu).
const ropeTokens = 4

// QKNormRope norms each head and rotates it by its token's position.
func (b *cudaBackend) QKNormRope(qOut, kOut, qg, k, wq, wk, pos Buffer, T int, s AttnShape) {
	const op = "QKNormRope"
	g, a := b.rope(op, qg, k, wq, wk, pos, T, ropeTokens, s)
	b.needActs(op, "qOut", qOut, T*s.Hq*s.D)
	b.needActs(op, "kOut", kOut, T*s.Hk*s.D)
	a.qOut, a.kOut = qOut.ptr, kOut.ptr
	kQKNormRope.launch(b, g, vecThreads, 0, a)
}

// QKNormRopeBackward: dk = ..., the query halves of dqg = ...; dwq, dwk += ....
func (b *cudaBackend) QKNormRopeBackward(dqg, dk, dwq, dwk, dqOut, dkOut, qg, k, wq, wk, pos Buffer, T int, s AttnShape) {
	const op = "QKNormRopeBackward"
	tokens, _ := split(T, maxRuns)
	g, a := b.rope(op, qg, k, wq, wk, pos, T, roundUp(tokens, ropeTokens), s)
	b.needActs(op, "dqg", dqg, T*s.Hq*2*s.D)
	b.needActs(op, "dk", dk, T*s.Hk*s.D)
	b.needActs(op, "dqOut", dqOut, T*s.Hq*s.D)
	b.needActs(op, "dkOut", dkOut, T*s.Hk*s.D)
	needWords(op, "dwq", dwq, s.D)
	needWords(op, "dwk", dwk, s.D)
	if T == 0 {
		return
	}
	part := b.scratch(g[0] * 2 * s.D)
	a.qOut, a.kOut, a.dq, a.dk, a.part = dqg.ptr, dk.ptr, dqOut.ptr, dkOut.ptr, part.ptr
	kQKNormRopeBackward.launch(b, g, vecThreads, 0, a)
	b.columnSum(dwq, part, g[0], 2*s.D, s.D)
	b.columnSum(dwk, part.Slice(s.D, part.n-s.D), g[0], 2*s.D, s.D)
}

// OutputGate: y = o·sigmoid(gate).
func (b *cudaBackend) OutputGate(y, o, qg Buffer, T int, s AttnShape) {
	b.outputGate(kOutputGate, "OutputGate", outputGateArgs{}, y, o, qg, T, s)
}

// OutputGateBackward: do = ..., the gate halves of dqg = ....
func (b *cudaBackend) OutputGateBackward(do, dqg, dy, o, qg Buffer, T int, s AttnShape) {
	const op = "OutputGateBackward"
	b.needActs(op, "dqg", dqg, T*s.Hq*2*s.D)
	b.needActs(op, "dy", dy, T*s.Hq*s.D)
	b.outputGate(kOutputGateBackward, op, outputGateArgs{dqg: dqg.ptr, dy: dy.ptr}, do, o, qg, T, s)
}

func (b *cudaBackend) outputGate(k kernel[outputGateArgs], op string, a outputGateArgs, y, o, qg Buffer, T int, s AttnShape) {
	s.check(op)
	rowWidth(op, s.D, maxHead)
	rows := T * s.Hq
	b.needActs(op, "y or do", y, rows*s.D)
	b.needActs(op, "o", o, rows*s.D)
	b.needActs(op, "qg", qg, rows*2*s.D)
	a.y, a.o, a.qg, a.rows, a.D = y.ptr, o.ptr, qg.ptr, int64(rows), int32(s.D)
	k.launch(b, grid(blocks(rows, vecThreads/(s.D/vec)), 1, 1), vecThreads, 0, a)
}
