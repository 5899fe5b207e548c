package trainer

import (
	"path/filepath"
	"testing"

	"harness-s/internal/testutil"
	"harness-s/kernels"
)

// deviceConfig is a recipe for eight GPUs, on simulated devices, over a tiny policy that is sampled by the embedded server,
// with little to do. What makes it a recipe for GPUs stays: devices, storage type, recompute.
func deviceConfig(policy, root, recipe string) Config {
	c, err := LoadConfig(filepath.Join(root, "recipes", recipe+".yaml"), nil)
	if err != nil {
		panic(err)
	}
	small := realConfig(policy, root)
	small.Backend, small.Devices, small.Model = "sim", c.Devices, c.Model
	small.Model.Path = policy
	small.Optim = c.Optim
	small.Optim.LR, small.Optim.MicrobatchTok = 1e-3, 600
	small.Mismatch = c.Mismatch
	small.Budget.Rollouts, small.Eval.Ends = 36, []string{"h0"}
	return small
}

// TestDeviceRecipes: the recipes for eight GPUs train on four simulated devices, and a run killed at random moments and
// resumed ends in the same bits.
func TestDeviceRecipes(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	policy := filepath.Join(t.TempDir(), "policy")
	if err := randomPolicy(policy); err != nil {
		t.Fatal(err)
	}
	t.Setenv(childRoot, testutil.Root(t))
	t.Setenv(childWith, policy)
	for _, recipe := range []string{"4b-8gpu", "9b-8gpu"} {
		t.Run(recipe, func(t *testing.T) {
			if c := deviceConfig(policy, testutil.Root(t), recipe); c.Devices != 4 || c.Model.DType != "bf16" || !c.Model.Recompute {
				t.Fatalf("the recipe trains on %d devices in %s, recompute %t", c.Devices, c.Model.DType, c.Model.Recompute)
			}
			testKill(t, recipe, 1)
		})
	}
}

// TestDeviceRun: the quickstart's path on a machine with a GPU, fp32 on one device, agrees with its sampler on the host, and its
// log-probs have the same bits on two devices.
func TestDeviceRun(t *testing.T) {
	policy := filepath.Join(t.TempDir(), "policy")
	if err := randomPolicy(policy); err != nil {
		t.Fatal(err)
	}
	var first []float64
	for _, devices := range []int{1, 2} {
		g := realRig(t, policy)
		g.cfg.Backend, g.cfg.Devices, g.cfg.Budget.Rollouts = "sim", devices, 12
		g.cfg.Mismatch.MaxAbs, g.cfg.Mismatch.Probe = 1e-4, 1e-4
		g.must(t)
		for i, m := range g.lines(t)[1:] {
			if d := m["mismatch/max_abs"]; !(d < 1e-4) || !(m["policy/grad_norm"] > 0) || !(m["perf/device_bytes"] > 0) {
				t.Errorf("%d devices, step %v: mismatch/max_abs %g, gradient norm %g, %g bytes on the devices", devices, m["step"], d, m["policy/grad_norm"], m["perf/device_bytes"])
			}
			if i == 0 && devices == 1 {
				first = []float64{m["mismatch/max_abs"], m["policy/grad_norm"]}
			}
			if i == 0 && devices == 2 && (m["mismatch/max_abs"] != first[0] || !near(m["policy/grad_norm"], first[1], 1e-5)) {
				t.Errorf("two devices: %g and norm %g, one device has %g and %g", m["mismatch/max_abs"], m["policy/grad_norm"], first[0], first[1])
			}
		}
	}
}

func near(a, b, tol float64) bool { return a-b < tol*b && b-a < tol*b }

// TestAutoBackend: auto stands for a backend that this machine has, and the run's own config names it.
func TestAutoBackend(t *testing.T) {
	name, why := kernels.Resolve(kernels.Auto)
	if name != "cpu" && name != "cuda" || why == "" {
		t.Errorf("auto is %q (%s)", name, why)
	}
	t.Setenv("HARNESS_S_CUDA_DRIVER", filepath.Join(t.TempDir(), "none.so"))
	if name, why := kernels.Resolve(kernels.Auto); name != "cpu" || why == "" {
		t.Errorf("without a driver auto is %q (%s)", name, why)
	}
}
