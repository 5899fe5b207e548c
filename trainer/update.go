package trainer

import (
	"errors"
	"fmt"
	"math"

	"harness-s/kernels"
	"harness-s/model"
	"harness-s/trainer/loss"
)

// ErrMismatch says that trainer and rollout server disagree more than a gate allows.
var ErrMismatch = errors.New("trainer and rollout server disagree")

// updater makes one step's updates from its minibatches.
type updater struct {
	cfg      Config
	loss     loss.Loss
	learner  Learner
	direct   *direct // where the learner evaluates the loss itself
	lr       func(update int) float64
	updates  int // done before; AdamW's step count
	dump     func(d dump) error
	mismatch mismatch
	out      metrics

	entropy, norm, lossSum mean
	stats                  loss.Stats
	flop                   float64 // of the model, as formulas count it: nothing that is computed again
}

// run is the update part of a step. Weights are those that sampled the batch when it starts.
func (u *updater) run(batches []minibatch) error {
	if err := u.out.timed("time/logprob", func() error { return u.recomputeOld(batches) }); err != nil {
		return err
	}
	err := u.out.timed("time/update", func() error {
		for epoch := range u.cfg.Optim.Epochs {
			for i := range batches {
				if err := u.minibatch(&batches[i], epoch, i); err != nil {
					return err
				}
			}
		}
		return nil
	})
	u.report()
	u.reportUse()
	return err
}

// reportUse fills in the share of the devices' peak that the model's arithmetic was while they trained: not a number, null in
// the metrics, where no peak is known.
func (u *updater) reportUse() {
	u.out["perf/mfu"] = math.NaN()
	if l, ok := u.learner.(MeteredLearner); ok {
		if peak := l.PeakFLOPS(); peak > 0 {
			u.out["perf/mfu"] = u.flop / peak / (u.out["time/logprob"] + u.out["time/update"])
		}
	}
}

// recomputeOld takes the log-probs that later minibatches need before the first update changes the weights.
// The first minibatch's own forward is under the sampling weights, so its ratios are exactly 1.
func (u *updater) recomputeOld(batches []minibatch) error {
	for i := range batches {
		micro := batches[i].micro
		if u.cfg.Loss.Old == "sampler" {
			for _, rows := range micro {
				for j := range rows {
					rows[j].old = rows[j].sampler
				}
			}
			continue
		}
		if i == 0 {
			continue
		}
		inputs := batches[i].forModel()
		u.count(inputs, 1)
		scored, err := u.learner.Score(inputs, u.forwardOptions())
		if err != nil {
			return fmt.Errorf("old log-probs: %w", err)
		}
		for k, rows := range micro {
			u.setOld(rows, scored[k].Logp)
		}
	}
	return nil
}

func (u *updater) forwardOptions() model.ForwardOptions {
	return model.ForwardOptions{Temperature: float32(u.cfg.Rollout.Temperature)}
}

// setOld keeps log-probs taken under the sampling weights, and compares them with the server's.
func (u *updater) setOld(rows []row, logp []float32) {
	at := 0
	for j := range rows {
		n := len(rows[j].tokens)
		rows[j].old = append([]float32(nil), logp[at:at+n]...)
		u.mismatch.add(rows[j], rows[j].old, u.cfg.Loss)
		at += n
	}
}

// minibatch is one update, or none: a minibatch without live rows changes nothing, momentum included, and one
// whose loss or gradient is not finite is dumped and skipped.
func (u *updater) minibatch(m *minibatch, epoch, index int) error {
	if len(m.micro) == 0 {
		return nil
	}
	u.learner.ZeroGrad()
	total, err := u.accumulate(m)
	if err != nil {
		return err
	}
	if err := u.mismatch.gate(u.cfg.Mismatch); err != nil {
		return err
	}
	norm, bad, err := u.learner.GradStats()
	if err != nil {
		return err
	}
	if bad > 0 || notFinite(norm) || notFinite(total) {
		u.out["errors/nonfinite"]++
		return u.dump(dump{Epoch: epoch, Minibatch: index, Loss: text(total), GradNorm: text(norm), BadGrads: bad, Rows: dumpRows(m)})
	}
	u.norm.add(norm)
	u.lossSum.add(total)
	if norm == 0 {
		return nil
	}
	return u.apply(norm)
}

// accumulate adds a minibatch's gradient and returns its loss.
func (u *updater) accumulate(m *minibatch) (total float64, err error) {
	inputs := m.forModel()
	u.count(inputs, 3)
	if u.direct != nil {
		return u.learn(m, inputs)
	}
	err = u.learner.Accumulate(inputs, u.forwardOptions(), func(i int, s model.Stats) ([]float32, error) {
		l, coef := u.micro(m, m.micro[i], s)
		total += l
		return coef, nil
	})
	return total, err
}

