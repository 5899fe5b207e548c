package kernels

import (
	"errors"
	"fmt"

	"harness-s/cuda"
)

// Auto is the backend name that Resolve turns into a real one.
const Auto = "auto"

// Resolve turns "auto" into cuda where this machine has a device and the libraries for it, else into cpu. why says in a few
// words what decided; for another name it is empty.
func Resolve(name string) (backend, why string) {
	if name != Auto {
		return name, ""
	}
	rt, err := cuda.Open(cuda.Options{})
	if errors.Is(err, cuda.ErrNoDriver) {
		return "cpu", "no NVIDIA driver"
	}
	if err != nil {
		return "cpu", err.Error()
	}
	defer rt.Close()
	info := rt.Info()
	switch {
	case len(info.Devices) == 0:
		return "cpu", "no GPU"
	case info.Devices[0].Major < 8:
		return "cpu", fmt.Sprintf("%s has compute capability %d.%d; the kernels need 8.0", info.Devices[0].Name, info.Devices[0].Major, info.Devices[0].Minor)
	case info.BLAS.Problem != "":
		return "cpu", fmt.Sprintf("a GPU is here, but %s: %s; %s", info.BLAS.Name, info.BLAS.Problem, info.BLAS.Mend)
	}
	return "cuda", info.Devices[0].Name
}

// Open opens a backend by name: cpu with a number of threads, or devices; see OpenDevices.
func Open(threads int, o DeviceOptions) ([]Backend, error) {
	if o.Name != "cpu" {
		list, err := OpenDevices(o)
		if err != nil {
			return nil, err
		}
		out := make([]Backend, len(list))
		for i, b := range list {
			out[i] = b
		}
		return out, nil
	}
	if o.DType != F32 {
		return nil, fmt.Errorf("backend cpu computes in fp32, not %s; set model.dtype=fp32, or backend=cuda on a machine with a GPU", o.DType)
	}
	if o.Devices > 1 {
		return nil, fmt.Errorf("backend cpu is one device, not %d; set devices=1, or backend=cuda on a machine with as many GPUs", o.Devices)
	}
	b, err := NewCPU(threads)
	if err != nil {
		return nil, err
	}
	return []Backend{b}, nil
}

// InfoOf describes the device of a backend, false where that is the host.
func InfoOf(be Backend) (info cuda.DeviceInfo, dtype DType, ok bool) {
	b, ok := be.(*cudaBackend)
	if !ok {
		return cuda.DeviceInfo{}, F32, false
	}
	return b.dev.Info(), b.dtype, true
}

// FirstDevice describes the machine's first GPU.
func FirstDevice() (cuda.DeviceInfo, error) {
	rt, err := cuda.Open(cuda.Options{})
	if err != nil {
		return cuda.DeviceInfo{}, fmt.Errorf("backend cuda: %w", err)
	}
	defer rt.Close()
	d, err := rt.Device(0)
	if err != nil {
		return cuda.DeviceInfo{}, fmt.Errorf("backend cuda: %w", err)
	}
	return d.Info(), nil
}
