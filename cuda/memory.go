package cuda

/*
#cgo noescape hs_mem_alloc
#cgo nocallback hs_mem_alloc
#include "shim.h"
*/
import "C"

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Ptr is an address in a device's memory. The zero Ptr is "none".
type Ptr uintptr

type allocation struct {
	purpose string
	bytes   int
}

// Alloc gives memory, 256-byte aligned, zeroed in the compute stream's order. An error that wraps ErrOutOfMemory says
// what holds the memory, by purpose.
func (d *Device) Alloc(purpose string, bytes int) (Ptr, error) {
	p, err := d.alloc(purpose, bytes)
	if err == nil {
		d.compute.Zero(p, bytes)
	}
	return p, err
}

// alloc is Alloc without the zeros.
func (d *Device) alloc(purpose string, bytes int) (Ptr, error) {
	if bytes < 0 {
		panic(fmt.Sprintf("cuda: alloc %s: %d bytes", purpose, bytes))
	}
	if err := d.Err(); err != nil {
		return 0, fmt.Errorf("cuda: alloc %s: an earlier call failed: %w", purpose, err)
	}
	var p C.uint64_t
	code := C.hs_mem_alloc(d.c, C.size_t(max(bytes, 1)), &p)
	if code != 0 {
		return 0, d.allocError(code, purpose, bytes)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.memory[Ptr(p)] = allocation{purpose, bytes}
	d.usage[purpose] += int64(bytes)
	return Ptr(p), nil
}

func (d *Device) allocError(code C.int, purpose string, bytes int) error {
	err := d.rt.fail(code, d.info.Index, fmt.Sprintf("alloc %s (%d bytes, %s)", purpose, bytes, gib(int64(bytes))))
	if !errors.Is(err, ErrOutOfMemory) {
		d.fail(err)
		return err
	}
	free, total, memErr := d.Memory()
	if memErr != nil {
		return err
	}
	return fmt.Errorf("%w; %s of %s free (%d bytes); largest users: %s", err, gib(free), gib(total), free, d.largest(5))
}

// largest lists the n purposes that hold most.
func (d *Device) largest(n int) string {
	usage := d.Usage()
	users := slices.SortedFunc(maps.Keys(usage), func(a, b string) int {
		return cmp.Or(cmp.Compare(usage[b], usage[a]), cmp.Compare(a, b))
	})
	var parts []string
	for _, u := range users[:min(n, len(users))] {
		parts = append(parts, fmt.Sprintf("%s %s", u, gib(usage[u])))
	}
	if len(parts) == 0 {
		return "none of this process"
	}
	return strings.Join(parts, ", ")
}

func gib(bytes int64) string { return fmt.Sprintf("%.2f GiB", float64(bytes)/(1<<30)) }

// Free gives back what Alloc returned, after the device's queued work. 0 is ignored; any other address that Alloc did
// not return panics.
func (d *Device) Free(p Ptr) {
	if p == 0 {
		return
	}
	d.mu.Lock()
	a, ok := d.memory[p]
	delete(d.memory, p)
	if d.usage[a.purpose] -= int64(a.bytes); d.usage[a.purpose] == 0 {
		delete(d.usage, a.purpose)
	}
	d.mu.Unlock()
	if !ok {
		panic(fmt.Sprintf("cuda: free: %#x was not allocated on device %d", uintptr(p), d.info.Index))
	}
	// The driver waits for work of its own accord in most versions; it does not promise to.
	o := op{kind: opOther, name: "free " + a.purpose}
	if d.check(d.wait(func() C.int { return C.hs_sync(d.c) }), o) {
		d.check(C.hs_mem_free(d.c, C.uint64_t(p)), o)
	} else {
		C.hs_mem_free(d.c, C.uint64_t(p)) // the fault is reported already
	}
}

// Usage is the allocated bytes by purpose.
func (d *Device) Usage() map[string]int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.usage)
}

// Memory is the device's free and total bytes, whoever uses the rest.
func (d *Device) Memory() (free, total int64, err error) {
	var f, t C.size_t
	err = d.rt.fail(C.hs_mem_info(d.c, &f, &t), d.info.Index, "memory info")
	return int64(f), int64(t), err
}
