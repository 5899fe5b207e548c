package bench

import (
	"fmt"
	"math"
	"time"

	"harness-s/kernels"
	"harness-s/model"
)

// stepRowLen is the length of a row in the step benchmarks on devices, at most.
const stepRowLen = 4096

// MeasureStep times training steps (forward, backward, gradient norm, AdamW) of a model with random weights on a device, as
// one rank of o.Ranks whose collectives exchange nothing. Activations are kept when they fit, else computed again.
func MeasureStep(o DeviceOptions) (Measurement, error) {
	cfg, err := Size(o.Size)
	if err == nil {
		err = o.check()
	}
	if err != nil {
		return Measurement{}, err
	}
	be, info, err := kernels.OpenAlone(o.Backend, o.DType, max(1, o.Ranks))
	if err != nil {
		return Measurement{}, fmt.Errorf("bench: %w", err)
	}
	defer be.Close()
	s, err := openStep(cfg, be, o.Tokens, patternFill(cfg))
	if err != nil {
		return Measurement{}, err
	}
	defer s.m.Close()
	m := Measurement{Bench: "step", Device: info.Name, Model: o.Size, Shape: s.shape(o), FLOP: stepFLOP(cfg, s.batch)}
	begin := time.Now()
	for i := range o.repeat() {
		start := time.Now()
		if err := s.run(); err != nil {
			return m, fmt.Errorf("bench: step of %s: %w", o.Size, err)
		}
		m.Runs = append(m.Runs, time.Since(start).Seconds()*1e3)
		if i > 0 && o.Limit > 0 && time.Since(begin) > o.Limit {
			break
		}
	}
	m.Ms = median(m.Runs)
	m.TFLOPS, m.TokensPerS = m.FLOP/m.Ms/1e9, f(o.Tokens)/m.Ms*1e3
	if d, ok := DataSheet(info); ok {
		m.Bound, m.Peak = "compute", m.FLOP/d.BF16*1e3/m.Ms
	}
	if o.Size == "9b" && o.Tokens == 32768 {
		m.addBar(Bar{Goal: true, Ms: 3500, Source: "9B, 32k tokens a GPU, H200"})
	}
	return m, nil
}

func (m *Measurement) addBar(b Bar) {
	m.Bars, m.BarMs = append(m.Bars, b.String()), b.Ms
}

// stepRun is a model with a batch to train on.
type stepRun struct {
	m         *model.Model
	batch     model.Batch
	coef      []float32
	recompute bool
	steps     int
}

// openStep makes the model and runs one step: with all activations kept, and where that takes more memory than there is,
// without.
func openStep(cfg model.Config, be kernels.Flat, tokens int, fill func(*model.Param, []float32) error) (*stepRun, error) {
	s := &stepRun{}
	length := min(stepRowLen, tokens/8)
	s.batch, s.coef = rowsOf(tokens/length, length, cfg.Vocab)
	for {
		var err error
		if s.m, err = model.NewWith(cfg, be, model.Options{Train: true, Recompute: s.recompute}, fill); err != nil {
			return nil, fmt.Errorf("bench: %w", err)
		}
		if err = s.run(); err == nil {
			return s, nil
		}
		s.m.Close()
		if s.recompute {
			return nil, fmt.Errorf("bench: %w", err)
		}
		if err := be.Sync(); err != nil { // the sticky error of what did not fit
			return nil, fmt.Errorf("bench: %w", err)
		}
		s.recompute, s.steps = true, 0
	}
}

func (s *stepRun) run() error {
	s.steps++
	s.m.ZeroGrad()
	if _, err := s.m.Forward(s.batch, model.ForwardOptions{Temperature: 1, Grad: true}); err != nil {
		return err
	}
	if err := s.m.Backward(s.coef); err != nil {
		return err
	}
	if _, _, err := s.m.GradStats(); err != nil {
		return err
	}
	return s.m.Update(kernels.AdamWParams{LR: 1e-6, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01, Step: s.steps, GradScale: 1})
}

func (s *stepRun) shape(o DeviceOptions) string {
	text := fmt.Sprintf("%d rows of %d tokens, rank 0 of %d, %s", s.batch.Rows(), len(s.batch.Tokens)/s.batch.Rows(), max(1, o.Ranks), o.DType)
	if s.recompute {
		text += ", activations computed again"
	}
	return text
}

// stepFLOP counts forward and backward once, whatever is computed again.
func stepFLOP(cfg model.Config, b model.Batch) float64 {
	_, training := cfg.FLOPs(len(b.Tokens) / b.Rows() / 2)
	return f(len(b.Tokens)) * float64(training)
}

// patternFill gives a model random weights fast: the same million numbers again and again, scaled as a layer's. A model
// whose weights are drawn one by one takes minutes to make at 9B.
func patternFill(cfg model.Config) func(*model.Param, []float32) error {
	return func(p *model.Param, values []float32) error {
		for n := 0; n < len(values); n += copy(values[n:], normals()) {
		}
		mean, std := float32(0), float32(0.1)
		if len(p.Shape) > 1 {
			std = float32(0.5 / math.Sqrt(f(len(values)/p.Shape[0])))
		} else if len(values) == cfg.Dv {
			mean = 1
		}
		for i := range values {
			values[i] = mean + std*values[i]
		}
		return nil
	}
}
