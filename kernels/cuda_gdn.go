package kernels

import "fmt"

// Go twins of the parameter structs of cu/gdn*.cu.
type (
	gdnChunks struct{ cu, row, at uintptr }

	gdnPrepareArgs struct {
		P, A, gate, norm, qkv, g, beta uintptr
		chunks                         gdnChunks
		T, ch                          int64
		hk, hv, dk, _                  int32
	}
	gdnWalkArgs struct {
		q, k, P, A, gate, cu          uintptr
		T, ch                         int64
		hk, hv, dk, dv, stages, split int32
	}
	gdnScanArgs struct {
		o, e, state, last uintptr
		in                gdnWalkArgs
		v, first          uintptr
	}
	gdnScanBackwardArgs struct {
		dv, dstate, dfirst uintptr
		in                 gdnWalkArgs
		dout, dlast        uintptr
	}
	gdnBackwardArgs struct {
		dqkv, dg, dbeta, qkv, e, dout, state, dstate, first, dlast, gate, norm uintptr
		chunks                                                                 gdnChunks
		T, ch                                                                  int64
		hk, hv, dk, dv, ahead, _                                               int32
	}
)

// gdnKernels are the kernels for key dims padded to dk.
type gdnKernels struct {
	dk           int
	prepare      kernel[gdnPrepareArgs]
	scan         kernel[gdnScanArgs]
	scanBackward kernel[gdnScanBackwardArgs]
	backward     kernel[gdnBackwardArgs]
}

var gdnTable = []gdnKernels{gdnKernelsOf(32), gdnKernelsOf(64), gdnKernelsOf(128)}

func gdnKernelsOf(dk int) gdnKernels {
	suffix := fmt.Sprintf("_k%d", dk)
	return gdnKernels{dk, newKernel[gdnPrepareArgs]("gdn_prepare" + suffix), newKernel[gdnScanArgs]("gdn_scan" + suffix),
		newKernel[gdnScanBackwardArgs]("gdn_scan_backward" + suffix), newKernel[gdnBackwardArgs]("gdn_backward" + suffix)}
}

// gdnOptions are the states around each row and their gradients, [rows,Hv,Dk,Dv] fp32, where the zero Buffer is a zero
// state or a result that nobody wants, and the shared memory that a block may have, 0 = the device's limit.
type gdnOptions struct {
	first, last, dfirst, dlast Buffer
	shared                     int
}

// gdnPass is one call: sizes, the kernels for them, and the memory that the kernels share.
type gdnPass struct {
	*cudaBackend
	GDNShape
	gdnKernels
	gdnOptions
	seg     deviceSegments
	T, rows int

	e, A, state   Buffer // saved; A alone is scratch where nothing is saved
	P, gate, norm Buffer // scratch of both directions
	dstate        Buffer // of the backward pass alone
}

func (b *cudaBackend) newGDNPass(op string, s GDNShape, seg Segments, with gdnOptions) *gdnPass {
	shape(op, s.Hk, s.Hv, s.Dk, s.Dv)
	if s.Hv%s.Hk != 0 || s.Dk%16 != 0 || s.Dv%16 != 0 || s.Dk > 128 || s.Dv > 128 {
		panic(fmt.Sprintf("kernels: %s: %d value heads of %d on %d key heads of %d: want a multiple of the key heads, dims of whole 16s up to 128",
			op, s.Hv, s.Dv, s.Hk, s.Dk))
	}
	p := &gdnPass{cudaBackend: b, GDNShape: s, T: seg.Tokens(), rows: seg.Rows(), gdnOptions: with}
	if p.shared == 0 {
		p.shared = b.dev.Info().SharedOptin
	}
	for _, p.gdnKernels = range gdnTable {
		if s.Dk <= p.dk {
			break
		}
	}
	return p
}

// piece is a part of a larger buffer.
type piece struct {
	at    *Buffer
	words int
}

// pieceWords is what the pieces need, each aligned to 256 bytes.
func pieceWords(list []piece) int {
	sum := 0
	for _, p := range list {
		sum += roundUp(p.words, 64)
	}
	return sum
}

// cut makes the pieces, one after another.
func cut(from Buffer, list []piece) {
	at := 0
	for _, p := range list {
		*p.at = from.Slice(at, p.words)
		at += roundUp(p.words, 64)
	}
}

// The memory that the kernels share; cu/gdn.cuh tells what it is and how much.
func (p *gdnPass) saved() []piece {
	return []piece{{&p.e, p.Words(p.Hv * p.T * p.Dv)}, p.pairs(&p.A), p.states(&p.state)}
}

func (p *gdnPass) common() []piece {
	return []piece{p.pairs(&p.P), {&p.gate, 8 * p.Hv * p.T}, {&p.norm, 2 * p.Hk * p.T}}
}

