package kernels

import (
	"errors"
	"fmt"
	"sync"

	"harness-s/cuda"
)

// ranks is a backend's part in the exchange between devices. With one rank stream and comm are nil.
type ranks struct {
	rank, world int
	stream      *cuda.Stream // collectives run here, beside the compute stream
	comm        *cuda.Comm
	ready       *cuda.Event // of the compute stream, before a collective
	done        [8]*cuda.Event
	marks       Mark   // collectives queued so far
	received    Buffer // a reduce-scatter's result before it is added
}

// JoinRanks makes backends, opened Apart, the ranks first, first+1, ... of the world ranks of a communicator. It returns
// when the ranks of all processes have joined, which it waits for without end.
func JoinRanks(list []Flat, id CommID, first, world int) error {
	errs := make([]error, len(list))
	var wg sync.WaitGroup
	for i, f := range list {
		wg.Go(func() { errs[i] = f.(*cudaBackend).join(id, first+i, world) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (b *cudaBackend) join(id CommID, rank, world int) (err error) {
	r := &b.ranks
	if r.comm, err = b.dev.Join(id, rank, world); err != nil {
		return fmt.Errorf("rank %d of %d: %w", rank, world, err)
	}
	r.rank, r.world = rank, world
	if r.stream, err = b.dev.NewStream("collectives"); err != nil {
		return err
	}
	if r.ready, err = b.dev.NewEvent(false); err != nil {
		return err
	}
	for i := range r.done {
		if r.done[i], err = b.dev.NewEvent(false); err != nil {
			return err
		}
	}
	return nil
}

func (r *ranks) close() {
	if r.comm != nil {
		r.comm.Close()
	}
}

// Fail makes err the device's error, which the next Sync returns. Collectives that wait for other ranks end.
func (b *cudaBackend) Fail(err error) { b.dev.Fail("training", err) }

// Rank is this backend's place among all ranks.
func (b *cudaBackend) Rank() (rank, world int) { return b.ranks.rank, b.ranks.world }

// collective queues f on the collectives' stream, behind the work queued so far on the compute stream.
func (b *cudaBackend) collective(f func(c *cuda.Comm, s *cuda.Stream)) Mark {
	r := &b.ranks
	if r.comm == nil {
		return 0
	}
	b.stream.Record(r.ready)
	r.stream.Wait(r.ready)
	f(r.comm, r.stream)
	r.marks++
	r.stream.Record(r.done[int(r.marks)%len(r.done)])
	return r.marks
}

// After makes later work wait for the collective. Its own event may have been used again by a later collective of the
// same stream, which is done no sooner.
func (b *cudaBackend) After(m Mark) {
	if r := &b.ranks; m > 0 && r.comm != nil {
		b.stream.Wait(r.done[int(m)%len(r.done)])
	}
}

// ReduceScatterAdd: dst += the sum over ranks of the rank-th piece of src.
func (b *cudaBackend) ReduceScatterAdd(dst, src Buffer, n int) Mark {
	r := &b.ranks
	need("ReduceScatterAdd", "dst", dst, n)
	need("ReduceScatterAdd", "src", src, n*r.world)
	if r.comm == nil {
		b.addWords(b.stream, dst, src, n)
		return 0
	}
	if n > r.received.n {
		if err := b.growReceived(n); err != nil {
			b.dev.Fail("reduce-scatter", err)
			return 0
		}
	}
	return b.collective(func(c *cuda.Comm, s *cuda.Stream) {
		c.ReduceScatter(s, ptr(r.received), ptr(src), n, cuda.F32)
		b.addWords(s, dst, r.received, n)
	})
}

func (b *cudaBackend) growReceived(n int) error {
	b.Free(b.ranks.received)
	b.ranks.received = Buffer{}
	buf, err := b.Alloc("reduce-scatter", n)
	if err != nil {
		return err
	}
	b.ranks.received = buf
	return b.stream.Sync() // its zeroing is queued on the compute stream
}

// AllGather: piece r of buf is what rank r had there.
func (b *cudaBackend) AllGather(buf Buffer, n int) Mark {
	if n%2 != 0 {
		panic(fmt.Sprintf("kernels: AllGather of %d activations a rank: want an even number", n))
	}
	return b.gatherPieces("AllGather", buf, b.Words(n), n, cuda.DType(b.dtype))
}

// AllGatherWords is AllGather of 4-byte words.
func (b *cudaBackend) AllGatherWords(buf Buffer, n int) Mark {
	return b.gatherPieces("AllGatherWords", buf, n, n, cuda.F32)
}

func (b *cudaBackend) gatherPieces(op string, buf Buffer, words, n int, t cuda.DType) Mark {
	need(op, "buf", buf, words*b.ranks.world)
	return b.collective(func(c *cuda.Comm, s *cuda.Stream) {
		c.AllGather(s, ptr(buf), ptr(buf.Slice(b.ranks.rank*words, words)), n, t)
	})
}

// AllReduce: buf = the sum over ranks of buf.
func (b *cudaBackend) AllReduce(buf Buffer, n int) Mark {
	need("AllReduce", "buf", buf, n)
	return b.collective(func(c *cuda.Comm, s *cuda.Stream) { c.AllReduce(s, ptr(buf), n, cuda.F32) })
}
