//go:build cgo

package kernels

import (
	"strings"
	"testing"
)

func TestNewCPURefusesBadSettings(t *testing.T) {
	for _, c := range []struct {
		threads int
		isa     string
		want    string
	}{{-1, "", "threads"}, {maxThreads + 1, "", "threads"}, {1, "sse9", "unknown instruction set"}} {
		b, err := newCPU(c.threads, c.isa)
		if err == nil {
			b.Close()
			t.Fatalf("newCPU(%d, %q) succeeded", c.threads, c.isa)
		}
		if !strings.Contains(err.Error(), c.want) {
			t.Errorf("newCPU(%d, %q): %q does not say %q", c.threads, c.isa, err, c.want)
		}
	}
}

// TestPoolManySmallJobs wakes, joins and leaves jobs of a few claims many times, on more threads than cores.
func TestPoolManySmallJobs(t *testing.T) {
	r := newRig(t, "base", 7)
	n := 5*32768 + 3
	dst, one := r.fill(n, 0), r.fill(n, 1)
	const times = 300
	for range times {
		r.Add(dst, one, n)
	}
	for i, x := range r.get(dst) {
		if x != times {
			t.Fatalf("word %d was added %v times, want %d", i, x, times)
		}
	}
}

func TestPoolOpenClose(t *testing.T) {
	for range 50 {
		b, err := newCPU(4, "base")
		if err != nil {
			t.Fatal(err)
		}
		buf, err := b.Alloc("x", 100000)
		if err != nil {
			t.Fatal(err)
		}
		b.Add(buf, buf, 100000)
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if err := b.Close(); err != nil {
			t.Fatal("second Close:", err)
		}
	}
}

func TestMemory(t *testing.T) {
	b, err := newCPU(1, "")
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	x, err := b.Alloc("weights", 7)
	if err != nil {
		t.Fatal(err)
	}
	if x.ptr%64 != 0 {
		t.Errorf("address %x is not 64-byte aligned", x.ptr)
	}
	y, err := b.Alloc("weights", 3)
	if err != nil {
		t.Fatal(err)
	}
	if got := b.Usage()["weights"]; got != 40 {
		t.Errorf("usage %d bytes, want 40", got)
	}
	b.Upload(x, []float32{1, 2, 3, 4, 5, 6, 7})
	b.Copy(y, x.Slice(2, 3))
	got := make([]float32, 3)
	b.Download(got, y)
	sameBits(t, "copy", got, []float32{3, 4, 5})
	b.Zero(y)
	b.Download(got, y)
	sameBits(t, "zero", got, []float32{0, 0, 0})
	b.Free(Buffer{})
	b.Free(y)
	b.Free(x)
	if len(b.Usage()) != 0 {
		t.Errorf("usage after Free: %v", b.Usage())
	}
	for name, f := range map[string]func(){
		"double free":  func() { b.Free(x) },
		"short upload": func() { b.Upload(Buffer{}, []float32{1}) },
		"slice":        func() { x.Slice(5, 3) },
		"id out of vocabulary": func() {
			z, _ := b.Alloc("t", 8)
			b.UploadInts(z, []int32{5})
			b.Embed(z, z, Weight{Master: z, Out: 5, In: 1}, 1)
		},
	} {
		if !panics(f) {
			t.Errorf("%s: no panic", name)
		}
	}
	if _, err := b.Alloc("huge", 1<<60); err == nil {
		t.Error("an allocation of 2^62 bytes succeeded")
	}
}

func panics(f func()) (yes bool) {
	defer func() { yes = recover() != nil }()
	f()
	return
}
