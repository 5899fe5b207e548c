package kernels

import (
	"fmt"

	"harness-s/cuda"
)

// vec is the values that a thread of a row or elementwise kernel works on at a time; vecThreads the threads of a block.
const (
	vec        = 8
	vecThreads = 256
	warp       = 32
)

// Go twins of the parameter structs of cu/embed.cu, rmsnorm.cu, swiglu.cu and util.cu.
type (
	rowsArgs struct {
		y, x, rows uintptr
		H          int64
		limit, _   int32
	}
	embedBackwardArgs struct {
		dw, dy, ids uintptr
		H           int64
		T, V        int32
	}
	rmsNormArgs struct {
		y, rstd, x, res, w uintptr
		H                  int32
		inverse, eps       float32
		_                  int32
	}
	rmsNormBackwardArgs struct {
		dx, part, dy, x, rstd, w uintptr
		T, rows                  int64
		H                        int32
		inverse                  float32
	}
	mapArgs struct {
		y, y2, a, b, dy uintptr
		n               int64
	}
	columnSumArgs struct {
		dst, part          uintptr
		rows, stride, cols int64
	}
	castArgs struct {
		y, x uintptr
		n    int64
	}
)

var (
	kGather          = newKernel[rowsArgs]("gather")
	kScatter         = newKernel[rowsArgs]("scatter")
	kEmbedBackward   = newKernel[embedBackwardArgs]("embed_backward")
	kRMSNorm         = newKernel[rmsNormArgs]("rmsnorm")
	kAddRMSNorm      = newKernel[rmsNormArgs]("add_rmsnorm")
	kRMSNormBackward = newKernel[rmsNormBackwardArgs]("rmsnorm_backward")
	kAdd             = newKernel[mapArgs]("add")
	kSwiGLU          = newKernel[mapArgs]("swiglu")
	kSwiGLUBackward  = newKernel[mapArgs]("swiglu_backward")
	kColumnSum       = newPlainKernel[columnSumArgs]("column_sum")
	kCast            = newKernel[castArgs]("cast")
)

// needWords is need for buffers that kernels move 16 bytes at a time.
func needWords(op, name string, buf Buffer, n int) {
	need(op, name, buf, n)
	if buf.ptr%16 != 0 {
		panic(fmt.Sprintf("kernels: %s: %s starts at an odd place: want a multiple of 4 words from an allocation's start", op, name))
	}
}

// needActs is needWords for n activations.
func (b *cudaBackend) needActs(op, name string, buf Buffer, n int) {
	needWords(op, name, buf, b.Words(n))
}

// rowWidth panics unless rows of n values start at whole chunks of vec.
func rowWidth(op string, n, most int) {
	if n < 1 || n%vec != 0 || n > most {
		panic(fmt.Sprintf("kernels: %s: rows of %d: want a multiple of %d up to %d", op, n, vec, most))
	}
}

// split cuts total rows into at most `most` equal runs: rows a run, runs. Sums over rows are formed a run at a time, so
// it may depend on shapes alone.
func split(total, most int) (per, runs int) {
	per = max(1, blocks(total, most))
	return per, blocks(total, per)
}

// roundUp is the least multiple of step at or above n.
func roundUp(n, step int) int { return blocks(n, step) * step }

// vecGrid has a thread for each vec values of n.
func vecGrid(n int) dim3 { return grid(blocks(n, vec*vecThreads), 1, 1) }

// columnSum: dst[c] += sum over rows of part[row·stride+c], c < cols.
func (b *cudaBackend) columnSum(dst, part Buffer, rows, stride, cols int) {
	const threads = 16 * warp
	kColumnSum.launch(b, grid(blocks(cols, warp), 1, 1), threads, 0,
		columnSumArgs{dst.ptr, part.ptr, int64(rows), int64(stride), int64(cols)})
}

// maxRow is the widest row that Embed, Gather and Scatter take: offsets have 64 bits, so that only shapes are checked.
const maxRow = 1 << 30

// rowThreads is enough threads for a row of n values, a chunk each, up to a block.
func rowThreads(n int) int { return min(roundUp(blocks(n, vec), warp), vecThreads) }

// Embed: y[t,:] = w[ids[t],:]. A row whose id is not in [0, Out) becomes NaN.
func (b *cudaBackend) Embed(y, ids Buffer, w Weight, T int) {
	b.needActs("Embed", "compute", w.Compute, w.Out*w.In)
	b.gather("Embed", y, w.Compute, ids, T, w.Out, w.In)
}

// Gather: y[i,:] = x[rows[i],:]. A row whose number is not in [0, T) becomes NaN.
func (b *cudaBackend) Gather(y, x, rows Buffer, N, T, H int) {
	b.needActs("Gather", "x", x, T*H)
	b.gather("Gather", y, x, rows, N, T, H)
}

func (b *cudaBackend) gather(op string, y, x, rows Buffer, N, limit, H int) {
	rowWidth(op, H, maxRow)
	b.needActs(op, "y", y, N*H)
	need(op, "rows", rows, N)
	kGather.launch(b, grid(N, 1, 1), rowThreads(H), 0, rowsArgs{y: y.ptr, x: x.ptr, rows: rows.ptr, H: int64(H), limit: int32(limit)})
}

