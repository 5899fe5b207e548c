package loss

import (
	"math"

	"harness-s/kernels"
)

func zeroAdvantage(a float64) bool { return a == 0 }

func kind(k kernels.PolicyKind) *kernels.PolicyKind { return &k }

// builtins are the objectives by name. All are to be minimised.
var builtins = []Loss{
	{Name: "grpo", Normalise: PerRollout, Advantage: "grpo", Dead: zeroAdvantage, Eval: clipped(PerRollout), policy: kind(kernels.PolicyClipped)},
	{Name: "dr_grpo", Normalise: Constant, Advantage: "dr_grpo", Dead: zeroAdvantage, Eval: clipped(Constant), policy: kind(kernels.PolicyClipped)},
	{Name: "dapo", Normalise: PerLive, Advantage: "grpo", Dead: zeroAdvantage, Eval: clipped(PerLive), policy: kind(kernels.PolicyClipped)},
	{Name: "gspo", Level: Sequence, Normalise: PerRollout, Advantage: "grpo", Dead: zeroAdvantage, Eval: gspo, policy: kind(kernels.PolicySequence)},
	{Name: "cispo", Normalise: PerToken, Advantage: "grpo", Dead: zeroAdvantage, Eval: cispo, policy: kind(kernels.PolicyCapped)},
}

// clipped is the token-level objective of GRPO (arXiv 2402.03300 eq. 3, no KL) with the asymmetric clip of
// DAPO (arXiv 2503.14476 eq. 8):
//
//	L = - sum_t w_t min(rho_t A, clip(rho_t, 1-eta_minus, 1+eta_plus) A),   rho_t = exp(logp_t - old_t)
//
// w_t is the normaliser's weight: GRPO's mean per rollout, Dr. GRPO's constant length (arXiv 2503.20783),
// DAPO's mean over all tokens. The derivative by logp_t is -w_t A rho_t on the unclipped branch and 0 on the
// clipped one.
func clipped(own Normaliser) func(Config, Batch) Result {
	return func(c Config, b Batch) Result {
		res := Result{Coef: make([]float64, len(b.Logp))}
		b.eachToken(func(t int, r Rollout) {
			rho, moves := ratio(b.Logp[t], b.Old[t])
			res.Stats.note(c, r.Advantage, rho, b.Logp[t], b.Old[t])
			w := c.weight(own, b.Norm, r) * c.samplerWeight(b.Old[t], b.Sampler[t])
			value, slope := clippedTerm(c, rho, r.Advantage)
			res.Loss -= w * value
			if moves {
				res.Coef[t] = -w * slope
			}
		})
		return res
	}
}

// clippedTerm is min(rho A, clip(rho) A) and its derivative by log rho. At a tie the unclipped branch counts.
func clippedTerm(c Config, rho, advantage float64) (value, slope float64) {
	if advantage == 0 {
		return 0, 0
	}
	free := rho * advantage
	held := math.Min(math.Max(rho, 1-c.EtaMinus), 1+c.EtaPlus) * advantage
	if free <= held {
		return free, free
	}
	return held, 0
}

// gspo is the sequence-level objective (arXiv 2507.18071 eq. 5-7): every token of a rollout shares the ratio
// s = exp(mean over its policy tokens of (logp - old)). A rollout of several rows is one sequence.
//
//	L = - sum_i W_i min(s_i A_i, clip(s_i) A_i),  W_i = the weight of all tokens of rollout i together
func gspo(c Config, b Batch) Result {
	res := Result{Coef: make([]float64, len(b.Logp))}
	logRatio := make([]float64, len(b.Rollouts)) // [B] sum over tokens
	weight := make([]float64, len(b.Rollouts))   // [B] sum over tokens
	tokens := make([]int, len(b.Rollouts))       // [B]
	for _, row := range b.Rows {
		for t := row.Start; t < row.End; t++ {
			if b.Mask[t] == 0 {
				continue
			}
			i := row.Rollout
			logRatio[i] += b.Logp[t] - b.Old[t]
			weight[i] += c.weight(PerRollout, b.Norm, b.Rollouts[i]) * c.samplerWeight(b.Old[t], b.Sampler[t])
			tokens[i]++
		}
	}
	slope := make([]float64, len(b.Rollouts)) // [B] dL/d(mean log ratio) / tokens
	rhos := make([]float64, len(b.Rollouts))
	for i, r := range b.Rollouts {
		if tokens[i] == 0 {
			continue
		}
		rho, moves := ratio(logRatio[i]/float64(tokens[i]), 0)
		rhos[i] = rho
		value, d := clippedTerm(c, rho, r.Advantage)
		res.Loss -= weight[i] * value
		if moves {
			slope[i] = -weight[i] * d / float64(tokens[i])
		}
	}
	for _, row := range b.Rows {
		for t := row.Start; t < row.End; t++ {
			if b.Mask[t] != 0 {
				res.Stats.note(c, b.Rollouts[row.Rollout].Advantage, rhos[row.Rollout], b.Logp[t], b.Old[t])
				res.Coef[t] = slope[row.Rollout]
			}
		}
	}
	return res
}

// cispo is MiniMax-M1's objective (arXiv 2506.13585 eq. 4): the ratio is a weight, capped from above and cut
// out of the gradient, so that no token's gradient is lost.
//
//	L = - sum_t w_t sg(min(rho_t, 1+eta_plus)) A logp_t
func cispo(c Config, b Batch) Result {
	res := Result{Coef: make([]float64, len(b.Logp))}
	b.eachToken(func(t int, r Rollout) {
		rho, _ := ratio(b.Detached[t], b.Old[t])
		res.Stats.note(c, r.Advantage, rho, b.Detached[t], b.Old[t])
		if r.Advantage == 0 {
			return
		}
		w := c.weight(PerToken, b.Norm, r) * c.samplerWeight(b.Old[t], b.Sampler[t])
		res.Coef[t] = -w * math.Min(rho, 1+c.EtaPlus) * r.Advantage
		res.Loss += res.Coef[t] * b.Logp[t]
	})
	return res
}
