package model

import (
	"errors"
	"fmt"
	"slices"

	"harness-s/kernels"
)

// Objective is a policy objective over the tokens of one batch, evaluated where the model is. Each slice of tokens has
// len(Tokens) entries; those of tokens that are not wanted, and of a row's first, may hold anything.
type Objective struct {
	Params    kernels.PolicyParams
	Old       []float32 // log-prob under the sampling weights; nil: these are the sampling weights, every ratio is exactly 1
	Sampler   []float32 // log-prob as the sampler reported it; with Params.SamplerCap only
	Advantage []float32
	Weight    []float32 // the normaliser's share of a token
	Rollout   []int     // [rows] which rollout a row is of; kernels.PolicySequence only
}

// policyActs is an objective's memory on the device, [N] words each.
type policyActs struct {
	in kernels.PolicyTokens
	kernels.PolicyResult
}

// plan lays the memory out.
func (p *policyActs) plan(N int, c *carver) {
	for _, b := range []*kernels.Buffer{&p.in.Old, &p.in.Sampler, &p.in.Advantage, &p.in.Weight, &p.in.Mask, &p.Coef, &p.Ratio, &p.Loss, &p.Clip} {
		*b = c.take(N)
	}
}

// TakesObjectives says whether Learn works on the model's backend.
func (m *Model) TakesObjectives() bool {
	_, ok := m.be.(kernels.PolicyLoss)
	return ok
}

// Learn is Forward, the objective and Backward of its derivatives in one. Objectives of single tokens compute the head's logits
// once, where Forward and Backward compute them twice. A loss that is not finite goes backwards like any other: Stats tells.
func (m *Model) Learn(b Batch, opt ForwardOptions, o Objective) (Stats, error) {
	eval, ok := m.be.(kernels.PolicyLoss)
	if !ok {
		return Stats{}, fmt.Errorf("learn: backend %s evaluates no objectives; use Forward and Backward", m.be.Name())
	}
	opt.Grad = true
	a, err := m.prepare(b, opt)
	if err == nil {
		err = o.check(&b)
	}
	if err != nil {
		return Stats{}, fmt.Errorf("learn: %w", err)
	}
	m.layersForward(a)
	var stats Stats
	live := false
	m.formHead(func() {
		if a.N > 0 {
			m.headHidden(a)
			m.headLearn(eval, a, &o)
		}
		stats, live = m.collectTerms(a)
	})
	if live {
		m.finalNormBackward(a)
		m.layersBackward(a)
	} else {
		m.exchangeLayers()
	}
	if err := m.be.Sync(); err != nil {
		return Stats{}, fmt.Errorf("learn: %w", err)
	}
	return stats, nil
}

// check says what is wrong with the objective for a batch, if anything.
func (o *Objective) check(b *Batch) error {
	for _, s := range []struct {
		name   string
		values []float32
		want   bool
	}{
		{"old log-probs", o.Old, len(o.Old) > 0}, {"sampler log-probs", o.Sampler, o.Params.SamplerCap > 0},
		{"advantages", o.Advantage, true}, {"weights", o.Weight, true},
	} {
		if s.want && len(s.values) != len(b.Tokens) {
			return fmt.Errorf("%d %s for %d tokens", len(s.values), s.name, len(b.Tokens))
		}
	}
	if o.Params.Kind == kernels.PolicySequence {
		if len(o.Rollout) != b.Rows() {
			return fmt.Errorf("%d rollout indices for %d rows", len(o.Rollout), b.Rows())
		}
		if slices.ContainsFunc(o.Rollout, func(r int) bool { return r < 0 }) {
			return errors.New("a rollout index is negative")
		}
	}
	return nil
}

// headLearn fills in the wanted tokens' log-probs and the objective's terms, adds to the head's gradient and sets grads.final.
func (m *Model) headLearn(eval kernels.PolicyLoss, a *activations, o *Objective) {
	p, be, head, g := &a.policy, m.be, m.head.Weight, &a.grads
	in := m.uploadObjective(a, o)
	if o.Params.Kind != kernels.PolicySequence {
		eval.HeadLoss(g.final, m.head.grad, a.logp, a.entropy, a.lse, p.PolicyResult, a.final, head, a.targets, in, o.Params, a.N, 1/a.temps)
		return
	}
	be.HeadForward(a.logp, a.entropy, a.lse, a.final, head, a.targets, a.N, 1/a.temps)
	eval.PolicyLoss(p.PolicyResult, a.logp, in, o.Params, a.N)
	coef := make([]float32, a.N)
	be.Download(coef, p.Coef)
	be.HeadBackward(g.final, m.head.grad, a.final, head, a.targets, a.lse, coef, 1/a.temps)
}

// uploadObjective copies the wanted tokens' part of an objective to the device.
func (m *Model) uploadObjective(a *activations, o *Objective) kernels.PolicyTokens {
	in := a.policy.in
	if len(o.Old) == 0 {
		in.Old = kernels.Buffer{}
	}
	if !(o.Params.SamplerCap > 0) {
		in.Sampler = kernels.Buffer{}
	}
	part, ones := make([]float32, a.N), make([]int32, a.N)
	for _, s := range []struct {
		to   kernels.Buffer
		from []float32
	}{{in.Old, o.Old}, {in.Sampler, o.Sampler}, {in.Advantage, o.Advantage}, {in.Weight, o.Weight}} {
		if s.to.IsNil() {
			continue
		}
		for i, t := range a.source {
			part[i] = s.from[t]
		}
		m.be.Upload(s.to, part)
	}
	for i := range ones {
		ones[i] = 1
	}
	m.be.UploadInts(in.Mask, ones)
	if o.Params.Kind == kernels.PolicySequence {
		in.Rows = a.policyRows(o.Rollout)
	}
	return in
}

// policyRows are the batch's rows, counted in wanted tokens.
func (a *activations) policyRows(rollout []int) []kernels.PolicyRow {
	rows := make([]kernels.PolicyRow, len(rollout))
	at := 0
	for r := range rows {
		rows[r] = kernels.PolicyRow{Start: at, Rollout: rollout[r]}
		for at < a.N && a.source[at] < a.seg.Cu[r+1] {
			at++
		}
		rows[r].End = at
	}
	return rows
}

// collectTerms is collect with the objective's terms, and whether any token has a derivative.
func (m *Model) collectTerms(a *activations) (s Stats, live bool) {
	s = m.collect(a, a.T)
	s.Loss, s.Ratio, s.Clip = make([]float32, a.T), make([]float32, a.T), make([]int32, a.T)
	loss, ratio, coef, clip := make([]float32, a.N), make([]float32, a.N), make([]float32, a.N), make([]int32, a.N)
	m.download(loss, a.policy.Loss)
	m.download(ratio, a.policy.Ratio)
	m.download(coef, a.policy.Coef)
	if a.N > 0 {
		m.be.DownloadInts(clip, a.policy.Clip)
	}
	for i, t := range a.source {
		s.Loss[t], s.Ratio[t], s.Clip[t] = loss[i], ratio[i], clip[i]
		live = live || coef[i] != 0
	}
	return s, live
}