// count adds what passes over a minibatch's batches take, in forward passes.
func (u *updater) count(batches []model.Batch, passes float64) {
	l, ok := u.learner.(MeteredLearner)
	if !ok {
		return
	}
	for _, b := range batches {
		u.flop += passes * l.FLOP(b)
	}
}

func notFinite(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) }

// micro is one micro-batch's share of the loss and its derivatives by the log-probs. A share that is not finite is not
// sent backwards: it would only spread.
func (u *updater) micro(m *minibatch, rows []row, s model.Stats) (share float64, coef []float32) {
	if rows[0].old == nil {
		u.setOld(rows, s.Logp)
	}
	b := m.forLoss(rows, s.Logp)
	u.addEntropy(rows, s.Entropy)
	res := u.loss.Eval(u.cfg.Loss, b)
	u.stats.Add(res.Stats)
	if notFinite(res.Loss) || anyNotFinite(res.Coef) {
		return math.NaN(), nil
	}
	return res.Loss, narrow(res.Coef)
}

// addEntropy notes the entropy of each policy token.
func (u *updater) addEntropy(rows []row, entropy []float32) {
	at := 0
	for _, r := range rows {
		for i, bit := range r.mask {
			if bit != 0 {
				u.entropy.add(float64(entropy[at+i]))
			}
		}
		at += len(r.mask)
	}
}

func anyNotFinite(xs []float64) bool {
	for _, x := range xs {
		if notFinite(x) {
			return true
		}
	}
	return false
}

// apply is the AdamW update with the gradient clipped to the configured norm.
func (u *updater) apply(norm float64) error {
	o := u.cfg.Optim
	scale := 1.0
	if o.GradNorm > 0 && norm > o.GradNorm {
		scale = o.GradNorm / norm
	}
	lr := u.lr(u.updates)
	u.updates++
	u.out["policy/lr"] = lr
	return u.learner.Update(kernels.AdamWParams{
		LR: float32(lr), Beta1: float32(o.Beta1), Beta2: float32(o.Beta2), Eps: float32(o.Eps),
		WeightDecay: float32(o.WeightDecay), Step: u.updates, GradScale: float32(scale),
	})
}

// report fills in the step's policy metrics. A step without anything to train on says nothing about them.
func (u *updater) report() {
	if u.stats.Tokens == 0 {
		return
	}
	n := float64(u.stats.Tokens)
	u.out["policy/entropy"] = u.entropy.value()
	u.out["policy/clip_low"] = float64(u.stats.ClipLow) / n
	u.out["policy/clip_high"] = float64(u.stats.ClipHigh) / n
	u.out["policy/ppo_kl"] = u.stats.KL / n
	u.out["policy/ratio_max"] = u.stats.RatioMax
	u.out["policy/grad_norm"] = u.norm.value()
	u.out["policy/loss"] = u.lossSum.value()
	u.mismatch.report(u.out)
}

// mismatch compares the server's log-probs with the trainer's under the same weights.
type mismatch struct {
	kl      mean
	maxAbs  float64
	worst   string // rollout and token of maxAbs
	outside mean
}

// add compares one row. d = trainer - server; the k3 estimate of KL(server || trainer) is e^d - 1 - d.
func (m *mismatch) add(r row, trainer []float32, c loss.Config) {
	for t, bit := range r.mask {
		if bit == 0 {
			continue
		}
		d := float64(trainer[t]) - float64(r.sampler[t])
		m.kl.add(math.Expm1(math.Min(d, 20)) - d)
		m.outside.add(toFloat(d < math.Log1p(-c.EtaMinus) || d > math.Log1p(c.EtaPlus)))
		if a := math.Abs(d); a > m.maxAbs || math.IsNaN(a) {
			m.maxAbs = a
			m.worst = fmt.Sprintf("rollout %s, token %d: trainer %.6g, server %.6g", r.id, t, trainer[t], r.sampler[t])
		}
	}
}

func (m *mismatch) gate(c MismatchConfig) error {
	if kl := m.kl.value(); c.KL > 0 && !(kl <= c.KL) {
		return fmt.Errorf("%w: mismatch/kl is %.3g, the gate mismatch.kl is %g (worst: %s)", ErrMismatch, kl, c.KL, m.worst)
	}
	if c.MaxAbs > 0 && !(m.maxAbs <= c.MaxAbs) {
		return fmt.Errorf("%w: mismatch/max_abs is %.3g, the gate mismatch.max_abs is %g (%s)", ErrMismatch, m.maxAbs, c.MaxAbs, m.worst)
	}
	return nil
}

func (m *mismatch) report(out metrics) {
	if m.kl.n > 0 {
		out["mismatch/kl"], out["mismatch/max_abs"], out["mismatch/outside"] = m.kl.value(), m.maxAbs, m.outside.value()
	}
}
