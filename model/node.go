package model

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"harness-s/cuda"
	"harness-s/kernels"
)

// Setup says how each node of a run computes.
type Setup struct {
	Backend   string
	DType     kernels.DType
	Devices   int // of each node
	Threads   int // of each node's host; 0: all cores
	Recompute bool
	Offload   bool // matrices' masters and moments on the host
}

// node is one process's part of a Group: its devices and a rank's model on each of them.
type node struct {
	ranks   []*Model
	workers []*cuda.Worker // one a device, which alone uses it; none on cpu
	opt     Options
	hosts   []kernels.Backend // one a rank, which alone uses it, where the optimizer is offloaded
	own     []kernels.Backend // what open opened

	mu       sync.Mutex // of backends, which fail reads beside other work
	backends []kernels.Backend
	failed   atomic.Bool
}

// use makes the node's ranks live on backends, and what they offload on hosts, if there are any.
func (n *node) use(backends, hosts []kernels.Backend, opt Options) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.backends, n.hosts, n.opt, n.ranks = backends, hosts, opt, make([]*Model, len(backends))
	for _, be := range backends {
		if _, flat := be.(kernels.Flat); flat {
			n.workers = append(n.workers, cuda.NewWorker())
		}
	}
}

// open opens the node's devices, which are not ranks yet.
func (n *node) open(s Setup) error {
	list, err := kernels.Open(s.Threads, kernels.DeviceOptions{Name: s.Backend, DType: s.DType, Devices: s.Devices, Apart: true})
	if err != nil {
		return err
	}
	n.own = list
	var hosts []kernels.Backend
	if s.Offload {
		if hosts, err = openHosts(s.Threads, len(list)); err != nil {
			return fmt.Errorf("offload: %w", err)
		}
		n.own = append(n.own, hosts...)
	}
	n.use(list, hosts, Options{Train: true, Recompute: s.Recompute})
	return nil
}

// openHosts opens a host backend for each rank, which updates its part beside the others: the threads are shared out.
func openHosts(threads, ranks int) ([]kernels.Backend, error) {
	if threads == 0 {
		threads = runtime.NumCPU()
	}
	hosts := make([]kernels.Backend, ranks)
	for r := range hosts {
		be, err := kernels.NewCPU(max(1, threads/ranks))
		if err != nil {
			for _, h := range hosts[:r] {
				h.Close()
			}
			return nil, err
		}
		hosts[r] = be
	}
	return hosts, nil
}

// join makes the node's devices the ranks first, first+1, ... of world. It waits for those of the other nodes.
func (n *node) join(id kernels.CommID, first, world int) error {
	list := make([]kernels.Flat, len(n.backends))
	for i, be := range n.backends {
		var flat bool
		if list[i], flat = be.(kernels.Flat); !flat {
			return fmt.Errorf("backend %s is one device of one node; use cuda", be.Name())
		}
	}
	return kernels.JoinRanks(list, id, first, world)
}

// load loads the policy onto every rank.
func (n *node) load(dir string) error {
	return n.each(func(r int, _ *Model) (err error) {
		opt := n.opt
		if len(n.hosts) > 0 {
			opt.Offload = n.hosts[r]
		}
		n.ranks[r], err = Load(dir, n.backends[r], opt)
		return err
	})
}

// each runs f for every rank of the node at the same time: ranks wait for each other in collectives.
func (n *node) each(f func(r int, m *Model) error) error {
	if len(n.workers) == 0 {
		return f(0, n.ranks[0])
	}
	errs := make([]error, len(n.ranks))
	var wg sync.WaitGroup
	for r, w := range n.workers {
		wg.Go(func() { w.Do(func() { errs[r] = f(r, n.ranks[r]) }) })
	}
	wg.Wait()
	for r, err := range errs {
		if err != nil && len(errs) > 1 {
			errs[r] = fmt.Errorf("device %d: %w", r, err)
		}
	}
	return errors.Join(errs...)
}

