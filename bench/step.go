package bench

import (
	"fmt"
	"math/rand/v2"

	"harness-s/kernels"
	"harness-s/model"
)

// Rows and tokens of the training-step benchmark.
const (
	stepRows = 16
	stepLen  = 256
)

// Step times forward + backward + AdamW on 16 rows of 256 random tokens.
func Step(o Options) (Result, error) {
	r := Result{Bench: "step", Shape: fmt.Sprintf("%dx%d tokens, 2.08M parameters", stepRows, stepLen), Threads: o.Threads}
	err := withModel(o, true, func(m *model.Model) error {
		b, coef := rowsOf(stepRows, stepLen, m.Config.Vocab)
		n := 0
		var err error
		r.Runs, err = measure(o.repeat(), stepRows*stepLen, func() error { n++; return trainStep(m, b, coef, n) })
		return err
	})
	if err == nil {
		r.TokensPerS = median(r.Runs)
	}
	return r, err
}

// rowsOf is a packed batch of random rows, with an advantage a row.
func rowsOf(rows, length, vocab int) (b model.Batch, coef []float32) {
	rng := rand.New(rand.NewPCG(1, 2))
	row := make([]int32, length)
	for range rows {
		advantage := float32(rng.NormFloat64())
		for t := range row {
			row[t] = int32(rng.IntN(vocab))
			coef = append(coef, -advantage/float32(rows*length))
		}
		b.Add(row, nil)
	}
	return b, coef
}

func trainStep(m *model.Model, b model.Batch, coef []float32, n int) error {
	m.ZeroGrad()
	if _, err := m.Forward(b, model.ForwardOptions{Temperature: 1, Grad: true}); err != nil {
		return err
	}
	if err := m.Backward(coef); err != nil {
		return err
	}
	return m.Update(kernels.AdamWParams{LR: 1e-4, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01, Step: n, GradScale: 1})
}
