// Package loss turns log-probabilities into a training signal: advantages of a group, and for every policy
// token the derivative of the objective by its log-prob.
//
// Start at Loss and Batch. The objectives by name are in builtin.go, the advantage estimators in
// advantage.go, objectives written in the config in expr.go (parser) and graph.go (derivatives).
// docs/losses.md has a worked example of each.
//
// Letters: T tokens of a micro-batch, R rows, B rollouts.
package loss

import (
	"fmt"
	"math"

	"harness-s/kernels"
)

// Batch is what an objective sees at once: the rows of one micro-batch. Entries of the [T] slices where Mask
// is 0 may hold anything, NaN included; an objective must not read them.
type Batch struct {
	Logp     []float64 // [T] log-prob of each policy token under the weights being trained
	Detached []float64 // [T] the same values, to be used wherever the objective stops the gradient
	Old      []float64 // [T] under the weights that sampled
	Sampler  []float64 // [T] as the sampler reported them
	Mask     []uint8   // [T] 1 where the policy sampled the token
	Rows     []Row     // [R]
	Rollouts []Rollout // [B]
	Norm     Norm
}

// Row is one token sequence, tokens [Start, End) of the batch. Rows of one rollout share its weight.
type Row struct {
	Start, End int
	Rollout    int // index into Rollouts
}

// Rollout is one attempt. Tokens counts its policy tokens over all its rows.
type Rollout struct {
	Advantage float64
	Tokens    int
}

// Norm holds the counts of the whole minibatch, taken after rescue and before it is split over micro-batches
// and devices, so that the parts add up to the same loss however it is split.
type Norm struct {
	Rollouts int // all retained rollouts
	Tokens   int // their policy tokens
	Live     int // rollouts whose rows are not dead
	LiveTok  int // policy tokens of those
}

// Result is a batch's share of the minibatch's loss. Coef[t] is dLoss/dLogp[t], exactly 0 where Mask is 0.
type Result struct {
	Loss  float64
	Coef  []float64 // [T]
	Stats Stats
}

// Stats are sums over policy tokens; Add merges those of several micro-batches.
type Stats struct {
	Tokens   int
	ClipLow  int     // tokens held back by the lower bound: advantage < 0 and ratio < 1-eta_minus
	ClipHigh int     // tokens held back by the upper bound: advantage > 0 and ratio > 1+eta_plus
	KL       float64 // sum of old - logp, the k1 estimate of KL(old || new)
	Ratio    float64 // sum of ratios
	RatioMax float64
}

// Add merges s2 into s.
func (s *Stats) Add(s2 Stats) {
	s.Tokens += s2.Tokens
	s.ClipLow += s2.ClipLow
	s.ClipHigh += s2.ClipHigh
	s.KL += s2.KL
	s.Ratio += s2.Ratio
	s.RatioMax = math.Max(s.RatioMax, s2.RatioMax)
}

// Level says what an objective couples.
type Level int

const (
	Token    Level = iota // each token's term depends on that token alone: rows may be split freely
	Sequence              // terms depend on sums over a rollout: its rows must stay in one micro-batch
)

// Normaliser says what the sum over tokens is divided by.
type Normaliser string

const (
	PerRollout Normaliser = "rollout"  // mean over each rollout's policy tokens, then over all retained rollouts
	PerToken   Normaliser = "token"    // mean over all policy tokens of the minibatch
	PerLive    Normaliser = "live"     // mean over the policy tokens of rollouts with a non-zero advantage (DAPO)
	Constant   Normaliser = "constant" // sum over tokens / (retained rollouts x loss.length)
)

// Loss is an objective. Eval is pure: the same batch gives the same bits.
type Loss struct {
	Name      string
	Level     Level
	Normalise Normaliser // used when the config names none
	Advantage string     // estimator used when the config names none
	// Dead says that every row of a rollout with this advantage has coefficients of exactly 0, so that the
	// trainer may leave it out of forward and backward. nil: no row is dead.
	Dead func(advantage float64) bool
	Eval func(c Config, b Batch) Result

	// policy is the form that devices have of a built-in objective; nil: none.
	policy *kernels.PolicyKind
}

// Policy is the objective as a device evaluates it, false where Eval alone can.
func (l Loss) Policy(c Config) (p kernels.PolicyParams, ok bool) {
	if l.policy == nil {
		return p, false
	}
	return kernels.PolicyParams{Kind: *l.policy, EtaMinus: c.EtaMinus, EtaPlus: c.EtaPlus, SamplerCap: c.SamplerCap}, true
}

// Weight is the factor of each policy token of rollout r: its share of the mean.
func (l Loss) Weight(c Config, n Norm, r Rollout) float64 { return c.weight(l.Normalise, n, r) }

