package model

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"harness-s/kernels"
	"harness-s/model/safetensors"
)

// Moments are the Adam moment arenas, made (zero) when first asked for. They have the weight arena's layout.
func (m *Model) Moments() (m1, m2 kernels.Buffer, err error) {
	if !m.opt.Train {
		return m1, m2, errors.New("optimizer: the model was made without Options.Train")
	}
	if m.m1.IsNil() {
		b1, err1 := m.be.Alloc("optimizer", m.words)
		b2, err2 := m.be.Alloc("optimizer", m.words)
		if err := errors.Join(err1, err2); err != nil {
			m.be.Free(b1)
			m.be.Free(b2)
			return m1, m2, fmt.Errorf("allocate optimizer state: %w", err)
		}
		m.m1, m.m2 = b1, b2
	}
	return m.m1, m.m2, nil
}

// Update is one AdamW update of every parameter from the gradients, then Repack. Weight decay applies to the
// parameters marked Decay alone.
func (m *Model) Update(p kernels.AdamWParams) error {
	m1, m2, err := m.Moments()
	if err != nil {
		return err
	}
	d, rest := m.decayWords, m.words-m.decayWords
	m.be.AdamW(m.w.Slice(0, d), m1.Slice(0, d), m2.Slice(0, d), m.grad.Slice(0, d), d, p)
	p.WeightDecay = 0
	m.be.AdamW(m.w.Slice(d, rest), m1.Slice(d, rest), m2.Slice(d, rest), m.grad.Slice(d, rest), rest, p)
	m.Repack()
	if err := m.be.Sync(); err != nil {
		return fmt.Errorf("optimizer update: %w", err)
	}
	return nil
}

// GradNorm is the L2 norm of all gradients.
func (m *Model) GradNorm() float64 { return math.Sqrt(m.be.SumSquares(m.grad, m.words)) }

// NonFiniteGrads counts NaN and infinities among the gradients.
func (m *Model) NonFiniteGrads() int { return m.be.NonFinite(m.grad, m.words) }

// Prefixes of the two moments' names in an optimizer file.
const moment1, moment2 = "exp_avg.", "exp_avg_sq."

// WriteOptimizer writes the Adam moments as a safetensors file: exp_avg.NAME and exp_avg_sq.NAME, fp32.
func (m *Model) WriteOptimizer(path string) error {
	m1, m2, err := m.Moments()
	if err != nil {
		return err
	}
	var entries []safetensors.Entry
	for i := range m.params {
		p := &m.params[i]
		for prefix, arena := range map[string]kernels.Buffer{moment1: m1, moment2: m2} {
			entries = append(entries, m.entry(prefix+p.Name, p.Shape, arena.Slice(p.off, p.size()), safetensors.F32))
		}
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
	m1, m2, err := m.Moments()
	if err != nil {
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
		for prefix, arena := range map[string]kernels.Buffer{moment1: m1, moment2: m2} {
			if err := f.Tensor(prefix + p.Name).Float32s(buf); err != nil {
				return err
			}
			m.be.Upload(arena.Slice(p.off, p.size()), buf)
		}
	}
	return m.be.Sync()
}
