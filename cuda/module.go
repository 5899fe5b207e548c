package cuda

/*
#cgo noescape hs_launch
#cgo nocallback hs_launch
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"
)

// Module is code loaded on a device. It lives as long as the device.
type Module struct {
	d    *Device
	h    C.uintptr_t
	name string
}

// LoadModule loads a cubin, a fat binary or PTX text. An error carries the driver's log.
func (d *Device) LoadModule(name string, image []byte) (*Module, error) {
	if len(image) == 0 {
		return nil, fmt.Errorf("cuda: load module %s: the image is empty", name)
	}
	const logBytes = 8 << 10
	log := C.malloc(logBytes)
	code := C.CBytes(append(image[:len(image):len(image)], 0)) // PTX ends with a NUL
	defer C.free(log)
	defer C.free(code)
	m := &Module{d: d, name: name}
	if code := C.hs_module_load(d.c, code, (*C.char)(log), logBytes, &m.h); code != 0 {
		err := d.rt.fail(code, d.info.Index, fmt.Sprintf("load module %s for sm_%d%d", name, d.info.Major, d.info.Minor))
		if text := strings.TrimSpace(C.GoString((*C.char)(log))); text != "" {
			err = fmt.Errorf("%w\n%s", err, text)
		}
		return nil, err
	}
	d.modules = append(d.modules, m)
	return m, nil
}

// Function is a kernel of a module.
type Function struct {
	d          *Device
	h          C.uintptr_t
	name       string
	attributes FunctionAttributes
	params     int // bytes; -1 unknown
	dynamic    int // the limit of dynamic shared memory set so far
}

// FunctionAttributes are what the compiler made of a kernel, per thread (registers, local) and per block (shared).
type FunctionAttributes struct{ Registers, LocalBytes, SharedBytes, MaxThreads int }

// defaultShared is what a block may use of shared memory before its function asks for more.
const defaultShared = 48 << 10

// Function finds a kernel by name. errors.Is(err, ErrNoFunction) when the module has none of that name.
func (m *Module) Function(name string) (*Function, error) {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	f := &Function{d: m.d, name: name}
	what := fmt.Sprintf("function %s of module %s", name, m.name)
	code := C.hs_module_function(m.d.c, m.h, cname, &f.h)
	if code == C.HS_CUDA_ERROR_NOT_FOUND {
		return nil, fmt.Errorf("cuda: %w: %s of module %s", ErrNoFunction, name, m.name)
	}
	if err := m.d.rt.fail(code, m.d.info.Index, what); err != nil {
		return nil, err
	}
	if err := m.d.rt.fail(f.read(), m.d.info.Index, what); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *Function) read() C.int {
	a := &f.attributes
	wanted := [...]C.int{C.HS_FUNCTION_NUM_REGS, C.HS_FUNCTION_LOCAL_SIZE_BYTES, C.HS_FUNCTION_SHARED_SIZE_BYTES, C.HS_FUNCTION_MAX_THREADS_PER_BLOCK}
	for i, p := range [len(wanted)]*int{&a.Registers, &a.LocalBytes, &a.SharedBytes, &a.MaxThreads} {
		var v C.int
		if code := C.hs_function_get(f.d.c, f.h, wanted[i], &v); code != 0 {
			return code
		}
		*p = int(v)
	}
	f.dynamic = defaultShared - a.SharedBytes
	var bytes C.int64_t
	code := C.hs_function_params(f.d.c, f.h, &bytes)
	f.params = int(bytes)
	return code
}

// Attributes describes the compiled kernel.
func (f *Function) Attributes() FunctionAttributes { return f.attributes }

// ParamSize is the bytes of the kernel's parameters; known is false where the driver cannot tell (before CUDA 12.4).
func (f *Function) ParamSize() (bytes int, known bool) { return max(f.params, 0), f.params >= 0 }

// Launch queues the kernel: a grid of blocks of `threads` threads with dynamicShared bytes of shared memory beside the
// static. args is the parameter block of size bytes, as the kernel's one struct parameter is laid out; it holds no Go
// pointers and may be used again at return.
func (f *Function) Launch(s *Stream, grid [3]int, threads, dynamicShared int, args unsafe.Pointer, size int) {
	o := op{opLaunch, f.name, [6]int{grid[0], grid[1], grid[2], threads, dynamicShared, size}}
	if !s.begin(o) || !f.ready(s, o) {
		return
	}
	s.d.check(C.hs_launch(s.d.c, f.h, C.uint(grid[0]), C.uint(grid[1]), C.uint(grid[2]), C.uint(threads), C.uint(dynamicShared), s.h, args), o)
}

// ready checks what the driver would refuse with less to say, and raises the function's shared limit when needed.
func (f *Function) ready(s *Stream, o op) bool {
	switch grid, threads, shared, size := o.v[:3], o.v[3], o.v[4], o.v[5]; {
	case f.d != s.d:
		s.d.Fail(o.String(), fmt.Errorf("the function belongs to device %d", f.d.info.Index))
	case min(grid[0], grid[1], grid[2]) < 1 || grid[0] > 1<<31-1 || max(grid[1], grid[2]) > 1<<16-1:
		s.d.Fail(o.String(), errors.New("a grid is 1 to 2147483647, 65535 and 65535 blocks wide"))
	case threads < 1 || threads > f.attributes.MaxThreads:
		s.d.Fail(o.String(), fmt.Errorf("the kernel is built for 1 to %d threads", f.attributes.MaxThreads))
	case f.params >= 0 && size != f.params:
		s.d.Fail(o.String(), fmt.Errorf("the kernel takes %d B of arguments", f.params))
	case shared < 0 || shared+f.attributes.SharedBytes > max(f.d.info.SharedOptin, defaultShared):
		s.d.Fail(o.String(), fmt.Errorf("%d B of static and %d B of dynamic shared memory, the device has %d a block", f.attributes.SharedBytes, shared, f.d.info.SharedOptin))
	case shared > f.dynamic:
		if s.d.check(C.hs_function_set(f.d.c, f.h, C.HS_FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES, C.int(shared)), o) {
			f.dynamic = shared
			return true
		}
	default:
		return true
	}
	return false
}
