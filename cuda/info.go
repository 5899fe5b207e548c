package cuda

/*
#include "shim.h"
*/
import "C"

import (
	"errors"
	"os"
)

// Library is one of NVIDIA's libraries as it was found, or why it was not.
type Library struct {
	Name    string `json:"name"`
	Path    string `json:"path,omitempty"`
	From    string `json:"from,omitempty"` // loader, CUDA folder, Python wheel, the variable or option that named it
	Version string `json:"version,omitempty"`
	Problem string `json:"problem,omitempty"` // why it cannot be used
	Mend    string `json:"mend,omitempty"`    // what to do then
}

// Info is what doctor prints.
type Info struct {
	Driver  Library      `json:"driver"`
	NVML    string       `json:"nvml_driver,omitempty"` // the driver's own version, as NVML gives it
	BLAS    Library      `json:"cublaslt"`
	NCCL    Library      `json:"nccl"`
	Collect [][2]string  `json:"nccl_settings,omitempty"` // variables that fix the order of sums, as they are in force
	Devices []DeviceInfo `json:"devices,omitempty"`
	Peers   [][]bool     `json:"peer_access,omitempty"` // [i][j]: device i reads device j's memory directly
}

// Info describes the runtime. It loads cuBLASLt and NCCL to see whether they can be.
func (r *Runtime) Info() Info {
	info := Info{Driver: r.found, Devices: r.infos, Peers: r.peers(), NVML: driverVersion()}
	b, err := r.loadBLAS()
	info.BLAS = state(b.found, err)
	n, err := r.loadNCCL()
	info.NCCL = state(n.found, err)
	info.Collect = collectiveSettings()
	return info
}

// Inspect is Info for any machine: without a driver it tells why there is none and whether the rest would be found.
func Inspect(o Options) Info {
	r, err := Open(o)
	if err == nil {
		defer r.Close()
		return r.Info()
	}
	info := Info{Driver: state(Library{Name: libDriver.name}, err), NVML: driverVersion()}
	const anyDriver = 1 << 30
	_, blas, err := openBLAS(o.BLAS, anyDriver)
	info.BLAS = state(blas, err)
	_, nccl, err := openNCCL(o.NCCL)
	info.NCCL = state(nccl, err)
	info.Collect = collectiveSettings()
	return info
}

// state is l, or what keeps it from being used.
func state(l Library, err error) Library {
	if missing := (*notFound)(nil); errors.As(err, &missing) {
		l.Problem, l.Mend = missing.problem(), missing.lib.get
	} else if err != nil {
		l.Problem = err.Error()
	}
	return l
}

func collectiveSettings() [][2]string {
	var list [][2]string
	for _, v := range ncclDefaults {
		value := v[1]
		if own, ok := os.LookupEnv(v[0]); ok {
			value = own
		}
		list = append(list, [2]string{v[0], value})
	}
	return list
}

func (r *Runtime) peers() [][]bool {
	table := make([][]bool, len(r.infos))
	for i := range table {
		table[i] = make([]bool, len(r.infos))
		for j := range table {
			var yes C.int
			table[i][j] = i == j || C.hs_device_peer(r.lib, C.int(i), C.int(j), &yes) == 0 && yes != 0
		}
	}
	return table
}

// driverVersion is the driver's version by NVML; "" without it.
func driverVersion() string {
	m, err := OpenMonitor()
	if err != nil {
		return ""
	}
	defer m.Close()
	inv, err := m.Inventory()
	if err != nil {
		return ""
	}
	return inv.Driver
}