// Scatter: dx = 0, then dx[rows[i],:] = dy[i,:].
func (b *cudaBackend) Scatter(dx, dy, rows Buffer, N, T, H int) {
	const op = "Scatter"
	rowWidth(op, H, maxRow)
	b.needActs(op, "dx", dx, T*H)
	b.needActs(op, "dy", dy, N*H)
	need(op, "rows", rows, N)
	b.Zero(dx.Slice(0, b.Words(T*H)))
	kScatter.launch(b, grid(N, 1, 1), rowThreads(H), 0, rowsArgs{y: dx.ptr, x: dy.ptr, rows: rows.ptr, H: int64(H), limit: int32(T)})
}

// EmbedBackward: dw[ids[t],:] += dy[t,:], in token order. Tokens whose id is not in [0, V) are left out.
func (b *cudaBackend) EmbedBackward(dw, dy, ids Buffer, T, H, V int) {
	const op = "EmbedBackward"
	rowWidth(op, H, maxRow)
	needWords(op, "dw", dw, V*H)
	b.needActs(op, "dy", dy, T*H)
	needWords(op, "ids", ids, T)
	kEmbedBackward.launch(b, grid(T, blocks(H, vec*vecThreads), 1), vecThreads, 0,
		embedBackwardArgs{dw.ptr, dy.ptr, ids.ptr, int64(H), int32(T), int32(V)})
}

// PackSize is the words of a weight's compute copy.
func (b *cudaBackend) PackSize(out, in int) int {
	shape("PackSize", out, in)
	return b.Words(out * in)
}

// Pack: Compute = Master.
func (b *cudaBackend) Pack(w Weight) { b.Cast(w.Compute, w.Master, w.Out*w.In) }

// Cast: compute = w in the storage type.
func (b *cudaBackend) Cast(compute, w Buffer, n int) {
	b.needActs("Cast", "compute", compute, n)
	needWords("Cast", "w", w, n)
	kCast.launch(b, vecGrid(n), vecThreads, 0, castArgs{compute.ptr, w.ptr, int64(n)})
}

// product queues m with activations of the storage type on both sides.
func (b *cudaBackend) product(m cuda.Matmul) {
	if m.M == 0 || m.K == 0 {
		return // nothing to write, or sums of nothing to add
	}
	m.In, m.Alpha = cuda.DType(b.dtype), 1
	b.stream.Matmul(m)
}

// productInRuns is product for forward projections. In fp32 the sum over K is cut into runs of productRun terms, each added
// to what came before, as the CPU backend does it: the error of one chain over all of K is too large for the delta rule,
// where a query nearly orthogonal to its keys turns 1e-7 of the projection into 1e-4 of a gradient. It also bounds the error
// whatever order the library adds in.
func (b *cudaBackend) productInRuns(m cuda.Matmul) {
	run := m.K
	if b.dtype == F32 {
		run = productRun(m.K)
	}
	for left := m.K; left > 0; left -= run {
		part := m
		part.K = min(run, left)
		b.product(part)
		m.A += cuda.Ptr(run * b.dtype.Bytes()) // rows lie along K in both
		m.B += cuda.Ptr(run * b.dtype.Bytes())
		m.Beta = 1
	}
}

// productRun is the length of a run over K: a power of two near 2·sqrt(K). The error is least near sqrt(K), where a run has
// as many terms as there are runs; each run is a product of its own that reads and writes the result.
func productRun(K int) int {
	run := 16
	for run*run < 4*K {
		run *= 2
	}
	return run
}

// Linear: y(T,Out) = x(T,In) Computeᵀ.
func (b *cudaBackend) Linear(y, x Buffer, w Weight, T int) {
	const op = "Linear"
	shape(op, w.Out, w.In)
	b.needActs(op, "y", y, T*w.Out)
	b.needActs(op, "x", x, T*w.In)
	b.needActs(op, "compute", w.Compute, w.Out*w.In)
	b.productInRuns(cuda.Matmul{M: T, N: w.Out, K: w.In, A: ptr(x), LDA: w.In, B: ptr(w.Compute), LDB: w.In, TransB: true,
		C: ptr(y), LDC: w.Out, Out: cuda.DType(b.dtype)})
}

// LinearBackwardInput: dx(T,In) = (or +=, when add) dy(T,Out) Compute.
func (b *cudaBackend) LinearBackwardInput(dx, dy Buffer, w Weight, T int, add bool) {
	const op = "LinearBackwardInput"
	shape(op, w.Out, w.In)
	b.needActs(op, "dx", dx, T*w.In)
	b.needActs(op, "dy", dy, T*w.Out)
	b.needActs(op, "compute", w.Compute, w.Out*w.In)
	var beta float32
	if add {
		beta = 1
	}
	b.product(cuda.Matmul{M: T, N: w.In, K: w.Out, A: ptr(dy), LDA: w.Out, B: ptr(w.Compute), LDB: w.In,
		C: ptr(dx), LDC: w.In, Out: cuda.DType(b.dtype), Beta: beta})
}

