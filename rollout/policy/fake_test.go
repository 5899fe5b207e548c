package policy

import (
	"encoding/binary"
	"hash/fnv"
	"sync/atomic"
	"testing"

	"harness-s/kernels"
)

// fakeDecoder samples by hashing the whole context, the weights and the draw's parameters, so that any mistake of
// the engine (a token lost, doubled or out of order, a wrong counter) changes what comes out. Used by one goroutine;
// the atomics are for tests that look on.
type fakeDecoder struct {
	t        testing.TB
	vocab    int32
	room     int // tokens over all open sequences
	used     int
	kept     map[string]bool // prefixes at multiples of the chunk
	weights  atomic.Int64
	computed atomic.Int64 // tokens given to Step
	entered  atomic.Int64 // steps begun
	steps    atomic.Int64 // steps past the gate
	opened   atomic.Int64 // open sequences
	widest   atomic.Int64
	gate     chan struct{} // if not nil, every step takes one
	stepErr  atomic.Pointer[error]
	boom     atomic.Bool // panic in the next step
	nan      atomic.Bool
}

type fakeSeq struct {
	ctx  []int32
	open bool
}

func newFake(t testing.TB, vocab, room int) *fakeDecoder {
	return &fakeDecoder{t: t, vocab: int32(vocab), room: room, kept: map[string]bool{}}
}

func key(ids []int32) string {
	b := make([]byte, 0, 4*len(ids))
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint32(b, uint32(id))
	}
	return string(b)
}

func (d *fakeDecoder) Open(prompt []int32) (Sequence, int, error) {
	if d.used+len(prompt) > d.room {
		return nil, 0, ErrFull
	}
	cached := 0
	for n := kernels.ChunkLen; n < len(prompt) && d.kept[key(prompt[:n])]; n += kernels.ChunkLen {
		cached = n
	}
	d.used += cached
	d.opened.Add(1)
	return &fakeSeq{ctx: append([]int32(nil), prompt[:cached]...), open: true}, cached, nil
}

func (d *fakeDecoder) Step(work []Work) ([]Result, error) {
	d.entered.Add(1)
	if d.gate != nil {
		<-d.gate
	}
	d.steps.Add(1)
	if d.boom.Swap(false) {
		panic("kernel fault")
	}
	if p := d.stepErr.Swap(nil); p != nil {
		return nil, *p
	}
	need := 0
	for _, w := range work {
		need += len(w.Tokens)
	}
	if d.used+need > d.room {
		return nil, ErrFull
	}
	d.used += need
	d.computed.Add(int64(need))
	d.widest.Store(max(d.widest.Load(), int64(len(work))))
	out := make([]Result, len(work))
	seen := map[*fakeSeq]bool{}
	for i, w := range work {
		s := w.Seq.(*fakeSeq)
		if !s.open || seen[s] || len(w.Tokens) == 0 {
			d.t.Errorf("work %d: open %v, twice %v, %d tokens", i, s.open, seen[s], len(w.Tokens))
		}
		seen[s] = true
		for _, id := range w.Tokens {
			s.ctx = append(s.ctx, id)
			if len(s.ctx)%kernels.ChunkLen == 0 {
				d.kept[key(s.ctx)] = true
			}
		}
		if w.Sample != nil {
			out[i] = d.draw(s.ctx, w)
		}
	}
	return out, nil
}

func (d *fakeDecoder) draw(ctx []int32, w Work) Result {
	h := fnv.New64a()
	binary.Write(h, binary.LittleEndian, ctx)
	binary.Write(h, binary.LittleEndian, []uint64{w.Sample.Seed, w.Sample.Counter, uint64(d.weights.Load())})
	v := h.Sum64()
	v ^= v >> 29
	r := Result{Sample: kernels.Sample{ID: int32(v % uint64(d.vocab)), Logprob: -float32(v>>40) / (1 << 20)}}
	if a := w.Sample.Allowed; a != nil {
		r.Sample.ID = a[v%uint64(len(a))]
	}
	if d.nan.Load() {
		r.Sample.Logprob = float32(nan())
	}
	for k := range w.TopK {
		r.Top = append(r.Top, Top{int32(k), -float32(k + 1)})
	}
	return r
}

func nan() float64 { z := 0.0; return z / z }

func (d *fakeDecoder) Close(seq Sequence) {
	s := seq.(*fakeSeq)
	if !s.open {
		d.t.Error("a sequence was closed twice")
	}
	s.open = false
	d.used -= len(s.ctx)
	d.opened.Add(-1)
}

func (d *fakeDecoder) Reset() {
	if d.opened.Load() != 0 {
		d.t.Error("reset with open sequences")
	}
	d.kept = map[string]bool{}
}

func (d *fakeDecoder) Used() float64 { return float64(d.used) / float64(d.room) }

// testEngine runs over a fake decoder and is closed with the test.
func testEngine(t testing.TB, d *fakeDecoder, opt EngineOptions) *Engine {
	t.Helper()
	if opt.MaxModelLen == 0 {
		opt.MaxModelLen = 512
	}
	opt.Vocab = int(d.vocab)
	e, err := NewEngine(d, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if d.gate != nil { // let a step under way go on
			select {
			case <-d.gate:
			default:
				close(d.gate)
			}
		}
		e.Close()
		if n := d.opened.Load(); n != 0 && e.Err() == nil && !t.Failed() {
			t.Logf("%d sequences open at the end", n)
		}
	})
	return e
}

func ids(n, from int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32((from + i*7) % 250)
	}
	return out
}

func greedy(n int) Params {
	return Params{N: 1, Seed: 7, Temperature: 1, TopP: 1, MaxTokens: n, IgnoreEOS: true}
}
