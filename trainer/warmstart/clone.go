package warmstart

import (
	"context"
	"fmt"
	"math"
	"sort"
	"time"

	"harness-s/kernels"
	"harness-s/model"
)

// Progress is the state of cloning after a step.
type Progress struct {
	Step, Steps  int
	Loss         float64 // nats a policy token, of demonstrations
	Recall       float64 // nats a queried token, of recall text
	GradNorm     float64
	Tokens       int // processed so far
	PolicyTokens int
	Elapsed      time.Duration
}

// Left estimates the time to the end.
func (p Progress) Left() time.Duration {
	if p.Step == 0 {
		return 0
	}
	return time.Duration(float64(p.Elapsed) / float64(p.Step) * float64(p.Steps-p.Step))
}

// recallShare is the share of recall text in a step: all of it at first, then a part that fades to 0.
func (c Config) recallShare(step int) float64 {
	o := c.Optim
	if step < o.RecallSteps {
		return 1
	}
	return c.Demo.Recall * (1 - float64(step-o.RecallSteps)/float64(max(o.Steps-o.RecallSteps, 1)))
}

// lr is linear warm-up, then a cosine to a twentieth.
func (o Optim) lr(step int) float64 {
	warm := math.Min(1, float64(step+1)/float64(max(o.Warmup, 1)))
	return o.LR * warm * (0.05 + 0.95*0.5*(1+math.Cos(math.Pi*float64(step)/float64(o.Steps))))
}

// clone trains the model on the demonstrations.
func clone(ctx context.Context, m *model.Model, d *demonstrator, workers int, report func(Progress)) error {
	o := d.cfg.Optim
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	batches, wait := d.batches(ctx, workers, d.cfg.recallShare)
	began, p := time.Now(), Progress{Steps: o.Steps}
	for rows := range batches {
		sums, err := gradient(m, rows, o.Tokens)
		if err != nil {
			return fmt.Errorf("step %d: %w", p.Step, err)
		}
		var bad int
		if p.GradNorm, bad, err = m.GradStats(); err != nil {
			return fmt.Errorf("step %d: %w", p.Step, err)
		}
		if bad > 0 {
			return fmt.Errorf("step %d: %d gradients are not finite; lower optim.lr", p.Step, bad)
		}
		scale := 1.0
		if p.GradNorm > o.GradNorm {
			scale = o.GradNorm / p.GradNorm
		}
		if err := m.Update(kernels.AdamWParams{
			LR: float32(o.lr(p.Step)), Beta1: 0.9, Beta2: 0.98, Eps: 1e-8, WeightDecay: float32(o.WeightDecay),
			Step: p.Step + 1, GradScale: float32(scale),
		}); err != nil {
			return fmt.Errorf("step %d: %w", p.Step, err)
		}
		p.Step++
		p.Loss, p.Recall = sums.mean(false), sums.mean(true)
		p.Tokens += sums.tokens
		p.PolicyTokens += sums.count[0]
		p.Elapsed = time.Since(began)
		report(p)
	}
	return wait()
}

// sums of one step: negative log-probs of the policy's tokens, of demonstrations (0) and of recall text (1).
type sums struct {
	nats   [2]float64
	count  [2]int
	tokens int
}

func (s *sums) mean(recall bool) float64 {
	k := kind(recall)
	return s.nats[k] / float64(max(s.count[k], 1))
}

func kind(recall bool) int {
	if recall {
		return 1
	}
	return 0
}

// gradient leaves in the model the gradient of the weighted mean loss a policy token, whatever the micro-batches.
func gradient(m *model.Model, rows []row, maxTokens int) (sums, error) {
	total := 0
	for _, r := range rows {
		total += r.policy
	}
	if total == 0 {
		return sums{}, fmt.Errorf("%d rows without a policy token", len(rows))
	}
	// Rows of like length go together: the GDN works in whole chunks. Stable, so that the order is the rows' own.
	rows = append([]row(nil), rows...)
	sort.SliceStable(rows, func(i, j int) bool { return len(rows[i].tokens) < len(rows[j].tokens) })
	m.ZeroGrad()
	var s sums
	for len(rows) > 0 {
		n, tokens := 0, 0
		for n < len(rows) && (n == 0 || tokens+len(rows[n].tokens) <= maxTokens) {
			tokens += len(rows[n].tokens)
			n++
		}
		if err := s.microbatch(m, rows[:n], float64(total)); err != nil {
			return s, err
		}
		rows = rows[n:]
	}
	return s, nil
}

func (s *sums) microbatch(m *model.Model, rows []row, total float64) error {
	var b model.Batch
	var coef []float32
	for _, r := range rows {
		want := make([]bool, len(r.tokens))
		for t, w := range r.weight {
			want[t] = w != 0
			coef = append(coef, float32(-float64(w)/total)) // the gradient of -logp·w/total
		}
		b.Add(r.tokens, want)
	}
	stats, err := m.Forward(b, model.ForwardOptions{Grad: true})
	if err != nil {
		return err
	}
	at := 0
	for _, r := range rows {
		for t, w := range r.weight {
			if w == 1 && t > 0 {
				s.nats[kind(r.recall)] -= float64(stats.Logp[at+t])
				s.count[kind(r.recall)]++
			}
		}
		at += len(r.tokens)
	}
	s.tokens += at
	return m.Backward(coef)
}
