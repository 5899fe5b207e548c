package model

import (
	"slices"
	"strings"

	"harness-s/internal/nodes"
	"harness-s/kernels"
)

// Group is one policy in training on one or more ranks, a device each, on one node or several. Every rank has all compute
// copies and takes its share of the micro-batches; masters, gradients and moments of the matrices are divided between them.
type Group struct {
	node       // this process's ranks, the first ones
	world  int // ranks of all nodes
	others []*nodes.Link
	bytes  []int64 // device memory by node, as last heard
	err    error   // what ended a group of several nodes
	lost   bool    // this node's devices do not answer
}

// LoadGroup loads a Hugging Face folder onto backends of this process that were opened together; see Load. Of hosts there
// is one for each backend, in place of opt.Offload, or none.
func LoadGroup[B kernels.Backend](dir string, backends []B, opt Options, hosts ...kernels.Backend) (*Group, error) {
	list := make([]kernels.Backend, len(backends))
	for i, be := range backends {
		list[i] = be
	}
	g := &Group{world: len(list), bytes: make([]int64, 1)}
	g.use(list, hosts, opt)
	if err := g.Load(dir); err != nil {
		g.Close() // the error is the one to tell
		return nil, err
	}
	return g, nil
}

// NewGroup is a group of one model.
func NewGroup(m *Model) *Group {
	return &Group{node: node{ranks: []*Model{m}}, world: 1, bytes: make([]int64, 1)}
}

// Lead is the first rank's model.
func (g *Group) Lead() *Model { return g.ranks[0] }

// Score is Forward without gradients over several batches, one a rank at a time, in the batches' order.
func (g *Group) Score(batches []Batch, opt ForwardOptions) ([]Stats, error) {
	opt.Grad = false
	var out []Stats
	for round := range slices.Chunk(batches, g.world) {
		stats, err := g.round(round, opt)
		if err != nil {
			return nil, err
		}
		out = append(out, stats...)
	}
	return out, nil
}

// round runs batch r on rank r; there are at most as many as ranks.
func (g *Group) round(round []Batch, opt ForwardOptions) ([]Stats, error) {
	replies, err := g.all(func(first, n int) command {
		return command{Op: opForward, Batches: part(round, first, n), Forward: opt}
	})
	var out []Stats
	for _, r := range replies {
		out = append(out, r.Stats...)
	}
	return out, err
}

// part is what ranks first ... first+n-1 get of a round.
func part[T any](round []T, first, n int) []T {
	return round[min(first, len(round)):min(first+n, len(round))]
}

// Accumulate adds to the gradients those of sum_t coef[t]*logp[t] over all batches. grad gives a batch's coefficients,
// len(Tokens), from its log-probs; it is called for each batch in order, nil meaning that the batch adds nothing. Every rank
// makes as many passes as any other, with nothing to add where batches run out.
func (g *Group) Accumulate(batches []Batch, opt ForwardOptions, grad func(i int, s Stats) (coef []float32, err error)) error {
	opt.Grad = true
	at := 0
	for round := range slices.Chunk(batches, g.world) {
		stats, err := g.round(round, opt)
		if err != nil {
			return err
		}
		coefs := make([][]float32, len(round))
		for r := range round {
			if coefs[r], err = grad(at, stats[r]); err != nil {
				return err
			}
			at++
		}
		_, err = g.all(func(first, n int) command { return command{Op: opBackward, Coefs: part(coefs, first, n)} })
		if err != nil {
			return err
		}
	}
	return nil
}

// Ranks is the number of devices, of all nodes.
func (g *Group) Ranks() int { return g.world }

// TakesObjectives says whether Learn works on this group's backend, which is the same on every node.
func (g *Group) TakesObjectives() bool { return g.ranks[0].TakesObjectives() }

// Learn adds to the gradients those of each batch's objective; see Model.Learn. note is told each batch's results, in order.
// Every rank makes as many passes as any other, as with Accumulate.
func (g *Group) Learn(batches []Batch, opt ForwardOptions, objectives []Objective, note func(i int, s Stats)) error {
	at := 0
	for round := range slices.Chunk(batches, g.world) {
		own := objectives[at : at+len(round)]
		replies, err := g.all(func(first, n int) command {
			return command{Op: opLearn, Batches: part(round, first, n), Forward: opt, Objectives: part(own, first, n)}
		})
		if err != nil {
			return err
		}
		for _, r := range replies {
			for _, s := range r.Stats {
				note(at, s)
				at++
			}
		}
	}
	return nil
}

// ZeroGrad sets every gradient to zero. An error is that of the next call that can tell.
func (g *Group) ZeroGrad() { g.all(func(_, _ int) command { return command{Op: opZeroGrad} }) }

// GradStats is the L2 norm of all gradients and how many values of them are NaN or infinite.
func (g *Group) GradStats() (norm float64, bad int, err error) {
	replies, err := g.all(func(_, _ int) command { return command{Op: opNorm} })
	if err == nil {
		err = g.sameNorm(replies)
	}
	if err != nil {
		return 0, 0, err
	}
	return replies[0].Norm, replies[0].Bad, nil
}

// Update is one AdamW update of every parameter; see Model.Update.
func (g *Group) Update(p kernels.AdamWParams) error {
	_, err := g.all(func(_, _ int) command { return command{Op: opUpdate, AdamW: p} })
	return err
}

// WriteInto writes the model's files into a folder; see Model.WriteInto. With several nodes this one alone writes.
func (g *Group) WriteInto(dir string, opt SaveOptions) error {
	_, err := g.all(func(_, _ int) command { return command{Op: opWeights, Path: dir, Save: opt} })
	return err
}

// WriteOptimizer writes the Adam moments; see Model.WriteOptimizer.
func (g *Group) WriteOptimizer(path string) error {
	_, err := g.all(func(_, _ int) command { return command{Op: opMoments, Path: path} })
	return err
}

// ReadOptimizer reads what WriteOptimizer wrote, on any number of ranks. Every node must see the file under the same path.
func (g *Group) ReadOptimizer(path string) error { return g.readEverywhere(opResume, path) }

// DeviceBytes is what all ranks' devices hold, 0 where that is the host; for other nodes as of the last call.
func (g *Group) DeviceBytes() int64 {
	sum := g.deviceBytes()
	for _, n := range g.bytes[1:] {
		sum += n
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
