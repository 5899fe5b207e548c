package cuda

/*
#include "shim.h"
*/
import "C"

// Graph is work captured once and launched as one.
type Graph struct {
	d    *Device
	h    C.uintptr_t
	name string
}

// BeginCapture makes the stream collect work instead of running it, until EndCapture. Launches, products, copies
// between device buffers, zeros, events and collectives can be captured; copies from and to the host, Alloc, Free and
// Sync cannot. Work that makes something on first use (a product's algorithm) must have run once before.
func (s *Stream) BeginCapture() {
	o := op{kind: opOther, name: "begin capture of stream " + s.name}
	if s.outside(o) && s.d.check(C.hs_capture_begin(s.d.c, s.h), o) {
		s.capturing = true
	}
}

// EndCapture gives what was collected. The error is the device's, which stays sticky.
func (s *Stream) EndCapture(name string) (*Graph, error) {
	if !s.capturing {
		if err := s.d.Err(); err != nil {
			return nil, err
		}
		panic("cuda: end of a capture that was not begun")
	}
	s.capturing = false
	g := &Graph{d: s.d, name: name}
	o := op{kind: opOther, name: "end capture of " + name}
	code := C.hs_capture_end(s.d.c, s.h, &g.h)
	if err := s.d.Err(); err != nil { // work was skipped: what was collected is not whole
		if code == 0 {
			C.hs_graph_destroy(s.d.c, g.h)
		}
		return nil, err
	}
	if !s.d.check(code, o) {
		return nil, s.d.Err()
	}
	return g, nil
}

// Launch queues the graph's work on s, a stream of the same device.
func (g *Graph) Launch(s *Stream) {
	o := op{kind: opOther, name: "graph " + g.name}
	if s.begin(o) {
		s.d.check(C.hs_graph_launch(s.d.c, g.h, s.h), o)
	}
}

// Close releases the graph.
func (g *Graph) Close() {
	g.d.check(C.hs_graph_destroy(g.d.c, g.h), op{kind: opOther, name: "release graph " + g.name})
}
