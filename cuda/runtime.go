package cuda

/*
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"unsafe"
)

// Options names library files; "" searches (see find).
type Options struct{ Driver, BLAS, NCCL string }

// Runtime is one driver library and the devices that it has.
type Runtime struct {
	options Options
	lib     *C.hs_driver
	found   Library
	version int // CUDA version of the driver, 1000·major + 10·minor
	infos   []DeviceInfo

	blas blasLibrary
	nccl ncclLibrary

	mu      sync.Mutex
	devices []*Device // by index; nil until asked for
	groups  map[CommID]*group
}

// minDriver is CUDA 12.0: modules of this project are built by a 12.x compiler.
const minDriver = 12000

// Open loads the driver. errors.Is(err, ErrNoDriver) when there is none or it sees no GPU.
func Open(o Options) (*Runtime, error) {
	var tried []string
	for _, c := range find(libDriver, o.Driver) {
		r, err := openDriver(c)
		if err == nil {
			r.options = o
			return r, nil
		}
		tried = append(tried, err.Error())
	}
	return nil, fmt.Errorf("%w: %w", ErrNoDriver, &notFound{libDriver, tried})
}

func openDriver(c candidate) (*Runtime, error) {
	lib, file, err := openLibrary(c.path, func(path *C.char, file, why **C.char) unsafe.Pointer {
		return unsafe.Pointer(C.hs_driver_open(path, file, why))
	})
	if err != nil {
		return nil, err
	}
	r := &Runtime{lib: (*C.hs_driver)(lib), groups: map[CommID]*group{}}
	if err := r.init(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	r.found = Library{Name: libDriver.name, Path: file, From: c.from, Version: "CUDA " + dotted(r.version/1000, r.version%1000/10)}
	return r, nil
}

// openLibrary loads path with one of the shim's open functions and gives the file that was loaded.
func openLibrary(path string, open func(path *C.char, file, why **C.char) unsafe.Pointer) (lib unsafe.Pointer, file string, err error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var cfile, why *C.char
	lib = open(name, &cfile, &why)
	defer C.free(unsafe.Pointer(cfile))
	defer C.free(unsafe.Pointer(why))
	if lib == nil {
		return nil, "", errors.New(C.GoString(why))
	}
	return lib, C.GoString(cfile), nil
}

func (r *Runtime) init() error {
	if err := r.fail(C.hs_driver_init(r.lib), -1, "cuInit"); err != nil {
		return err
	}
	var version, n C.int
	if err := r.fail(C.hs_driver_version(r.lib, &version), -1, "driver version"); err != nil {
		return err
	}
	if r.version = int(version); r.version < minDriver {
		return fmt.Errorf("the driver supports CUDA %s, 12.0 is needed: update the driver to 525 or newer", dotted(r.version/1000, r.version%1000/10))
	}
	if err := r.fail(C.hs_driver_devices(r.lib, &n), -1, "device count"); err != nil {
		return err
	}
	for i := range int(n) {
		info, err := r.describe(i)
		if err != nil {
			return err
		}
		r.infos = append(r.infos, info)
	}
	r.devices = make([]*Device, n)
	if n == 0 {
		return errors.New("the driver sees no device (CUDA_VISIBLE_DEVICES may hide them)")
	}
	return nil
}

// NumDevices is how many devices the driver sees.
func (r *Runtime) NumDevices() int { return len(r.infos) }

// Device gives device i, the same one at every call, with its primary context.
func (r *Runtime) Device(i int) (*Device, error) {
	if i < 0 || i >= len(r.infos) {
		return nil, fmt.Errorf("cuda: device %d: the driver sees %d device(s)", i, len(r.infos))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.devices[i] == nil {
		d, err := openDevice(r, i)
		if err != nil {
			return nil, err
		}
		r.devices[i] = d
	}
	return r.devices[i], nil
}

// Close waits for all devices and releases what they hold. Nothing of the Runtime may be used after it.
func (r *Runtime) Close() error {
	r.mu.Lock()
	devices := r.devices
	r.devices = make([]*Device, len(devices))
	r.mu.Unlock()
	devices = slices.DeleteFunc(devices, func(d *Device) bool { return d == nil })
	closeComms(devices)
	var errs []error
	for _, d := range devices {
		errs = append(errs, d.close())
	}
	return errors.Join(errs...)
}

func dotted(major, minor int) string { return fmt.Sprintf("%d.%d", major, minor) }