func (p *gdnPass) pairs(at *Buffer) piece { return piece{at, p.Words(p.Hv * p.T * ChunkLen)} }

// states has room for the state before each chunk but a row's first: one for every 64 tokens before it.
func (p *gdnPass) states(at *Buffer) piece {
	return piece{at, p.Words(p.T / ChunkLen * p.Hv * p.Dv * p.Dk)}
}

// GDNSaved: the prediction errors e, the inverses A and the states between the chunks.
func (b *cudaBackend) GDNSaved(s GDNShape, seg Segments) int {
	return pieceWords(b.newGDNPass("GDNSaved", s, seg, gdnOptions{}).saved())
}

// GDN runs the gated delta rule from zero state. A row's bits depend on the row alone.
func (b *cudaBackend) GDN(o, saved, qkv, g, beta Buffer, s GDNShape, seg Segments) {
	b.gdn(o, saved, qkv, g, beta, s, seg, gdnOptions{})
}

func (b *cudaBackend) gdn(o, saved, qkv, g, beta Buffer, s GDNShape, seg Segments, with gdnOptions) {
	p := b.newGDNPass("GDN", s, seg, with)
	p.check("GDN", qkv, o, g, beta)
	scratch := p.common()
	if saved.IsNil() {
		scratch = append(scratch, p.pairs(&p.A))
	} else {
		needWords("GDN", "saved", saved, pieceWords(p.saved()))
		cut(saved, p.saved())
	}
	p.seg = b.segments(seg)
	cut(b.scratch(pieceWords(scratch)), scratch)
	p.runPrepare(qkv, g, beta, p.A)
	in, launch := p.walk(qkv, 16*p.dk/2+16*ChunkLen) // S in bf16, and e
	p.scan.launch(b, launch.grid, launch.threads, launch.shared, gdnScanArgs{o: o.ptr, e: p.e.ptr, state: p.state.ptr,
		last: p.last.ptr, in: in, v: p.values(qkv), first: p.first.ptr})
}

// GDNBackward: dqkv, dg, dbeta = ....
func (b *cudaBackend) GDNBackward(dqkv, dg, dbeta, do, saved, qkv, g, beta Buffer, s GDNShape, seg Segments) {
	b.gdnBackward(dqkv, dg, dbeta, do, saved, qkv, g, beta, s, seg, gdnOptions{})
}

func (b *cudaBackend) gdnBackward(dqkv, dg, dbeta, do, saved, qkv, g, beta Buffer, s GDNShape, seg Segments, with gdnOptions) {
	p := b.newGDNPass("GDNBackward", s, seg, with)
	p.check("GDNBackward", qkv, do, g, beta)
	p.check("GDNBackward", dqkv, do, dg, dbeta)
	needWords("GDNBackward", "saved", saved, pieceWords(p.saved()))
	cut(saved, p.saved())
	scratch := append(p.common(), p.states(&p.dstate))
	p.seg = b.segments(seg)
	cut(b.scratch(pieceWords(scratch)), scratch)
	p.runPrepare(qkv, g, beta, Buffer{})
	in, launch := p.walk(qkv, 16*ChunkLen+16*p.dk) // P'do and q'(gamma do)
	p.scanBackward.launch(b, launch.grid, launch.threads, launch.shared, gdnScanBackwardArgs{dv: p.values(dqkv), dstate: p.dstate.ptr,
		dfirst: p.dfirst.ptr, in: in, dout: do.ptr, dlast: p.dlast.ptr})
	shared, ahead := p.backwardShared()
	p.backward.launch(b, grid(p.seg.chunks, p.Hk, 1), p.backwardThreads(), shared, gdnBackwardArgs{
		dqkv: dqkv.ptr, dg: dg.ptr, dbeta: dbeta.ptr, qkv: qkv.ptr, e: p.e.ptr, dout: do.ptr, state: p.state.ptr,
		dstate: p.dstate.ptr, first: p.first.ptr, dlast: p.dlast.ptr, gate: p.gate.ptr, norm: p.norm.ptr,
		chunks: p.chunks(), T: int64(p.T), ch: int64(p.Channels()), hk: int32(p.Hk), hv: int32(p.Hv), dk: int32(p.Dk), dv: int32(p.Dv), ahead: ahead})
}

// check panics unless the buffers of an op hold [T,Ch], [T,Hv,Dv], [T,Hv] twice, and the states.
func (p *gdnPass) check(op string, qkv, o, g, beta Buffer) {
	p.needActs(op, "qkv or dqkv", qkv, p.T*p.Channels())
	p.needActs(op, "o or do", o, p.T*p.Hv*p.Dv)
	need(op, "g or dg", g, p.T*p.Hv)
	need(op, "beta or dbeta", beta, p.T*p.Hv)
	for _, s := range []Buffer{p.first, p.last, p.dfirst, p.dlast} {
		if !s.IsNil() {
			need(op, "a state", s, p.rows*p.Hv*p.Dk*p.Dv)
		}
	}
}

