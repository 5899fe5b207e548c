package kernels

// ChunkLen is C: the chunk of the gated delta rule and the tokens of one KV page. Kept inference
// states lie at absolute multiples of it.
const ChunkLen = 64

// Backend computes training on one device. It is used by one goroutine at a time.
//
// Activations are stored in the backend's storage type: fp32, or bf16 on a device in bf16 mode. A shape comment in
// (parentheses), such as (T,H), is of activations, which take Words(T*H) words; in [brackets], such as [T,H], of 4-byte
// words, fp32 unless int32 is said. Sums are formed in fp32 in either case.
type Backend interface {
	Memory
	Dense
	Mixer
	Head
	Optimizer
}

// InferenceBackend also generates.
type InferenceBackend interface {
	Backend
	Inference
	Sampler
}

// Flat is a Backend whose compute copies have the masters' order and the storage type of activations, so that whole
// ranges of an arena are cast and exchanged between ranks. Embedding and conv read compute copies too.
type Flat interface {
	Backend
	Collective
	// CheckShapes says which size of a model the device does not take.
	CheckShapes(hidden, mlp int, g GDNShape, a AttnShape) error
	// Cast: compute = w.  compute (n), w [n].
	Cast(compute, w Buffer, n int)
	// AdamWCast is AdamW followed by Cast of the new weights, in one pass.
	AdamWCast(compute, w, m, v, g Buffer, n int, p AdamWParams)
	// Fail ends the work under way, because a rank of another process failed: the next Sync returns err, and no rank here
	// waits for that one any longer. Unlike other methods it may be called beside them.
	Fail(err error)
}

// Mark names a collective that was queued.
type Mark int64

// Collective is the exchange between the ranks of a run, one backend each. All ranks make the same calls in the same
// order. A collective starts when the work queued before it is done and runs beside work queued after it; After orders
// that. Sums are in fp32, in the same order on every rank. With one rank a collective is a copy or nothing.
type Collective interface {
	Rank() (rank, world int)
	// ReduceScatterAdd: dst += the sum over ranks of the rank-th piece of src.  dst [n], src [world,n].
	ReduceScatterAdd(dst, src Buffer, n int) Mark
	// AllGather: piece r of buf is what rank r had there.  buf (world,n), n even.
	AllGather(buf Buffer, n int) Mark
	// AllGatherWords is AllGather of 4-byte words.  buf [world,n].
	AllGatherWords(buf Buffer, n int) Mark
	// AllReduce: buf = the sum over ranks of buf.  buf [n].
	AllReduce(buf Buffer, n int) Mark
	// After makes work queued from now on wait for a collective.
	After(m Mark)
}

// Buffer is N 4-byte words (float32 or int32) of backend memory. The zero Buffer is "none". It is a
// plain value: the Backend that made it owns the memory, and views made by Slice share it.
type Buffer struct {
	ptr uintptr // host address on cpu, device address on cuda: never memory of the Go heap
	n   int
}

// Len is the number of 4-byte words.
func (b Buffer) Len() int { return b.n }

// IsNil says whether b is the zero Buffer.
func (b Buffer) IsNil() bool { return b.ptr == 0 }

// Slice is the view of n words from word off on.
func (b Buffer) Slice(off, n int) Buffer {
	if off < 0 || n < 0 || off+n > b.n {
		panic("kernels: slice out of range")
	}
	return Buffer{b.ptr + uintptr(4*off), n}
}

// Memory owns buffers. Alloc'd memory is zeroed and 64-byte aligned; purpose appears in Usage.
type Memory interface {
	Name() string // "cpu", "cuda", "sim"
	// Words is the 4-byte words that n activations take: n in fp32, half of it, rounded up, in bf16.
	Words(n int) int
	Alloc(purpose string, n int) (Buffer, error)
	Free(b Buffer) // the exact Buffer that Alloc returned; the zero Buffer is ignored
	Usage() map[string]int64
	Upload(dst Buffer, src []float32)
	Download(dst []float32, src Buffer)
	UploadInts(dst Buffer, src []int32)
	DownloadInts(dst []int32, src Buffer)
	Copy(dst, src Buffer)
	Zero(b Buffer)
	Sync() error // waits for all queued work; returns the first operating error since the last Sync
	Close() error
}

