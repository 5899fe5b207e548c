package kernels

import "slices"

// segmentCache keeps the last batch's row bounds on the device: all layers of a pass ask for the same.
type segmentCache struct {
	cu   []int32 // the host's copy, to compare
	buf  Buffer
	last deviceSegments
}

// deviceSegments are a packed batch's rows as kernels read them, int32 each. Chunks are ChunkLen tokens of one row,
// counted from the row's start; the last of a row may be shorter.
type deviceSegments struct {
	rows, tokens, chunks int
	longest              int    // tokens of the longest row
	cu                   Buffer // [rows+1] first token of each row
	rowOf                Buffer // [tokens] each token's row
	firstChunk           Buffer // [rows+1] first chunk of each row
	chunkRow, chunkAt    Buffer // [chunks] each chunk's row and first token
}

// segments is seg on the device. It stays valid until segments is called with other rows.
func (b *cudaBackend) segments(seg Segments) deviceSegments {
	c := &b.seg
	if slices.Equal(c.cu, seg.Cu) && len(seg.Cu) > 0 {
		return c.last
	}
	host, d := layoutSegments(seg)
	if len(host) > c.buf.n {
		b.Free(c.buf)
		c.buf = Buffer{}
		buf, err := b.Alloc("row bounds", 2*len(host))
		if err != nil {
			b.dev.Fail("row bounds", err)
			buf = Buffer{b.failPtr(), len(host)}
		}
		c.buf = buf
	}
	b.UploadInts(c.buf, host)
	at := 0
	for _, f := range []*Buffer{&d.cu, &d.rowOf, &d.firstChunk, &d.chunkRow, &d.chunkAt} {
		*f = c.buf.Slice(at, f.n)
		at += f.n
	}
	c.cu, c.last = append(c.cu[:0], seg.Cu...), d
	return d
}

// layoutSegments computes the arrays, one after another; the buffers returned have lengths only.
func layoutSegments(seg Segments) ([]int32, deviceSegments) {
	rowOf := make([]int32, 0, seg.Tokens())
	var first, chunkRow, chunkAt []int32
	d := deviceSegments{rows: seg.Rows(), tokens: seg.Tokens()}
	for r := range seg.Rows() {
		lo, hi := seg.Cu[r], seg.Cu[r+1]
		d.longest = max(d.longest, int(hi-lo))
		first = append(first, int32(len(chunkRow)))
		for t := lo; t < hi; t++ {
			if (t-lo)%ChunkLen == 0 {
				chunkRow, chunkAt = append(chunkRow, int32(r)), append(chunkAt, t)
			}
			rowOf = append(rowOf, int32(r))
		}
	}
	first = append(first, int32(len(chunkRow)))
	d.chunks = len(chunkRow)
	d.cu.n, d.rowOf.n, d.firstChunk.n, d.chunkRow.n, d.chunkAt.n = len(seg.Cu), len(rowOf), len(first), d.chunks, d.chunks
	return slices.Concat(seg.Cu, rowOf, first, chunkRow, chunkAt), d
}