// LinearBackwardWeight: dw[Out,In] += dyᵀ x, in fp32.
func (b *cudaBackend) LinearBackwardWeight(dw, dy, x Buffer, T, out, in int) {
	const op = "LinearBackwardWeight"
	shape(op, out, in)
	needWords(op, "dw", dw, out*in)
	b.needActs(op, "dy", dy, T*out)
	b.needActs(op, "x", x, T*in)
	b.product(cuda.Matmul{M: out, N: in, K: T, A: ptr(dy), LDA: out, TransA: true, B: ptr(x), LDB: in,
		C: ptr(dw), LDC: in, Out: cuda.F32, Beta: 1})
}

// A block has a row of RMSNorm in registers: normChunks chunks a thread, at most normThreads threads (cu/rmsnorm.cu).
const (
	normChunks  = 2
	normThreads = 512
	normWidth   = normChunks * normThreads * vec
)

func normBlock(H int) int { return roundUp(blocks(H, vec*normChunks), warp) }

// RMSNorm: y = x * rstd * (1+w).
func (b *cudaBackend) RMSNorm(y, rstd, x, w Buffer, T, H int, eps float32) {
	b.norm(kRMSNorm, "RMSNorm", rmsNormArgs{}, y, rstd, x, w, T, H, eps)
}

// AddRMSNorm: x += res, then RMSNorm of x as stored.
func (b *cudaBackend) AddRMSNorm(y, rstd, x, res, w Buffer, T, H int, eps float32) {
	b.needActs("AddRMSNorm", "res", res, T*H)
	b.norm(kAddRMSNorm, "AddRMSNorm", rmsNormArgs{res: res.ptr}, y, rstd, x, w, T, H, eps)
}

func (b *cudaBackend) norm(k kernel[rmsNormArgs], op string, a rmsNormArgs, y, rstd, x, w Buffer, T, H int, eps float32) {
	rowWidth(op, H, normWidth)
	b.needActs(op, "y", y, T*H)
	b.needActs(op, "x", x, T*H)
	needWords(op, "w", w, H)
	if !rstd.IsNil() {
		need(op, "rstd", rstd, T)
	}
	a.y, a.rstd, a.x, a.w, a.H, a.inverse, a.eps = y.ptr, rstd.ptr, x.ptr, w.ptr, int32(H), 1/float32(H), eps
	k.launch(b, grid(T, 1, 1), normBlock(H), 0, a)
}

// RMSNormBackward: dx += ..., dw += ....
func (b *cudaBackend) RMSNormBackward(dx, dw, dy, x, rstd, w Buffer, T, H int) {
	const op = "RMSNormBackward"
	rowWidth(op, H, normWidth)
	b.needActs(op, "dx", dx, T*H)
	needWords(op, "dw", dw, H)
	b.needActs(op, "dy", dy, T*H)
	b.needActs(op, "x", x, T*H)
	need(op, "rstd", rstd, T)
	needWords(op, "w", w, H)
	if T == 0 {
		return
	}
	const most = 132 * 512 // threads in all: one wave on a device of 132 SMs
	threads := normBlock(H)
	rows, runs := split(T, most/threads)
	part := b.scratch(runs * H)
	kRMSNormBackward.launch(b, grid(runs, 1, 1), threads, 0, rmsNormBackwardArgs{dx: dx.ptr, part: part.ptr, dy: dy.ptr, x: x.ptr,
		rstd: rstd.ptr, w: w.ptr, T: int64(T), rows: int64(rows), H: int32(H), inverse: 1 / float32(H)})
	b.columnSum(dw, part, runs, H, H)
}

// Add: dst += src.
func (b *cudaBackend) Add(dst, src Buffer, n int) {
	b.needActs("Add", "dst", dst, n)
	b.needActs("Add", "src", src, n)
	kAdd.launch(b, vecGrid(n), vecThreads, 0, mapArgs{y: dst.ptr, a: src.ptr, n: int64(n)})
}

// SwiGLU: y = silu(gate) * up.
func (b *cudaBackend) SwiGLU(y, gate, up Buffer, n int) {
	b.needActs("SwiGLU", "y", y, n)
	b.needActs("SwiGLU", "gate", gate, n)
	b.needActs("SwiGLU", "up", up, n)
	kSwiGLU.launch(b, vecGrid(n), vecThreads, 0, mapArgs{y: y.ptr, a: gate.ptr, b: up.ptr, n: int64(n)})
}

// SwiGLUBackward: dgate = ..., dup = ..., in place allowed.
func (b *cudaBackend) SwiGLUBackward(dgate, dup, dy, gate, up Buffer, n int) {
	const op = "SwiGLUBackward"
	b.needActs(op, "dgate", dgate, n)
	b.needActs(op, "dup", dup, n)
	b.needActs(op, "dy", dy, n)
	b.needActs(op, "gate", gate, n)
	b.needActs(op, "up", up, n)
	kSwiGLUBackward.launch(b, vecGrid(n), vecThreads, 0,
		mapArgs{y: dgate.ptr, y2: dup.ptr, a: gate.ptr, b: up.ptr, dy: dy.ptr, n: int64(n)})
}
