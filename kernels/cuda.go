package kernels

import (
	"embed"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"unsafe"

	"harness-s/cuda"
	"harness-s/cuda/sim"
	"harness-s/internal/hsm"
)

// sources are the device kernels: the simulator is built from them, modules are checked against them.
//
//go:embed cu/*.cu cu/*.cuh
var sources embed.FS

// DeviceOptions says which devices to open and how they work together.
type DeviceOptions struct {
	Name    string // "cuda", or "sim": the same code on simulated devices
	DType   DType
	Devices int // of this process; 0 = 1
	// Apart leaves the backends without ranks: the caller makes them ranks of a run of several processes with JoinRanks.
	Apart bool
}

// CommID names a communicator.
type CommID = cuda.CommID

// cudaBackend is a Flat Backend on one CUDA device, real or simulated. Its methods are in cuda_*.go.
type cudaBackend struct {
	set       *deviceSet
	dev       *cuda.Device
	stream    *cuda.Stream // compute: everything but collectives
	dtype     DType
	functions []*cuda.Function // by kernel.id
	sm90      bool             // use the kernels that are made for compute capability 9.0
	live      map[uintptr]allocation
	work      Buffer // scratch
	poisoned  bool   // fill scratch with NaN before use, for tests
	seg       segmentCache
	ranks     ranks
	closed    bool
}

var _ Flat = (*cudaBackend)(nil)

// deviceSet is what the backends of one OpenDevices share; the last to close ends it.
type deviceSet struct {
	name    string
	runtime *cuda.Runtime
	mu      sync.Mutex
	open    int
}

func (s *deviceSet) release() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open--; s.open > 0 {
		return nil
	}
	return s.runtime.Close()
}

// simDevices is how many devices the simulator offers unless HARNESS_S_SIM_DEVICES says otherwise.
const simDevices = "8"

// OpenRuntime finds the device libraries: the machine's, or the simulator's, which is built if need be.
func OpenRuntime(name string) (*cuda.Runtime, error) {
	switch name {
	case "cuda":
		return cuda.Open(cuda.Options{})
	case "sim":
		lib, err := sim.Library(sources)
		if err != nil {
			return nil, fmt.Errorf("simulator: %w", err)
		}
		if os.Getenv("HARNESS_S_SIM_DEVICES") == "" {
			os.Setenv("HARNESS_S_SIM_DEVICES", simDevices)
		}
		return cuda.Open(cuda.Options{Driver: lib, BLAS: lib, NCCL: lib})
	}
	return nil, fmt.Errorf("device backend %q: want cuda or sim", name)
}

// NewCommID makes a communicator's id, for the processes of one run to share.
func NewCommID(name string) (CommID, error) {
	rt, err := OpenRuntime(name)
	if err != nil {
		return CommID{}, err
	}
	defer rt.Close()
	return rt.NewCommID()
}

// OpenDevices opens o.Devices devices as backends that work together, one rank each, in order of rank.
func OpenDevices(o DeviceOptions) ([]Flat, error) {
	o.Devices = max(o.Devices, 1)
	rt, err := OpenRuntime(o.Name)
	if err != nil {
		return nil, fmt.Errorf("backend %s: %w", o.Name, err)
	}
	set := &deviceSet{name: o.Name, runtime: rt, open: 1} // held until all are open
	list, err := openAll(set, o)
	if err != nil {
		for _, b := range list {
			err = errors.Join(err, b.Close())
		}
		return nil, fmt.Errorf("backend %s: %w", o.Name, errors.Join(err, set.release()))
	}
	return list, set.release()
}

func openAll(set *deviceSet, o DeviceOptions) ([]Flat, error) {
	if n := set.runtime.NumDevices(); o.Devices > n {
		return nil, fmt.Errorf("%d devices wanted, the machine has %d", o.Devices, n)
	}
	var list []Flat
	for i := range o.Devices {
		b, err := openDevice(set, i, o.DType)
		if err != nil {
			return list, fmt.Errorf("device %d: %w", i, err)
		}
		list = append(list, b)
	}
	if o.Apart || o.Devices == 1 {
		return list, nil
	}
	id, err := set.runtime.NewCommID()
	if err != nil {
		return list, err
	}
	return list, JoinRanks(list, id, 0, o.Devices)
}

