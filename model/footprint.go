package model

import (
	"fmt"

	"harness-s/kernels"
)

// Footprint is the device memory by purpose that training takes on a backend, found by making the model, with zeros for
// weights, and running a pass over tokens in rows of 1024 and an update. On a recorded device nothing is computed.
func Footprint(cfg Config, be kernels.Backend, tokens int, opt Options) (map[string]int64, error) {
	opt.Train = true
	m, err := NewWith(cfg, be, opt, nil)
	if err != nil {
		return nil, fmt.Errorf("footprint: %w", err)
	}
	defer m.Close()
	var b Batch
	for left := tokens; left > 0; left -= planRow {
		b.Add(make([]int32, min(left, planRow)), nil)
	}
	if _, err := m.Forward(b, ForwardOptions{Grad: true}); err != nil {
		return nil, fmt.Errorf("footprint: %w", err)
	}
	coef := make([]float32, len(b.Tokens))
	for i := range coef {
		coef[i] = 1
	}
	if err := m.Backward(coef); err != nil {
		return nil, fmt.Errorf("footprint: %w", err)
	}
	if _, _, err := m.GradStats(); err != nil {
		return nil, fmt.Errorf("footprint: %w", err)
	}
	if err := m.Update(kernels.AdamWParams{Step: 1}); err != nil {
		return nil, fmt.Errorf("footprint: %w", err)
	}
	return be.Usage(), nil
}

// MatrixWords is the number of values in all matrices, padding included: what several ranks divide between them.
func (c *Config) MatrixWords(world int) int {
	_, words, _ := layout(c.paramList(), world)
	return words
}
