package cuda

import (
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// ErrNoDriver says that this machine has no NVIDIA driver or no GPU that it can use: not a fault, the cpu backend serves.
var ErrNoDriver = errors.New("no NVIDIA driver with a GPU")

// GPU is one device as NVML sees it.
type GPU struct {
	Index       int    `json:"index"`
	Name        string `json:"name"`
	UUID        string `json:"uuid"`
	MemoryTotal uint64 `json:"memory_total_bytes"`
	MemoryFree  uint64 `json:"memory_free_bytes"`
	Major       int    `json:"compute_major"`
	Minor       int    `json:"compute_minor"`
}

// Inventory is what NVML says about the machine.
type Inventory struct {
	Driver  string `json:"driver"`
	CUDA    string `json:"cuda"` // newest CUDA version that the driver supports
	Devices []GPU  `json:"devices"`
}

// Monitor is the one gate to NVML: go-nvml ends the process when anything but Init is called without the library, so
// no other code of this project calls it.
type Monitor struct {
	lib nvml.Interface
}

// OpenMonitor loads NVML. ErrNoDriver where there is none.
func OpenMonitor() (*Monitor, error) { return openMonitor(nvml.New()) }

func openMonitor(lib nvml.Interface) (*Monitor, error) {
	switch ret := lib.Init(); ret {
	case nvml.SUCCESS:
		return &Monitor{lib: lib}, nil
	case nvml.ERROR_LIBRARY_NOT_FOUND, nvml.ERROR_DRIVER_NOT_LOADED:
		return nil, ErrNoDriver
	default:
		return nil, fmt.Errorf("nvml: init: code %d", int(ret))
	}
}

// Close releases NVML.
func (m *Monitor) Close() error {
	if ret := m.lib.Shutdown(); ret != nvml.SUCCESS {
		return m.fail("shutdown", ret)
	}
	return nil
}

func (m *Monitor) fail(op string, ret nvml.Return) error {
	return fmt.Errorf("nvml: %s: %s", op, m.lib.ErrorString(ret))
}

// Inventory lists driver and devices.
func (m *Monitor) Inventory() (Inventory, error) {
	var inv Inventory
	driver, ret := m.lib.SystemGetDriverVersion()
	if ret != nvml.SUCCESS {
		return inv, m.fail("driver version", ret)
	}
	inv.Driver = driver
	if v, ret := m.lib.SystemGetCudaDriverVersion(); ret == nvml.SUCCESS {
		inv.CUDA = fmt.Sprintf("%d.%d", v/1000, v%1000/10)
	}
	n, ret := m.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return inv, m.fail("device count", ret)
	}
	for i := range n {
		d, err := m.device(i)
		if err != nil {
			return inv, err
		}
		inv.Devices = append(inv.Devices, d)
	}
	return inv, nil
}

func (m *Monitor) device(i int) (GPU, error) {
	h, ret := m.lib.DeviceGetHandleByIndex(i)
	if ret != nvml.SUCCESS {
		return GPU{}, m.fail(fmt.Sprintf("device %d", i), ret)
	}
	d := GPU{Index: i}
	var r [4]nvml.Return
	d.Name, r[0] = h.GetName()
	d.UUID, r[1] = h.GetUUID()
	var mem nvml.Memory
	mem, r[2] = h.GetMemoryInfo()
	d.MemoryTotal, d.MemoryFree = mem.Total, mem.Free
	d.Major, d.Minor, r[3] = h.GetCudaComputeCapability()
	for j, what := range []string{"name", "uuid", "memory", "compute capability"} {
		if r[j] != nvml.SUCCESS {
			return d, m.fail(fmt.Sprintf("device %d: %s", i, what), r[j])
		}
	}
	return d, nil
}
