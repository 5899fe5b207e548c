package trainer

import (
	"fmt"

	"harness-s/kernels"
	"harness-s/model"
	"harness-s/trainer/loss"
)

// direct is the loss as the learner evaluates it beside the model. Elsewhere the loss sees the log-probs on the host, and the
// model gets its derivatives by them.
type direct struct {
	learner ObjectiveLearner
	params  kernels.PolicyParams
}

// chooseDirect decides where the loss is evaluated, once a run; nil: on the host. why is for people.
func chooseDirect(l loss.Loss, c loss.Config, learner Learner) (d *direct, why string) {
	params, ok := l.Policy(c)
	if !ok {
		return nil, fmt.Sprintf("loss %s is evaluated on the host: it is not built in", l.Name)
	}
	o, able := learner.(ObjectiveLearner)
	switch {
	case !able || !o.TakesObjectives():
		return nil, fmt.Sprintf("loss %s is evaluated on the host, where the model is", l.Name)
	case params.Kind == kernels.PolicySequence:
		return &direct{o, params}, fmt.Sprintf("loss %s is evaluated on the device, after the log-probs of all of a micro-batch", l.Name)
	}
	return &direct{o, params}, fmt.Sprintf("loss %s is evaluated on the device, in one pass with the head", l.Name)
}

// chooseLoss decides where this run's loss is evaluated, and says so.
func (r *run) chooseLoss() {
	var why string
	r.direct, why = chooseDirect(r.loss, r.cfg.Loss, r.parts.Learner)
	if r.opts.Out != nil {
		fmt.Fprintln(r.opts.Out, why)
	}
}

// learn is accumulate where the learner evaluates the loss.
func (u *updater) learn(m *minibatch, inputs []model.Batch) (total float64, err error) {
	objectives := make([]model.Objective, len(m.micro))
	for i, rows := range m.micro {
		objectives[i] = m.objective(rows, u.loss, u.cfg.Loss, u.direct.params)
	}
	err = u.direct.learner.Learn(inputs, u.forwardOptions(), objectives, func(i int, s model.Stats) {
		rows := m.micro[i]
		if rows[0].old == nil {
			u.setOld(rows, s.Logp)
		}
		u.addEntropy(rows, s.Entropy)
		for _, x := range s.Loss {
			total += float64(x)
		}
		u.stats.Add(lossStats(rows, s))
	})
	return total, err
}

// objective is a micro-batch's loss as the learner takes it.
func (m *minibatch) objective(rows []row, l loss.Loss, c loss.Config, p kernels.PolicyParams) model.Objective {
	o := model.Objective{Params: p}
	for _, r := range rows {
		ro := m.rollouts[r.rollout]
		weight := float32(l.Weight(c, m.norm, ro))
		for range r.tokens {
			o.Advantage, o.Weight = append(o.Advantage, float32(ro.Advantage)), append(o.Weight, weight)
		}
		o.Old = append(o.Old, r.old...)
		if p.SamplerCap > 0 {
			o.Sampler = append(o.Sampler, r.sampler...)
		}
		o.Rollout = append(o.Rollout, r.rollout)
	}
	return o
}

// lossStats are a micro-batch's statistics as loss.Loss.Eval counts them.
func lossStats(rows []row, s model.Stats) (out loss.Stats) {
	at := 0
	for _, r := range rows {
		for i, bit := range r.mask {
			if bit != 0 {
				out.Add(loss.Stats{Tokens: 1, ClipLow: int(toFloat(s.Clip[at+i] == 1)), ClipHigh: int(toFloat(s.Clip[at+i] == 2)),
					KL: float64(r.old[i]) - float64(s.Logp[at+i]), Ratio: float64(s.Ratio[at+i]), RatioMax: float64(s.Ratio[at+i])})
			}
		}
		at += len(r.mask)
	}
	return out
}
