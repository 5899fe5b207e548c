//go:build cgo && linux

package kernels

import (
	"math"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"unsafe"
)

// farRow is so far down that its first word is beyond 32 bits, signed or not, in every buffer of farWidth words a row.
const (
	farRow   = 1_100_000
	farWidth = 4096 // the least; farRow*farWidth is 4.5e9
)

// sparse is a buffer of n zeros that takes address space and, where it is touched, a few pages of memory.
func (r *rig) sparse(n int) Buffer {
	r.Helper()
	mem, err := syscall.Mmap(-1, 0, 4*n, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE)
	if err != nil {
		r.Skipf("no %d GB of address space: %v", 4*n>>30, err)
	}
	r.Cleanup(func() {
		if err := syscall.Munmap(mem); err != nil {
			r.Error(err)
		}
	})
	return Buffer{uintptr(unsafe.Pointer(unsafe.SliceData(mem))), n}
}

// far is a sparse buffer with v at row `row` of v's own width.
func (r *rig) far(v []float32, row, rows int) Buffer {
	width := len(v) / rows
	b := r.sparse((row + rows) * width)
	r.Upload(b.Slice(row*width, len(v)), v)
	return b
}

// TestFarOffsets: rows beyond 2^32 words are read and written where they are.
func TestFarOffsets(t *testing.T) {
	eachISA(t, func(t *testing.T, isa string) {
		r := newRig(t, isa, 2)
		const H = farWidth + 1
		row := r.normal(H, 1)
		ids := r.ints([]int32{farRow})
		y := r.fill(H, nan32)
		r.Embed(y, ids, Weight{Master: r.far(row, farRow, 1), Out: farRow + 1, In: H}, 1)
		sameBits(t, "embed", r.get(y), row)

		dw := r.sparse((farRow + 1) * H)
		r.EmbedBackward(dw, y, ids, 1, H, farRow+1)
		sameBits(t, "embed backward", r.get(dw.Slice(farRow*H, H)), row)

		// the head picks its rows out of all hidden states
		const V = 3
		w := r.weight(r.normal(V*H, 0.01), V, H)
		logp, entropy, lse := r.fill(farRow+1, nan32), r.fill(farRow+1, nan32), r.fill(farRow+1, nan32)
		targets := make([]int32, farRow+1)
		for i := range targets {
			targets[i] = -1
		}
		targets[farRow] = 1
		r.HeadForward(logp, entropy, lse, r.far(row, farRow, 1), w, r.ints(targets), farRow+1, 1)
		one := r.fill(1, nan32)
		r.HeadForward(one, r.fill(1, nan32), r.fill(1, nan32), r.buf(row), w, r.ints([]int32{1}), 1, 1)
		sameBits(t, "head", r.get(logp.Slice(farRow, 1)), r.get(one))
	})
}

// TestFarSpans: the inference ops find a span beyond 2^32 words of a packed batch, with the bits of one at its start.
func TestFarSpans(t *testing.T) {
	eachISA(t, func(t *testing.T, isa string) {
		r := newRig(t, isa, 2)
		const n = 3
		nan := float32(math.NaN())
		near, far := []Span{{Row: 0, Len: n}}, []Span{{Row: farRow, Len: n}}

		const ch, k = farWidth, 4
		x, w := r.normal(n*ch, 1), r.buf(r.normal(ch*k, 1))
		state := func(n int) []Buffer { return []Buffer{r.fill(n, 0)} }
		want, got := r.fill(n*ch, nan), r.sparse((farRow+n)*ch)
		r.ConvSiLUExtend(want, r.buf(x), w, state(r.ConvState(ch, k)), near, ch, k)
		r.ConvSiLUExtend(got, r.far(x, farRow, n), w, state(r.ConvState(ch, k)), far, ch, k)
		sameBits(t, "conv", r.get(got.Slice(farRow*ch, n*ch)), r.get(want))

		s := GDNShape{Hk: 32, Hv: 64, Dk: 32, Dv: 64}
		qkv, g, beta := gdnInputs(r, gdnCase{s, nil, "mixed"}, n)
		width := s.Hv * s.Dv
		want, got = r.fill(n*width, nan), r.sparse((farRow+n)*width)
		r.GDNExtend(want, r.buf(qkv), r.buf(g), r.buf(beta), state(r.GDNState(s)), near, s)
		r.GDNExtend(got, r.far(qkv, farRow, n), r.far(g, farRow, n), r.far(beta, farRow, n), state(r.GDNState(s)), far, s)
		sameBits(t, "gdn", r.get(got.Slice(farRow*width, n*width)), r.get(want))

		a := AttnShape{Hq: 64, Hk: 64, D: 64}
		in := attnInputs(r, a, n)
		width = a.Hq * a.D
		want, got = r.fill(n*width, nan), r.sparse((farRow+n)*width)
		page := func() [][]Buffer { return [][]Buffer{state(r.KVPage(a))} }
		r.AttentionExtend(want, r.buf(in[0]), r.buf(in[1]), r.buf(in[2]), page(), near, a)
		r.AttentionExtend(got, r.far(in[0], farRow, n), r.far(in[1], farRow, n), r.far(in[2], farRow, n), page(), far, a)
		sameBits(t, "attention", r.get(got.Slice(farRow*width, n*width)), r.get(want))
	})
}

// TestNoNarrowIndex: nothing in C turns a 64-bit count or offset into a 32-bit one unasked, in the ops that cannot be
// run on gigabytes here either. The compiler that builds the package is asked.
func TestNoNarrowIndex(t *testing.T) {
	cc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc")
	}
	files, _ := filepath.Glob("*.c")
	if len(files) < 5 {
		t.Fatalf("C files: %v", files)
	}
	for _, f := range files {
		out, err := exec.Command(cc, "-std=c11", "-fsyntax-only", "-Wno-psabi", "-Wconversion", "-Wno-sign-conversion",
			"-Wno-float-conversion", "-Werror", f).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", f, err, out)
		}
	}
}
