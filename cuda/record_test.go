package cuda

import (
	"reflect"
	"strings"
	"testing"
	"unsafe"
)

// A recording writes down what a program queues, hands out memory as far as the device has it, and refuses launches that
// no device takes.
func TestRecording(t *testing.T) {
	r, err := Record(DeviceInfo{Name: "test device", Memory: 64 << 20, SMs: 4, Major: 9, SharedOptin: 227 << 10, SharedPerSM: 228 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	d, err := r.Device(0)
	if err != nil {
		t.Fatal(err)
	}
	if info := d.Info(); info.Name != "test device" || info.SMs != 4 || info.SharedOptin != 227<<10 {
		t.Errorf("device %+v", info)
	}
	p, err := d.Alloc("test", 1<<18)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Alloc("test", 64<<20); err == nil || !strings.Contains(err.Error(), "memory") {
		t.Errorf("more memory than there is: %v", err)
	}
	m, err := d.LoadModule("test", []byte("image"))
	if err != nil {
		t.Fatal(err)
	}
	f, err := m.Function("norm")
	if err != nil {
		t.Fatal(err)
	}
	r.Take()
	s := d.Stream()
	var args [2]uint64
	f.Launch(s, [3]int{7, 2, 1}, 128, 200<<10, unsafe.Pointer(&args), int(unsafe.Sizeof(args)))
	s.Matmul(Matmul{M: 3, N: 4, K: 5, A: p, B: p, C: p, LDA: 5, LDB: 5, LDC: 4, TransB: true, In: F32, Out: F32, Alpha: 1, Beta: 1})
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	want := []Recorded{
		{Op: OpLaunch, Name: "norm", Grid: [3]int{7, 2, 1}, Threads: 128, Shared: 200 << 10},
		{Op: OpMatmul, Name: "matmul", M: 3, N: 4, K: 5, TransB: true, Add: true},
	}
	if got := r.Take(); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	f.Launch(s, [3]int{1, 65536, 1}, 128, 0, unsafe.Pointer(&args), int(unsafe.Sizeof(args)))
	if err := s.Sync(); err == nil {
		t.Error("65536 blocks in y were taken")
	}
	f.Launch(s, [3]int{1, 1, 1}, 128, 228<<10, unsafe.Pointer(&args), int(unsafe.Sizeof(args)))
	if err := s.Sync(); err == nil {
		t.Error("more shared memory than a block may have was taken")
	}
	if peak := r.Peak(); peak < 1<<18 {
		t.Errorf("peak of %d bytes", peak)
	}
}
