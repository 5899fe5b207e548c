package cuda

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unsafe"
)

func TestAllocIsZeroedAlignedAndCounted(t *testing.T) {
	d := device(t)
	var list []Ptr
	for _, n := range []int{0, 1, 3, 4, 1000, 1 << 20} {
		p, err := d.Alloc("zeros", n)
		if err != nil {
			t.Fatal(err)
		}
		if p%256 != 0 || p == 0 {
			t.Errorf("%d bytes at %#x, want a multiple of 256", n, uintptr(p))
		}
		if got := download[byte](d, p, n); !bytes.Equal(got, make([]byte, n)) {
			t.Errorf("%d bytes are not zero", n)
		}
		list = append(list, p)
	}
	if got := d.Usage()["zeros"]; got != 0+1+3+4+1000+1<<20 {
		t.Errorf("usage %d", got)
	}
	for _, p := range list {
		d.Free(p)
	}
	d.Free(0)
	if got := d.Usage(); len(got) != 0 {
		t.Errorf("after the frees: %v", got)
	}
	mustSync(t, d.Stream())
}

func TestFreeOfAnUnknownAddressPanics(t *testing.T) {
	d := device(t)
	p := alloc(t, d, 512)
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	d.Free(p + 256)
}

// Copies of every size around a slot of the ring and around the whole ring, at odd offsets, while others are under way.
func TestCopySizes(t *testing.T) {
	d := device(t)
	s := d.Stream()
	r := rand.New(rand.NewPCG(3, 4))
	whole := slots * slotBytes
	for _, n := range []int{1, 255, 256, 257, slotBytes - 1, slotBytes, slotBytes + 1, 2*slotBytes + 5, whole - 1, whole, whole + 1, 2*whole + slotBytes + 3} {
		src := make([]byte, n)
		for i := 0; i < n; i += 1 + r.IntN(97) {
			src[i] = byte(r.Uint32())
		}
		want := slices.Clone(src)
		p := alloc(t, d, n+3)
		s.CopyIn(p+3, unsafe.Pointer(&src[0]), n)
		clear(src) // free at return
		if got := download[byte](d, p+3, n); !bytes.Equal(got, want) {
			t.Fatalf("%d bytes came back changed", n)
		}
		d.Free(p)
	}
	mustSync(t, s)
}

// Many small copies share slots: each keeps its own bytes however late the device reads them.
func TestManySmallCopies(t *testing.T) {
	d := device(t)
	const n, size = 300, 60000 // 18 MB through a ring of 16
	p := alloc(t, d, n*size)
	buf := make([]byte, size)
	for i := range n {
		for j := range buf {
			buf[j] = byte(i + j)
		}
		d.Stream().CopyIn(p+Ptr(i*size), unsafe.Pointer(&buf[0]), size)
	}
	got := download[byte](d, p, n*size)
	for i := range got {
		if got[i] != byte(i/size+i%size) {
			t.Fatalf("byte %d is %d", i, got[i])
		}
	}
	mustSync(t, d.Stream())
}

func TestZeroAndCopy(t *testing.T) {
	d := device(t)
	s := d.Stream()
	for _, n := range []int{1, 2, 7, 8, 4096} {
		v := make([]byte, n+2)
		for i := range v {
			v[i] = 0xaa
		}
		a, b := upload(t, d, v), alloc(t, d, n+2)
		s.Zero(a+1, n)
		s.Copy(b, a, n+2)
		got := download[byte](d, b, n+2)
		want := slices.Concat([]byte{0xaa}, make([]byte, n), []byte{0xaa})
		if !bytes.Equal(got, want) {
			t.Errorf("%d bytes: %v", n, got)
		}
	}
	s.Zero(0, 0)
	s.Copy(0, 0, 0)
	s.CopyIn(0, nil, 0)
	s.CopyOut(nil, 0, 0)
	mustSync(t, s)
}

func TestOutOfMemorySaysWhoHoldsIt(t *testing.T) {
	d := machineOf{memory: 64 << 20}.device(t)
	for purpose, mib := range map[string]int{"weights": 30, "moments": 20, "scratch": 1} {
		if _, err := d.Alloc(purpose, mib<<20); err != nil {
			t.Fatal(err)
		}
	}
	_, err := d.Alloc("activations", 40<<20)
	if !errors.Is(err, ErrOutOfMemory) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"activations", "41943040 bytes", "device 0", "13631488 bytes", "weights 0.03 GiB, moments 0.02 GiB, scratch"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
	if err := d.Err(); err != nil {
		t.Errorf("the device failed with it: %v", err)
	}
	if _, err := d.Alloc("less", 1<<20); err != nil {
		t.Errorf("a smaller one: %v", err)
	}
	mustSync(t, d.Stream())
}

func TestMemory(t *testing.T) {
	d := machineOf{memory: 64 << 20}.device(t)
	before, total, err := d.Memory()
	if err != nil || total != 64<<20 || total != d.Info().Memory {
		t.Fatalf("total %d, info %d, %v", total, d.Info().Memory, err)
	}
	alloc(t, d, 1<<20)
	if after, _, _ := d.Memory(); before-after != 1<<20 {
		t.Errorf("free went from %d to %d", before, after)
	}
	mustSync(t, d.Stream())
}
