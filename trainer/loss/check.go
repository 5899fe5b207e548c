package loss

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// Check verifies an objective on random batches: Coef against central differences of Loss (what a
// stop-gradient reads, Batch.Detached, held still), masked entries that change no bit, dead rollouts that
// contribute nothing, an all-masked batch of loss 0, and, for token-level objectives, rows that add up.
func Check(l Loss, c Config) error {
	for seed := uint64(1); seed <= 3; seed++ {
		b := sampleBatch(seed, 4)
		res := l.Eval(c, b)
		if len(res.Coef) != len(b.Logp) {
			return fmt.Errorf("it returned %d coefficients for %d tokens", len(res.Coef), len(b.Logp))
		}
		for _, check := range []func(Loss, Config, Batch, Result) error{
			checkFinite, checkDifferences, checkMasked, checkDead, checkAllMasked, checkSplit,
		} {
			if err := check(l, c, b, res); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkFinite(_ Loss, _ Config, _ Batch, res Result) error {
	moved := false
	for t, x := range append([]float64{res.Loss}, res.Coef...) {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return fmt.Errorf("it gives %g on finite log-probs (token %d): guard divisions and logarithms", x, t-1)
		}
		moved = moved || t > 0 && x != 0
	}
	if !moved {
		return fmt.Errorf("its gradient is zero everywhere: it must depend on logp outside stop-gradients")
	}
	return nil
}

// checkDifferences compares with central differences. The tolerance is the error of h = 1e-5 in float64
// (h² third derivatives, 1e-16/h rounding) with two digits to spare; a batch's kinks are further than h away.
func checkDifferences(l Loss, c Config, b Batch, res Result) error {
	const h = 1e-5
	scale := 0.0
	for _, x := range res.Coef {
		scale = math.Max(scale, math.Abs(x))
	}
	at := func(t int, d float64) float64 {
		moved := b
		moved.Logp = append([]float64(nil), b.Logp...)
		moved.Logp[t] += d
		return l.Eval(c, moved).Loss
	}
	for t := range b.Logp {
		if b.Mask[t] == 0 {
			continue
		}
		want := (at(t, h) - at(t, -h)) / (2 * h)
		if diff := math.Abs(res.Coef[t] - want); !(diff <= 1e-7*scale+1e-9) {
			return fmt.Errorf("token %d: the derivative is %.9g, finite differences give %.9g", t, res.Coef[t], want)
		}
	}
	return nil
}

func checkMasked(l Loss, c Config, b Batch, res Result) error {
	for _, poison := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), 1e30, -1e30} {
		got := l.Eval(c, poisoned(b, poison))
		if err := sameBits(res, got); err != nil {
			return fmt.Errorf("%g in masked places leaks: %w", poison, err)
		}
	}
	return nil
}

// poisoned is b with x at every masked place.
func poisoned(b Batch, x float64) Batch {
	for _, field := range []*[]float64{&b.Logp, &b.Detached, &b.Old, &b.Sampler} {
		s := append([]float64(nil), *field...)
		for t := range s {
			if b.Mask[t] == 0 {
				s[t] = x
			}
		}
		*field = s
	}
	return b
}

func sameBits(a, b Result) error {
	if math.Float64bits(a.Loss) != math.Float64bits(b.Loss) {
		return fmt.Errorf("loss %g against %g", b.Loss, a.Loss)
	}
	for t := range a.Coef {
		if math.Float64bits(a.Coef[t]) != math.Float64bits(b.Coef[t]) {
			return fmt.Errorf("coefficient of token %d: %g against %g", t, b.Coef[t], a.Coef[t])
		}
	}
	return nil
}

func checkDead(l Loss, c Config, b Batch, _ Result) error {
	if l.Dead == nil || !l.Dead(0) {
		return nil
	}
	b.Rollouts = append([]Rollout(nil), b.Rollouts...)
	b.Rollouts[0].Advantage = 0
	res := l.Eval(c, b)
	for _, row := range b.Rows {
		for t := row.Start; t < row.End && row.Rollout == 0; t++ {
			if res.Coef[t] != 0 {
				return fmt.Errorf("rollouts of advantage 0 are declared dead, yet token %d has derivative %g", t, res.Coef[t])
			}
		}
	}
	return nil
}