// Weight is a matrix as a Linear uses it.
type Weight struct {
	Master  Buffer // [Out, In] fp32, row-major, as Hugging Face stores it
	Compute Buffer // the copy the kernels read, made by Pack, PackSize words: panels on cpu, the storage type on a Flat backend
	Out, In int
}

// Dense is embeddings, projections, norms and the MLP.
type Dense interface {
	// Embed: y[t,:] = w[ids[t],:].  y (T,In), ids int32 [T], w [Out,In]: the master on cpu, Compute on a Flat backend.
	Embed(y, ids Buffer, w Weight, T int)
	// EmbedBackward: dw[ids[t],:] += dy[t,:], in token order.  dw [V,H], dy (T,H).
	EmbedBackward(dw, dy, ids Buffer, T, H, V int)
	// Gather: y[i,:] = x[rows[i],:].  y (N,H), x (T,H), rows int32 [N].
	Gather(y, x, rows Buffer, N, T, H int)
	// Scatter: dx[rows[i],:] = dy[i,:], all other rows 0; rows are distinct.  dx (T,H), dy (N,H).
	Scatter(dx, dy, rows Buffer, N, T, H int)

	PackSize(out, in int) int
	Pack(w Weight) // Compute = Master
	// Linear: y(T,Out) = x(T,In) Masterᵀ, read from Compute.
	Linear(y, x Buffer, w Weight, T int)
	// LinearBackwardInput: dx(T,In) = (or +=, when add) dy(T,Out) Master.
	LinearBackwardInput(dx, dy Buffer, w Weight, T int, add bool)
	// LinearBackwardWeight: dw[Out,In] += dyᵀ x.  dy (T,Out), x (T,In).
	LinearBackwardWeight(dw, dy, x Buffer, T, out, in int)

	// RMSNorm: y = x * rstd * (1+w), rstd[t] = 1/sqrt(mean(x[t]²)+eps).  x, y (T,H); w [H]; rstd [T] (may be none).
	RMSNorm(y, rstd, x, w Buffer, T, H int, eps float32)
	// AddRMSNorm: x += res, then RMSNorm of x as stored.  res (T,H).
	AddRMSNorm(y, rstd, x, res, w Buffer, T, H int, eps float32)
	// RMSNormBackward: dx += ..., dw += ....  dx, dy (T,H), dw [H].
	RMSNormBackward(dx, dw, dy, x, rstd, w Buffer, T, H int)
	// Add: dst += src.  (n).
	Add(dst, src Buffer, n int)
	// SwiGLU: y = silu(gate) * up.  (n).
	SwiGLU(y, gate, up Buffer, n int)
	// SwiGLUBackward: dgate = ..., dup = .... dgate may be gate's and dup up's own buffer (in place).
	SwiGLUBackward(dgate, dup, dy, gate, up Buffer, n int)
}

// Segments are the rows (sequences) of a packed batch: row i is tokens Cu[i] to Cu[i+1].
type Segments struct {
	Cu []int32 // len = rows+1, Cu[0] = 0, ascending; an empty row is allowed
}

// Rows is the number of sequences.
func (s Segments) Rows() int { return len(s.Cu) - 1 }

// Tokens is T.
func (s Segments) Tokens() int { return int(s.Cu[len(s.Cu)-1]) }

// GDNShape describes one gated-delta-net layer. Value head h uses key head h / (Hv/Hk).
type GDNShape struct {
	Hk, Hv, Dk, Dv int
	K              int     // conv width
	Eps            float32 // of the gated norm; the l2 norm's 1e-6 is fixed
}

// Channels is the conv's channel count, 2·Hk·Dk + Hv·Dv, in the order q | k | v.
func (s GDNShape) Channels() int { return 2*s.Hk*s.Dk + s.Hv*s.Dv }

// AttnShape describes one full-attention layer. Query head h reads kv head h / (Hq/Hk).
type AttnShape struct {
	Hq, Hk, D int
	Rotary    int     // leading dims that rotate, even
	Theta     float64 // RoPE base
	Eps       float32 // of the q/k norms
}

