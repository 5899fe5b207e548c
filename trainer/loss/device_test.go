//go:build cgo

package loss

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"harness-s/kernels"
)

// devicePolicy evaluates objectives on the simulated device.
type devicePolicy struct {
	testing.TB
	kernels.Flat
	kernels.PolicyLoss
}

func newDevicePolicy(t testing.TB) devicePolicy {
	list, err := kernels.OpenDevices(kernels.DeviceOptions{Name: "sim"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := list[0].Close(); err != nil {
			t.Error(err)
		}
	})
	return devicePolicy{t, list[0], list[0].(kernels.PolicyLoss)}
}

func (d devicePolicy) words(n int) kernels.Buffer {
	b, err := d.Alloc("test", n)
	if err != nil {
		d.Fatal(err)
	}
	return b
}

func (d devicePolicy) floats(v []float64) kernels.Buffer {
	b := d.words(len(v))
	d.Upload(b, narrow(v))
	return b
}

func narrow(v []float64) []float32 {
	out := make([]float32, len(v))
	for i, x := range v {
		out[i] = float32(x)
	}
	return out
}

// deviceResult is what the device makes of a batch.
type deviceResult struct {
	coef, ratio, loss []float32
	clip              []int32
}

// eval is Loss.Eval on the device.
func (d devicePolicy) eval(l Loss, c Config, b Batch) deviceResult {
	T := len(b.Logp)
	adv, weight, mask := make([]float64, T), make([]float64, T), make([]int32, T)
	var rows []kernels.PolicyRow
	for _, r := range b.Rows {
		rows = append(rows, kernels.PolicyRow{Start: r.Start, End: r.End, Rollout: r.Rollout})
		for t := r.Start; t < r.End; t++ {
			mask[t] = int32(b.Mask[t])
			adv[t], weight[t] = b.Rollouts[r.Rollout].Advantage, l.Weight(c, b.Norm, b.Rollouts[r.Rollout])
			if mask[t] == 0 {
				adv[t], weight[t] = math.NaN(), math.NaN()
			}
		}
	}
	in := kernels.PolicyTokens{Old: d.floats(b.Old), Sampler: d.floats(b.Sampler), Advantage: d.floats(adv), Weight: d.floats(weight),
		Mask: d.words(T), Rows: rows}
	d.UploadInts(in.Mask, mask)
	out := kernels.PolicyResult{Coef: d.words(T), Ratio: d.words(T), Loss: d.words(T), Clip: d.words(T)}
	nan := make([]float64, T)
	for i := range nan {
		nan[i] = math.NaN()
	}
	for _, buf := range []kernels.Buffer{out.Coef, out.Ratio, out.Loss, out.Clip} {
		d.Upload(buf, narrow(nan)) // shows what is not written
	}
	p, ok := l.Policy(c)
	if !ok {
		d.Fatalf("%s has no form for devices", l.Name)
	}
	logp := d.floats(b.Logp)
	d.PolicyLoss.PolicyLoss(out, logp, in, p, T)
	r := deviceResult{make([]float32, T), make([]float32, T), make([]float32, T), make([]int32, T)}
	d.Download(r.coef, out.Coef)
	d.Download(r.ratio, out.Ratio)
	d.Download(r.loss, out.Loss)
	d.DownloadInts(r.clip, out.Clip)
	if err := d.Sync(); err != nil {
		d.Fatal(err)
	}
	for _, buf := range []kernels.Buffer{in.Old, in.Sampler, in.Advantage, in.Weight, in.Mask, out.Coef, out.Ratio, out.Loss, out.Clip, logp} {
		d.Free(buf)
	}
	return r
}