// forward runs batch r on rank r; there may be fewer batches than ranks.
func (n *node) forward(batches []Batch, opt ForwardOptions) ([]Stats, error) {
	out := make([]Stats, len(batches))
	err := n.each(func(r int, m *Model) (err error) {
		if r < len(batches) {
			out[r], err = m.Forward(batches[r], opt)
		}
		return err
	})
	return out, err
}

// backward takes coefs[r] backwards on rank r. A rank without any takes part in the exchange alone.
func (n *node) backward(coefs [][]float32) error {
	return n.each(func(r int, m *Model) error {
		if r >= len(coefs) || len(coefs[r]) == 0 {
			m.ws.kept = nil
			return m.backwardNothing()
		}
		return m.Backward(coefs[r])
	})
}

// learn runs batch r with its objective on rank r. A rank without any takes part in the exchange alone.
func (n *node) learn(batches []Batch, opt ForwardOptions, objectives []Objective) ([]Stats, error) {
	out := make([]Stats, len(batches))
	err := n.each(func(r int, m *Model) (err error) {
		if r >= len(batches) {
			return m.backwardNothing()
		}
		out[r], err = m.Learn(batches[r], opt, objectives[r])
		return err
	})
	return out, err
}

func (n *node) zeroGrad() {
	for _, m := range n.ranks {
		m.ZeroGrad()
	}
}

func (n *node) gradStats() (norm float64, bad int, err error) {
	err = n.each(func(r int, m *Model) error {
		x, b, err := m.GradStats()
		if r == 0 {
			norm, bad = x, b
		}
		return err
	})
	return norm, bad, err
}

// write lets the first of all ranks write while the others take part in gathering what it fetches.
func (n *node) write(c *command) error {
	return n.each(func(_ int, m *Model) error {
		defer m.endFetch()
		arenas, err := m.written(c.Op)
		if err != nil {
			return err
		}
		if m.rank != 0 {
			return m.follow(arenas)
		}
		if err = m.writeTo(c); err != nil { // the others wait for what is left
			err = errors.Join(err, m.follow(arenas))
		}
		return err
	})
}

// written are the arenas that an operation writes, in its order.
func (m *Model) written(o operation) ([]*arena, error) {
	switch o {
	case opMoments:
		return []*arena{&m.m1, &m.m2}, m.moments()
	default:
		return []*arena{&m.w}, nil
	}
}

func (m *Model) writeTo(c *command) error {
	switch c.Op {
	case opMoments:
		return m.WriteOptimizer(c.Path)
	default:
		return m.WriteInto(c.Path, c.Save)
	}
}

// deviceBytes is what the node's devices hold, 0 where that is the host.
func (n *node) deviceBytes() (sum int64) {
	for _, m := range n.ranks {
		if m == nil || m.flat == nil {
			continue
		}
		for _, b := range m.be.Usage() {
			sum += b
		}
	}
	return sum
}

// fail ends what the node's ranks are at, from any goroutine: they no longer wait for ranks elsewhere.
func (n *node) fail(err error) {
	n.failed.Store(true)
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, be := range n.backends {
		if flat, ok := be.(kernels.Flat); ok {
			flat.Fail(err)
		}
	}
}

// close frees the models, and the devices that open opened: all at once, since the ranks of a communicator wait for each
// other. What goes wrong after fail says nothing new.
func (n *node) close() error {
	errs := make([]error, 1+len(n.own))
	if len(n.ranks) > 0 {
		errs[0] = n.each(func(_ int, m *Model) error {
			if m == nil {
				return nil
			}
			return m.Close()
		})
	}
	for _, w := range n.workers {
		w.Close()
	}
	var wg sync.WaitGroup
	for i, be := range n.own {
		wg.Go(func() { errs[1+i] = be.Close() })
	}
	wg.Wait()
	n.workers, n.ranks, n.own = nil, nil, nil
	if n.failed.Load() {
		return nil
	}
	return errors.Join(errs...)
}
