//go:build cgo

package kernels

import (
	"fmt"
	"math"
	"slices"
	"testing"
)

// TestLiveFirst: every row with a coefficient is made once, and no row is written that another one is made from.
func TestLiveFirst(t *testing.T) {
	nan := nan32
	for _, coef := range [][]float32{{}, {0}, {1}, {0, 0, 0}, {1, 2, 3}, {0, 1}, {1, 0, 0, 2}, {0, 0, 3, nan, 0, 1, 0}, {0, -1, 0, 2, 3, 0, 4, 5}} {
		from := liveFirst(coef)
		var want []int32
		for i, c := range coef {
			if c != 0 {
				want = append(want, int32(i))
			}
		}
		for to, f := range from {
			if coef[f] == 0 || int(f) != to && coef[to] != 0 {
				t.Errorf("%v: row %d is made from %d", coef, to, f)
			}
		}
		slices.Sort(from)
		if !slices.Equal(from, want) {
			t.Errorf("%v: rows %v, want %v", coef, from, want)
		}
	}
}

// policyRig is a head and a policy's tokens around the log-probs it gives: ratios on both sides of the clips, advantages of
// both signs and 0, tokens without a target or masked.
type policyRig struct {
	*deviceHead
	tokens PolicyTokens
	result PolicyResult
	mask   []int32
}

func newPolicyRig(t testing.TB, dtype DType, c headCase) *policyRig {
	r := &policyRig{deviceHead: newDeviceHead(t, dtype, c)}
	r.headForward(r.out, r.in)
	logp := r.get(r.out.logp)
	old, sampler, adv, weight := make([]float32, c.T), make([]float32, c.T), make([]float32, c.T), make([]float32, c.T)
	r.mask = make([]int32, c.T)
	for i := range c.T {
		old[i] = logp[i] + float32(r.rng.NormFloat64()*0.3)
		sampler[i] = old[i] + float32(r.rng.NormFloat64()*0.1)
		adv[i] = float32(r.rng.IntN(5)-2) / 2
		weight[i] = 1 / float32(c.T)
		if r.targets[i] >= 0 && i%4 != 3 {
			r.mask[i] = 1
		}
	}
	r.tokens = PolicyTokens{Old: r.buf(old), Sampler: r.buf(sampler), Advantage: r.buf(adv), Weight: r.buf(weight), Mask: r.ints(r.mask)}
	r.result = PolicyResult{r.fill(c.T, nan32), r.fill(c.T, nan32), r.fill(c.T, nan32), r.fill(c.T, nan32)}
	return r
}

func (r *policyRig) policyOutputs() map[string][]float32 {
	out := r.outputs()
	out["coef"], out["ratio"], out["loss"], out["clip"] = r.get(r.result.Coef), r.get(r.result.Ratio), r.get(r.result.Loss), r.get(r.result.Clip)
	return out
}

// TestDeviceHeadLoss: one pass gives the bits of three; dw's sum is in another order.
func TestDeviceHeadLoss(t *testing.T) {
	c := headCase{T: 41, V: 352, H: 16, invTemp: 1.25, scale: 0.5}
	eachDType(t, func(t *testing.T, dtype DType) {
		for _, p := range []PolicyParams{
			{Kind: PolicyClipped, EtaMinus: 0.2, EtaPlus: 0.28}, {Kind: PolicyCapped, EtaPlus: 0.1, SamplerCap: 1.05},
		} {
			r := newPolicyRig(t, dtype, c)
			r.PolicyLoss(r.result, r.out.logp, r.tokens, p, c.T)
			r.coef = r.get(r.result.Coef)
			r.headBackward(r.dh, r.dw, r.out.lse, r.coef, r.in)
			want := r.policyOutputs()
			if n := countNonZero(want["coef"]); n < 5 || n == countNonZero(want["ratio"]) {
				t.Fatalf("%d of %d policy tokens have a gradient: the case is too easy", n, countNonZero(want["ratio"]))
			}
			for _, chunk := range []int{1, 8, 4096} {
				r := newPolicyRig(t, dtype, c)
				r.in.chunk = chunk
				r.headLoss(r.dh, r.dw, r.out, r.result, r.in, r.tokens, p)
				got := r.policyOutputs()
				for name := range want {
					what := fmt.Sprintf("%+v, %d rows at a time: %s", p, chunk, name)
					if name == "dw" {
						near(t, what, got[name], f64(want[name]), 1e-6, 0.1)
						continue
					}
					sameBits(t, what, got[name], want[name])
				}
			}
		}
	})
}

