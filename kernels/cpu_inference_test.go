//go:build cgo

package kernels

import (
	"fmt"
	"math"
	"testing"
)

// splitPlan cuts rows into calls: each call extends some of the rows by some tokens, in a packed batch with a gap
// and in shuffled order.
type splitPlan struct {
	spans  []Span
	row    []int // of each span
	tokens int
}

// nextCall draws a call that moves some unfinished rows on; done is updated. First calls are long, later ones
// one token, small or large steps, as serving does.
func nextCall(r *rig, seg Segments, done []int) splitPlan {
	var p splitPlan
	for _, row := range r.rng.Perm(seg.Rows()) {
		left := int(seg.Cu[row+1]-seg.Cu[row]) - done[row]
		if left == 0 || r.rng.IntN(4) == 0 {
			continue
		}
		n := 1 + r.rng.IntN([]int{1, 1, 3, 20, 100}[r.rng.IntN(5)])
		n = min(n, left)
		p.tokens += r.rng.IntN(3) // a gap that no span covers
		p.spans = append(p.spans, Span{Row: p.tokens, Len: n, Pos: done[row]})
		p.row = append(p.row, row)
		p.tokens += n
		done[row] += n
	}
	return p
}

// pack copies the spans' part of a [T,width] array to where the call wants it; unpack brings results back.
func (p splitPlan) pack(src []float32, seg Segments, width int) []float32 {
	out := make([]float32, p.tokens*width)
	for i := range out {
		out[i] = float32(math.NaN())
	}
	for i, s := range p.spans {
		copy(out[s.Row*width:], src[(int(seg.Cu[p.row[i]])+s.Pos)*width:][:s.Len*width])
	}
	return out
}

func (p splitPlan) unpack(dst, got []float32, seg Segments, width int) {
	for i, s := range p.spans {
		copy(dst[(int(seg.Cu[p.row[i]])+s.Pos)*width:][:s.Len*width], got[s.Row*width:])
	}
}

// inSplits runs extend over random splits of the rows until all are done and returns the outputs [T,outWidth].
func inSplits(r *rig, seg Segments, ins [][]float32, inWidths []int, outWidth int, extend func(p splitPlan, o Buffer, ins []Buffer)) []float32 {
	done := make([]int, seg.Rows())
	out := make([]float32, seg.Tokens()*outWidth)
	for total := 0; total < seg.Tokens(); {
		p := nextCall(r, seg, done)
		if len(p.spans) == 0 {
			continue
		}
		bufs := make([]Buffer, len(ins))
		for i := range ins {
			bufs[i] = r.buf(p.pack(ins[i], seg, inWidths[i]))
		}
		o := r.fill(p.tokens*outWidth, float32(math.NaN()))
		extend(p, o, bufs)
		p.unpack(out, r.get(o), seg, outWidth)
		total = 0
		for _, n := range done {
			total += n
		}
	}
	return out
}

// states are zeroed buffers of n words per row.
func states(r *rig, rows, n int) []Buffer {
	out := make([]Buffer, rows)
	for i := range out {
		out[i] = r.fill(n, 0)
	}
	return out
}

func pick[E any](all []E, which []int) []E {
	out := make([]E, len(which))
	for i, w := range which {
		out[i] = all[w]
	}
	return out
}

var splitRows = []int{1, 2, 3, 64, 65, 150, 200}