// Mixer is the token-mixing layers in training: every row starts from zero state, at position 0.
type Mixer interface {
	// ConvSiLU: y = silu(causal depthwise conv of x).  x, y (T,Ch); w [Ch,K] (Out = Ch, In = K): the master on cpu, Compute
	// on a Flat backend; left padding is zero per row.
	ConvSiLU(y, x Buffer, w Weight, seg Segments)
	// ConvSiLUBackward: dx = ..., dw += ....  dx must not alias dy.  dw [Ch,K].
	ConvSiLUBackward(dx, dw, dy, x Buffer, w Weight, seg Segments)

	// GDNGates: beta = sigmoid(b), g = -exp(aLog)·softplus(a+dtBias).  a, b (T,Hv); g, beta [T,Hv]; aLog, dtBias [Hv].
	GDNGates(g, beta, a, b, aLog, dtBias Buffer, T, hv int)
	// GDNGatesBackward: da, db = ...; dALog, dDtBias += ....  da, db (T,Hv); dg, dbeta [T,Hv].
	GDNGatesBackward(da, db, dALog, dDtBias, dg, dbeta, a, b, aLog, dtBias Buffer, T, hv int)

	// GDNSaved is how many words GDN keeps for its backward pass.
	GDNSaved(s GDNShape, seg Segments) int
	// GDN: l2-normalises q and k of qkv (conv output, (T,Ch)), scales q by Dk^-0.5 and runs the gated delta
	// rule in chunks of ChunkLen from each row's start.  o (T,Hv,Dv); g, beta [T,Hv]. saved may be none (no backward).
	GDN(o, saved, qkv, g, beta Buffer, s GDNShape, seg Segments)
	// GDNBackward: dqkv, dg, dbeta = ....  dqkv (T,Ch), do (T,Hv,Dv); dg, dbeta [T,Hv].
	GDNBackward(dqkv, dg, dbeta, do, saved, qkv, g, beta Buffer, s GDNShape, seg Segments)

	// GatedRMSNorm: y = w·x·rsqrt(mean x²+eps)·silu(z) over each head's D.  x, y, z (N,D), w [D], N = T·Hv.
	GatedRMSNorm(y, x, z, w Buffer, N, D int, eps float32)
	// GatedRMSNormBackward: dx, dz = ...; dw += ....  dx, dz, dy (N,D), dw [D].
	GatedRMSNormBackward(dx, dz, dw, dy, x, z, w Buffer, N, D int, eps float32)

	// QKNormRope: from qg (T,Hq,2D) ((query D | gate D) per head) and k (T,Hk,D): qOut (T,Hq,D) and kOut (T,Hk,D),
	// RMS-normed per head with (1+wq), (1+wk), then rotated by position pos int32 [T].
	QKNormRope(qOut, kOut, qg, k, wq, wk, pos Buffer, T int, s AttnShape)
	// QKNormRopeBackward: dk = ..., the query halves of dqg = ... (the gate halves are left alone); dwq, dwk += ....
	QKNormRopeBackward(dqg, dk, dwq, dwk, dqOut, dkOut, qg, k, wq, wk, pos Buffer, T int, s AttnShape)

	// Attention: causal within each row, scale D^-0.5.  q, o (T,Hq,D); k, v (T,Hk,D); lse [T,Hq] (may be none).
	Attention(o, lse, q, k, v Buffer, s AttnShape, seg Segments)
	// AttentionBackward: dq, dk, dv = ....
	AttentionBackward(dq, dk, dv, do, o, lse, q, k, v Buffer, s AttnShape, seg Segments)

	// OutputGate: y = o·sigmoid(gate), gate taken from qg (T,Hq,2D).
	OutputGate(y, o, qg Buffer, T int, s AttnShape)
	// OutputGateBackward: do = ..., the gate halves of dqg = ....
	OutputGateBackward(do, dqg, dy, o, qg Buffer, T int, s AttnShape)
}

// Span is the new tokens of one sequence in a packed inference batch.
type Span struct {
	Row int // first token in the packed batch
	Len int // new tokens, >= 1
	Pos int // absolute position of the first new token = tokens already in the cache
}

