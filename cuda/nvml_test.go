package cuda

import (
	"errors"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh200"
)

// On a machine without a driver the gate must say so and nothing else may happen; with one it must open and close.
func TestOpenMonitorOnThisMachine(t *testing.T) {
	m, err := OpenMonitor()
	if errors.Is(err, ErrNoDriver) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Inventory(); err != nil {
		t.Error(err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

func TestInventoryOfASimulatedServer(t *testing.T) {
	server := dgxh200.New()
	m, err := openMonitor(server)
	if err != nil {
		t.Fatal(err)
	}
	inv, err := m.Inventory()
	if err != nil {
		t.Fatal(err)
	}
	if len(inv.Devices) != 8 || inv.Driver == "" {
		t.Fatalf("got %d devices, driver %q, want 8 and a version", len(inv.Devices), inv.Driver)
	}
	d := inv.Devices[7]
	if d.Index != 7 || d.UUID == "" || d.UUID == inv.Devices[0].UUID || d.MemoryTotal == 0 || d.Major != 9 {
		t.Errorf("device 7 reads %+v", d)
	}
}

// failing answers Init with a fixed code; nothing else may be called after a failed Init.
type failing struct {
	nvml.Interface
	code nvml.Return
}

func (f failing) Init() nvml.Return { return f.code }

func TestInitFailures(t *testing.T) {
	for _, code := range []nvml.Return{nvml.ERROR_LIBRARY_NOT_FOUND, nvml.ERROR_DRIVER_NOT_LOADED} {
		if _, err := openMonitor(failing{code: code}); !errors.Is(err, ErrNoDriver) {
			t.Errorf("code %d: got %v, want ErrNoDriver", code, err)
		}
	}
	if _, err := openMonitor(failing{code: nvml.ERROR_UNKNOWN}); err == nil || errors.Is(err, ErrNoDriver) {
		t.Errorf("unknown error: got %v", err)
	}
}