func countNonZero(v []float32) int {
	n := 0
	for _, x := range v {
		if x != 0 {
			n++
		}
	}
	return n
}

// TestDeviceHeadLossPoison: what a masked token holds, and the hidden state of a token without gradient, changes no bit of
// anything else; a batch of masked tokens has loss and gradient 0.
func TestDeviceHeadLossPoison(t *testing.T) {
	c := headCase{T: 41, V: 130, H: 16, invTemp: 1, scale: 0.5}
	p := PolicyParams{Kind: PolicyClipped, EtaMinus: 0.2, EtaPlus: 0.28, SamplerCap: 1.05}
	eachDType(t, func(t *testing.T, dtype DType) {
		clean := newPolicyRig(t, dtype, c)
		clean.headLoss(clean.dh, clean.dw, clean.out, clean.result, clean.in, clean.tokens, p)
		want := clean.policyOutputs()
		for _, poison := range []float32{nan32, float32(math.Inf(1)), float32(math.Inf(-1)), 200, -1e30} {
			r := newPolicyRig(t, dtype, c)
			for _, b := range []Buffer{r.tokens.Old, r.tokens.Sampler, r.tokens.Advantage, r.tokens.Weight} {
				v := r.get(b)
				for i := range v {
					if r.mask[i] == 0 {
						v[i] = poison
					}
				}
				r.Upload(b, v)
			}
			h := slices.Clone(r.h)
			r.poisonRows(h, poison, func(i int) bool { return r.targets[i] < 0 })
			r.setAct(r.in.h, h)
			r.headLoss(r.dh, r.dw, r.out, r.result, r.in, r.tokens, p)
			got := r.policyOutputs()
			for name := range want {
				sameBits(t, fmt.Sprintf("%s with %v in masked places", name, poison), got[name], want[name])
			}
		}
		none := newPolicyRig(t, dtype, c)
		none.Zero(none.tokens.Mask)
		none.headLoss(none.dh, none.dw, none.out, none.result, none.in, none.tokens, p)
		got := none.policyOutputs()
		for _, name := range []string{"coef", "ratio", "loss", "clip", "dh", "dw"} {
			if n := countNonZero(got[name]); n > 0 {
				t.Errorf("all masked: %d values of %s are not 0", n, name)
			}
		}
		sameBits(t, "log-probs of masked tokens", got["logp"], want["logp"])
	})
}

// TestDevicePolicyOnPolicy: without old log-probs the ratio is exactly 1 and the gradient REINFORCE's.
func TestDevicePolicyOnPolicy(t *testing.T) {
	r := newPolicyRig(t, F32, headCase{T: 41, V: 64, H: 8, invTemp: 1, scale: 0.5})
	r.tokens.Old = Buffer{}
	adv, weight := r.get(r.tokens.Advantage), r.get(r.tokens.Weight)
	for _, kind := range []PolicyKind{PolicyClipped, PolicyCapped} {
		r.PolicyLoss(r.result, r.out.logp, r.tokens, PolicyParams{Kind: kind, EtaMinus: 0.2, EtaPlus: 0.2}, r.c.T)
		got := r.policyOutputs()
		for i := range r.mask {
			m := float32(r.mask[i])
			if got["ratio"][i] != m || got["coef"][i] != -weight[i]*adv[i]*m || got["clip"][i] != 0 {
				t.Fatalf("kind %d, token %d: ratio %v coefficient %v", kind, i, got["ratio"][i], got["coef"][i])
			}
		}
	}
}
