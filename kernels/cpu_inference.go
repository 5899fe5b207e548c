//go:build cgo

package kernels

/*
#include "mixer.h"
*/
import "C"

import (
	"fmt"
	"unsafe"
)

var _ Inference = (*cpuBackend)(nil)

// spanWords checks spans and lists them as the C side takes them; tokens is the batch's extent.
func spanWords(op string, spans []Span, states int) (list []C.int64_t, tokens int) {
	if len(spans) != states {
		panic(fmt.Sprintf("kernels: %s: %d spans with %d states or page lists", op, len(spans), states))
	}
	list = make([]C.int64_t, 0, 3*len(spans)+1)
	for i, s := range spans {
		if s.Row < 0 || s.Len < 1 || s.Pos < 0 {
			panic(fmt.Sprintf("kernels: %s: span %d is %+v", op, i, s))
		}
		tokens = max(tokens, s.Row+s.Len)
		list = append(list, C.int64_t(s.Row), C.int64_t(s.Len), C.int64_t(s.Pos))
	}
	return list, tokens
}

// addrs lists the buffers' addresses, each of at least n words.
func addrs(op, name string, bufs []Buffer, n int) []C.uintptr_t {
	out := make([]C.uintptr_t, 0, len(bufs)+1)
	for _, b := range bufs {
		need(op, name, b, n)
		out = append(out, addr(b))
	}
	return out
}

// ConvState is [K-1,Ch]: the last inputs, oldest first.
func (b *cpuBackend) ConvState(ch, k int) int {
	convShape("ConvState", ch, k)
	return (k - 1) * ch
}

// ConvSiLUExtend is ConvSiLU of the spans' new tokens.
func (b *cpuBackend) ConvSiLUExtend(y, x, w Buffer, states []Buffer, spans []Span, ch, k int) {
	convShape("ConvSiLUExtend", ch, k)
	list, T := spanWords("ConvSiLUExtend", spans, len(states))
	if len(spans) == 0 {
		return
	}
	need("ConvSiLUExtend", "y", y, T*ch)
	need("ConvSiLUExtend", "x", x, T*ch)
	need("ConvSiLUExtend", "w", w, ch*k)
	st := addrs("ConvSiLUExtend", "state", states, b.ConvState(ch, k))
	C.hs_conv_extend(b.ctx, addr(y), addr(x), addr(w), unsafe.SliceData(st), unsafe.SliceData(list), C.int64_t(len(spans)),
		C.int64_t(ch), C.int64_t(k))
}

// GDNState is S [Hv,Dk,Dv], then of the rows since the last multiple of ChunkLen: the cumulative gates [Hv,2,C], the
// normalised keys [Hk,Dk,C] and the corrected values [Hv,C,Dv].
func (b *cpuBackend) GDNState(s GDNShape) int {
	s.check("GDNState")
	return s.Hv*s.Dk*s.Dv + ChunkLen*(2*s.Hv+s.Hk*s.Dk+s.Hv*s.Dv)
}

// GDNExtend is GDN of the spans' new tokens.
func (b *cpuBackend) GDNExtend(o, qkv, g, beta Buffer, states []Buffer, spans []Span, s GDNShape) {
	s.check("GDNExtend")
	list, T := spanWords("GDNExtend", spans, len(states))
	if len(spans) == 0 {
		return
	}
	need("GDNExtend", "o", o, T*s.Hv*s.Dv)
	need("GDNExtend", "qkv", qkv, T*s.Channels())
	need("GDNExtend", "g", g, T*s.Hv)
	need("GDNExtend", "beta", beta, T*s.Hv)
	st := addrs("GDNExtend", "state", states, b.GDNState(s))
	C.hs_gdn_extend(b.ctx, addr(o), addr(qkv), addr(g), addr(beta), unsafe.SliceData(st), unsafe.SliceData(list),
		C.int64_t(len(spans)), C.int64_t(s.Hk), C.int64_t(s.Hv), C.int64_t(s.Dk), C.int64_t(s.Dv))
}

// KVPage is keys [Hk,D,C] and values [Hk,C,D].
func (b *cpuBackend) KVPage(s AttnShape) int {
	s.check("KVPage")
	return 2 * s.Hk * s.D * ChunkLen
}

// AttentionExtend is Attention of the spans' new tokens over all tokens so far.
func (b *cpuBackend) AttentionExtend(o, q, k, v Buffer, pages [][]Buffer, spans []Span, s AttnShape) {
	s.check("AttentionExtend")
	list, T := spanWords("AttentionExtend", spans, len(pages))
	if len(spans) == 0 {
		return
	}
	need("AttentionExtend", "o", o, T*s.Hq*s.D)
	need("AttentionExtend", "q", q, T*s.Hq*s.D)
	need("AttentionExtend", "k", k, T*s.Hk*s.D)
	need("AttentionExtend", "v", v, T*s.Hk*s.D)
	var flat []C.uintptr_t
	page0 := make([]C.int64_t, len(spans))
	for i, sp := range spans {
		n := (sp.Pos + sp.Len + ChunkLen - 1) / ChunkLen
		if len(pages[i]) < n {
			panic(fmt.Sprintf("kernels: AttentionExtend: span %d has %d pages, needs %d", i, len(pages[i]), n))
		}
		page0[i] = C.int64_t(len(flat))
		flat = append(flat, addrs("AttentionExtend", "page", pages[i][:n], b.KVPage(s))...)
	}
	C.hs_attn_extend(b.ctx, addr(o), addr(q), addr(k), addr(v), unsafe.SliceData(flat), unsafe.SliceData(page0),
		unsafe.SliceData(list), C.int64_t(len(spans)), C.int64_t(s.Hq), C.int64_t(s.Hk), C.int64_t(s.D))
}
