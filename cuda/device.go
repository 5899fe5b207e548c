package cuda

/*
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

// DeviceInfo is what a device can do.
type DeviceInfo struct {
	Index          int    `json:"index"`
	Name           string `json:"name"`
	Memory         int64  `json:"memory_bytes"`
	SMs            int    `json:"sms"`
	Major          int    `json:"compute_major"`
	Minor          int    `json:"compute_minor"`
	SharedOptin    int    `json:"shared_optin_bytes"` // most shared memory a block can have
	SharedPerSM    int    `json:"shared_per_sm_bytes"`
	L2             int    `json:"l2_bytes"`
	ClockKHz       int    `json:"clock_khz"`
	MemoryClockKHz int    `json:"memory_clock_khz"`
	BusBits        int    `json:"memory_bus_bits"`
}

func (r *Runtime) describe(i int) (DeviceInfo, error) {
	d := DeviceInfo{Index: i}
	wanted := [...]C.int{C.HS_ATTRIBUTE_MULTIPROCESSOR_COUNT, C.HS_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, C.HS_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
		C.HS_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, C.HS_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, C.HS_ATTRIBUTE_L2_CACHE_SIZE,
		C.HS_ATTRIBUTE_CLOCK_RATE, C.HS_ATTRIBUTE_MEMORY_CLOCK_RATE, C.HS_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH}
	into := [len(wanted)]*int{&d.SMs, &d.Major, &d.Minor, &d.SharedOptin, &d.SharedPerSM, &d.L2, &d.ClockKHz, &d.MemoryClockKHz, &d.BusBits}
	var values [len(wanted)]C.int
	var name [256]C.char
	var memory C.size_t
	code := C.hs_device_describe(r.lib, C.int(i), &name[0], C.int(len(name)), &memory, &wanted[0], &values[0], C.int(len(wanted)))
	if err := r.fail(code, i, "describe"); err != nil {
		return d, err
	}
	d.Name, d.Memory = C.GoString(&name[0]), int64(memory)
	for j, p := range into {
		*p = int(values[j])
	}
	return d, nil
}

// Device is one GPU. Its calls come from any goroutine, but one at a time; Fail, Err, Usage and Memory may be called
// beside them.
type Device struct {
	rt      *Runtime
	c       *C.hs_device
	info    DeviceInfo
	compute *Stream
	streams []*Stream
	modules []*Module
	blas    *blas // nil until a product is asked for

	failed atomic.Bool // err != nil, readable without the lock
	mu     sync.Mutex  // what follows
	err    error
	memory map[Ptr]allocation
	usage  map[string]int64
	comms  []*Comm
}

func openDevice(r *Runtime, i int) (*Device, error) {
	d := &Device{rt: r, info: r.infos[i], memory: map[Ptr]allocation{}, usage: map[string]int64{}}
	if err := r.fail(C.hs_device_open(r.lib, C.int(i), &d.c), i, "make a context"); err != nil {
		return nil, err
	}
	s, err := d.NewStream("compute")
	if err != nil {
		C.hs_device_close(d.c)
		return nil, err
	}
	d.compute = s
	return d, nil
}

// Info describes the device.
func (d *Device) Info() DeviceInfo { return d.info }

// Stream is the compute stream.
func (d *Device) Stream() *Stream { return d.compute }

// Fail makes err the device's sticky error unless it has one; op says what was tried.
func (d *Device) Fail(op string, err error) {
	d.fail(fmt.Errorf("%s: device %d: %w", op, d.info.Index, err))
}

func (d *Device) fail(err error) {
	d.mu.Lock()
	first := d.err == nil
	if first {
		d.err = err
		d.failed.Store(true)
	}
	comms := slices.Clone(d.comms)
	d.mu.Unlock()
	if first {
		for _, c := range comms {
			c.group.fail(c.rank, err)
		}
	}
}

// Err is the sticky error; Stream.Sync clears it.
func (d *Device) Err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

// take returns and clears the sticky error.
func (d *Device) take() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.err
	d.err = nil
	d.failed.Store(false)
	return err
}

// check makes a failed call of the driver the sticky error. Faults of earlier work show at any call: the error then lists
// what was queued.
func (d *Device) check(code C.int, o op) bool {
	if code == 0 {
		return true
	}
	err := d.rt.fail(code, d.info.Index, o.String())
	if e := (*Error)(nil); errors.As(err, &e) && e.earlier() {
		for _, s := range d.streams {
			e.Queued = append(e.Queued, s.queued.list()...)
		}
	}
	d.fail(err)
	return false
}

// wait runs a blocking call of the driver. While collectives are under way it watches them: one that cannot end because
// another rank failed is aborted, and the call returns.
func (d *Device) wait(f func() C.int) C.int {
	stop := watch(d.ranks())
	code := f()
	stop()
	return code
}

// close releases everything; the error is that of work still queued.
func (d *Device) close() error {
	err := d.compute.Sync()
	if d.blas != nil {
		d.blas.close()
	}
	for _, s := range d.streams {
		s.close()
	}
	for _, m := range d.modules {
		C.hs_module_unload(d.c, m.h)
	}
	for p := range d.memory {
		C.hs_mem_free(d.c, C.uint64_t(p))
	}
	return errors.Join(err, d.rt.fail(C.hs_device_close(d.c), d.info.Index, "release the context"))
}
