package bench

import (
	"math"
	"strings"
	"testing"

	"harness-s/model"
)

// The floors of T 32768 on an H200 as they were worked out by hand, in ms, and where by FLOP, TF.
func TestCostsAreTheFloors(t *testing.T) {
	const T = 32768
	h200 := deviceFor(t, "h200")
	four, nine := sizeFor(t, "4b"), sizeFor(t, "9b")
	gdn, attn, row := nine.GDN(), nine.Attn(), rows(1, T)
	act := func(times, width int) Cost { return passes(times, f(T)*f(width)) }
	for _, c := range []struct {
		name      string
		cost      Cost
		ms, tflop float64
		bound     string
	}{
		{"gdn projections, 4b", gdnProjections(&four, T), 2.79, 0, "compute"},
		{"gdn projections, 9b", gdnProjections(&nine, T), 4.46, 0, "compute"},
		{"attention projections, 4b", attentionProjections(&four, T), 2.43, 0, "compute"},
		{"attention projections, 9b", attentionProjections(&nine, T), 3.89, 0, "compute"},
		{"mlp, 4b", mlpProducts(&four, T), 4.69, 0, "compute"},
		{"mlp, 9b", mlpProducts(&nine, T), 10.0, 0, "compute"},
		{"gdn forward", gdnForward(gdn, T), 0.197, 0.17, "memory"},
		{"gdn backward", gdnBackward(gdn, T), 0.47, 0.47, "compute"},
		{"conv forward", act(2, gdn.Channels()), 0.224, 0, "memory"},
		{"conv backward", act(3, gdn.Channels()), 0.336, 0, "memory"},
		{"gated rmsnorm forward", act(3, 4096), 0.168, 0, "memory"},
		{"gated rmsnorm backward", act(5, 4096), 0.280, 0, "memory"},
		{"rmsnorm forward, 4b", act(2, 2560), 0.070, 0, "memory"},
		{"rmsnorm backward, 9b", act(4, 4096), 0.224, 0, "memory"},
		{"swiglu forward, 4b", act(3, 9216), 0.377, 0, "memory"},
		{"swiglu backward, 9b", act(5, 12288), 0.839, 0, "memory"},
		{"attention forward", attentionForward(attn, row), 8.9, 8.8, "compute"},
		{"attention backward", attentionBackward(attn, row), 22.2, 22, "compute"},
		{"attention forward, 8 rows", attentionForward(attn, rows(8, T/8)), 8.9 / 8, 1.1, "compute"},
		{"head forward, 4b", headForward(&four, T), 42.1, 41.7, "compute"},
		{"head backward, 9b", headBackward(&nine, T), 202.2, 200, "compute"},
		{"head forward and backward, 9b", headForward(&nine, T).plus(headBackward(&nine, T)), 269.6, 267, "compute"},
		{"adamw, 4b", adamW(four.NumParams()), 26.3, 0, "memory"},
		{"adamw, 9b", adamW(nine.NumParams()), 56.0, 0, "memory"},
	} {
		ms, bound := h200.roofline(c.cost)
		if math.Abs(ms-c.ms) > 0.015*c.ms || bound != c.bound {
			t.Errorf("%s: %.4g ms by %s, want %.4g by %s", c.name, ms, bound, c.ms, c.bound)
		}
		if c.tflop > 0 && math.Abs(c.cost.FLOP/1e12-c.tflop) > 0.015*c.tflop {
			t.Errorf("%s: %.4g TF, want %.4g", c.name, c.cost.FLOP/1e12, c.tflop)
		}
	}
	if b := gdnBackward(gdn, T).Bytes / 1e9; b < 1.49 || b > 1.8 {
		t.Errorf("gdn backward: %.3g GB, want 1.5 to 1.8", b)
	}
	// 6 FLOP a token and parameter of the body's products
	body := 0.0
	for _, kind := range nine.LayerTypes {
		c := mlpProducts(&nine, T)
		if kind == model.FullAttention {
			c = c.plus(attentionProjections(&nine, T))
		} else {
			c = c.plus(gdnProjections(&nine, T))
		}
		body += 3 * c.FLOP
	}
	if ms := body / h200.BF16 * 1e3; math.Abs(ms-1375) > 0.01*1375 {
		t.Errorf("the body's products: %.4g ms, want 1375", ms)
	}
}

func deviceFor(t *testing.T, key string) ModelDevice {
	t.Helper()
	d, err := ModelDeviceByKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func sizeFor(t *testing.T, name string) model.Config {
	t.Helper()
	cfg, err := Size(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestSizesHaveTheirParameters(t *testing.T) {
	for name, want := range map[string]float64{"0.8b": 0.75e9, "4b": 4.2e9, "9b": 8.95e9} {
		cfg := sizeFor(t, name)
		if n := f(cfg.NumParams()); math.Abs(n-want) > 0.01*want {
			t.Errorf("%s has %.4g parameters, want %.4g", name, n, want)
		}
	}
	sizeFor(t, tiny)
	if _, err := Size("70b"); err == nil || !strings.Contains(err.Error(), "0.8b, 4b, 9b") {
		t.Errorf("a size that is not there: %v", err)
	}
}
