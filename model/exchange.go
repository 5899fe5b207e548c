package model

import (
	"fmt"
	"math"

	"harness-s/kernels"
)

// exchange is how the gradients of matrices reach the ranks that own them. A layer's gradients are formed whole, in one of
// two buffers that layers take in turn, and scattered while the layer below is at work; embedding and head share a third.
type exchange struct {
	layer   [2]kernels.Buffer
	vocab   kernels.Buffer
	marks   [3]kernels.Mark // of the last use of layer[0], layer[1] and vocab
	reduced bool            // the plain gradients are summed over the ranks, since ZeroGrad
	stats   kernels.Buffer  // [world, statWords]
}

// statWords are two float64 a rank.
const statWords = 4

func (x *exchange) free(be kernels.Backend) {
	for _, b := range []kernels.Buffer{x.layer[0], x.layer[1], x.vocab, x.stats} {
		be.Free(b)
	}
	*x = exchange{}
}

// slot says which buffer a bucket's gradients are formed in: 0 and 1 for layers, 2 for embedding and head.
func (m *Model) slot(b int) int {
	if b == 0 || b > len(m.Config.LayerTypes) {
		return 2
	}
	return b % 2
}

func (x *exchange) buffer(slot int) *kernels.Buffer {
	if slot == 2 {
		return &x.vocab
	}
	return &x.layer[slot]
}

// allocExchange makes the buffers and points the matrices' gradients into them.
func (m *Model) allocExchange() error {
	var words [3]int
	for i, b := range m.buckets {
		words[m.slot(i)] = max(words[m.slot(i)], b.words)
	}
	x := &m.exchange
	var err error
	for slot, n := range words {
		if *x.buffer(slot), err = m.be.Alloc("gradient buckets", n); err != nil {
			return fmt.Errorf("allocate gradient buckets: %w", err)
		}
	}
	if x.stats, err = m.be.Alloc("gradient buckets", m.world*statWords); err != nil {
		return fmt.Errorf("allocate gradient buckets: %w", err)
	}
	for i := range m.params {
		if p := &m.params[i]; p.Decay {
			p.Grad = x.buffer(m.slot(p.bucket)).Slice(p.off-m.buckets[p.bucket].off, p.size())
		}
	}
	return nil
}

// openBucket makes room for a bucket's gradients: what was in its buffer must have left, and it starts at zero.
func (m *Model) openBucket(i int) {
	if !m.sharded() {
		return
	}
	slot := m.slot(i)
	m.flat.After(m.exchange.marks[slot])
	m.be.Zero(m.exchange.buffer(slot).Slice(0, m.buckets[i].words))
}

// closeBucket adds a bucket's gradients to the arenas of the ranks that own them.
func (m *Model) closeBucket(i int) {
	if !m.sharded() {
		return
	}
	b, slot := m.buckets[i], m.slot(i)
	m.exchange.marks[slot] = m.flat.ReduceScatterAdd(m.piece(&m.grad, b), m.exchange.buffer(slot).Slice(0, b.words), b.words/m.world)
}

// reducePlain sums the gradients of the parameters that every rank has, once all backward passes of an update are made.
func (m *Model) reducePlain() {
	if !m.sharded() || m.exchange.reduced {
		return
	}
	m.exchange.reduced = true
	m.flat.After(m.flat.AllReduce(m.grad.plain, m.grad.plain.Len()))
}

// gradStats is the sum of squares and the number of values that are not finite over all gradients of all ranks, the same
// bits on every rank.
func (m *Model) gradStats() (squares float64, bad int, err error) {
	if !m.sharded() {
		n := m.grad.whole.Len()
		return m.be.SumSquares(m.grad.whole, n), m.be.NonFinite(m.grad.whole, n), m.be.Sync()
	}
	m.reducePlain()
	part := m.grad.whole // one rank counts the plain part, which all have
	if m.rank != 0 {
		part = m.grad.pieces
	}
	squares = m.be.SumSquares(part, part.Len())
	bad = m.be.NonFinite(part, part.Len())
	all, err := m.shareStats(squares, float64(bad))
	if err != nil {
		return 0, 0, err
	}
	squares, bad = 0, 0
	for _, s := range all {
		squares, bad = squares+s[0], bad+int(s[1])
	}
	return squares, bad, nil
}

// shareStats gives every rank the two values of each.
func (m *Model) shareStats(a, b float64) ([][2]float64, error) {
	x := &m.exchange
	var mine [statWords]int32
	for i, v := range []float64{a, b} {
		bits := math.Float64bits(v)
		mine[2*i], mine[2*i+1] = int32(bits), int32(bits>>32)
	}
	m.be.UploadInts(x.stats.Slice(m.rank*statWords, statWords), mine[:])
	m.flat.After(m.flat.AllGatherWords(x.stats, statWords))
	all := make([]int32, m.world*statWords)
	m.be.DownloadInts(all, x.stats)
	if err := m.be.Sync(); err != nil {
		return nil, fmt.Errorf("gradient statistics: %w", err)
	}
	out := make([][2]float64, m.world)
	for r := range out {
		for i := range 2 {
			lo, hi := uint32(all[r*statWords+2*i]), uint32(all[r*statWords+2*i+1])
			out[r][i] = math.Float64frombits(uint64(lo) | uint64(hi)<<32)
		}
	}
	return out, nil
}
