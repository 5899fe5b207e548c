package bench

import (
	"math"
	"strings"
	"testing"

	"harness-s/cuda"
	"harness-s/internal/hsm"
)

// The host code of every operation at real shapes launches what each device takes: grids, threads, shared memory, memory.
// The simulator cannot show this: its shapes are small.
func TestRealShapesLaunchOnEveryDevice(t *testing.T) {
	for _, sheet := range cuda.DataSheets() {
		d := modelDevice(sheet)
		for _, size := range []string{"0.8b", "9b"} {
			list, err := PredictKernels(d, size, 32768)
			if err != nil {
				t.Error(err)
			}
			for _, r := range list {
				if !r.Prediction || r.Launches+r.Products == 0 || !(r.PredictedMs > 0) || r.PredictedMs < r.RooflineMs || math.IsInf(r.PredictedMs, 0) {
					t.Errorf("%s of %s on %s: %+v", r.Bench, size, d.Key, r)
				}
				for _, l := range r.Kernels {
					if l.BlocksSM < 1 {
						t.Errorf("%s of %s on %s: no block of %s fits: %s", r.Bench, size, d.Key, l.Kernel, l.Limit)
					}
				}
			}
		}
	}
}

// A step's operations are all among the cases, and the host queues few enough of them that the device never waits: a
// launch costs the host some 5 microseconds, a product 10.
func TestStepPredictions(t *testing.T) {
	d := deviceFor(t, "h200")
	for _, size := range []string{"0.8b", "4b", "9b"} {
		r, err := PredictStep(d, DeviceOptions{Size: size, Tokens: 32768, Ranks: 8})
		if err != nil {
			t.Error(err)
			continue
		}
		host := f(r.Launches+r.Others)*5e-3 + f(r.Products)*10e-3
		if host > r.PredictedMs/4 {
			t.Errorf("%s: the host takes %.0f ms to queue %d launches and %d products, the device %.0f ms to run them", size, host, r.Launches, r.Products, r.PredictedMs)
		}
		if r.PeakBytes <= 0 || r.PeakBytes > d.Memory || r.Share <= 0 || r.Share > 1 || r.Collectives["reduce_scatter"] == 0 {
			t.Errorf("%s: %+v", size, r)
		}
		if !strings.HasPrefix(r.String(), "PREDICTION") {
			t.Errorf("not marked as a prediction: %q", r.String())
		}
	}
}

// A model that does not fit is an error that says so.
func TestStepThatDoesNotFit(t *testing.T) {
	if _, err := PredictStep(deviceFor(t, "rtx4090"), DeviceOptions{Size: "9b", Tokens: 4096}); err == nil || !strings.Contains(err.Error(), "memory") {
		t.Errorf("9b on 24 GB: %v", err)
	}
}

// By hand, after the CUDA programming guide's rules.
func TestOccupancy(t *testing.T) {
	h200, ada := deviceFor(t, "h200"), deviceFor(t, "rtx4090")
	for _, c := range []struct {
		d                          ModelDevice
		registers, static, dynamic int
		threads, blocks            int
		limit                      string
	}{
		{h200, 32, 0, 0, 256, 8, "threads"},
		{h200, 64, 0, 0, 256, 4, "registers"},
		{h200, 65, 0, 0, 256, 3, "registers"}, // 65 are given as 72: 256·72·3 of 65536
		{h200, 32, 0, 100 << 10, 128, 2, "shared memory"},
		{h200, 32, 1024, 227<<10 - 1024, 128, 1, "shared memory"},
		{h200, 16, 0, 0, 32, 32, "blocks"},
		{ada, 32, 0, 0, 256, 6, "threads"},
		{ada, 16, 0, 0, 32, 24, "blocks"},
	} {
		o := c.d.occupancy(hsm.Kernel{Registers: c.registers, Shared: c.static}, c.threads, c.dynamic)
		if o.BlocksSM != c.blocks || o.Limit != c.limit {
			t.Errorf("%s, %d registers, %d+%d bytes, %d threads: %d blocks by %s, want %d by %s", c.d.Key, c.registers, c.static, c.dynamic, c.threads,
				o.BlocksSM, o.Limit, c.blocks, c.limit)
		}
	}
}

func TestUnknownDevice(t *testing.T) {
	if _, err := ModelDeviceByKey("tpu"); err == nil || !strings.Contains(err.Error(), "h200") {
		t.Errorf("got %v", err)
	}
}

// Attention multiplies with wgmma on compute capability 9.0, forward and backward, whatever small kernels stand beside it.
func TestPredictionCountsWGMMA(t *testing.T) {
	list, err := PredictKernels(deviceFor(t, "h200"), "9b", 32768)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, r := range list {
		if !strings.HasPrefix(r.Bench, "kernel/attention forward") && !strings.HasPrefix(r.Bench, "kernel/attention backward") {
			continue
		}
		seen++
		if least := r.RooflineMs / productShare; r.PredictedMs > 1.5*least { // backward does 7 products for the 5 that count
			t.Errorf("%s: %.1f ms, and the data sheet's products alone take %.1f", r.Bench, r.PredictedMs, least)
		}
	}
	if seen == 0 {
		t.Error("no attention among the cases")
	}
}
