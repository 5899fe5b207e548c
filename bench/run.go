package bench

import (
	"context"
	"fmt"
	"runtime"
)

// Run is one benchmark by name: kernels, step, decode or serve.
func Run(ctx context.Context, name string, o Options) ([]Result, error) {
	if o.Threads == 0 {
		o.Threads = runtime.NumCPU()
	}
	one := func(r Result, err error) ([]Result, error) { return []Result{r}, err }
	switch name {
	case "kernels":
		return Kernels(o)
	case "step":
		return one(Step(o))
	case "decode":
		return one(Decode(o))
	case "serve":
		return one(Serve(ctx, o))
	}
	return nil, fmt.Errorf("bench: no benchmark %q", name)
}

// String is one line for people.
func (r Result) String() string {
	if r.GFlopPerS > 0 {
		return fmt.Sprintf("%-30s %-32s %d threads %9.1f GFLOP/s", r.Bench, r.Shape, r.Threads, r.GFlopPerS)
	}
	return fmt.Sprintf("%-30s %-32s %d threads %9.0f tokens/s", r.Bench, r.Shape, r.Threads, r.TokensPerS)
}
