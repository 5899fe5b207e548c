package kernels

// PolicyKind is the form of a policy objective. Formulas and papers are in package trainer/loss, whose objectives each have
// one of these; they differ further by the weight of a token only.
type PolicyKind int32

const (
	// PolicyClipped: per token -w·min(ρA, clip(ρ, 1-η₋, 1+η₊)·A), ρ = exp(logp-old). grpo, dr_grpo, dapo.
	PolicyClipped PolicyKind = iota
	// PolicySequence: the same for a rollout at a time, with ρ = exp(mean over its policy tokens of logp-old). gspo.
	PolicySequence
	// PolicyCapped: per token -w·min(ρ, 1+η₊)·A·logp, with the ratio held still. cispo.
	PolicyCapped
)

// PolicyParams are an objective's settings, as in trainer/loss.Config.
type PolicyParams struct {
	Kind              PolicyKind
	EtaMinus, EtaPlus float64 // η₋, η₊
	SamplerCap        float64 // > 0: tokens are weighed by min(exp(old-sampler), cap) as well
}

// PolicyRow is tokens [Start, End) of a rollout. Rows of one rollout need not be neighbours.
type PolicyRow struct{ Start, End, Rollout int }

// PolicyTokens is what an objective knows of T tokens, in backend memory. Where Mask is 0 the others may hold anything.
type PolicyTokens struct {
	Old       Buffer      // [T] log-prob under the sampling weights; none: these are the sampling weights, the ratio is exactly 1
	Sampler   Buffer      // [T] log-prob as the sampler reported it; may be none without SamplerCap
	Advantage Buffer      // [T] the same for all policy tokens of a rollout
	Weight    Buffer      // [T] w, the normaliser's share of a token
	Mask      Buffer      // int32 [T], not 0 where the policy sampled the token
	Rows      []PolicyRow // PolicySequence only
}

// PolicyResult is an objective's value token by token, in backend memory; 0 where Mask is 0.
type PolicyResult struct {
	Coef  Buffer // [T] derivative of the sum of Loss by logp
	Ratio Buffer // [T] ρ; of the rollout with PolicySequence
	Loss  Buffer // [T] a token's share
	Clip  Buffer // int32 [T] 1 where A < 0 and ρ < 1-η₋, 2 where A > 0 and ρ > 1+η₊, else 0
}

// PolicyLoss is what a backend that evaluates objectives itself also does. All of it is in fp32; trainer/loss does the same in
// float64 on the host, for any objective.
type PolicyLoss interface {
	// PolicyLoss fills r for T tokens of log-prob logp [T]. Tokens in no row of a PolicySequence are taken as masked.
	PolicyLoss(r PolicyResult, logp Buffer, in PolicyTokens, p PolicyParams, T int)
	// HeadLoss is HeadForward, PolicyLoss and HeadBackward of r.Coef in one pass: the logits are computed once, 6 instead of
	// 8 floating-point operations for each token, hidden element and vocabulary entry. dh = ..., dw += .... Rows whose
	// coefficient is 0 contribute exactly nothing, and cost a forward; those with a target below 0 are taken as masked and
	// cost nothing. Not for PolicySequence, where a token's coefficient needs the log-probs of all others.
	HeadLoss(dh, dw, logp, entropy, lse Buffer, r PolicyResult, h Buffer, w Weight, targets Buffer, in PolicyTokens, p PolicyParams, T int, invTemp float32)
}
