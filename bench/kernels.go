package bench

import (
	"fmt"
	"math/rand/v2"

	"harness-s/kernels"
)

// products are matrix products of the model's shapes and one square, [T,In] x [In,Out].
var products = []struct{ t, in, out int }{
	{4096, 128, 384}, {4096, 384, 128}, {4096, 128, 1024}, {64, 128, 384}, {1, 128, 384}, {1024, 1024, 1024},
}

// Kernels times the forward product, its two gradients, and the token mixers, in GFLOP/s.
func Kernels(o Options) ([]Result, error) {
	be, err := kernels.NewCPU(o.Threads)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	defer be.Close()
	var results []Result
	for _, p := range products {
		r, err := product(be, o, p.t, p.in, p.out)
		if err != nil {
			return nil, err
		}
		results = append(results, r...)
	}
	return results, nil
}

func product(be kernels.Backend, o Options, t, in, out int) ([]Result, error) {
	a := arena{be: be}
	defer a.free()
	x, y, dw := a.random(t*in), a.random(t*out), a.random(out*in)
	w := kernels.Weight{Master: a.random(out * in), Compute: a.random(be.PackSize(out, in)), Out: out, In: in}
	if a.err != nil {
		return nil, fmt.Errorf("bench: %w", a.err)
	}
	be.Pack(w)
	flop := 2 * float64(t) * float64(in) * float64(out)
	// Enough products a run that the clock's grain and the thread pool's wake-up do not count.
	loops := int(max(1, 2e9/flop))
	var results []Result
	for _, op := range []struct {
		name string
		run  func()
	}{
		{"linear", func() { be.Linear(y, x, w, t) }},
		{"linear_backward_input", func() { be.LinearBackwardInput(x, y, w, t, false) }},
		{"linear_backward_weight", func() { be.LinearBackwardWeight(dw, y, x, t, out, in) }},
	} {
		runs, err := measure(o.repeat(), flop*float64(loops)/1e9, func() error {
			for range loops {
				op.run()
			}
			return be.Sync()
		})
		if err != nil {
			return nil, err
		}
		results = append(results, Result{Bench: "kernel/" + op.name, Shape: fmt.Sprintf("T %d, in %d, out %d", t, in, out),
			Threads: o.Threads, Runs: runs, GFlopPerS: median(runs)})
	}
	return results, nil
}

// arena allocates buffers and remembers the first error.
type arena struct {
	be   kernels.Backend
	bufs []kernels.Buffer
	err  error
}

func (a *arena) random(n int) kernels.Buffer {
	if a.err != nil {
		return kernels.Buffer{}
	}
	b, err := a.be.Alloc("bench", n)
	if err != nil {
		a.err = err
		return b
	}
	a.bufs = append(a.bufs, b)
	values := make([]float32, n)
	rng := rand.New(rand.NewPCG(5, uint64(n)))
	for i := range values {
		values[i] = float32(rng.NormFloat64())
	}
	a.be.Upload(b, values)
	return b
}

func (a *arena) free() {
	for _, b := range a.bufs {
		a.be.Free(b)
	}
}
