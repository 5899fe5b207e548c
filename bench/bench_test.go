package bench

import (
	"context"
	"testing"
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