func openDevice(set *deviceSet, i int, dtype DType) (*cudaBackend, error) {
	dev, err := set.runtime.Device(i)
	if err != nil {
		return nil, err
	}
	modules, arch, err := loadModules(set.name, dev)
	if err != nil {
		return nil, err
	}
	functions, err := loadKernels(modules, dtype, arch)
	if err != nil {
		return nil, err
	}
	set.mu.Lock()
	set.open++
	set.mu.Unlock()
	return &cudaBackend{set: set, dev: dev, stream: dev.Stream(), dtype: dtype, functions: functions, sm90: wantSM90(dev.Info()),
		live: map[uintptr]allocation{}, ranks: ranks{world: 1}}, nil
}

// wantSM90 says whether a device takes the kernels made for its compute capability, which HARNESS_S_SM90=off forbids: its
// products of tiles are then mma.sync's, as everywhere else.
func wantSM90(info cuda.DeviceInfo) bool {
	return info.Major == 9 && info.Minor == 0 && os.Getenv("HARNESS_S_SM90") != "off"
}

// loadModules loads the images made for the device, whose architecture it gives. The simulator has the kernels of all built
// in: its architecture is "".
func loadModules(name string, dev *cuda.Device) (list []*cuda.Module, arch string, err error) {
	if name == "sim" {
		m, err := dev.LoadModule("simulator", []byte("HSSIM"))
		return []*cuda.Module{m}, "", err
	}
	info := dev.Info()
	cc := 10*info.Major + info.Minor
	if arch, err = moduleArch(cc); err != nil {
		return nil, "", err
	}
	for _, file := range moduleFiles() {
		if !slices.Contains(hsm.ArchsOf(file), arch) {
			continue
		}
		image, err := moduleImage(file, cc)
		if err != nil {
			return nil, "", err
		}
		m, err := dev.LoadModule(file, image)
		if err != nil {
			return nil, "", err
		}
		list = append(list, m)
	}
	return list, arch, nil
}

// Name is "cuda" or "sim".
func (b *cudaBackend) Name() string { return b.set.name }

// Words is the words of n activations.
func (b *cudaBackend) Words(n int) int {
	if b.dtype == BF16 {
		return (n + 1) / 2
	}
	return n
}

// Alloc returns n zeroed words.
func (b *cudaBackend) Alloc(purpose string, n int) (Buffer, error) {
	if n < 0 {
		panic(fmt.Sprintf("kernels: Alloc(%q, %d): negative size", purpose, n))
	}
	p, err := b.dev.Alloc(purpose, 4*max(n, 1))
	if err != nil {
		return Buffer{}, err
	}
	b.live[uintptr(p)] = allocation{purpose, n}
	return Buffer{uintptr(p), n}, nil
}

// Free gives a whole allocation back.
func (b *cudaBackend) Free(buf Buffer) {
	if buf.IsNil() {
		return
	}
	a, ok := b.live[buf.ptr]
	if !ok || a.n != buf.n {
		panic("kernels: Free of a buffer that Alloc did not return, or freed before")
	}
	delete(b.live, buf.ptr)
	b.dev.Free(cuda.Ptr(buf.ptr))
}

// Usage is the bytes now allocated, by purpose.
func (b *cudaBackend) Usage() map[string]int64 { return maps.Clone(b.dev.Usage()) }

// scratch is work space for one op, valid until the next op.
func (b *cudaBackend) scratch(words int) Buffer {
	if words > b.work.n {
		b.Free(b.work)
		b.work = Buffer{}
		w, err := b.Alloc("scratch", words)
		if err != nil {
			b.dev.Fail("scratch", err)
			return Buffer{b.failPtr(), words}
		}
		b.work = w
	}
	buf := b.work.Slice(0, words)
	if b.poisoned {
		b.fillWords(buf, 0xffffffff)
	}
	return buf
}

