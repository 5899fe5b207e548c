package cuda

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"testing/fstest"
	"unsafe"

	"harness-s/cuda/sim"
	"harness-s/internal/testutil"
)

// simulator builds the simulator with the kernels of testdata.
func simulator(t testing.TB) string {
	t.Helper()
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip("no g++")
	}
	sources := fstest.MapFS{}
	for _, pattern := range []string{"testdata/cu/*.cu", filepath.Join(testutil.Root(t), "kernels", "cu", "*.cuh")} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			sources["cu/"+filepath.Base(name)] = &fstest.MapFile{Data: text}
		}
	}
	path, err := sim.Library(sources)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// machineOf is a simulated machine: devices, bytes of memory a device, compute capability.
type machineOf struct {
	devices int
	memory  int
	cc      string
}

func (m machineOf) open(t testing.TB) *Runtime {
	t.Helper()
	lib := simulator(t)
	t.Setenv("HARNESS_S_SIM_DEVICES", fmt.Sprint(max(m.devices, 1)))
	t.Setenv("HARNESS_S_SIM_MEMORY", fmt.Sprint(orElse(m.memory, 1<<30)))
	t.Setenv("HARNESS_S_SIM_CC", orElse(m.cc, "9.0"))
	r, err := Open(Options{Driver: lib, BLAS: lib, NCCL: lib})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return r
}

func orElse[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

func (m machineOf) device(t testing.TB) *Device {
	t.Helper()
	d, err := m.open(t).Device(0)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func device(t testing.TB) *Device { t.Helper(); return machineOf{}.device(t) }

func alloc(t testing.TB, d *Device, bytes int) Ptr {
	t.Helper()
	p, err := d.Alloc("test", bytes)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// upload makes a buffer that holds v.
func upload[T any](t testing.TB, d *Device, v []T) Ptr {
	t.Helper()
	bytes := len(v) * int(unsafe.Sizeof(*new(T)))
	p := alloc(t, d, bytes)
	d.Stream().CopyIn(p, unsafe.Pointer(unsafe.SliceData(v)), bytes)
	return p
}

func download[T any](d *Device, p Ptr, n int) []T {
	v := make([]T, n)
	d.Stream().CopyOut(unsafe.Pointer(unsafe.SliceData(v)), p, n*int(unsafe.Sizeof(*new(T))))
	return v
}

func mustSync(t testing.TB, s *Stream) {
	t.Helper()
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
}

func random(t testing.TB, n int) []float32 {
	t.Helper()
	r := rand.New(rand.NewPCG(7, uint64(n)))
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(r.NormFloat64())
	}
	return v
}

type scaleArgs struct {
	y, x  Ptr
	n     int64
	scale float32
	add   int32
}

func function(t testing.TB, d *Device, name string) *Function {
	t.Helper()
	m, err := d.LoadModule("runtime", []byte("HSSIM"))
	if err != nil {
		t.Fatal(err)
	}
	f, err := m.Function(name)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func launchScale(f *Function, s *Stream, a scaleArgs) {
	f.Launch(s, [3]int{3, 1, 1}, 128, 0, unsafe.Pointer(&a), int(unsafe.Sizeof(a)))
}
