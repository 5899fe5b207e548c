package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"harness-s/internal/testutil"
	"harness-s/kernels"
	"harness-s/model/safetensors"
)

// testDevice is the device backend under test: the simulator, or cuda where HARNESS_S_TEST_DEVICE says so.
func testDevice() string {
	if name := os.Getenv("HARNESS_S_TEST_DEVICE"); name != "" {
		return name
	}
	return "sim"
}

// newDevices are n device backends that work together.
func newDevices(t testing.TB, n int, dtype kernels.DType) []kernels.Flat {
	t.Helper()
	list, err := kernels.OpenDevices(kernels.DeviceOptions{Name: testDevice(), DType: dtype, Devices: n})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, be := range list {
			if err := be.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return list
}

// deviceConfig is a small model of a shape that devices take.
func deviceConfig(tied bool) Config {
	return Config{Vocab: 131, Hidden: 32, MLP: 48, LayerTypes: []string{LinearAttention, FullAttention, LinearAttention},
		Hq: 4, Hk: 2, D: 16, RotaryFactor: 0.25, RopeTheta: 1e4, GDNHk: 1, GDNHv: 2, Dk: 16, Dv: 16, K: 4, Eps: 1e-6, Tied: tied}
}

func TestGoldenOnDevice(t *testing.T) {
	for _, dir := range goldenDirs(t) {
		for _, recompute := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/recompute=%t", filepath.Base(dir), recompute), func(t *testing.T) {
				g := openGolden(t, dir)
				loaded, err := Load(dir, newDevices(t, 1, kernels.F32)[0], Options{Train: true, Recompute: recompute})
				m := closing(t, loaded, err)
				b, coef := g.batch(t)
				stats, err := m.Forward(b, ForwardOptions{Grad: true})
				if err != nil {
					t.Fatal(err)
				}
				if err := m.Backward(coef); err != nil {
					t.Fatal(err)
				}
				checkGoldenScores(t, g, b, stats)
				checkGoldenGrads(t, g, m)
			})
		}
	}
}

// libraryBF16 is how far the reference library is from the goldens when it computes in bf16 itself (transformers 5.19, torch 2.13,
// cpu): log-prob on average and at most, and the worst gradient's cosine.
var libraryBF16 = map[string][3]float64{"a": {0.0566, 0.336, 0.754}, "c": {0.0422, 0.430, 0.869}}

// TestGoldenInBF16: these models' weights are wide, so that rounding them alone moves log-probs by 0.034 on average (a) and
// gradients by 0.24 of their length, in the reference library too. bf16 storage must be no further from the goldens than that
// library in bf16, and its gradients near those of fp32 at the same rounded weights.
func TestGoldenInBF16(t *testing.T) {
	for _, dir := range goldenDirs(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			g := openGolden(t, dir)
			loaded, err := Load(dir, newDevices(t, 1, kernels.BF16)[0], Options{Train: true})
			m := closing(t, loaded, err)
			b, coef := g.batch(t)
			stats, grads := run(t, m, b, coef)
			var sum, worst float64
			n := 0
			for k := range b.Rows() {
				for i, want := range g.npy(t, "seq%d_logp_f64", k) {
					d := math.Abs(float64(stats.Logp[int(b.Cu[k])+i+1]) - want)
					sum, worst, n = sum+d, math.Max(worst, d), n+1
				}
			}
			limit := libraryBF16[filepath.Base(dir)]
			t.Logf("log-prob off by %.4g on average, %.4g at most (the library in bf16: %g, %g)", sum/float64(n), worst, limit[0], limit[1])
			if !(sum/float64(n) <= limit[0]) || !(worst <= limit[1]) {
				t.Error("further off than the library in bf16")
			}
			_, want := run(t, roundedModel(t, dir), b, coef)
			checkAlike(t, m, grads, want, 0.96, 0.35)
		})
	}
}