func checkAllMasked(l Loss, c Config, b Batch, _ Result) error {
	b.Mask = make([]uint8, len(b.Mask))
	b.Rollouts = append([]Rollout(nil), b.Rollouts...)
	for i := range b.Rollouts {
		b.Rollouts[i].Tokens = 0
	}
	b.Norm = Norm{Rollouts: len(b.Rollouts), Live: len(b.Rollouts)}
	res := l.Eval(c, b)
	if res.Loss != 0 {
		return fmt.Errorf("an all-masked batch has loss %g, not 0", res.Loss)
	}
	for t, x := range res.Coef {
		if x != 0 {
			return fmt.Errorf("an all-masked batch has derivative %g at token %d, not 0", x, t)
		}
	}
	return nil
}

// checkSplit evaluates each rollout (each row, for token-level objectives) alone.
func checkSplit(l Loss, c Config, b Batch, whole Result) error {
	sum := 0.0
	for _, part := range b.parts(l.Level) {
		res := l.Eval(c, part.batch)
		sum += res.Loss
		for i, t := range part.tokens {
			if math.Abs(res.Coef[i]-whole.Coef[t]) > 1e-12 {
				return fmt.Errorf("alone, token %d has derivative %g, in the batch %g: use Batch.Norm's counts only", t, res.Coef[i], whole.Coef[t])
			}
		}
	}
	if math.Abs(sum-whole.Loss) > 1e-12*(1+math.Abs(whole.Loss)) {
		return fmt.Errorf("the parts' losses add up to %g, the whole is %g: use Batch.Norm's counts only", sum, whole.Loss)
	}
	return nil
}

type part struct {
	batch  Batch
	tokens []int // index of each of its tokens in the whole
}

// parts splits a batch by row, or by rollout.
func (b Batch) parts(level Level) []part {
	byKey := map[int]*part{}
	var order []int
	for r, row := range b.Rows {
		key := r
		if level == Sequence {
			key = row.Rollout
		}
		p := byKey[key]
		if p == nil {
			p = &part{batch: Batch{Rollouts: b.Rollouts, Norm: b.Norm}}
			byKey[key] = p
			order = append(order, key)
		}
		q := &p.batch
		start := len(q.Logp)
		q.Logp = append(q.Logp, b.Logp[row.Start:row.End]...)
		q.Detached = append(q.Detached, b.Detached[row.Start:row.End]...)
		q.Old = append(q.Old, b.Old[row.Start:row.End]...)
		q.Sampler = append(q.Sampler, b.Sampler[row.Start:row.End]...)
		q.Mask = append(q.Mask, b.Mask[row.Start:row.End]...)
		q.Rows = append(q.Rows, Row{start, len(q.Logp), row.Rollout})
		for t := row.Start; t < row.End; t++ {
			p.tokens = append(p.tokens, t)
		}
	}
	var out []part
	for _, key := range order {
		out = append(out, *byKey[key])
	}
	return out
}

// sampleBatch draws a batch of rollouts, the first of two rows, with ratios well off the clip bounds of the
// default config and advantages of both signs.
func sampleBatch(seed uint64, rollouts int) Batch {
	rng := rand.New(rand.NewPCG(seed, 0x10555))
	var b Batch
	for i := range rollouts {
		rows := 1
		if i == 0 {
			rows = 2
		}
		adv := []float64{0.7, -1.3, 1.1, -0.4, 0.9}[i%5]
		tokens := 0
		for range rows {
			start := len(b.Logp)
			for range 3 + rng.IntN(5) {
				logp := -0.1 - 3*rng.Float64()
				// log ratios of about 0.05 to 0.1 and 0.5 to 0.6, either sign: inside and outside the clip, never on it
				d := 0.05 + 0.05*rng.Float64() + 0.45*float64(rng.IntN(2))
				if rng.IntN(2) == 0 {
					d = -d
				}
				b.Logp = append(b.Logp, logp)
				b.Old = append(b.Old, logp-d)
				b.Sampler = append(b.Sampler, logp-d+0.02*rng.Float64())
				m := uint8(min(rng.IntN(3), 1)) // two in three are policy tokens
				if len(b.Logp) == start+1 {
					m = 1
				}
				b.Mask = append(b.Mask, m)
				tokens += int(m)
			}
			b.Rows = append(b.Rows, Row{start, len(b.Logp), i})
		}
		b.Rollouts = append(b.Rollouts, Rollout{Advantage: adv, Tokens: tokens})
		b.Norm.Tokens += tokens
		b.Norm.LiveTok += tokens
	}
	b.Norm.Rollouts, b.Norm.Live = rollouts, rollouts
	b.Detached = append([]float64(nil), b.Logp...)
	return b
}