// Inference extends cached sequences by new tokens, with results bit-equal to Mixer's over the whole row,
// however the row was split into calls. Caches are updated in place; states[i] belongs to spans[i].
type Inference interface {
	// ConvState is the words of one layer's conv state (the last K-1 raw inputs, [K-1,Ch]).
	ConvState(ch, k int) int
	ConvSiLUExtend(y, x, w Buffer, states []Buffer, spans []Span, ch, k int)

	// GDNState is the words of one layer's state: per value head S [Dk,Dv] at the last chunk boundary and the rows
	// since then (normalised keys, corrected values u, cumulative gate). At a multiple of ChunkLen the rows are folded
	// into S, so that only S (the first Hv·Dk·Dv words) then matters.
	GDNState(s GDNShape) int
	GDNExtend(o, qkv, g, beta Buffer, states []Buffer, spans []Span, s GDNShape)

	// KVPage is the words of one layer's page: keys and values of ChunkLen tokens.
	KVPage(s AttnShape) int
	// AttentionExtend writes the new keys and values into the pages and attends over all of them. pages[i] are
	// span i's pages in order of position; there are enough for Pos+Len tokens.
	AttentionExtend(o, q, k, v Buffer, pages [][]Buffer, spans []Span, s AttnShape)
}

// SampleParams says how one row of logits becomes a token. Processing order: temperature, top-k, top-p.
type SampleParams struct {
	Temperature float32 // 0 = argmax; its log-prob is then that of temperature 1
	TopP        float32 // 1 = off
	TopK        int     // <= 0 = off
	Seed        uint64  // of the request; the n-th sampled token of a request uses counter n
	Counter     uint64
	Allowed     []int32 // if not nil, only these ids may be drawn
}

// Sample is one drawn token.
type Sample struct {
	ID      int32
	Logprob float32 // <= 0, of the distribution drawn from (after temperature, top-k, top-p)
	Entropy float32 // nats, of the full distribution at the temperature
}

// Head is the vocabulary projection. Logits of a whole batch never exist: rows go through in chunks.
type Head interface {
	// HeadForward: for each t with targets[t] >= 0: logp[t] = log softmax(h[t] Wᵀ · invTemp)[targets[t]] <= 0,
	// entropy[t] (nats) and lse[t] of that distribution; other entries are set to 0.  h (T,H); targets int32 [T].
	HeadForward(logp, entropy, lse, h Buffer, w Weight, targets Buffer, T int, invTemp float32)
	// HeadBackward: dh = ..., dw += ... for the gradient coef[t] = dL/dlogp[t], len(coef) = T. Rows with coef 0 or target < 0
	// contribute exactly nothing, whatever they hold (NaN included), and cost nothing.  dh (T,H), dw [V,H].
	HeadBackward(dh, dw, h Buffer, w Weight, targets, lse Buffer, coef []float32, invTemp float32)
	// Logits: z [T,V] = h Wᵀ, unscaled.
	Logits(z, h Buffer, w Weight, T int)
}

// Sampler draws tokens.
type Sampler interface {
	// Sample draws one token per row of logits z [N,V]; bits depend on the row and its parameters alone, and the
	// log-prob has HeadForward's bits when top-k and top-p are off.
	Sample(z Buffer, p []SampleParams, V int) []Sample
	// TopLogprobs is the k most likely ids of logits row z [V] at invTemp with their log-probs, best first, ties by id.
	TopLogprobs(z Buffer, k, V int, invTemp float32) ([]int32, []float32)
}

// AdamWParams are one update's settings; Step counts from 1.
type AdamWParams struct {
	LR, Beta1, Beta2, Eps, WeightDecay float32
	Step                               int
	GradScale                          float32 // multiplies the gradient first (clipping)
}

// Optimizer is the update, over whole parameter arenas.
type Optimizer interface {
	// AdamW: decoupled weight decay; w, m, v updated in place, n words.
	AdamW(w, m, v, g Buffer, n int, p AdamWParams)
	// SumSquares of n words, in a fixed order, in float64.
	SumSquares(g Buffer, n int) float64
	// NonFinite counts NaN and infinities.
	NonFinite(g Buffer, n int) int
}
