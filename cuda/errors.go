package cuda

/*
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrOutOfMemory is what Alloc's error wraps when the device has no room left.
	ErrOutOfMemory = errors.New("out of device memory")
	// ErrNoFunction is what Function's error wraps when a module lacks it.
	ErrNoFunction = errors.New("no such function")
)

// Error is a call into the driver that failed.
type Error struct {
	Op     string   // what was asked, with its shape: "launch rmsnorm_bf16 (grid 4x1x1, ...)"
	Device int      // -1 when no device is concerned
	Code   int      // CUresult
	Name   string   // CUDA_ERROR_ILLEGAL_ADDRESS
	Text   string   // the driver's explanation; on a simulator also what it saw
	Queued []string // what may be at fault when it is work queued before: newest first
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "cuda: %s", e.Op)
	if e.Device >= 0 {
		fmt.Fprintf(&b, ": device %d", e.Device)
	}
	fmt.Fprintf(&b, ": %s (%d)", e.Name, e.Code)
	if e.Text != "" {
		fmt.Fprintf(&b, ": %s", e.Text)
	}
	if len(e.Queued) > 0 {
		fmt.Fprintf(&b, "; queued since the last good sync, newest first: %s (CUDA_LAUNCH_BLOCKING=1 tells which one failed)", strings.Join(e.Queued, ", "))
	}
	return b.String()
}

// Unwrap makes errors.Is(err, ErrOutOfMemory) work.
func (e *Error) Unwrap() error {
	if e.Code == C.HS_CUDA_ERROR_OUT_OF_MEMORY {
		return ErrOutOfMemory
	}
	return nil
}

// earlier says whether the fault may be that of work queued before the call: those of kernels (illegal address, assert,
// launch failure, timeout, ...) are 700 to 719, those of the hardware (memory, NVLink, contained) are single numbers.
func (e *Error) earlier() bool {
	return e.Code >= 700 && e.Code < 720 || e.Code == 214 || e.Code == 220 || e.Code == 226
}

// fail makes a driver's code into an error; nil for 0.
func (r *Runtime) fail(code C.int, device int, op string) error {
	if code == 0 {
		return nil
	}
	e := &Error{Op: op, Device: device, Code: int(code)}
	e.Name = C.GoString(C.hs_driver_error_name(r.lib, code))
	e.Text = C.GoString(C.hs_driver_error_text(r.lib, code))
	if said := r.trouble(); said != "" {
		e.Text += ": " + said
	}
	return e
}

// trouble is what a simulator says of its last error, "" elsewhere.
func (r *Runtime) trouble() string {
	if p := C.hs_driver_trouble(r.lib); p != nil {
		return strings.TrimSpace(C.GoString(p))
	}
	return ""
}

// op is one call with its shape, kept unformatted until an error needs the words.
type op struct {
	kind opKind
	name string // of the kernel
	v    [6]int
}

type opKind uint8

const (
	opZero       opKind = iota // bytes
	opIn                       // bytes
	opOut                      // bytes
	opCopy                     // bytes
	opLaunch                   // grid x, y, z, threads, shared bytes, argument bytes
	opMatmul                   // M, N, K, transposes, types
	opCollective               // elements a rank, rank, world
	opOther
)

func (o op) String() string {
	switch o.kind {
	case opZero, opIn, opOut, opCopy:
		what := [...]string{opZero: "zero", opIn: "copy in", opOut: "copy out", opCopy: "copy"}[o.kind]
		return fmt.Sprintf("%s (%d bytes)", what, o.v[0])
	case opLaunch:
		return fmt.Sprintf("launch %s (grid %dx%dx%d, %d threads, %d B shared, %d B arguments)", o.name, o.v[0], o.v[1], o.v[2], o.v[3], o.v[4], o.v[5])
	case opMatmul:
		return fmt.Sprintf("matmul %s (M %d, N %d, K %d)", o.name, o.v[0], o.v[1], o.v[2])
	case opCollective:
		return fmt.Sprintf("%s (%d elements a rank, rank %d of %d)", o.name, o.v[0], o.v[1], o.v[2])
	default:
		return o.name
	}
}

// queue remembers the last operations of a stream since its last good sync.
type queue struct {
	ops [8]op
	n   int
}

func (q *queue) add(o op) { q.ops[q.n%len(q.ops)] = o; q.n++ }

// list is the operations in words, newest first.
func (q *queue) list() []string {
	var list []string
	for i := q.n - 1; i >= 0 && i > q.n-1-len(q.ops); i-- {
		list = append(list, q.ops[i%len(q.ops)].String())
	}
	if q.n > len(q.ops) {
		list = append(list, fmt.Sprintf("%d more", q.n-len(q.ops)))
	}
	return list
}