// Config is the `loss` section of a run.
type Config struct {
	Name       string     `yaml:"name" doc:"grpo, dr_grpo, dapo, gspo, cispo, the name of a registered Go function, or expression"`
	Expression string     `yaml:"expression" doc:"with name: expression, the loss of one token; see docs/losses.md"`
	Normalise  Normaliser `yaml:"normalise" doc:"rollout, token, live or constant; empty: the loss's own"`
	Length     int        `yaml:"length" unit:"tokens" doc:"divisor of normalise: constant (dr_grpo)"`
	EtaMinus   float64    `yaml:"eta_minus" doc:"lower clip: ratios below 1-eta_minus stop pushing a bad token down"`
	EtaPlus    float64    `yaml:"eta_plus" doc:"upper clip: ratios above 1+eta_plus stop pushing a good token up"`
	Advantage  string     `yaml:"advantage" doc:"grpo, dr_grpo or rloo; empty: the loss's own"`
	Eps        float64    `yaml:"eps" doc:"least divisor of the grpo advantage, in reward units"`
	Old        string     `yaml:"old" doc:"log-probs of the sampling weights: recompute (exact) or sampler (as the server reported them)"`
	SamplerCap float64    `yaml:"sampler_cap" doc:"weigh tokens by min(exp(old - sampler), cap), for servers whose numerics differ; 0: off"`
}

// DefaultConfig is GRPO with the asymmetric clip. The paper publishes neither the clip widths nor the
// aggregation: these are this project's choice.
func DefaultConfig() Config {
	return Config{Name: "grpo", Length: 1024, EtaMinus: 0.2, EtaPlus: 0.28, Eps: 1e-6, Old: "recompute"}
}

// Validate checks ranges and names; the error names the key.
func (c Config) Validate() error {
	switch {
	case c.EtaMinus < 0 || c.EtaMinus > 1 || math.IsNaN(c.EtaMinus):
		return fmt.Errorf("loss.eta_minus: %g is outside 0..1", c.EtaMinus)
	case !(c.EtaPlus >= 0) || math.IsInf(c.EtaPlus, 0):
		return fmt.Errorf("loss.eta_plus: %g must be at least 0", c.EtaPlus)
	case !(c.Eps > 0) || math.IsInf(c.Eps, 0):
		return fmt.Errorf("loss.eps: %g must be above 0", c.Eps)
	case c.Length <= 0:
		return fmt.Errorf("loss.length: %d must be at least 1", c.Length)
	case !(c.SamplerCap >= 0) || math.IsInf(c.SamplerCap, 0):
		return fmt.Errorf("loss.sampler_cap: %g must be at least 0", c.SamplerCap)
	case c.Old != "recompute" && c.Old != "sampler":
		return fmt.Errorf("loss.old: %q: want recompute or sampler", c.Old)
	}
	switch c.Normalise {
	case "", PerRollout, PerToken, PerLive, Constant:
	default:
		return fmt.Errorf("loss.normalise: %q: want rollout, token, live or constant", c.Normalise)
	}
	if c.Advantage != "" {
		if _, err := Estimator(c.Advantage); err != nil {
			return err
		}
	}
	if (c.Name == "expression") != (c.Expression != "") {
		return fmt.Errorf("loss.expression: goes with loss.name: expression, and only with it (name is %q)", c.Name)
	}
	return nil
}

// weight is the factor of each policy token of rollout r: its share of the mean. A count of 0 gives 0, so
// that an all-masked batch has loss 0 without a division.
func (c Config) weight(own Normaliser, n Norm, r Rollout) float64 {
	mode := c.Normalise
	if mode == "" {
		mode = own
	}
	var divisor float64
	switch mode {
	case PerRollout:
		divisor = float64(r.Tokens) * float64(n.Rollouts)
	case PerToken:
		divisor = float64(n.Tokens)
	case PerLive:
		divisor = float64(n.LiveTok)
	case Constant:
		divisor = float64(n.Rollouts) * float64(c.Length)
	default:
		panic("loss: normaliser " + string(mode))
	}
	if divisor == 0 {
		return 0
	}
	return 1 / divisor
}

// maxLogRatio bounds log ratios before exp. A ratio of e^20 is past every clip; beyond it exp overflows and
// one token would turn the whole loss into an infinity.
const maxLogRatio = 20

// ratio is pi(token) / pi_old(token), and whether it still depends on logp (false beyond the bound).
func ratio(logp, old float64) (rho float64, moves bool) {
	d := logp - old
	if math.Abs(d) > maxLogRatio {
		return math.Exp(math.Copysign(maxLogRatio, d)), false
	}
	return math.Exp(d), true
}

// samplerWeight is the truncated importance weight between the trainer's numerics and the server's.
func (c Config) samplerWeight(old, sampler float64) float64 {
	if c.SamplerCap == 0 {
		return 1
	}
	w, _ := ratio(old, sampler)
	return math.Min(w, c.SamplerCap)
}

// note counts one policy token.
func (s *Stats) note(c Config, advantage, rho, logp, old float64) {
	s.Tokens++
	s.KL += old - logp
	s.Ratio += rho
	s.RatioMax = math.Max(s.RatioMax, rho)
	if advantage < 0 && rho < 1-c.EtaMinus {
		s.ClipLow++
	}
	if advantage > 0 && rho > 1+c.EtaPlus {
		s.ClipHigh++
	}
}

// eachToken calls f for every policy token, in order.
func (b Batch) eachToken(f func(t int, r Rollout)) {
	for _, row := range b.Rows {
		r := b.Rollouts[row.Rollout]
		for t := row.Start; t < row.End; t++ {
			if b.Mask[t] != 0 {
				f(t, r)
			}
		}
	}
}
