// Package bench measures: kernels, a training step, decoding in process, serving over HTTP. Every figure is the median of
// several runs in one process; compare ratios taken on one machine at one time, never figures of two days.
package bench

import (
	"fmt"
	"slices"
	"time"

	"harness-s/kernels"
	"harness-s/model"
)

// Result is one benchmark, as `harness-s bench --json` writes it.
type Result struct {
	Bench      string    `json:"bench"`
	Shape      string    `json:"shape"`
	Threads    int       `json:"threads"`
	TokensPerS float64   `json:"tokens_per_s,omitempty"` // median of Runs
	Runs       []float64 `json:"runs"`                   // tokens/s, or GFLOP/s for kernels
	GFlopPerS  float64   `json:"gflop_per_s,omitempty"`  // kernels only
}

// Options of every benchmark.
type Options struct {
	Threads int // 0 = all cores
	Repeat  int // timed runs after one warm-up; 0 = 5
}

func (o Options) repeat() int {
	if o.Repeat > 0 {
		return o.Repeat
	}
	return 5
}

// Shape is the model that the speed targets are stated for: 2.08 M parameters, hidden 128, MLP 384, 8 layers (6 GDN with
// 4 heads of 32, every 4th full attention with 4/2 heads of 32), vocabulary 1024, untied head.
func Shape() model.Config {
	cfg := model.Config{
		Vocab: 1024, Hidden: 128, MLP: 384,
		Hq: 4, Hk: 2, D: 32, RotaryFactor: 0.25, RopeTheta: 1e7,
		GDNHk: 4, GDNHv: 4, Dk: 32, Dv: 32, K: 4,
		Eps: 1e-6, MaxPosition: 4096,
	}
	for i := range 8 {
		kind := model.LinearAttention
		if i%4 == 3 {
			kind = model.FullAttention
		}
		cfg.LayerTypes = append(cfg.LayerTypes, kind)
	}
	return cfg
}

// measure runs f once to warm up and then repeatedly, and returns units per second of each timed run.
func measure(repeat int, units float64, f func() error) ([]float64, error) {
	if err := f(); err != nil {
		return nil, err
	}
	runs := make([]float64, repeat)
	for i := range runs {
		start := time.Now()
		if err := f(); err != nil {
			return nil, err
		}
		runs[i] = units / time.Since(start).Seconds()
	}
	return runs, nil
}

func median(v []float64) float64 {
	s := slices.Clone(v)
	slices.Sort(s)
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// withModel makes a random model of the benchmark's shape on the CPU for f.
func withModel(o Options, train bool, f func(*model.Model) error) error {
	be, err := kernels.NewCPU(o.Threads)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer be.Close()
	m, err := model.New(Shape(), be, 1, model.Options{Train: train})
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer m.Close()
	return f(m)
}
