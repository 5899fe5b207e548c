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

// TestPlanCountsNodes: what ranks divide between them is divided by those of all nodes, as the environment or the flag has them.
func TestPlanCountsNodes(t *testing.T) {
	for _, c := range []struct {
		flag int
		env  map[string]string
		want int
	}{
		{0, nil, 1}, {0, map[string]string{"NNODES": "2"}, 2}, {0, map[string]string{"SLURM_NNODES": "3"}, 3},
		{4, map[string]string{"NNODES": "2"}, 4}, {0, map[string]string{"NNODES": "many"}, 0}, {-1, nil, 0}, {1024, nil, 1024}, {1025, nil, 0}, {100_000_000_000, nil, 0},
	} {
		got, err := (&planCmd{Nodes: c.flag}).nodes(func(name string) string { return c.env[name] })
		if got != c.want || (err != nil) != (c.want == 0) {
			t.Errorf("--nodes %d in %v: %d, %v", c.flag, c.env, got, err)
		}
	}
	cfg, err := trainer.LoadConfig(filepath.Join(testutil.Root(t), "recipes", "4b-8gpu.yaml"), []string{"model.offload=false"})
	if err != nil {
		t.Fatal(err)
	}
	one := nodesPlan(t, cfg, 1)
	two := nodesPlan(t, cfg, 2)
	cfg.Devices *= 2
	same := nodesPlan(t, cfg, 1) // as many ranks on one node
	if two.Memory["optimizer"] != same.Memory["optimizer"] || two.Total != same.Total || two.StepS != same.StepS {
		t.Errorf("two nodes: %+v, one of twice the devices: %+v", two, same)
	}
	if got, want := two.Memory["optimizer"], one.Memory["optimizer"]/2; got < want || got > want+want/100 {
		t.Errorf("%d bytes of optimizer on two nodes, %d on one", got, one.Memory["optimizer"])
	}
	cfg.Devices, cfg.Model.Offload = cfg.Devices/2, true
	if h1, h2 := nodesPlan(t, cfg, 1).Host, nodesPlan(t, cfg, 2).Host; h2 < h1/2 || h2 > h1/2+h1/100 {
		t.Errorf("%d bytes on each of two hosts, %d on one", h2, h1)
	}
}

func nodesPlan(t *testing.T, cfg trainer.Config, n int) trainer.Plan {
	t.Helper()
	shape, err := bench.Size("4b")
	if err != nil {
		t.Fatal(err)
	}
	d, err := bench.ModelDeviceByKey("h100")
	if err != nil {
		t.Fatal(err)
	}
	p, err := trainer.NewPlan(cfg, shape, trainer.Device{Name: d.Name, Memory: d.Memory, Rate: d.ProductRate(), GPU: &d.DeviceInfo, Nodes: n}, 5000)
	if err != nil {
		t.Fatal(err)
	}
	return p
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