// TestInferenceSplits: however rows are cut into calls and whoever shares the call, the bits are Mixer's.
func TestInferenceSplits(t *testing.T) {
	eachISA(t, func(t *testing.T, isa string) {
		seg := segments(splitRows...)
		T := seg.Tokens()
		for threads := 1; threads <= 3; threads++ {
			t.Run(fmt.Sprint(threads), func(t *testing.T) {
				r := newRig(t, isa, threads)
				r.rng.Uint64() // another stream for each number of threads
				for range threads {
					r.rng.Uint64()
				}
				for _, k := range []int{2, 4} {
					const ch = 40
					x, w := r.normal(T*ch, 1), r.buf(r.normal(ch*k, 1))
					want := r.fill(T*ch, 0)
					r.ConvSiLU(want, r.buf(x), Weight{Master: w, Out: ch, In: k}, seg)
					st := states(r, seg.Rows(), r.ConvState(ch, k))
					got := inSplits(r, seg, [][]float32{x}, []int{ch}, ch, func(p splitPlan, o Buffer, in []Buffer) {
						r.ConvSiLUExtend(o, in[0], w, pick(st, p.row), p.spans, ch, k)
					})
					sameBits(t, "conv", got, r.get(want))
				}
				for _, s := range []GDNShape{{Hk: 2, Hv: 2, Dk: 32, Dv: 32}, {Hk: 1, Hv: 3, Dk: 24, Dv: 40}} {
					qkv, g, beta := gdnInputs(r, gdnCase{s, nil, "mixed"}, T)
					want := r.fill(T*s.Hv*s.Dv, 0)
					r.GDN(want, Buffer{}, r.buf(qkv), r.buf(g), r.buf(beta), s, seg)
					st := states(r, seg.Rows(), r.GDNState(s))
					got := inSplits(r, seg, [][]float32{qkv, g, beta}, []int{s.Channels(), s.Hv, s.Hv}, s.Hv*s.Dv,
						func(p splitPlan, o Buffer, in []Buffer) {
							r.GDNExtend(o, in[0], in[1], in[2], pick(st, p.row), p.spans, s)
						})
					sameBits(t, "gdn", got, r.get(want))
				}
				for _, s := range []AttnShape{attnCases[0], attnCases[2]} {
					in := attnInputs(r, s, T)[:3]
					want := r.fill(T*s.Hq*s.D, 0)
					r.Attention(want, Buffer{}, r.buf(in[0]), r.buf(in[1]), r.buf(in[2]), s, seg)
					pages := make([][]Buffer, seg.Rows())
					for i := range pages {
						pages[i] = states(r, 4, r.KVPage(s))
						for _, p := range pages[i] { // pages are used again without being cleared
							r.Upload(p, r.normal(p.Len(), 1))
						}
					}
					got := inSplits(r, seg, in, []int{s.Hq * s.D, s.Hk * s.D, s.Hk * s.D}, s.Hq*s.D,
						func(p splitPlan, o Buffer, in []Buffer) {
							r.AttentionExtend(o, in[0], in[1], in[2], pick(pages, p.row), p.spans, s)
						})
					sameBits(t, "attention", got, r.get(want))
				}
			})
		}
	})
}

// TestGDNResume: at a multiple of the chunk the state's first Hv·Dk·Dv words are all that matters.
func TestGDNResume(t *testing.T) {
	eachISA(t, func(t *testing.T, isa string) {
		r := newRig(t, isa, 2)
		s, seg := GDNShape{Hk: 1, Hv: 2, Dk: 24, Dv: 40}, segments(200)
		qkv, g, beta := gdnInputs(r, gdnCase{s, nil, "mixed"}, 200)
		want := r.fill(200*s.Hv*s.Dv, 0)
		r.GDN(want, Buffer{}, r.buf(qkv), r.buf(g), r.buf(beta), s, seg)
		state := r.fill(r.GDNState(s), 0)
		run := func(st Buffer, from, to int) []float32 {
			o := r.fill((to-from)*s.Hv*s.Dv, float32(math.NaN()))
			r.GDNExtend(o, r.buf(qkv[from*s.Channels():to*s.Channels()]), r.buf(g[from*s.Hv:to*s.Hv]), r.buf(beta[from*s.Hv:to*s.Hv]),
				[]Buffer{st}, []Span{{Row: 0, Len: to - from, Pos: from}}, s)
			return r.get(o)
		}
		for at := 64; at <= 128; at += 64 {
			run(state, at-64, at)
			n := s.Hv * s.Dk * s.Dv
			kept := r.fill(r.GDNState(s), 0)
			r.Copy(kept, state.Slice(0, n))
			got := append(run(kept, at, at+1), run(kept, at+1, 200)...)
			sameBits(t, fmt.Sprint("resumed at ", at), got, r.get(want)[at*s.Hv*s.Dv:])
		}
	})
}
