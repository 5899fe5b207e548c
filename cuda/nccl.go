package cuda

/*
#cgo nocallback hs_nccl_collective
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// CommID names a communicator that is about to be made: one rank makes it, all ranks join by it.
type CommID [128]byte

// Comm is one device's rank in a communicator. Its collectives are queued like launches; every rank queues the same ones
// in the same order.
type Comm struct {
	d           *Device
	h           C.uintptr_t
	rank, world int
	group       *group
	aborted     atomic.Bool
	mu          sync.Mutex // of closed and of what ends the communicator
	closed      bool
}

// group is the ranks of a communicator that live in this process. When a device fails it skips its collectives, so the
// others' would wait for ever: they learn of it here and are aborted.
type group struct {
	mu    sync.Mutex
	err   error
	ranks int
}

func (g *group) fail(rank int, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		g.err = fmt.Errorf("rank %d failed: %w", rank, err)
	}
}

func (g *group) trouble() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// minNCCL is 2.12, the first whose bf16 collectives and error reports this package relies on.
const minNCCL = 21200

// ncclLibrary is loaded when a communicator is first asked for.
type ncclLibrary struct {
	once  sync.Once
	lib   *C.hs_nccl
	found Library
	err   error
}

func (r *Runtime) loadNCCL() (*ncclLibrary, error) {
	n := &r.nccl
	n.once.Do(func() { n.lib, n.found, n.err = openNCCL(r.options.NCCL) })
	return n, n.err
}

// ncclDefaults fix the order of NCCL's sums, which it otherwise tunes by message size and machine: results must not
// depend on either. A user's own settings stay.
var ncclDefaults = [][2]string{{"NCCL_ALGO", "Ring"}, {"NCCL_PROTO", "Simple"}}

func openNCCL(option string) (*C.hs_nccl, Library, error) {
	for _, v := range ncclDefaults {
		name, value := C.CString(v[0]), C.CString(v[1])
		C.hs_nccl_default(name, value)
		C.free(unsafe.Pointer(name))
		C.free(unsafe.Pointer(value))
	}
	var tried []string
	for _, c := range find(libNCCL, option) {
		lib, file, err := openLibrary(c.path, func(path *C.char, file, why **C.char) unsafe.Pointer {
			return unsafe.Pointer(C.hs_nccl_open(path, file, why))
		})
		if err != nil {
			tried = append(tried, err.Error())
			continue
		}
		n := (*C.hs_nccl)(lib)
		var v C.int
		if code := C.hs_nccl_version(n, &v); code != 0 || v < minNCCL {
			tried = append(tried, fmt.Sprintf("%s: version %s, 2.12 is needed", file, ncclVersion(int(v))))
			continue
		}
		return n, Library{Name: libNCCL.name, Path: file, From: c.from, Version: ncclVersion(int(v))}, nil
	}
	return nil, Library{Name: libNCCL.name}, &notFound{libNCCL, tried}
}

func ncclVersion(v int) string {
	if v < 10000 { // until 2.8
		return fmt.Sprintf("%d.%d.%d", v/1000, v/100%10, v%100)
	}
	return fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100)
}

func (n *ncclLibrary) fail(code C.int, comm C.uintptr_t) error {
	if code == 0 {
		return nil
	}
	text := C.GoString(C.hs_nccl_error_text(n.lib, code))
	if p := C.hs_nccl_last_error(n.lib, comm); p != nil {
		if last := C.GoString(p); last != "" {
			text += ": " + last
		}
	}
	return fmt.Errorf("nccl: %s (%d)", text, int(code))
}

// NewCommID makes an id for a communicator. Its bytes may go to other processes; the process that made it must live
// until all ranks have joined.
func (r *Runtime) NewCommID() (CommID, error) {
	var id CommID
	n, err := r.loadNCCL()
	if err != nil {
		return id, fmt.Errorf("cuda: communicator id: %w", err)
	}
	if err := n.fail(C.hs_nccl_unique_id(n.lib, unsafe.Pointer(&id)), 0); err != nil {
		return id, fmt.Errorf("cuda: communicator id: %w", err)
	}
	return id, nil
}

// Join makes the device rank `rank` of the communicator `id` of `world` ranks. It returns when all ranks have joined:
// ranks of one process join from goroutines of their own.
func (d *Device) Join(id CommID, rank, world int) (*Comm, error) {
	what := fmt.Sprintf("cuda: join as rank %d of %d: device %d", rank, world, d.info.Index)
	if rank < 0 || rank >= world {
		return nil, fmt.Errorf("%s: no such rank", what)
	}
	n, err := d.rt.loadNCCL()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	c := &Comm{d: d, rank: rank, world: world, group: d.rt.enter(id)}
	if err := n.fail(C.hs_nccl_join(n.lib, d.c, unsafe.Pointer(&id), C.int(rank), C.int(world), &c.h), 0); err != nil {
		d.rt.leave(c.group)
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.comms = append(d.comms, c)
	return c, nil
}

func (r *Runtime) enter(id CommID) *group {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.groups[id]
	if g == nil {
		g = &group{}
		r.groups[id] = g
	}
	g.ranks++
	return g
}

func (r *Runtime) leave(g *group) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if g.ranks--; g.ranks > 0 {
		return
	}
	for id, other := range r.groups {
		if other == g {
			delete(r.groups, id)
		}
	}
}

// Rank is this device's place among World ranks.
func (c *Comm) Rank() int { return c.rank }

// World is the number of ranks.
func (c *Comm) World() int { return c.world }

// ReduceScatter: dst[n] = the sum over ranks of their src[rank·n ... rank·n+n], src being [world·n]. dst may be that part
// of src itself.
func (c *Comm) ReduceScatter(s *Stream, dst, src Ptr, n int, t DType) {
	c.collective(s, "reduce-scatter", C.HS_REDUCE_SCATTER, dst, src, n, t, 0)
}

// AllGather: dst[world·n] = all ranks' src[n], in order of rank. src may be this rank's part of dst.
func (c *Comm) AllGather(s *Stream, dst, src Ptr, n int, t DType) {
	c.collective(s, "all-gather", C.HS_ALL_GATHER, dst, src, n, t, 0)
}

// AllReduce: buf[n] = the sum over ranks of buf, in place.
func (c *Comm) AllReduce(s *Stream, buf Ptr, n int, t DType) {
	c.collective(s, "all-reduce", C.HS_ALL_REDUCE, buf, buf, n, t, 0)
}

// Broadcast: buf[n] = the root's buf.
func (c *Comm) Broadcast(s *Stream, buf Ptr, n int, t DType, root int) {
	c.collective(s, "broadcast", C.HS_BROADCAST, buf, buf, n, t, root)
}

func (c *Comm) collective(s *Stream, name string, kind C.int, dst, src Ptr, n int, t DType, root int) {
	o := op{kind: opCollective, name: name, v: [6]int{n, c.rank, c.world}}
	if n == 0 || !s.begin(o) {
		return
	}
	if c.aborted.Load() {
		s.d.Fail(o.String(), errors.New("the communicator was aborted after an error: join a new one"))
		return
	}
	number := C.int(C.HS_NCCL_FLOAT32)
	if t == BF16 {
		number = C.HS_NCCL_BFLOAT16
	}
	l := &c.d.rt.nccl
	code := C.hs_nccl_collective(l.lib, s.d.c, kind, C.uint64_t(dst), C.uint64_t(src), C.size_t(n), number, C.int(root), c.h, s.h)
	if err := l.fail(code, c.h); err != nil {
		s.d.Fail(o.String(), err)
	}
}

// ncclInProgress is not an error.
const ncclInProgress = 7

// trouble is why the communicator's collectives cannot end, or nil.
func (c *Comm) trouble() error {
	if err := c.group.trouble(); err != nil {
		return err
	}
	var async C.int
	l := &c.d.rt.nccl
	if err := l.fail(C.hs_nccl_async_error(l.lib, c.h, &async), c.h); err != nil {
		return err
	}
	if async == ncclInProgress {
		return nil
	}
	return l.fail(async, c.h)
}

// abort ends the communicator and its collectives under way; the device fails with err. The caller holds c.mu.
func (c *Comm) abort(err error) {
	c.aborted.Store(true)
	c.d.Fail("collectives", err)
	c.group.fail(c.rank, err)
	C.hs_nccl_abort(c.d.rt.nccl.lib, c.d.c, c.h)
}

// examine aborts the communicator when it is in trouble.
func (c *Comm) examine() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.aborted.Load() {
		return
	}
	if err := c.trouble(); err != nil {
		c.abort(err)
	}
}

// Close leaves the communicator: all ranks of a process close theirs at the same time, from goroutines of their own
// (NCCL makes them wait for each other). After an error it aborts.
func (c *Comm) Close() {
	c.examine() // a device that has failed told its group
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	if !c.aborted.Load() {
		l := &c.d.rt.nccl
		if err := l.fail(C.hs_nccl_destroy(l.lib, c.d.c, c.h), c.h); err != nil {
			c.d.Fail("leave the communicator", err)
		}
	}
	c.d.mu.Lock()
	c.d.comms = slices.DeleteFunc(c.d.comms, func(o *Comm) bool { return o == c })
	c.d.mu.Unlock()
	c.d.rt.leave(c.group)
}

// ranks are the device's communicators.
func (d *Device) ranks() []*Comm {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.comms)
}

// checkComms makes trouble of the device's communicators its error.
func (d *Device) checkComms() {
	for _, c := range d.ranks() {
		c.examine()
	}
}

// closeComms closes what communicators devices still have, all ranks at the same time.
func closeComms(devices []*Device) {
	var wg sync.WaitGroup
	for _, d := range devices {
		for _, c := range d.ranks() {
			wg.Go(c.Close)
		}
	}
	wg.Wait()
}

// watchEvery is how often a waiting device looks after its communicators.
const watchEvery = 50 * time.Millisecond

// watch examines comms until stop is called.
func watch(comms []*Comm) (stop func()) {
	if len(comms) == 0 {
		return func() {}
	}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(watchEvery)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case <-tick.C:
			}
			for _, c := range comms {
				c.examine()
			}
		}
	}()
	return func() { close(end); <-ended }
}
