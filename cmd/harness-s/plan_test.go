package main

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"harness-s/bench"
	"harness-s/internal/testutil"
	"harness-s/trainer"
)

// TestDevicePlan: the recipes fit the devices that they are for, what does not fit says what would, and that fits.
func TestDevicePlan(t *testing.T) {
	root := testutil.Root(t)
	for _, c := range []struct{ recipe, size, device string }{
		{"4b-8gpu", "4b", "h100"}, {"4b-8gpu", "4b", "a100"}, {"9b-8gpu", "9b", "h200"},
	} {
		cfg, err := trainer.LoadConfig(filepath.Join(root, "recipes", c.recipe+".yaml"), nil)
		if err != nil {
			t.Fatal(err)
		}
		p := devicePlan(t, cfg, c.size, c.device)
		if !p.Fits || p.Memory["compute weights"] < 2*int64(p.Parameters)*9/10 {
			t.Errorf("%s on %s: %+v", c.recipe, c.device, p)
		}
		cfg.Devices, cfg.Model.Recompute, cfg.Model.DType = 1, false, "fp32"
		tight := devicePlan(t, cfg, c.size, c.device)
		if tight.Fits || len(tight.Mend) == 0 {
			t.Fatalf("%s with all on one device in fp32 fits: %+v", c.recipe, tight)
		}
		for _, m := range tight.Mend {
			switch key, value, _ := strings.Cut(m, "="); key {
			case "model.recompute":
				cfg.Model.Recompute = true
			case "model.dtype":
				cfg.Model.DType = value
			case "model.offload":
				cfg.Model.Offload = true
			case "optim.microbatch_tokens", "devices":
				n, err := strconv.Atoi(value)
				if err != nil {
					t.Fatal(err)
				}
				if key == "devices" {
					cfg.Devices = n
				} else {
					cfg.Optim.MicrobatchTok = n
				}
			default:
				t.Errorf("advice %q", m)
			}
		}
		if again := devicePlan(t, cfg, c.size, c.device); !again.Fits {
			t.Errorf("%s: the advice %v does not fit: %d of %d bytes", c.recipe, tight.Mend, again.Total, again.Available)
		}
	}
}

func devicePlan(t *testing.T, cfg trainer.Config, size, device string) trainer.Plan {
	t.Helper()
	shape, err := bench.Size(size)
	if err != nil {
		t.Fatal(err)
	}
	d, err := bench.ModelDeviceByKey(device)
	if err != nil {
		t.Fatal(err)
	}
	p, err := trainer.NewPlan(cfg, shape, trainer.Device{Name: d.Name, Memory: d.Memory, Rate: d.ProductRate(), GPU: &d.DeviceInfo}, 5000)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
