package cuda

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"
)

func TestLaunch(t *testing.T) {
	d := device(t)
	x := random(t, 1000)
	in, out := upload(t, d, x), alloc(t, d, 4*len(x))
	f := function(t, d, "scale")
	launchScale(f, d.Stream(), scaleArgs{out, in, int64(len(x)), 2, 3})
	for i, y := range download[float32](d, out, len(x)) {
		if y != 2*x[i]+3 {
			t.Fatalf("y[%d] = %v, want %v", i, y, 2*x[i]+3)
		}
	}
	if n, known := f.ParamSize(); known && n != int(unsafe.Sizeof(scaleArgs{})) {
		t.Errorf("the kernel takes %d bytes, the Go struct has %d", n, unsafe.Sizeof(scaleArgs{}))
	}
	if a := f.Attributes(); a.MaxThreads != 128 {
		t.Errorf("attributes %+v, the kernel is bounded to 128 threads", a)
	}
	mustSync(t, d.Stream())
}

// Launches that cannot be right are refused with what is wrong, and work after them is skipped until Sync.
func TestWrongLaunches(t *testing.T) {
	d := device(t)
	s := d.Stream()
	f := function(t, d, "scale")
	a := scaleArgs{}
	size := int(unsafe.Sizeof(a))
	for _, c := range []struct {
		grid                  [3]int
		threads, shared, size int
		want                  string
	}{
		{[3]int{0, 1, 1}, 128, 0, size, "grid 0x1x1"},
		{[3]int{1, 70000, 1}, 128, 0, size, "65535"},
		{[3]int{1, 1, 1}, 129, 0, size, "1 to 128 threads"},
		{[3]int{1, 1, 1}, 128, 0, size - 8, "takes 32 B of arguments"},
		{[3]int{1, 1, 1}, 128, 1 << 20, size, "1048576 B of dynamic"},
		{[3]int{1, 1, 1}, 128, -1, size, "dynamic"},
	} {
		y := upload(t, d, []float32{5})
		f.Launch(s, c.grid, c.threads, c.shared, unsafe.Pointer(&a), c.size)
		s.Zero(y, 4) // skipped
		err := s.Sync()
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "launch scale") || !strings.Contains(err.Error(), "device 0") {
			t.Errorf("%+v: %v", c, err)
		}
		if got := download[float32](d, y, 1)[0]; got != 5 {
			t.Errorf("%+v: work after the failure ran", c)
		}
		mustSync(t, s)
	}
}

func TestNoSuchFunction(t *testing.T) {
	d := device(t)
	m, err := d.LoadModule("runtime", []byte("HSSIM"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Function("absent"); !errors.Is(err, ErrNoFunction) || !strings.Contains(err.Error(), "absent of module runtime") {
		t.Errorf("got %v", err)
	}
}

func TestModuleForAnotherDevice(t *testing.T) {
	d := device(t)
	for name, image := range map[string]string{"empty": "", "noise": "noise", "newer": "// made by a test\n.version 8.8\n.target sm_120a\n"} {
		_, err := d.LoadModule(name, []byte(image))
		if err == nil || !strings.Contains(err.Error(), "load module "+name) {
			t.Errorf("%s: %v", name, err)
		}
		if name == "newer" && !strings.Contains(err.Error(), "sm_90") {
			t.Errorf("%v does not name the device's architecture", err)
		}
	}
	if err := d.Err(); err != nil {
		t.Errorf("a module that does not load is no fault of the device: %v", err)
	}
}

// Dynamic shared memory past the default: the function's limit follows, both ways.
func TestLargeSharedMemory(t *testing.T) {
	for cc, limit := range map[string]int{"8.0": 163 << 10, "8.6": 99 << 10, "9.0": 227 << 10} {
		t.Run(cc, func(t *testing.T) {
			d := machineOf{cc: cc}.device(t)
			if got := d.Info().SharedOptin; got != limit {
				t.Fatalf("%d bytes a block, want %d", got, limit)
			}
			f := function(t, d, "sum_shared")
			for _, bytes := range []int{4096, 60 << 10, limit, 48 << 10} {
				sumShared(t, d, f, bytes)
			}
		})
	}
}

// sumShared adds as many ones as fit into bytes of shared memory.
func sumShared(t *testing.T, d *Device, f *Function, bytes int) {
	t.Helper()
	x := make([]float32, bytes/4)
	for i := range x {
		x[i] = 1
	}
	in, out := upload(t, d, x), alloc(t, d, 4)
	a := struct {
		out, x Ptr
		n, pad int32
	}{out, in, int32(len(x)), 0}
	f.Launch(d.Stream(), [3]int{1, 1, 1}, 64, bytes, unsafe.Pointer(&a), int(unsafe.Sizeof(a)))
	if got := download[float32](d, out, 1)[0]; got != float32(len(x)) {
		t.Errorf("%d bytes: sum %v", bytes, got)
	}
	mustSync(t, d.Stream())
}

// A fault inside a kernel shows at Sync, which names what was queued.
func TestFaultNamesWhatWasQueued(t *testing.T) {
	d, err := faultyRuntime(t).Device(0)
	if err != nil {
		t.Fatal(err)
	}
	p := alloc(t, d, 256)
	launchStray(t, d, p)
	d.Stream().Zero(p, 128)
	err = d.Stream().Sync()
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"CUDA_ERROR_", "device 0", "zero (128 bytes), launch stray (grid 1x1x1, 32 threads", "illegal address"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
	var e *Error
	if !errors.As(err, &e) || e.Code == 0 || e.Device != 0 {
		t.Errorf("%#v", err)
	}
}

// faultyRuntime is open's without the check that it closes well.
func faultyRuntime(t *testing.T) *Runtime {
	t.Helper()
	lib := simulator(t)
	t.Setenv("HARNESS_S_SIM_DEVICES", "2")
	r, err := Open(Options{Driver: lib, BLAS: lib, NCCL: lib})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() }) // reports the fault once more
	return r
}

