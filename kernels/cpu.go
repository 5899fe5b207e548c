//go:build cgo

package kernels

/*
#cgo CFLAGS: -std=c11 -O3 -Wall -Wno-psabi
#cgo LDFLAGS: -lm -lpthread
#include <stdlib.h>
#include "cpu.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"unsafe"
)

// ISAEnv is the environment variable that picks the CPU backend's instruction set: avx512, avx2 or base.
// Without it the best one that the machine has is taken.
const ISAEnv = "HARNESS_S_ISA"

const maxThreads = 512

// cpuBackend is the Backend on host memory. Its methods are in cpu_*.go, a file per interface.
type cpuBackend struct {
	ctx   *C.hs_ctx
	live  map[uintptr]allocation
	usage map[string]int64
}

type allocation struct {
	purpose string
	n       int
}

// NewCPU starts the CPU backend on the given number of threads, all cores when 0. Results do not depend on it.
func NewCPU(threads int) (InferenceBackend, error) {
	b, err := newCPU(threads, os.Getenv(ISAEnv))
	if err != nil {
		return nil, err
	}
	return b, nil
}

func newCPU(threads int, isa string) (*cpuBackend, error) {
	if threads == 0 {
		threads = runtime.NumCPU()
	}
	if threads < 1 || threads > maxThreads {
		return nil, fmt.Errorf("cpu backend: %d threads: want 1 to %d, or 0 for all cores", threads, maxThreads)
	}
	name := C.CString(isa)
	defer C.free(unsafe.Pointer(name))
	var why *C.char
	ctx := C.hs_open(C.int(threads), name, &why)
	if ctx == nil {
		return nil, fmt.Errorf("cpu backend: %d threads, %s=%q: %s", threads, ISAEnv, isa, C.GoString(why))
	}
	return &cpuBackend{ctx: ctx, live: map[uintptr]allocation{}, usage: map[string]int64{}}, nil
}

// Name says which backend this is.
func (b *cpuBackend) Name() string { return "cpu" }

// Words is n: activations are fp32.
func (b *cpuBackend) Words(n int) int { return n }

// ISA is the instruction set in use: avx512, avx2 or base.
func (b *cpuBackend) ISA() string { return C.GoString(C.hs_isa(b.ctx)) }

// poison makes every op start with scratch memory full of NaN, for tests.
func (b *cpuBackend) poison(on bool) {
	v := C.int(0)
	if on {
		v = 1
	}
	C.hs_poison(b.ctx, v)
}

// Alloc returns n zeroed words.
func (b *cpuBackend) Alloc(purpose string, n int) (Buffer, error) {
	if n < 0 {
		panic(fmt.Sprintf("kernels: Alloc(%q, %d): negative size", purpose, n))
	}
	p := uintptr(C.hs_alloc(C.int64_t(min(n, 1<<60)) * 4))
	if p == 0 {
		return Buffer{}, fmt.Errorf("cpu backend: no memory for %d bytes of %s", int64(n)*4, purpose)
	}
	b.live[p] = allocation{purpose, n}
	b.usage[purpose] += int64(n) * 4
	return Buffer{p, n}, nil
}

// Free gives a whole allocation back.
func (b *cpuBackend) Free(buf Buffer) {
	if buf.IsNil() {
		return
	}
	a, ok := b.live[buf.ptr]
	if !ok || a.n != buf.n {
		panic("kernels: Free of a buffer that Alloc did not return, or freed before")
	}
	delete(b.live, buf.ptr)
	if b.usage[a.purpose] -= int64(a.n) * 4; b.usage[a.purpose] == 0 {
		delete(b.usage, a.purpose)
	}
	C.hs_free(C.uintptr_t(buf.ptr))
}

// Usage is the bytes now allocated, by purpose.
func (b *cpuBackend) Usage() map[string]int64 { return maps.Clone(b.usage) }

// words is the host view of a buffer.
func words[E float32 | int32](b Buffer) []E {
	if b.n == 0 {
		return nil
	}
	p := *(*unsafe.Pointer)(unsafe.Pointer(&b.ptr)) // C memory: the conversion that go vet objects to is right here
	return unsafe.Slice((*E)(p), b.n)
}

// Upload copies src to the first words of dst.
func (b *cpuBackend) Upload(dst Buffer, src []float32) {
	need("Upload", "dst", dst, len(src))
	copy(words[float32](dst), src)
}

// Download copies the first words of src.
func (b *cpuBackend) Download(dst []float32, src Buffer) {
	need("Download", "src", src, len(dst))
	copy(dst, words[float32](src))
}

// UploadInts is Upload for int32.
func (b *cpuBackend) UploadInts(dst Buffer, src []int32) {
	need("UploadInts", "dst", dst, len(src))
	copy(words[int32](dst), src)
}

// DownloadInts is Download for int32.
func (b *cpuBackend) DownloadInts(dst []int32, src Buffer) {
	need("DownloadInts", "src", src, len(dst))
	copy(dst, words[int32](src))
}

// Copy copies all of src to the first words of dst.
func (b *cpuBackend) Copy(dst, src Buffer) {
	need("Copy", "dst", dst, src.n)
	copy(words[float32](dst), words[float32](src))
}

// Zero sets all words to 0.
func (b *cpuBackend) Zero(buf Buffer) { clear(words[float32](buf)) }

// Sync reports the first operating error since the last Sync; work on this backend is never queued.
func (b *cpuBackend) Sync() error {
	if C.hs_error(b.ctx) != 0 {
		return errors.New("cpu backend: no memory for work space; use smaller batches or fewer threads")
	}
	return nil
}

// Close stops the threads and frees all memory, buffers included. A second Close does nothing.
func (b *cpuBackend) Close() error {
	if b.ctx == nil {
		return nil
	}
	err := b.Sync()
	for p := range b.live {
		C.hs_free(C.uintptr_t(p))
	}
	b.live = nil
	C.hs_close(b.ctx)
	b.ctx = nil
	return err
}

// addr is the buffer's address as the C side takes it.
func addr(b Buffer) C.uintptr_t { return C.uintptr_t(b.ptr) }

// need panics unless buffer name of op holds at least n words. Wrong shapes are bugs of the caller.
func need(op, name string, b Buffer, n int) {
	if n < 0 || b.n < n {
		panic(fmt.Sprintf("kernels: %s: %s has %d words, want %d", op, name, b.n, n))
	}
}
