package cuda

/*
#cgo noescape hs_stream_create
#cgo nocallback hs_stream_create
#cgo nocallback hs_zero
#cgo nocallback hs_copy
#cgo nocallback hs_event_record
#cgo nocallback hs_stream_wait
#include "shim.h"
*/
import "C"

import (
	"time"
	"unsafe"
)

// Stream is a queue of work on a device. Work of one stream runs in order; streams meet at events.
type Stream struct {
	d         *Device
	h         C.uintptr_t
	name      string
	queued    queue
	staging   *staging // nil until a copy between host and device
	workspace Ptr      // of matrix products; 0 until the first
}

// NewStream makes a stream beside the compute stream; name appears in errors. It lives as long as the device.
func (d *Device) NewStream(name string) (*Stream, error) {
	s := &Stream{d: d, name: name}
	if err := d.rt.fail(C.hs_stream_create(d.c, &s.h), d.info.Index, "make stream "+name); err != nil {
		return nil, err
	}
	d.streams = append(d.streams, s)
	return s, nil
}

// begin notes an operation; false when the device has failed and the operation is to be skipped.
func (s *Stream) begin(o op) bool {
	if s.d.failed.Load() {
		return false
	}
	s.queued.add(o)
	return true
}

// Zero sets bytes bytes to 0.
func (s *Stream) Zero(p Ptr, bytes int) {
	o := op{kind: opZero, v: [6]int{bytes}}
	if bytes != 0 && s.begin(o) {
		s.d.check(C.hs_zero(s.d.c, C.uint64_t(p), C.size_t(bytes), s.h), o)
	}
}

// Copy copies between device buffers that do not overlap.
func (s *Stream) Copy(dst, src Ptr, bytes int) {
	o := op{kind: opCopy, v: [6]int{bytes}}
	if bytes != 0 && s.begin(o) {
		s.d.check(C.hs_copy(s.d.c, C.uint64_t(dst), C.uint64_t(src), C.size_t(bytes), s.h), o)
	}
}

// CopyIn copies host memory to the device in the stream's order. src may be used again at return.
func (s *Stream) CopyIn(dst Ptr, src unsafe.Pointer, bytes int) {
	o := op{kind: opIn, v: [6]int{bytes}}
	if bytes != 0 && s.begin(o) {
		s.d.check(s.stage().in(dst, unsafe.Slice((*byte)(src), bytes)), o)
	}
}

// CopyOut copies device memory to the host and waits for it. dst is left as it is when the device has failed.
func (s *Stream) CopyOut(dst unsafe.Pointer, src Ptr, bytes int) {
	o := op{kind: opOut, v: [6]int{bytes}}
	if bytes != 0 && s.begin(o) {
		s.d.check(s.stage().out(unsafe.Slice((*byte)(dst), bytes), src), o)
	}
}

// Sync waits for the stream's work. It returns and clears the device's sticky error.
func (s *Stream) Sync() error {
	o := op{kind: opOther, name: "sync stream " + s.name}
	s.d.check(s.wait(), o)
	s.d.checkComms()
	s.queued.n = 0
	return s.d.take()
}

func (s *Stream) wait() C.int { return s.d.wait(func() C.int { return C.hs_stream_sync(s.d.c, s.h) }) }

func (s *Stream) close() {
	if s.staging != nil {
		s.staging.close()
	}
	C.hs_stream_destroy(s.d.c, s.h)
}

// Event marks a point in a stream.
type Event struct {
	d *Device
	h C.uintptr_t
}

// NewEvent makes an event; timing makes it usable for Elapsed, and slower.
func (d *Device) NewEvent(timing bool) (*Event, error) {
	e := &Event{d: d}
	t := C.int(0)
	if timing {
		t = 1
	}
	if err := d.rt.fail(C.hs_event_create(d.c, t, &e.h), d.info.Index, "make an event"); err != nil {
		return nil, err
	}
	return e, nil
}

// Record sets e to the stream's present end.
func (s *Stream) Record(e *Event) {
	if !s.d.failed.Load() {
		s.d.check(C.hs_event_record(s.d.c, e.h, s.h), op{kind: opOther, name: "record an event"})
	}
}

// Wait makes later work of the stream wait for e; the host does not wait.
func (s *Stream) Wait(e *Event) {
	if !s.d.failed.Load() {
		s.d.check(C.hs_stream_wait(s.d.c, s.h, e.h), op{kind: opOther, name: "wait for an event"})
	}
}

// Sync makes the host wait for the event. Its errors are the device's.
func (e *Event) Sync() {
	if !e.d.failed.Load() {
		e.d.check(e.d.wait(func() C.int { return C.hs_event_sync(e.d.c, e.h) }), op{kind: opOther, name: "sync an event"})
	}
}

// Close releases the event.
func (e *Event) Close() {
	e.d.check(C.hs_event_destroy(e.d.c, e.h), op{kind: opOther, name: "release an event"})
}

// Elapsed is the device's time from a to b, both made with timing and recorded; it waits for b. 0 when the device failed.
func Elapsed(a, b *Event) time.Duration {
	b.Sync()
	if b.d.failed.Load() {
		return 0
	}
	var ms C.float
	b.d.check(C.hs_event_elapsed(b.d.c, a.h, b.h, &ms), op{kind: opOther, name: "time between events"})
	return time.Duration(float64(ms) * float64(time.Millisecond))
}
