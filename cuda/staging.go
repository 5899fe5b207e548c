package cuda

/*
#cgo nocallback hs_copy_in
#cgo nocallback hs_copy_out
#include "shim.h"
*/
import "C"

import "unsafe"

const (
	slotBytes = 4 << 20
	slots     = 4
	slotAlign = 256
)

// staging is a ring of pinned slots for a stream's copies between host and device: the driver reads and writes them while
// the host goes on. Small copies share a slot, so that many of them do not wait for the work queued before them; large
// ones are cut into slots, of which some are on the way while the host fills or empties others.
type staging struct {
	s     *Stream
	base  unsafe.Pointer // slots · slotBytes, not of the Go heap; nil until needed
	event [slots]C.uintptr_t
	busy  [slots]bool // sealed and not yet seen to be done
	cur   int
	used  int // bytes of slot cur
}

func (s *Stream) stage() *staging {
	if s.staging == nil {
		s.staging = &staging{s: s}
	}
	return s.staging
}

func (g *staging) open() C.int {
	if g.base != nil {
		return 0
	}
	c := g.s.d.c
	for i := range g.event {
		if g.event[i] == 0 {
			if code := C.hs_event_create(c, 0, &g.event[i]); code != 0 {
				return code
			}
		}
	}
	return C.hs_host_alloc(c, slots*slotBytes, &g.base)
}

func (g *staging) close() {
	for _, e := range g.event {
		if e != 0 {
			C.hs_event_destroy(g.s.d.c, e)
		}
	}
	if g.base != nil {
		C.hs_host_free(g.s.d.c, g.base)
	}
}

// seal ends the use of the present slot: it is free again when the stream has come here.
func (g *staging) seal() C.int {
	code := C.hs_event_record(g.s.d.c, g.event[g.cur], g.s.h)
	g.busy[g.cur] = true
	g.cur, g.used = (g.cur+1)%slots, 0
	return code
}

// done waits until slot i is free.
func (g *staging) done(i int) C.int {
	if !g.busy[i] {
		return 0
	}
	g.busy[i] = false
	return g.s.d.wait(func() C.int { return C.hs_event_sync(g.s.d.c, g.event[i]) })
}

// place finds room for n <= slotBytes bytes in one slot.
func (g *staging) place(n int) (unsafe.Pointer, C.int) {
	if g.used+n > slotBytes {
		if code := g.seal(); code != 0 {
			return nil, code
		}
	}
	if code := g.done(g.cur); code != 0 {
		return nil, code
	}
	p := unsafe.Add(g.base, g.cur*slotBytes+g.used)
	g.used = min(slotBytes, (g.used+n+slotAlign-1)/slotAlign*slotAlign)
	return p, 0
}

func (g *staging) in(dst Ptr, src []byte) C.int {
	if code := g.open(); code != 0 {
		return code
	}
	for off := 0; off < len(src); {
		part := src[off:min(off+slotBytes, len(src))]
		p, code := g.place(len(part))
		if code != 0 {
			return code
		}
		copy(unsafe.Slice((*byte)(p), len(part)), part)
		if code := C.hs_copy_in(g.s.d.c, C.uint64_t(dst)+C.uint64_t(off), p, C.size_t(len(part)), g.s.h); code != 0 {
			return code
		}
		off += len(part)
	}
	return 0
}

// out keeps up to `slots` parts on the way. Each has a slot of its own, emptied before the slot comes round again.
func (g *staging) out(dst []byte, src Ptr) C.int {
	if code := g.open(); code != 0 {
		return code
	}
	if g.used > 0 {
		if code := g.seal(); code != 0 {
			return code
		}
	}
	parts, first := (len(dst)+slotBytes-1)/slotBytes, g.cur
	for i := range parts + slots - 1 {
		if i < parts {
			if code := g.fetch(part(dst, i), src+Ptr(i*slotBytes)); code != 0 {
				return code
			}
		}
		if j := i - slots + 1; j >= 0 && j < parts {
			slot := (first + j) % slots
			if code := g.done(slot); code != 0 {
				return code
			}
			copy(part(dst, j), unsafe.Slice((*byte)(unsafe.Add(g.base, slot*slotBytes)), slotBytes))
		}
	}
	return 0
}

func part(b []byte, i int) []byte { return b[i*slotBytes : min((i+1)*slotBytes, len(b))] }

// fetch queues one part into a slot of its own.
func (g *staging) fetch(dst []byte, src Ptr) C.int {
	p, code := g.place(slotBytes)
	if code == 0 {
		code = C.hs_copy_out(g.s.d.c, p, C.uint64_t(src), C.size_t(len(dst)), g.s.h)
	}
	if code == 0 {
		code = g.seal()
	}
	return code
}
