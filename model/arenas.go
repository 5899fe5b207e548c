package model

import (
	"errors"
	"fmt"

	"harness-s/kernels"
)

// bucket is a run of the decaying arena that is exchanged between ranks at once: the embedding, a layer's matrices, or the
// head. Its words are a multiple of the ranks' number; rank r owns the r-th piece.
type bucket struct{ off, words int }

// arena holds one value for each parameter that this rank owns: its pieces of the buckets, one after another, and all of
// the plain parameters, which every rank has.
type arena struct {
	be           kernels.Backend // where the pieces lie
	pieces       kernels.Buffer  // [decayWords/world]
	plain        kernels.Buffer  // [words-decayWords], on the model's backend
	whole        kernels.Buffer  // both, where they are one allocation
	plainBackend kernels.Backend
}

// newArena allocates a zeroed arena. The pieces lie on the model's backend, or on the host when it offloads.
func (m *Model) newArena(purpose string, pieces kernels.Backend) (arena, error) {
	own, plain := m.decayWords/m.world, m.words-m.decayWords
	a := arena{be: pieces, plainBackend: m.be}
	var err error
	if pieces == m.be {
		if a.whole, err = m.be.Alloc(purpose, own+plain); err != nil {
			return arena{}, err
		}
		a.pieces, a.plain = a.whole.Slice(0, own), a.whole.Slice(own, plain)
		return a, nil
	}
	if a.pieces, err = pieces.Alloc(purpose, own); err != nil {
		return arena{}, err
	}
	if a.plain, err = m.be.Alloc(purpose, plain); err != nil {
		pieces.Free(a.pieces)
		return arena{}, err
	}
	return a, nil
}

func (a *arena) free() {
	if a.be == nil {
		return
	}
	if !a.whole.IsNil() {
		a.be.Free(a.whole)
	} else {
		a.be.Free(a.pieces)
		a.plainBackend.Free(a.plain)
	}
	*a = arena{}
}

// piece is this rank's part of a bucket.
func (m *Model) piece(a *arena, b bucket) kernels.Buffer {
	return a.pieces.Slice(b.off/m.world, b.words/m.world)
}

// sharded says whether other ranks own parts of the parameters.
func (m *Model) sharded() bool { return m.world > 1 }

// computePiece is this rank's part of a bucket's compute copies, which a Flat backend has.
func (m *Model) computePiece(b bucket) kernels.Buffer {
	n := b.words / m.world
	return m.compute.Slice(m.be.Words(b.off+m.rank*n), m.be.Words(n))
}

// local is a whole parameter of an arena, where this rank has it: a plain one, or any without sharding.
func (m *Model) local(a *arena, p *Param) (kernels.Backend, kernels.Buffer) {
	if p.Decay {
		return a.be, a.pieces.Slice(p.off, p.size())
	}
	return m.be, a.plain.Slice(p.off-m.decayWords, p.size())
}

// fetch is a whole parameter of an arena, gathered from all ranks, which must call it with the same parameters in the same
// order. It stays valid until the next fetch.
func (m *Model) fetch(a *arena, p *Param) (kernels.Backend, kernels.Buffer, error) {
	if !p.Decay || !m.sharded() {
		be, buf := m.local(a, p)
		return be, buf, nil
	}
	b := m.buckets[p.bucket]
	if m.gathered.arena != a || m.gathered.bucket != p.bucket {
		if err := m.gather(a, b); err != nil {
			return nil, kernels.Buffer{}, err
		}
		m.gathered.arena, m.gathered.bucket = a, p.bucket
	}
	return m.be, m.gathered.buf.Slice(p.off-b.off, p.size()), nil
}

// gathered is the bucket last fetched.
type gathered struct {
	buf    kernels.Buffer // [the largest bucket's words]
	arena  *arena
	bucket int
	count  int // gathers since the buffer was made
}

func (m *Model) gather(a *arena, b bucket) error {
	g := &m.gathered
	if g.buf.IsNil() {
		most := 0
		for _, b := range m.buckets {
			most = max(most, b.words)
		}
		var err error
		if g.buf, err = m.be.Alloc("checkpoint", most); err != nil {
			return err
		}
	}
	g.count++
	n := b.words / m.world
	if err := transfer(m.be, g.buf.Slice(m.rank*n, n), a.be, m.piece(a, b)); err != nil {
		return err
	}
	m.flat.After(m.flat.AllGatherWords(g.buf.Slice(0, b.words), n))
	return nil
}

// endFetch frees what fetch needed.
func (m *Model) endFetch() {
	m.be.Free(m.gathered.buf)
	m.gathered = gathered{}
}

// transferWords bounds the host memory of a transfer between backends.
const transferWords = 1 << 20

// transfer copies all of src to dst, which may lie on another backend.
func transfer(dstBackend kernels.Backend, dst kernels.Buffer, srcBackend kernels.Backend, src kernels.Buffer) error {
	if dstBackend == srcBackend {
		dstBackend.Copy(dst, src)
		return nil
	}
	host := make([]float32, min(src.Len(), transferWords))
	for off := 0; off < src.Len(); off += len(host) {
		n := min(len(host), src.Len()-off)
		srcBackend.Download(host[:n], src.Slice(off, n))
		dstBackend.Upload(dst.Slice(off, n), host[:n])
	}
	return errors.Join(srcBackend.Sync(), dstBackend.Sync())
}

// setValues sets every parameter to what fill gives, piece by piece, and makes the compute copies.
func (m *Model) setValues(fill func(p *Param, values []float32) error) error {
	var values []float32
	for i := range m.params {
		p := &m.params[i]
		values = append(values[:0], make([]float32, p.size())...)
		if err := fill(p, values); err != nil {
			return err
		}
		if err := m.setParam(p, values); err != nil {
			return err
		}
	}
	m.Repack()
	if err := m.be.Sync(); err != nil {
		return fmt.Errorf("upload weights: %w", err)
	}
	return nil
}

// setParam sets one parameter's master and, on a Flat backend, its compute copy.
func (m *Model) setParam(p *Param, values []float32) error {
	m.upload(&m.w, p, values)
	if m.flat == nil || !p.Decay {
		return nil
	}
	stage, err := m.be.Alloc("loading", len(values))
	if err != nil {
		return err
	}
	defer m.be.Free(stage)
	m.be.Upload(stage, values)
	m.flat.Cast(m.compute.Slice(m.be.Words(p.off), m.be.Words(p.size())), stage, p.size())
	return nil
}

// upload writes this rank's part of a parameter's values to an arena.
func (m *Model) upload(a *arena, p *Param, values []float32) {
	if !p.Decay || !m.sharded() {
		be, buf := m.local(a, p)
		be.Upload(buf, values)
		return
	}
	b := m.buckets[p.bucket]
	n := b.words / m.world
	first, last := b.off+m.rank*n, b.off+(m.rank+1)*n // words of the decaying arena that this rank owns
	lo, hi := max(first, p.off), min(last, p.off+p.size())
	if lo < hi {
		a.be.Upload(m.piece(a, b).Slice(lo-first, hi-lo), values[lo-p.off:hi-p.off])
	}
}