// failPtr stands in for memory that could not be had: the sticky error keeps later work from running.
func (b *cudaBackend) failPtr() uintptr { return 256 }

func ptr(buf Buffer) cuda.Ptr { return cuda.Ptr(buf.ptr) }

// Upload copies src to the first words of dst.
func (b *cudaBackend) Upload(dst Buffer, src []float32) { upload(b, "Upload", dst, src) }

// Download copies the first words of src.
func (b *cudaBackend) Download(dst []float32, src Buffer) { download(b, "Download", dst, src) }

// UploadInts is Upload for int32.
func (b *cudaBackend) UploadInts(dst Buffer, src []int32) { upload(b, "UploadInts", dst, src) }

// DownloadInts is Download for int32.
func (b *cudaBackend) DownloadInts(dst []int32, src Buffer) { download(b, "DownloadInts", dst, src) }

func upload[E float32 | int32 | uint32](b *cudaBackend, op string, dst Buffer, src []E) {
	need(op, "dst", dst, len(src))
	if len(src) > 0 {
		b.stream.CopyIn(ptr(dst), unsafe.Pointer(&src[0]), 4*len(src))
	}
}

func download[E float32 | int32 | uint32](b *cudaBackend, op string, dst []E, src Buffer) {
	need(op, "src", src, len(dst))
	if len(dst) > 0 {
		b.stream.CopyOut(unsafe.Pointer(&dst[0]), ptr(src), 4*len(dst))
	}
}

// Copy copies all of src to the first words of dst.
func (b *cudaBackend) Copy(dst, src Buffer) {
	need("Copy", "dst", dst, src.n)
	if src.n > 0 {
		b.stream.Copy(ptr(dst), ptr(src), 4*src.n)
	}
}

// Zero sets all words to 0.
func (b *cudaBackend) Zero(buf Buffer) {
	if buf.n > 0 {
		b.stream.Zero(ptr(buf), 4*buf.n)
	}
}

// Sync waits for all queued work and returns the first error since the last Sync.
func (b *cudaBackend) Sync() error {
	err := b.stream.Sync()
	if b.ranks.stream != nil {
		err = errors.Join(err, b.ranks.stream.Sync())
	}
	if err != nil {
		return fmt.Errorf("backend %s: %w", b.set.name, err)
	}
	return nil
}

// Close frees the device's memory, buffers included. A second Close does nothing.
func (b *cudaBackend) Close() error {
	if b.closed {
		return nil
	}
	b.closed = true
	err := b.Sync()
	b.ranks.close()
	for p := range b.live {
		b.dev.Free(cuda.Ptr(p))
	}
	b.live = nil
	return errors.Join(err, b.set.release())
}

// CheckShapes says which size of a model the device kernels do not take.
func (b *cudaBackend) CheckShapes(hidden, mlp int, g GDNShape, a AttnShape) error {
	for _, c := range []struct {
		name              string
		size, step, limit int
	}{
		{"hidden size", hidden, 8, normWidth}, {"mlp width", mlp, 8, 0}, {"conv width", g.K, 1, convMaxDevice},
		{"gated delta net key dim", g.Dk, 16, 128}, {"gated delta net value dim", g.Dv, 16, 128}, {"attention head dim", a.D, 16, 256},
	} {
		if c.size%c.step != 0 || c.limit > 0 && c.size > c.limit {
			return fmt.Errorf("backend %s: %s is %d, want a multiple of %d%s; train this model on cpu", b.set.name, c.name, c.size, c.step, upTo(c.limit))
		}
	}
	return nil
}

func upTo(limit int) string {
	if limit == 0 {
		return ""
	}
	return fmt.Sprintf(" up to %d", limit)
}
