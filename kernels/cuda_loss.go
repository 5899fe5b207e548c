package kernels

import (
	"fmt"
	"slices"
)

const lossThreads = 256

type lossArgs struct {
	logp, old, sampler, advantage, weight, mask uintptr
	index, rollout, start, end                  uintptr
	coef, ratio, loss, clip, list               uintptr
	n                                           int32
	kind                                        PolicyKind
	low, high, cap                              float32
}

var (
	kLossToken    = newPlainKernel[lossArgs]("loss_token")
	kLossSequence = newPlainKernel[lossArgs]("loss_sequence")
)

var _ PolicyLoss = (*cudaBackend)(nil)

// PolicyLoss fills r for T tokens.
func (b *cudaBackend) PolicyLoss(r PolicyResult, logp Buffer, in PolicyTokens, p PolicyParams, T int) {
	a := checkLoss("PolicyLoss", r, logp, in, p, T)
	if p.Kind == PolicySequence {
		b.lossSequence(a, r, in.Rows, T)
		return
	}
	kLossToken.launch(b, grid(blocks(T, lossThreads), 1, 1), lossThreads, 0, a)
}

// checkLoss gives the kernels' arguments for tokens 0 to T-1.
func checkLoss(op string, r PolicyResult, logp Buffer, in PolicyTokens, p PolicyParams, T int) lossArgs {
	for _, x := range []struct {
		name string
		buf  Buffer
		none bool // may be none
	}{
		{"logp", logp, false}, {"old", in.Old, true}, {"sampler", in.Sampler, !(p.SamplerCap > 0)}, {"advantage", in.Advantage, false},
		{"weight", in.Weight, false}, {"mask", in.Mask, false},
		{"coef", r.Coef, false}, {"ratio", r.Ratio, false}, {"loss", r.Loss, false}, {"clip", r.Clip, false},
	} {
		if !x.none || !x.buf.IsNil() {
			need(op, x.name, x.buf, T)
		}
	}
	return lossArgs{logp: logp.ptr, old: in.Old.ptr, sampler: in.Sampler.ptr, advantage: in.Advantage.ptr, weight: in.Weight.ptr, mask: in.Mask.ptr,
		coef: r.Coef.ptr, ratio: r.Ratio.ptr, loss: r.Loss.ptr, clip: r.Clip.ptr, n: int32(T), kind: p.Kind,
		low: float32(1 - p.EtaMinus), high: float32(1 + p.EtaPlus), cap: float32(p.SamplerCap)}
}

// lossSequence launches a block a rollout.
func (b *cudaBackend) lossSequence(a lossArgs, r PolicyResult, rows []PolicyRow, T int) {
	zeroResult(b, r, T)
	if len(rows) == 0 {
		return
	}
	rollout, start, end := byRollout(rows, T)
	table := b.scratch(len(rollout) + len(start) + len(end))
	b.UploadInts(table, slices.Concat(rollout, start, end))
	a.rollout = table.ptr
	a.start = table.Slice(len(rollout), len(start)).ptr
	a.end = table.Slice(len(rollout)+len(start), len(end)).ptr
	kLossSequence.launch(b, grid(len(rollout)-1, 1, 1), lossThreads, 0, a)
}

func zeroResult(b *cudaBackend, r PolicyResult, T int) {
	for _, buf := range []Buffer{r.Coef, r.Ratio, r.Loss, r.Clip} {
		b.Zero(buf.Slice(0, T))
	}
}

// byRollout orders rows by rollout, those of one in their own order: rollout i has rows rollout[i] to rollout[i+1].
func byRollout(rows []PolicyRow, T int) (rollout, start, end []int32) {
	rows = slices.Clone(rows)
	slices.SortStableFunc(rows, func(a, b PolicyRow) int { return a.Rollout - b.Rollout })
	for i, r := range rows {
		if r.Rollout < 0 || r.Start < 0 || r.Start > r.End || r.End > T {
			panic(fmt.Sprintf("kernels: PolicyLoss: row %+v: want 0 <= start <= end <= %d and a rollout of at least 0", r, T))
		}
		for len(rollout) <= r.Rollout {
			rollout = append(rollout, int32(i))
		}
		start, end = append(start, int32(r.Start)), append(end, int32(r.End))
	}
	return append(rollout, int32(len(rows))), start, end
}

// HeadLoss computes logits once, and of them log-probs, losses and gradients.
func (b *cudaBackend) HeadLoss(dh, dw, logp, entropy, lse Buffer, r PolicyResult, h Buffer, w Weight, targets Buffer, in PolicyTokens, p PolicyParams, T int, invTemp float32) {
	b.headLoss(dh, dw, headStats{logp, entropy, lse}, r, headInput{"HeadLoss", h, targets, w, T, invTemp, headChunk(w.Out)}, in, p)
}

func (b *cudaBackend) headLoss(dh, dw Buffer, out headStats, r PolicyResult, in headInput, tokens PolicyTokens, p PolicyParams) {
	if p.Kind == PolicySequence {
		panic("kernels: HeadLoss: a sequence-level objective needs the log-probs of all its tokens first: use HeadForward, PolicyLoss, HeadBackward")
	}
	b.checkHead(in)
	b.checkHeadGrads(dh, dw, in)
	b.zeroStats(out, in)
	a := checkLoss(in.op, r, out.logp, tokens, p, in.T)
	zeroResult(b, r, in.T)
	b.Zero(dh.Slice(0, b.Words(in.T*in.w.In)))
	k := b.openHead(in, b.headTargets(in, nil))
	for at := 0; at < k.live; at += k.rows {
		n := min(k.rows, k.live-at)
		k.logits(k.hidden(at, n), n)
		k.stats(out, at, n)
		a.index, a.list, a.n = k.index.Slice(at, n).ptr, k.list.ptr, int32(n)
		kLossToken.launch(b, grid(blocks(n, lossThreads), 1, 1), lossThreads, 0, a)
		k.chunkBackward(dh, dw, out.lse, r.Coef, at, n)
	}
}

// chunkBackward sends the chunk whose logits are in z backwards. The host waits for the chunk's coefficients, because the
// products are to have live rows only: one short wait a chunk, against two thirds of the work of every row whose token is
// clipped or has no advantage.
func (k *headWork) chunkBackward(dh, dw, lse, coef Buffer, at, n int) {
	list := make([]float32, n)
	k.b.Download(list, k.list)
	order := liveFirst(list)
	n = len(order)
	if n == 0 {
		return
	}
	for _, row := range order {
		order = append(order, k.tokens[at+int(row)])
	}
	k.b.UploadInts(k.order, order)
	from, tokens := k.order.Slice(0, n), k.order.Slice(n, n)
	k.grad(lse, coef, tokens, from, n)
	k.weightGrad(dw, k.gather(tokens, n), n)
	k.inputGrad(k.dhc, n)
	k.scatter(dh, tokens, n)
}

// liveFirst says from which row of a chunk each row of its gradient is made. There are as many as rows with a coefficient.
// Those among the first so many stay where they are; the others go into the gaps. So no row is written that another one is
// made from.
func liveFirst(coef []float32) []int32 {
	live := 0
	for _, c := range coef {
		if c != 0 {
			live++
		}
	}
	from := make([]int32, live)
	next := live
	for i := range from {
		from[i] = int32(i)
		if coef[i] != 0 {
			continue
		}
		for coef[next] == 0 {
			next++
		}
		from[i] = int32(next)
		next++
	}
	return from
}
