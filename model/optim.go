package model

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"harness-s/kernels"
	"harness-s/model/safetensors"
)

// moments makes the Adam moment arenas, zero, when first asked for.
func (m *Model) moments() error {
	if !m.opt.Train {
		return errors.New("optimizer: the model was made without Options.Train")
	}
	for _, a := range []*arena{&m.m1, &m.m2} {
		if a.be != nil {
			continue
		}
		made, err := m.newArena("optimizer", m.w.be)
		if err != nil {
			return fmt.Errorf("allocate optimizer state: %w", err)
		}
		*a = made
	}
	return nil
}

// Update is one AdamW update of every parameter from the gradients; the compute copies follow. Weight decay applies to the
// parameters marked Decay alone.
func (m *Model) Update(p kernels.AdamWParams) error {
	if err := m.moments(); err != nil {
		return err
	}
	m.reducePlain()
	if err := m.updateMatrices(p); err != nil {
		return fmt.Errorf("optimizer update: %w", err)
	}
	p.WeightDecay = 0
	m.be.AdamW(m.w.plain, m.m1.plain, m.m2.plain, m.grad.plain, m.w.plain.Len(), p)
	m.Repack()
	if err := m.be.Sync(); err != nil {
		return fmt.Errorf("optimizer update: %w", err)
	}
	return nil
}

func (m *Model) updateMatrices(p kernels.AdamWParams) error {
	if m.flat == nil {
		m.be.AdamW(m.w.pieces, m.m1.pieces, m.m2.pieces, m.grad.pieces, m.decayWords, p)
		return nil
	}
	var marks []kernels.Mark
	for _, b := range m.buckets {
		n, compute := b.words/m.world, m.computePiece(b)
		w, m1, m2, g := m.piece(&m.w, b), m.piece(&m.m1, b), m.piece(&m.m2, b), m.piece(&m.grad, b)
		if m.w.be == m.be {
			m.flat.AdamWCast(compute, w, m1, m2, g, n, p)
		} else if err := m.updateOnHost(compute, w, m1, m2, g, p); err != nil {
			return err
		}
		marks = append(marks, m.flat.AllGather(m.compute.Slice(m.be.Words(b.off), m.be.Words(b.words)), n))
	}
	for _, mark := range marks {
		m.flat.After(mark)
	}
	return nil
}

// updateOnHost updates masters and moments that lie on the host, a part at a time.
func (m *Model) updateOnHost(compute, w, m1, m2, g kernels.Buffer, p kernels.AdamWParams) error {
	host := m.w.be
	n := min(g.Len(), transferWords)
	hg, err := host.Alloc("gradients", n)
	if err != nil {
		return err
	}
	defer host.Free(hg)
	stage, err := m.be.Alloc("offload", n)
	if err != nil {
		return err
	}
	defer m.be.Free(stage)
	for off := 0; off < g.Len(); off += n {
		k := min(n, g.Len()-off)
		if err := transfer(host, hg, m.be, g.Slice(off, k)); err != nil {
			return err
		}
		host.AdamW(w.Slice(off, k), m1.Slice(off, k), m2.Slice(off, k), hg, k, p)
		if err := transfer(m.be, stage, host, w.Slice(off, k)); err != nil {
			return err
		}
		m.flat.Cast(compute.Slice(m.be.Words(off), m.be.Words(k)), stage, k)
	}
	return nil
}

// GradStats is the L2 norm of all gradients and how many values of them are NaN or infinite. With several ranks all of
// them call it.
func (m *Model) GradStats() (norm float64, bad int, err error) {
	squares, bad, err := m.gradStats()
	return math.Sqrt(squares), bad, err
}

// Prefixes of the two moments' names in an optimizer file.
const moment1, moment2 = "exp_avg.", "exp_avg_sq."

// WriteOptimizer writes the Adam moments as a safetensors file: exp_avg.NAME and exp_avg_sq.NAME, fp32.
func (m *Model) WriteOptimizer(path string) error {
	if err := m.moments(); err != nil {
		return err
	}
	var entries []safetensors.Entry
	for i := range m.params {
		p := &m.params[i]
		entries = append(entries, m.entry(moment1+p.Name, p, &m.m1, safetensors.F32), m.entry(moment2+p.Name, p, &m.m2, safetensors.F32))
	}
	safetensors.SortEntries(entries)
	if err := safetensors.WriteFile(path, nil, entries); err != nil {
		return fmt.Errorf("write optimizer state: %w", err)
	}
	return nil
}

// ReadOptimizer reads what WriteOptimizer wrote. The file must fit the model exactly; on an error the moments are
// unchanged, unless reading itself fails.
func (m *Model) ReadOptimizer(path string) error {
	if err := m.readOptimizer(path); err != nil {
		return fmt.Errorf("read optimizer state: %w", err)
	}
	return nil
}

func (m *Model) readOptimizer(path string) error {
	if err := m.moments(); err != nil {
		return err
	}
	f, err := safetensors.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if n := len(f.Tensors()); n != 2*len(m.params) {
		return fmt.Errorf("%s has %d tensors, the model needs %d", path, n, 2*len(m.params))
	}
	for i := range m.params {
		for _, prefix := range []string{moment1, moment2} {
			name := prefix + m.params[i].Name
			if t := f.Tensor(name); t == nil {
				return fmt.Errorf("%s: tensor %q is missing", path, name)
			} else if !slices.Equal(t.Shape, m.params[i].Shape) || t.DType != safetensors.F32 {
				return fmt.Errorf("%s: tensor %q is %s %v, want F32 %v", path, name, t.DType, t.Shape, m.params[i].Shape)
			}
		}
	}
	for i := range m.params {
		p := &m.params[i]
		buf := make([]float32, p.size())
		for prefix, a := range map[string]*arena{moment1: &m.m1, moment2: &m.m2} {
			if err := f.Tensor(prefix + p.Name).Float32s(buf); err != nil {
				return err
			}
			m.upload(a, p, buf)
		}
	}
	return m.be.Sync()
}
