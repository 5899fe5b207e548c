//go:build cgo

package trainer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"harness-s/internal/testutil"
	"harness-s/kernels"
	"harness-s/model"
	"harness-s/model/safetensors"
	"harness-s/trainer/loss"
)

// plain is a learner that leaves every loss to the host.
type plain struct{ Learner }

// taken is what updates leave: their metrics and statistics, the moments and the weights.
type taken struct {
	out              metrics
	stats            loss.Stats
	moments, weights map[string][]float32
}

// policyOn is a small policy on so many simulated devices.
func policyOn(t *testing.T, dir string, devices int, dtype kernels.DType) Learner {
	t.Helper()
	g, err := model.OpenGroup(model.Setup{Backend: "sim", DType: dtype, Devices: devices}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := g.Load(dir); err != nil {
		t.Fatal(err)
	}
	return modelLearner{g}
}

// someRollouts are minibatches of rollouts of one row or two with masks; masked places of the server's log-probs hold NaN.
func someRollouts(l loss.Loss, ranks int) []minibatch {
	rng := rand.New(rand.NewPCG(8, 4))
	nan := float32(math.NaN())
	out := make([]minibatch, 2)
	for b := range out {
		m := &out[b]
		var units [][]row
		for i, advantage := range []float64{0.75, -1.25, 0, 0.5, -0.5, 1} {
			var rows []row
			tokens := 0
			for range 1 + i%2 {
				r := row{id: fmt.Sprint(i), rollout: i}
				for t := range 5 + rng.IntN(40) {
					bit := uint8(min(rng.IntN(3), 1))
					if t == 0 {
						bit = 0
					}
					r.tokens, r.mask, r.sampler = append(r.tokens, int32(rng.IntN(300))), append(r.mask, bit), append(r.sampler, nan)
					if bit != 0 {
						r.sampler[t] = float32(-5.7 + 0.3*rng.NormFloat64())
					}
					tokens += int(bit)
				}
				rows = append(rows, r)
			}
			m.rollouts = append(m.rollouts, loss.Rollout{Advantage: advantage, Tokens: tokens})
			m.norm.Rollouts++
			m.norm.Tokens += tokens
			if advantage == 0 { // dead: counted, and left out
				continue
			}
			m.norm.Live++
			m.norm.LiveTok += tokens
			m.tokens += tokens
			if l.Level == loss.Sequence {
				units = append(units, rows)
				continue
			}
			for j := range rows {
				units = append(units, rows[j:j+1])
			}
		}
		m.micro = cutForRanks(units, 90, ranks)
	}
	return out
}

// take makes two epochs of updates.
func take(t *testing.T, learner Learner, c Config, ranks int) taken {
	t.Helper()
	l, err := loss.New(c.Loss)
	if err != nil {
		t.Fatal(err)
	}
	u := updater{cfg: c, loss: l, learner: learner, out: metrics{}, lr: func(int) float64 { return 3e-3 },
		dump: func(d dump) error { t.Errorf("not finite: %+v", d); return nil }}
	u.direct, _ = chooseDirect(l, c.Loss, learner)
	if err := u.run(someRollouts(l, ranks)); err != nil {
		t.Fatal(err)
	}
	g := learner
	if p, ok := g.(plain); ok {
		g = p.Learner
	}
	dir := t.TempDir()
	if err := g.WriteWeights(dir); err != nil {
		t.Fatal(err)
	}
	moments := filepath.Join(dir, "moments")
	if err := g.WriteOptimizer(moments); err != nil { // the moments have every gradient in them
		t.Fatal(err)
	}
	return taken{out: u.out, stats: u.stats,
		moments: testutil.Tensors(t, moments), weights: testutil.Tensors(t, filepath.Join(dir, safetensors.SingleName))}
}

// farthest is the greatest difference of a tensor, as a share of its largest value.
func farthest(a, b map[string][]float32) (worst float64, name string) {
	for n := range b {
		top, d := 1e-12, 0.0
		for i, x := range b[n] {
			top, d = math.Max(top, math.Abs(float64(x))), math.Max(d, math.Abs(float64(x)-float64(a[n][i])))
		}
		if !(d/top <= worst) {
			worst, name = d/top, n
		}
	}
	return worst, name
}

// alike wants the same updates up to the order of fp32 sums, with counts that are equal.
func (got taken) alike(t *testing.T, what string, want taken) {
	t.Helper()
	s, w := got.stats, want.stats
	if s.Tokens != w.Tokens || s.ClipLow != w.ClipLow || s.ClipHigh != w.ClipHigh {
		t.Errorf("%s: tokens and clips %d %d %d, want %d %d %d", what, s.Tokens, s.ClipLow, s.ClipHigh, w.Tokens, w.ClipLow, w.ClipHigh)
	}
	for name, v := range want.out {
		if strings.HasPrefix(name, "time/") || strings.HasPrefix(name, "perf/") {
			continue
		}
		if g, ok := got.out[name]; !ok || !(math.Abs(g-v) <= 1e-4*math.Abs(v)+1e-6) {
			t.Errorf("%s: %s is %v, want %v", what, name, g, v)
		}
	}
	if d, name := farthest(got.moments, want.moments); !(d < 1e-3) {
		t.Errorf("%s: the moments of %s are off by %.3g of its largest", what, name, d)
	}
	if d, name := farthest(got.weights, want.weights); !(d < 1e-3) {
		t.Errorf("%s: %s is off by %.3g of its largest", what, name, d)
	}
}

// objectiveConfig takes two epochs of two minibatches, with clips that bind.
func objectiveConfig(name string) Config {
	c := Default()
	c.Loss.Name, c.Loss.EtaMinus, c.Loss.EtaPlus, c.Loss.Length = name, 0.02, 0.03, 40
	c.Optim.Epochs = 2
	c.Mismatch = MismatchConfig{}
	return c
}

var builtinLosses = []string{"grpo", "dr_grpo", "dapo", "gspo", "cispo"}

// TestDirectLossAgrees: the loss evaluated on a device and on the host make the same updates, with every built-in loss, with old
// log-probs computed and as the server reported them, weighed or not.
func TestDirectLossAgrees(t *testing.T) {
	dir := planPolicy(t)
	for i, name := range builtinLosses {
		for _, old := range []string{"recompute", "sampler"} {
			t.Run(name+"/"+old, func(t *testing.T) {
				c := objectiveConfig(name)
				c.Loss.Old, c.Loss.SamplerCap = old, []float64{0, 1.1}[i%2]
				host := take(t, plain{policyOn(t, dir, 1, kernels.F32)}, c, 1)
				device := take(t, policyOn(t, dir, 1, kernels.F32), c, 1)
				device.alike(t, "device", host)
				if host.stats.ClipLow+host.stats.ClipHigh == 0 || host.out["policy/grad_norm"] == 0 {
					t.Errorf("the test clips nothing: %+v", host.out)
				}
			})
		}
	}
}

// TestDirectLossOnSeveralDevices: two and four devices make the updates of one.
func TestDirectLossOnSeveralDevices(t *testing.T) {
	dir := planPolicy(t)
	for _, name := range []string{"grpo", "gspo", "cispo"} {
		one := take(t, policyOn(t, dir, 1, kernels.F32), objectiveConfig(name), 1)
		for _, n := range []int{2, 4} {
			take(t, policyOn(t, dir, n, kernels.F32), objectiveConfig(name), n).alike(t, fmt.Sprintf("%s on %d devices", name, n), one)
		}
	}
}

// TestDirectLossBeginsAtRatioOne: in the first update every ratio is exactly 1, in bf16 too, and entropies and
// log-probs are the two-pass path's to the bit.
func TestDirectLossBeginsAtRatioOne(t *testing.T) {
	dir := planPolicy(t)
	for _, dtype := range []kernels.DType{kernels.F32, kernels.BF16} {
		for _, name := range builtinLosses {
			c := objectiveConfig(name)
			l, err := loss.New(c.Loss)
			if err != nil {
				t.Fatal(err)
			}
			m := &someRollouts(l, 1)[0]
			run := func(learner Learner) *updater {
				u := &updater{cfg: c, loss: l, learner: learner, out: metrics{}}
				u.direct, _ = chooseDirect(l, c.Loss, learner)
				learner.ZeroGrad()
				if _, err := u.accumulate(m); err != nil {
					t.Fatal(err)
				}
				for _, rows := range m.micro {
					for j := range rows {
						rows[j].old = nil
					}
				}
				return u
			}
			device, host := run(policyOn(t, dir, 1, dtype)), run(plain{policyOn(t, dir, 1, dtype)})
			if s := device.stats; s.RatioMax != 1 || s.Ratio != float64(s.Tokens) || s.KL != 0 || s.ClipLow+s.ClipHigh != 0 {
				t.Errorf("%s, %s: %+v", name, dtype, s)
			}
			if device.entropy != host.entropy || device.stats.Tokens != host.stats.Tokens {
				t.Errorf("%s, %s: entropy %v, on the host %v", name, dtype, device.entropy, host.entropy)
			}
			if device.mismatch != host.mismatch { // sums over log-probs
				t.Errorf("%s, %s: against the server %+v, on the host %+v", name, dtype, device.mismatch, host.mismatch)
			}
		}
	}
}

// TestWhereTheLossRuns: built-in losses run on devices; what the user wrote, and everything on a CPU, on the host.
func TestWhereTheLossRuns(t *testing.T) {
	sim := policyOn(t, planPolicy(t), 1, kernels.F32)
	expression := loss.DefaultConfig()
	expression.Name, expression.Expression = "expression", "-advantage*logp"
	be, err := kernels.NewCPU(1)
	if err != nil {
		t.Fatal(err)
	}
	defer be.Close()
	cpu, err := model.Load(planPolicy(t), be, model.Options{Train: true})
	if err != nil {
		t.Fatal(err)
	}
	defer cpu.Close()
	for _, c := range []struct {
		name    string
		cfg     loss.Config
		learner Learner
		direct  bool
		why     string
	}{
		{"built in", loss.DefaultConfig(), sim, true, "loss grpo is evaluated on the device, in one pass with the head"},
		{"expression", expression, sim, false, "loss expression is evaluated on the host: it is not built in"},
		{"cpu", loss.DefaultConfig(), modelLearner{model.NewGroup(cpu)}, false, "loss grpo is evaluated on the host, where the model is"},
		{"another learner", loss.DefaultConfig(), newTable(), false, "loss grpo is evaluated on the host, where the model is"},
	} {
		l, err := loss.New(c.cfg)
		if err != nil {
			t.Fatal(err)
		}
		if d, why := chooseDirect(l, c.cfg, c.learner); (d != nil) != c.direct || why != c.why {
			t.Errorf("%s: %v, %q", c.name, d, why)
		}
	}
}