// values is where v begins in qkv, or dv in dqkv.
func (p *gdnPass) values(qkv Buffer) uintptr { return qkv.ptr + uintptr(2*p.Hk*p.Dk*p.dtype.Bytes()) }

func (p *gdnPass) chunks() gdnChunks {
	return gdnChunks{p.seg.cu.ptr, p.seg.chunkRow.ptr, p.seg.chunkAt.ptr}
}

func (p *gdnPass) runPrepare(qkv, g, beta, A Buffer) {
	const warps = 4
	shared := 2*ChunkLen*p.tile(p.dk) + 4*ChunkLen*(ChunkLen+4) + 4*32*36 + 4*2*ChunkLen + 4*3*ChunkLen*(p.Hv/p.Hk)
	p.prepare.launch(p.cudaBackend, grid(p.seg.chunks, p.Hk, 1), 32*warps, shared, gdnPrepareArgs{P: p.P.ptr, A: A.ptr,
		gate: p.gate.ptr, norm: p.norm.ptr, qkv: qkv.ptr, g: g.ptr, beta: beta.ptr, chunks: p.chunks(),
		T: int64(p.T), ch: int64(p.Channels()), hk: int32(p.Hk), hv: int32(p.Hv), dk: int32(p.Dk)})
}

// tile is the bytes of a row of n values in shared memory.
func (p *gdnPass) tile(n int) int { return n*p.dtype.Bytes() + 16 }

// gdnLaunch is how a walk is launched.
type gdnLaunch struct {
	grid            dim3
	threads, shared int
}

// walk sizes the blocks of a walk as GDNWalk of cu/gdn_walk.cuh lays its shared memory out; hand is how many values a state
// warp and its helper share. Neither helpers nor stages change a bit of the result.
func (p *gdnPass) walk(qkv Buffer, hand int) (gdnWalkArgs, gdnLaunch) {
	const pairs, loaders = 2, 4
	own, matrices := 16*p.tile(max(p.dk, ChunkLen)), 2*ChunkLen*p.tile(ChunkLen)
	if p.dtype == BF16 {
		own = 2 * ChunkLen * 24
	} else if p.dk == 128 {
		matrices = 2 * 8 * 4
	}
	stage := ChunkLen*(2*32+2*p.tile(p.dk)+p.tile(16*pairs)) + matrices
	at := func(split, stages int) int { return pairs*(own+split*2*4*hand) + stages*stage }
	split, stages := 0, 1
	for _, try := range [][2]int{{1, 3}, {1, 2}, {0, 2}} {
		if at(try[0], try[1]) <= p.shared && (try[0] == 0 || p.dtype == BF16) {
			split, stages = try[0], try[1]
			break
		}
	}
	return gdnWalkArgs{q: qkv.ptr, k: qkv.ptr + uintptr(p.Hk*p.Dk*p.dtype.Bytes()), P: p.P.ptr, A: p.A.ptr, gate: p.gate.ptr, cu: p.seg.cu.ptr,
			T: int64(p.T), ch: int64(p.Channels()), hk: int32(p.Hk), hv: int32(p.Hv), dk: int32(p.Dk), dv: int32(p.Dv),
			stages: int32(stages), split: int32(split)},
		gdnLaunch{grid(p.rows, p.Hv, blocks(p.Dv, 16*pairs)), 32 * (2*pairs + loaders), at(split, stages)}
}

// backwardThreads and backwardShared follow GDNBackward of cu/gdn_backward.cu.
func (p *gdnPass) backwardThreads() int {
	if p.dk < 64 || p.dtype == F32 {
		return 256
	}
	return 512
}

// backwardShared is a block's shared memory and whether it has room to load the next step's tiles ahead.
func (p *gdnPass) backwardShared() (bytes int, ahead int32) {
	warps, width := p.backwardThreads()/32, 64
	pairs := 2*ChunkLen*p.tile(ChunkLen) + 4*ChunkLen*(ChunkLen+2)
	if p.dtype == F32 {
		width, pairs = 16, ChunkLen*p.tile(ChunkLen)+4*8+4*4
	}
	pairs += 4 * 2 * warps * ChunkLen
	load := ChunkLen*p.tile(width) + width*p.tile(p.dk) + max(2*ChunkLen*p.tile(width), width*p.tile(p.dk))
	common := 2*ChunkLen*p.tile(p.dk) + ChunkLen*(2*32+4*3*warps/4+4*2) + 4*warps
	if all := common + pairs + 2*load; all <= p.shared {
		return all, 1
	}
	return common + max(pairs, load), 0
}
