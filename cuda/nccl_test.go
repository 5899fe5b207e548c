package cuda

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
)

// ranks are the devices of one machine, each with its communicator and worker.
type ranks struct {
	devices []*Device
	comms   []*Comm
	workers []*Worker
}

func joined(t *testing.T, world int) *ranks {
	t.Helper()
	r := machineOf{devices: world}.open(t)
	id, err := r.NewCommID()
	if err != nil {
		t.Fatal(err)
	}
	k := &ranks{make([]*Device, world), make([]*Comm, world), make([]*Worker, world)}
	for i := range world {
		k.workers[i] = NewWorker()
		if k.devices[i], err = r.Device(i); err != nil {
			t.Fatal(err)
		}
	}
	errs := make([]error, world)
	k.each(func(i int) { k.comms[i], errs[i] = k.devices[i].Join(id, i, world) })
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		k.each(func(i int) { k.comms[i].Close() })
		for _, w := range k.workers {
			w.Close()
		}
	})
	return k
}

// each runs f on every rank's worker at the same time.
func (k *ranks) each(f func(rank int)) {
	var wg sync.WaitGroup
	for i, w := range k.workers {
		wg.Go(func() { w.Do(func() { f(i) }) })
	}
	wg.Wait()
}

func TestCollectives(t *testing.T) {
	const world, n = 4, 1000
	k := joined(t, world)
	value := func(rank, i int) float32 { return float32(rank+1) * float32(i%17-8) } // exact in bf16, sums too
	for _, ty := range []DType{F32, BF16} {
		got := make([]map[string][]float32, world)
		k.each(func(rank int) {
			d, c, s := k.devices[rank], k.comms[rank], k.devices[rank].Stream()
			whole := matrix{rows: 1, cols: world * n, ld: world * n, t: ty, f: make([]float32, world*n)}
			for i := range whole.f {
				whole.f[i] = value(rank, i)
			}
			src := whole.upload(t, d, 0)
			part, gathered, reduced := alloc(t, d, n*ty.Size()), alloc(t, d, world*n*ty.Size()), whole.upload(t, d, 0)
			sent := whole.upload(t, d, 0)
			c.ReduceScatter(s, part, src, n, ty)
			c.AllGather(s, gathered, part, n, ty)
			c.AllReduce(s, reduced, world*n, ty)
			c.Broadcast(s, sent, world*n, ty, 2)
			c.AllReduce(s, reduced, 0, ty)
			got[rank] = map[string][]float32{"part": fetch(d, part, n, ty), "gathered": fetch(d, gathered, world*n, ty),
				"reduced": fetch(d, reduced, world*n, ty), "sent": fetch(d, sent, world*n, ty)}
			if err := s.Sync(); err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
		})
		for rank := range world {
			for i := range world * n {
				sum := value(0, i) + value(1, i) + value(2, i) + value(3, i)
				if i/n == rank && got[rank]["part"][i%n] != sum {
					t.Fatalf("%v: reduce-scatter: rank %d [%d] = %v, want %v", ty, rank, i%n, got[rank]["part"][i%n], sum)
				}
				for _, what := range []string{"gathered", "reduced"} {
					if got[rank][what][i] != sum {
						t.Fatalf("%v: %s: rank %d [%d] = %v, want %v", ty, what, rank, i, got[rank][what][i], sum)
					}
				}
				if got[rank]["sent"][i] != value(2, i) {
					t.Fatalf("%v: broadcast: rank %d [%d] = %v, want %v", ty, rank, i, got[rank]["sent"][i], value(2, i))
				}
			}
		}
	}
}

// A reduce-scatter into its own part of the source and a gather from its own part of the result, as ZeRO uses them.
func TestCollectivesInPlace(t *testing.T) {
	const world, n = 2, 64
	k := joined(t, world)
	k.each(func(rank int) {
		d, s := k.devices[rank], k.devices[rank].Stream()
		v := make([]float32, world*n)
		for i := range v {
			v[i] = float32(i + rank)
		}
		p := upload(t, d, v)
		mine := p + Ptr(4*n*rank)
		k.comms[rank].ReduceScatter(s, mine, p, n, F32)
		k.comms[rank].AllGather(s, p, mine, n, F32)
		for i, x := range download[float32](d, p, world*n) {
			if x != float32(2*i+1) {
				t.Errorf("rank %d [%d] = %v", rank, i, x)
				break
			}
		}
		if err := s.Sync(); err != nil {
			t.Error(err)
		}
	})
}

// A rank that fails skips its collectives; the others, which wait for it, must learn why and end.
func TestOneRankFails(t *testing.T) {
	const world = 4
	k := joined(t, world)
	errs := make([]error, world)
	k.each(func(rank int) {
		d, s := k.devices[rank], k.devices[rank].Stream()
		p := alloc(t, d, 4096)
		if rank == 2 {
			d.Fail("read a batch", errors.New("the file is gone"))
		}
		k.comms[rank].AllReduce(s, p, 1024, F32)
		errs[rank] = s.Sync()
	})
	for rank, err := range errs {
		if err == nil || !strings.Contains(err.Error(), "the file is gone") {
			t.Errorf("rank %d: %v", rank, err)
		}
		if rank != 2 && !strings.Contains(fmt.Sprint(err), "rank 2 failed") {
			t.Errorf("rank %d does not name the one that failed: %v", rank, err)
		}
	}
	k.each(func(rank int) { // aborted for good
		k.comms[rank].AllReduce(k.devices[rank].Stream(), 256, 4, F32)
		if err := k.devices[rank].Stream().Sync(); err == nil || !strings.Contains(err.Error(), "join a new one") {
			t.Errorf("rank %d: %v", rank, err)
		}
	})
}

// Closing the runtime closes communicators that were left open, whose ranks wait for each other.
func TestCloseWithOpenCommunicators(t *testing.T) {
	r := machineOf{devices: 3}.open(t)
	id, err := r.NewCommID()
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 3 {
		d, err := r.Device(i)
		if err != nil {
			t.Fatal(err)
		}
		p := alloc(t, d, 1024)
		wg.Go(func() {
			c, err := d.Join(id, i, 3)
			if err != nil {
				t.Error(err)
				return
			}
			c.AllReduce(d.Stream(), p, 256, F32)
		})
	}
	wg.Wait()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if len(r.groups) != 0 {
		t.Errorf("%d groups left", len(r.groups))
	}
}

func TestJoinWrongRank(t *testing.T) {
	r := machineOf{}.open(t)
	id, err := r.NewCommID()
	if err != nil {
		t.Fatal(err)
	}
	d, err := r.Device(0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Join(id, 1, 1); err == nil || !strings.Contains(err.Error(), "rank 1 of 1") {
		t.Errorf("got %v", err)
	}
	if _, err := d.Join(CommID{}, 0, 1); err == nil || !strings.Contains(err.Error(), "nccl:") {
		t.Errorf("an id of zeros: %v", err)
	}
	if len(r.groups) != 0 {
		t.Errorf("%d groups left behind", len(r.groups))
	}
}

func TestNCCLVersion(t *testing.T) {
	for v, want := range map[int]string{2708: "2.7.8", 21203: "2.12.3", 22703: "2.27.3"} {
		if got := ncclVersion(v); got != want {
			t.Errorf("%d: %s, want %s", v, got, want)
		}
	}
}