// TestBF16 holds bf16 storage to its tolerance with weights as training has them: fresh ones, and the shipped policy's. Log-probs
// and directions are as docs/numbers.md states them. Lengths of gradients that are sums of cancelling terms (those of the
// gates, and what lies before them) are off by up to 0.10, all others by less than 0.07.
func TestBF16(t *testing.T) {
	dirs := map[string]string{"fresh": savedPolicy(t, deviceConfig(true)), "fresh, untied": savedPolicy(t, deviceConfig(false))}
	if shipped := filepath.Join(testutil.Root(t), "recipes", "policies", "sql"); fileExists(filepath.Join(shipped, configName)) {
		dirs["shipped"] = shipped
	}
	for name, dir := range dirs {
		t.Run(name, func(t *testing.T) {
			loaded, err := Load(dir, newDevices(t, 1, kernels.BF16)[0], Options{Train: true})
			m := closing(t, loaded, err)
			rng := rand.New(rand.NewPCG(5, 5))
			b := testBatch(rng, m.Config.Vocab, 1, 2, 63, 130)
			coef := coefficients(rng, len(b.Tokens))
			stats, grads := run(t, m, b, coef)
			exact, want := run(t, roundedModel(t, dir), b, coef)
			var sum, worst float64
			for i, l := range exact.Logp {
				d := math.Abs(float64(l - stats.Logp[i]))
				sum, worst = sum+d, math.Max(worst, d)
			}
			mean := sum / float64(len(exact.Logp))
			t.Logf("log-prob off by %.4g on average, %.4g at most", mean, worst)
			if !(mean <= 0.05) || !(worst <= 0.3) {
				t.Errorf("log-prob off by %.4g on average, %.4g at most; want 0.05 and 0.3", mean, worst)
			}
			checkAlike(t, m, grads, want, 0.995, 0.15)
		})
	}
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// roundedModel is a folder's model on cpu with the weights that a device in bf16 reads.
func roundedModel(t *testing.T, dir string) *Model {
	t.Helper()
	loaded, err := Load(dir, newBackend(t, 2), Options{Train: true})
	m := closing(t, loaded, err)
	err = m.setValues(func(p *Param, values []float32) error {
		m.Values(p, values)
		for i, v := range values {
			if p.Decay {
				bits := math.Float32bits(v)
				values[i] = math.Float32frombits((bits + 0x7fff + bits>>16&1) &^ 0xffff)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// checkAlike compares each gradient's direction and relative L2 distance with the wanted ones.
func checkAlike(t *testing.T, m *Model, got, want [][]float32, cosine, l2 float64) {
	t.Helper()
	worstCos, worstL2 := 1.0, 0.0
	for i := range want {
		var dot, a, b, diff float64
		for j, w := range want[i] {
			x, w := float64(got[i][j]), float64(w)
			dot, a, b, diff = dot+x*w, a+x*x, b+w*w, diff+(x-w)*(x-w)
		}
		cos, rel := dot/math.Sqrt(a*b), math.Sqrt(diff/b)
		worstCos, worstL2 = math.Min(worstCos, cos), math.Max(worstL2, rel)
		if !(cos >= cosine) || !(rel <= l2) {
			t.Errorf("%s: cosine %.5f, relative L2 %.4f; want %g and %g", m.params[i].Name, cos, rel, cosine, l2)
		}
	}
	t.Logf("worst gradient: cosine %.5f, relative L2 %.4f", worstCos, worstL2)
}

// steps trains a group for some updates and returns the log-probs that each Accumulate saw and the gradients' norms.
func steps(t *testing.T, g *Group, cfg Config, updates int) (logps []float32, norms []float64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(11, 3))
	var batches []Batch
	for _, rows := range [][]int{{5, 70}, {1, 33}, {64}, {3, 2, 9}, {80}} {
		batches = append(batches, testBatch(rng, cfg.Vocab, rows...))
	}
	coefs := map[int][]float32{}
	for i, b := range batches {
		coefs[i] = coefficients(rng, len(b.Tokens))
	}
	coefs[3] = nil
	for step := 1; step <= updates; step++ {
		g.ZeroGrad()
		err := g.Accumulate(batches, ForwardOptions{}, func(i int, s Stats) ([]float32, error) {
			logps = append(logps, s.Logp...)
			return coefs[i], nil
		})
		if err != nil {
			t.Fatal(err)
		}
		norm, bad, err := g.GradStats()
		if err != nil || bad != 0 {
			t.Fatalf("%d gradients not finite, %v", bad, err)
		}
		norms = append(norms, norm)
		if err := g.Update(kernels.AdamWParams{LR: 1e-2, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, Step: step, GradScale: float32(1 / norm)}); err != nil {
			t.Fatal(err)
		}
	}
	return logps, norms
}

// savedPolicy writes a random model's folder.
func savedPolicy(t *testing.T, cfg Config) string {
	t.Helper()
	made, err := New(cfg, newBackend(t, 1), 3, Options{})
	m := closing(t, made, err)
	dir := filepath.Join(t.TempDir(), "policy")
	if err := m.Save(dir, SaveOptions{}); err != nil {
		t.Fatal(err)
	}
	return dir
}

// trained is what some ranks' training leaves.
type trained struct {
	logps            []float32
	norms            []float64
	weights, moments map[string][]float32
}

func trainGroup[B kernels.Backend](t *testing.T, dir string, cfg Config, backends []B, updates int, opt Options, hosts ...kernels.Backend) trained {
	t.Helper()
	opt.Train = true
	g, err := LoadGroup(dir, backends, opt, hosts...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}()
	var out trained
	out.logps, out.norms = steps(t, g, cfg, updates)
	to := t.TempDir()
	if err := g.WriteInto(to, SaveOptions{}); err != nil {
		t.Fatal(err)
	}
	moments := filepath.Join(to, "moments")
	if err := g.WriteOptimizer(moments); err != nil {
		t.Fatal(err)
	}
	out.weights, out.moments = testutil.Tensors(t, filepath.Join(to, safetensors.SingleName)), testutil.Tensors(t, moments)
	return out
}

// closeTensors wants values equal to a relative tolerance of the tensor's largest.
func closeTensors(t *testing.T, what string, got, want map[string][]float32, tol float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d tensors, want %d", what, len(got), len(want))
	}
	for name, w := range want {
		top, worst := 1e-12, 0.0
		for i, x := range w {
			top, worst = math.Max(top, math.Abs(float64(x))), math.Max(worst, math.Abs(float64(x)-float64(got[name][i])))
		}
		if !(worst <= tol*top) {
			t.Errorf("%s: %s is off by %.3g of %.3g", what, name, worst, top)
		}
	}
}

func sameTensors(t *testing.T, what string, got, want map[string][]float32) {
	t.Helper()
	for name, w := range want {
		sameFloats(t, what+": "+name, got[name], w)
	}
}

func sameFloats(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Fatalf("%s: value %d is %v, want %v", what, i, got[i], want[i])
		}
	}
}

// TestDevicesAgree: cpu, one device, two and four, with recompute and with the optimizer on the host form the same gradient, as
// the first moment shows after an update from nothing. Log-probs have the same bits on any number of devices: the compute
// copies are the same.
func TestDevicesAgree(t *testing.T) {
	for _, tied := range []bool{true, false} {
		t.Run(fmt.Sprintf("tied=%t", tied), func(t *testing.T) {
			cfg := deviceConfig(tied)
			dir := savedPolicy(t, cfg)
			one := trainGroup(t, dir, cfg, newDevices(t, 1, kernels.F32), 1, Options{})
			compare := func(name string, got trained) {
				closeTensors(t, name, got.moments, one.moments, 1e-4)
				// Products in float64 alone move the norm of this model's gradient by 1e-5.
				if d := math.Abs(got.norms[0]/one.norms[0] - 1); !(d < 5e-5) {
					t.Errorf("%s: gradient norm %g, one device has %g", name, got.norms[0], one.norms[0])
				}
			}
			compare("cpu", trainGroup(t, dir, cfg, []kernels.Backend{newBackend(t, 2)}, 1, Options{}))
			for _, c := range []struct {
				name    string
				devices int
				opt     Options
				hosts   []kernels.Backend
			}{
				{"offload", 1, Options{}, []kernels.Backend{newBackend(t, 1)}}, {"two", 2, Options{}, nil},
				{"two, recompute, offload", 2, Options{Recompute: true}, []kernels.Backend{newBackend(t, 1), newBackend(t, 1)}},
				{"four", 4, Options{}, nil},
			} {
				got := trainGroup(t, dir, cfg, newDevices(t, c.devices, kernels.F32), 1, c.opt, c.hosts...)
				sameFloats(t, c.name+": log-probs", got.logps, one.logps)
				compare(c.name, got)
			}
		})
	}
}

// TestDevicesRepeat: the same training has the same bits each time, on one device and on two, with recompute or without.
func TestDevicesRepeat(t *testing.T) {
	cfg := deviceConfig(true)
	dir := savedPolicy(t, cfg)
	for _, dtype := range []kernels.DType{kernels.F32, kernels.BF16} {
		for _, n := range []int{1, 2} {
			first := trainGroup(t, dir, cfg, newDevices(t, n, dtype), 3, Options{})
			for _, recompute := range []bool{false, true} {
				what := fmt.Sprintf("%s, %d devices, recompute=%t", dtype, n, recompute)
				again := trainGroup(t, dir, cfg, newDevices(t, n, dtype), 3, Options{Recompute: recompute})
				sameFloats(t, what, again.logps, first.logps)
				sameTensors(t, what, again.weights, first.weights)
				sameTensors(t, what, again.moments, first.moments)
			}
		}
	}
}

// TestDevicesResume: moments written by some ranks are read by others, and what is read is what was written.
func TestDevicesResume(t *testing.T) {
	cfg := deviceConfig(true)
	dir := savedPolicy(t, cfg)
	was := trainGroup(t, dir, cfg, newDevices(t, 2, kernels.F32), 2, Options{})
	path := filepath.Join(t.TempDir(), "moments")
	for _, n := range []int{1, 2, 4} {
		g, err := LoadGroup(dir, newDevices(t, 2, kernels.F32), Options{Train: true})
		if err != nil {
			t.Fatal(err)
		}
		steps(t, g, cfg, 2)
		if err := g.WriteOptimizer(path); err != nil {
			t.Fatal(err)
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		other, err := LoadGroup(dir, newDevices(t, n, kernels.F32), Options{Train: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := other.ReadOptimizer(path); err != nil {
			t.Fatal(err)
		}
		again := filepath.Join(t.TempDir(), "again")
		if err := other.WriteOptimizer(again); err != nil {
			t.Fatal(err)
		}
		sameTensors(t, fmt.Sprintf("%d ranks", n), testutil.Tensors(t, again), was.moments)
		if err := other.Close(); err != nil {
			t.Error(err)
		}
	}
}
