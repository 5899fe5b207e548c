package model

import (
	"errors"
	"fmt"
	"math"

	"harness-s/kernels"
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