func launchStray(t *testing.T, d *Device, p Ptr) {
	t.Helper()
	a := struct {
		p      Ptr
		offset int64
	}{p, 1 << 30}
	function(t, d, "stray").Launch(d.Stream(), [3]int{1, 1, 1}, 32, 0, unsafe.Pointer(&a), int(unsafe.Sizeof(a)))
}

func TestStickyError(t *testing.T) {
	d := device(t)
	s := d.Stream()
	first := errors.New("the first")
	d.Fail("something", first)
	d.Fail("something else", errors.New("the second"))
	if err := d.Err(); !errors.Is(err, first) {
		t.Fatalf("Err: %v", err)
	}
	if _, err := d.Alloc("x", 4); !errors.Is(err, first) {
		t.Errorf("Alloc after a failure: %v", err)
	}
	if err := s.Sync(); !errors.Is(err, first) || !strings.Contains(err.Error(), "something: device 0") {
		t.Errorf("Sync: %v", err)
	}
	if err := d.Err(); err != nil {
		t.Errorf("after Sync: %v", err)
	}
	mustSync(t, s)
}

// Two streams that meet at events: the order holds however late each runs.
func TestEventsOrderStreams(t *testing.T) {
	d := device(t)
	side, err := d.NewStream("side")
	if err != nil {
		t.Fatal(err)
	}
	event := func() *Event {
		e, err := d.NewEvent(false)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	ready, done := event(), event()
	f := function(t, d, "scale")
	n := 256
	x := random(t, n)
	a, b := upload(t, d, x), alloc(t, d, 4*n)
	want := append([]float32(nil), x...)
	for i := range 20 {
		launchScale(f, d.Stream(), scaleArgs{b, a, int64(n), 1, int32(i)}) // b = a + i
		d.Stream().Record(ready)
		side.Wait(ready)
		launchScale(f, side, scaleArgs{a, b, int64(n), 0.5, 1}) // a = b/2 + 1
		side.Record(done)
		d.Stream().Wait(done)
		for j := range want {
			want[j] = (want[j]+float32(i))*0.5 + 1
		}
	}
	done.Sync()
	for i, y := range download[float32](d, a, n) {
		if y != want[i] {
			t.Fatalf("a[%d] = %v, want %v", i, y, want[i])
		}
	}
	ready.Close()
	done.Close()
	mustSync(t, d.Stream())
}

func TestElapsed(t *testing.T) {
	d := device(t)
	a, err := d.NewEvent(true)
	if err != nil {
		t.Fatal(err)
	}
	b, err := d.NewEvent(true)
	if err != nil {
		t.Fatal(err)
	}
	x := alloc(t, d, 4096)
	d.Stream().Record(a)
	launchScale(function(t, d, "scale"), d.Stream(), scaleArgs{x, x, 1024, 1, 1})
	d.Stream().Record(b)
	if took := Elapsed(a, b); took <= 0 || took > time.Minute {
		t.Errorf("elapsed %v", took)
	}
	mustSync(t, d.Stream())
}

// The arguments of a launch are Go memory: collections while launches run must not disturb them.
func TestLaunchesUnderCollections(t *testing.T) {
	d := device(t)
	f := function(t, d, "scale")
	x := upload(t, d, make([]float32, 8))
	stop, stopped := make(chan bool), make(chan bool)
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	}()
	launches := 0
	for first, collections := numGC(), 0; collections < 500; {
		for range 20 {
			a := &scaleArgs{x, x, 8, 1, 1}
			launchScale(f, d.Stream(), *a)
			launches++
		}
		mustSync(t, d.Stream())
		collections = numGC() - first
	}
	close(stop)
	<-stopped
	for i, y := range download[float32](d, x, 8) {
		if y != float32(launches) {
			t.Fatalf("x[%d] = %v after %d launches", i, y, launches)
		}
	}
}

// A launch costs one call of the driver and no memory.
func TestLaunchAllocatesNothing(t *testing.T) {
	d := device(t)
	f := function(t, d, "scale")
	x := alloc(t, d, 4096)
	s := d.Stream()
	if n := testing.AllocsPerRun(100, func() { launchScale(f, s, scaleArgs{x, x, 1024, 1, 1}) }); n != 0 {
		t.Errorf("%v allocations a launch", n)
	}
	m := Matmul{M: 8, N: 8, K: 8, A: x, B: x + 1024, C: x + 2048, LDA: 8, LDB: 8, LDC: 8, Alpha: 1}
	if n := testing.AllocsPerRun(100, func() { s.Matmul(m) }); n != 0 {
		t.Errorf("%v allocations a product", n)
	}
	mustSync(t, s)
}

func numGC() int {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.NumGC)
}

// Goroutines move between threads: each call finds its device's context.
func TestTwoDevicesFromManyGoroutines(t *testing.T) {
	r := machineOf{devices: 2}.open(t)
	for i := range 40 {
		d, err := r.Device(i % 2)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan []byte)
		go func() {
			p := alloc(t, d, 100)
			done <- download[byte](d, p, 100)
			d.Free(p)
			close(done)
		}()
		if got := <-done; len(got) != 100 {
			t.Fatal("lost")
		}
		<-done
	}
	if _, err := r.Device(2); err == nil || !strings.Contains(err.Error(), "sees 2 device(s)") {
		t.Errorf("device 2: %v", err)
	}
}