// deviceBatch draws rollouts of several rows that lie apart, masked tokens, one rollout without a policy token, log ratios up
// to the bound of 20 and beyond, and none within 1e-4 of a clip. All values are fp32 numbers.
func deviceBatch(rng *rand.Rand, c Config) Batch {
	f := func(x float64) float64 { return float64(float32(x)) }
	var b Batch
	const rollouts = 5
	b.Rollouts = make([]Rollout, rollouts)
	for i := range b.Rollouts {
		b.Rollouts[i].Advantage = f([]float64{0.75, -1.25, 0, rng.NormFloat64(), -0.5}[i])
	}
	for row := range 3 * rollouts {
		i, start := row%rollouts, len(b.Logp)
		drift := 0.4 * rng.NormFloat64() // so that sequences are clipped too
		n := rng.IntN(40)
		if row == 2*rollouts {
			n += 400 // several tokens a thread
		}
		for range n {
			logp := f(-4 * rng.Float64())
			d := drift + 0.2*rng.NormFloat64()
			for clipsAt(c, d) {
				d += 0.001
			}
			if rng.IntN(30) == 0 {
				d = 25 * float64(1-2*rng.IntN(2))
			}
			old := f(logp - d)
			b.Logp, b.Old = append(b.Logp, logp), append(b.Old, old)
			b.Sampler = append(b.Sampler, f(old+0.05*rng.NormFloat64()))
			m := uint8(min(rng.IntN(4), 1))
			if i == 4 {
				m = 0
			}
			b.Mask = append(b.Mask, m)
			b.Rollouts[i].Tokens += int(m)
		}
		b.Rows = append(b.Rows, Row{start, len(b.Logp), i})
	}
	for _, r := range b.Rollouts {
		b.Norm.Tokens += r.Tokens
		if r.Advantage != 0 {
			b.Norm.Live++
			b.Norm.LiveTok += r.Tokens
		}
	}
	b.Norm.Rollouts = rollouts
	b.Detached = b.Logp
	return b
}

func clipsAt(c Config, d float64) bool {
	return math.Abs(math.Exp(d)-1-c.EtaPlus) < 1e-4 || math.Abs(math.Exp(d)-1+c.EtaMinus) < 1e-4
}

func TestDeviceAgrees(t *testing.T) {
	d := newDevicePolicy(t)
	for _, l := range builtins {
		for seed := range uint64(8) {
			c := config(l.Name)
			c.SamplerCap = []float64{0, 1.02}[seed%2]
			b := deviceBatch(rand.New(rand.NewPCG(seed, 0xdeef)), c)
			want, got := l.Eval(c, b), d.eval(l, c, b)
			compare(t, fmt.Sprintf("%s, seed %d", l.Name, seed), c, b, want, got)
			again := d.eval(l, c, b)
			for i := range got.coef {
				if math.Float32bits(got.coef[i]) != math.Float32bits(again.coef[i]) {
					t.Fatalf("%s, seed %d: token %d has coefficient %v, then %v", l.Name, seed, i, got.coef[i], again.coef[i])
				}
			}
		}
	}
}

// compare checks a device's result. Its tolerance is fp32's: a log ratio of up to 25 is off by 1e-6, a sum of 400 of them
// somewhat more.
func compare(t *testing.T, what string, c Config, b Batch, want Result, got deviceResult) {
	t.Helper()
	const tol = 1e-5
	total, size, stats := 0.0, 0.0, Stats{}
	for i, w := range want.Coef {
		if !(math.Abs(float64(got.coef[i])-w) <= tol*math.Abs(w)) {
			t.Fatalf("%s: token %d has coefficient %v, want %v", what, i, got.coef[i], w)
		}
		total += float64(got.loss[i])
		size += math.Abs(float64(got.loss[i]))
		if b.Mask[i] == 0 {
			if got.coef[i] != 0 || got.ratio[i] != 0 || got.loss[i] != 0 || got.clip[i] != 0 {
				t.Fatalf("%s: masked token %d has %v %v %v %v", what, i, got.coef[i], got.ratio[i], got.loss[i], got.clip[i])
			}
			continue
		}
		stats.Tokens++
		stats.Ratio += float64(got.ratio[i])
		stats.RatioMax = math.Max(stats.RatioMax, float64(got.ratio[i]))
		switch got.clip[i] {
		case 1:
			stats.ClipLow++
		case 2:
			stats.ClipHigh++
		}
	}
	if math.Abs(total-want.Loss) > tol*size {
		t.Errorf("%s: the loss is %v, want %v", what, total, want.Loss)
	}
	s := want.Stats
	if stats.Tokens != s.Tokens || stats.ClipLow != s.ClipLow || stats.ClipHigh != s.ClipHigh ||
		math.Abs(stats.Ratio-s.Ratio) > tol*s.Ratio || math.Abs(stats.RatioMax-s.RatioMax) > tol*s.RatioMax {
		t.Errorf("%s: statistics %+v, want %+v", what, stats, s)
	}
}

