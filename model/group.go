package model

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"harness-s/cuda"
	"harness-s/kernels"
)

// Group is one policy in training on one or more ranks, a backend each. Every rank has all compute copies and takes its share
// of the micro-batches; masters, gradients and moments of the matrices are divided between them.
type Group struct {
	ranks   []*Model
	workers []*cuda.Worker // one a device, which alone uses it; none on cpu
}

// LoadGroup loads a Hugging Face folder onto backends that were opened together; see Load.
func LoadGroup[B kernels.Backend](dir string, backends []B, opt Options) (*Group, error) {
	g := &Group{ranks: make([]*Model, len(backends))}
	for _, be := range backends {
		if _, flat := kernels.Backend(be).(kernels.Flat); flat {
			g.workers = append(g.workers, cuda.NewWorker())
		}
	}
	err := g.each(func(r int, _ *Model) (err error) {
		g.ranks[r], err = Load(dir, backends[r], opt)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// NewGroup is a group of one model.
func NewGroup(m *Model) *Group { return &Group{ranks: []*Model{m}} }

// Lead is the first rank's model.
func (g *Group) Lead() *Model { return g.ranks[0] }

// Close frees all ranks.
func (g *Group) Close() error {
	err := g.each(func(_ int, m *Model) error {
		if m == nil {
			return nil
		}
		return m.Close()
	})
	for _, w := range g.workers {
		w.Close()
	}
	g.workers = nil
	return err
}

// each runs f for every rank at the same time: ranks wait for each other in collectives.
func (g *Group) each(f func(r int, m *Model) error) error {
	if len(g.workers) == 0 {
		return f(0, g.ranks[0])
	}
	errs := make([]error, len(g.ranks))
	var wg sync.WaitGroup
	for r, w := range g.workers {
		wg.Go(func() { w.Do(func() { errs[r] = f(r, g.ranks[r]) }) })
	}
	wg.Wait()
	for r, err := range errs {
		if err != nil && len(errs) > 1 {
			errs[r] = fmt.Errorf("rank %d: %w", r, err)
		}
	}
	return errors.Join(errs...)
}

// Score is Forward without gradients over several batches, one a rank at a time, in the batches' order.
func (g *Group) Score(batches []Batch, opt ForwardOptions) ([]Stats, error) {
	opt.Grad = false
	out := make([]Stats, len(batches))
	for at := 0; at < len(batches); at += len(g.ranks) {
		if err := g.forward(batches, out, at, opt); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// forward runs one round: batch at+r on rank r.
func (g *Group) forward(batches []Batch, out []Stats, at int, opt ForwardOptions) error {
	return g.each(func(r int, m *Model) (err error) {
		if at+r < len(batches) {
			out[at+r], err = m.Forward(batches[at+r], opt)
		}
		return err
	})
}

// Accumulate adds to the gradients those of sum_t coef[t]*logp[t] over all batches. grad gives a batch's coefficients,
// len(Tokens), from its log-probs; it is called for each batch in order, nil meaning that the batch adds nothing. Every rank
// makes as many passes as any other, with nothing to add where batches run out.
func (g *Group) Accumulate(batches []Batch, opt ForwardOptions, grad func(i int, s Stats) (coef []float32, err error)) error {
	opt.Grad = true
	stats := make([]Stats, len(batches))
	for at := 0; at < len(batches); at += len(g.ranks) {
		if err := g.forward(batches, stats, at, opt); err != nil {
			return err
		}
		coefs := make([][]float32, len(g.ranks))
		for r := range coefs {
			if at+r >= len(batches) {
				break
			}
			var err error
			if coefs[r], err = grad(at+r, stats[at+r]); err != nil {
				return err
			}
		}
		err := g.each(func(r int, m *Model) error {
			if coefs[r] == nil {
				m.ws.kept = nil
				return m.backwardNothing()
			}
			return m.Backward(coefs[r])
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// ZeroGrad sets every gradient to zero.
func (g *Group) ZeroGrad() {
	for _, m := range g.ranks {
		m.ZeroGrad()
	}
}

// GradStats is the L2 norm of all gradients and how many values of them are NaN or infinite.
func (g *Group) GradStats() (norm float64, bad int, err error) {
	err = g.each(func(r int, m *Model) error {
		n, b, err := m.GradStats()
		if r == 0 {
			norm, bad = n, b
		}
		return err
	})
	return norm, bad, err
}

// Update is one AdamW update of every parameter; see Model.Update.
func (g *Group) Update(p kernels.AdamWParams) error {
	return g.each(func(_ int, m *Model) error { return m.Update(p) })
}

// WriteInto writes the model's files into a folder; see Model.WriteInto.
func (g *Group) WriteInto(dir string, opt SaveOptions) error {
	return g.write(func(m *Model) error { return m.WriteInto(dir, opt) }, func(m *Model) []*arena { return []*arena{&m.w} })
}

// WriteOptimizer writes the Adam moments; see Model.WriteOptimizer.
func (g *Group) WriteOptimizer(path string) error {
	return g.write(func(m *Model) error { return m.WriteOptimizer(path) }, func(m *Model) []*arena { return []*arena{&m.m1, &m.m2} })
}

// WriteGrads writes the gradients; see Model.WriteGrads.
func (g *Group) WriteGrads(path string) error {
	return g.write(func(m *Model) error { return m.WriteGrads(path) }, func(m *Model) []*arena { return []*arena{&m.grad} })
}

// write lets the first rank write while the others take part in gathering what it fetches.
func (g *Group) write(write func(m *Model) error, arenas func(m *Model) []*arena) error {
	return g.each(func(r int, m *Model) error {
		defer m.endFetch()
		if r != 0 {
			return m.follow(arenas(m))
		}
		err := write(m)
		if err != nil { // the others wait for what is left
			err = errors.Join(err, m.follow(arenas(m)))
		}
		return err
	})
}

// ReadOptimizer reads what WriteOptimizer wrote, on any number of ranks.
func (g *Group) ReadOptimizer(path string) error {
	return g.each(func(_ int, m *Model) error { return m.ReadOptimizer(path) })
}

// DeviceBytes is what all ranks' backends hold, 0 where that is the host.
func (g *Group) DeviceBytes() int64 {
	var sum int64
	for _, m := range g.ranks {
		if m.flat == nil {
			continue
		}
		for _, n := range m.be.Usage() {
			sum += n
		}
	}
	return sum
}

// follow gathers the buckets of arenas in the order in which a writer fetches parameters, by name, from the gather after
// this rank's last one on.
func (m *Model) follow(arenas []*arena) error {
	if !m.sharded() {
		return nil
	}
	order := make([]*Param, len(m.params))
	for i := range m.params {
		order[i] = &m.params[i]
	}
	slices.SortFunc(order, func(a, b *Param) int { return strings.Compare(a.Name, b.Name) })
	n, done := 0, m.gathered.count
	for _, a := range arenas {
		last := -1
		for _, p := range order {
			if !p.Decay || p.bucket == last {
				continue
			}
			last = p.bucket
			if n++; n <= done {
				continue
			}
			if err := m.gather(a, m.buckets[p.bucket]); err != nil {
				return err
			}
		}
	}
	return m.be.Sync()
}
