package bench

import (
	"context"
	"fmt"
	"testing"

	"harness-s/model"
)

// The benchmarked model must be the one the targets are stated for.
func TestShapeHasTheStatedParameters(t *testing.T) {
	cfg := Shape()
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	if n := cfg.NumParams(); n != 2082288 {
		t.Errorf("%d parameters, want 2082288 (the PyTorch baseline's)", n)
	}
}

// Every benchmark runs to its end once and counts what it says.
func TestBenchmarksRun(t *testing.T) {
	for _, name := range []string{"step", "decode", "serve"} {
		results, err := Run(context.Background(), name, Options{Threads: 2, Repeat: 1})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(results) != 1 || results[0].Bench != name || len(results[0].Runs) != 1 || !(results[0].TokensPerS > 0) {
			t.Errorf("%s: %+v", name, results)
		}
	}
	if _, err := Run(context.Background(), "speed", Options{}); err == nil {
		t.Error("an unknown benchmark ran")
	}
}

func TestMedian(t *testing.T) {
	for want, v := range map[float64][]float64{2: {3, 1, 2}, 2.5: {4, 1, 2, 3}, 7: {7}} {
		if got := median(v); got != want {
			t.Errorf("median %v = %v, want %v", v, got, want)
		}
	}
}

// BenchmarkStepLength shows that a step's time is linear in its tokens.
func BenchmarkStepLength(b *testing.B) {
	for _, length := range []int{256, 1024} {
		for _, tokens := range []int{1024, 4096, 16384} {
			b.Run(fmt.Sprintf("%d_tokens_in_rows_of_%d", tokens, length), func(b *testing.B) {
				err := withModel(Options{Threads: 2}, true, func(m *model.Model) error {
					batch, coef := rowsOf(tokens/length, length, m.Config.Vocab)
					err := trainStep(m, batch, coef, 1) // takes the memory
					for n := 2; err == nil && b.Loop(); n++ {
						err = trainStep(m, batch, coef, n)
					}
					return err
				})
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(tokens*b.N)/b.Elapsed().Seconds(), "tokens/s")
			})
		}
	}
}