// TestDeviceMasked: what masked tokens hold changes no bit, and a batch of them alone has loss 0 without a division.
func TestDeviceMasked(t *testing.T) {
	d := newDevicePolicy(t)
	for _, l := range builtins {
		c := config(l.Name)
		c.SamplerCap = 1.02
		b := deviceBatch(rand.New(rand.NewPCG(3, 0xdeef)), c)
		want := d.eval(l, c, b)
		for _, poison := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), 200, -1e30} {
			got := d.eval(l, c, poisoned(b, poison))
			for i := range want.coef {
				if math.Float32bits(got.coef[i]) != math.Float32bits(want.coef[i]) || math.Float32bits(got.loss[i]) != math.Float32bits(want.loss[i]) {
					t.Fatalf("%s: %g in masked places changes token %d", l.Name, poison, i)
				}
			}
		}
		b.Mask = make([]uint8, len(b.Mask))
		b.Norm = Norm{Rollouts: len(b.Rollouts)}
		for i := range b.Rollouts {
			b.Rollouts[i].Tokens = 0
		}
		compare(t, l.Name+", all masked", c, b, l.Eval(c, b), d.eval(l, c, b))
	}
}

// TestDeviceClipBounds: on the bound itself (a ratio of exactly 1 and a clip of no width) the unclipped branch counts; just
// beyond it only the branch that pulls back does. Far beyond, where the log ratio is held at 20, nothing does.
func TestDeviceClipBounds(t *testing.T) {
	d := newDevicePolicy(t)
	for _, l := range builtins {
		for _, step := range []float64{0, 1e-5, -1e-5, 0.3, -0.3, 25, -25} {
			for _, advantage := range []float64{1, -1} {
				c := config(l.Name)
				c.EtaMinus, c.EtaPlus = 0, 0
				logp := float64(float32(-1 + step))
				b := Batch{Logp: []float64{logp}, Detached: []float64{logp}, Old: []float64{-1}, Sampler: []float64{-1}, Mask: []uint8{1},
					Rows: []Row{{0, 1, 0}}, Rollouts: []Rollout{{advantage, 1}}, Norm: Norm{1, 1, 1, 1}}
				compare(t, fmt.Sprintf("%s, ratio e^%g, advantage %g", l.Name, step, advantage), c, b, l.Eval(c, b), d.eval(l, c, b))
			}
		}
	}
}

// TestDeviceRatioOne: with equal log-probs every ratio is exactly 1, and the gradient REINFORCE's.
func TestDeviceRatioOne(t *testing.T) {
	d := newDevicePolicy(t)
	for _, l := range builtins {
		c := config(l.Name)
		b := deviceBatch(rand.New(rand.NewPCG(5, 0xdeef)), c)
		b.Old = b.Logp
		got := d.eval(l, c, b)
		compare(t, l.Name, c, b, l.Eval(c, b), got)
		for i, m := range b.Mask {
			if got.ratio[i] != float32(m) || got.clip[i] != 0 {
				t.Fatalf("%s: token %d has ratio %v, clip %d", l.Name, i, got.ratio[i], got.clip[i])
			}
		}
	}
}

// TestDeviceShowsNaN: a policy token whose log-prob is NaN must not pass for a good one.
func TestDeviceShowsNaN(t *testing.T) {
	d := newDevicePolicy(t)
	for _, l := range builtins {
		c := config(l.Name)
		b := deviceBatch(rand.New(rand.NewPCG(4, 0xdeef)), c)
		b.Logp = append([]float64(nil), b.Logp...)
		for i := range b.Mask {
			if b.Mask[i] != 0 && i < b.Rows[0].End { // of rollout 0, whose advantage is not 0
				b.Logp[i] = math.NaN()
				break
			}
		}
		sum := float32(0)
		for _, x := range d.eval(l, c, b).loss {
			sum += x
		}
		if sum == sum {
			t.Errorf("%s: the loss is %v", l.Name, sum)
		}
	}
}
