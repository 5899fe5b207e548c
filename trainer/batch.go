package trainer

import (
	"harness-s/model"
	"harness-s/rollout"
	"harness-s/trainer/loss"
)

// row is one token sequence of a minibatch: all that training sees of a rollout.
type row struct {
	id      string // of the rollout, for messages
	tokens  []int32
	mask    []uint8
	sampler []float32 // the server's log-probs, 0 where mask is 0
	old     []float32 // under the sampling weights; nil until known
	rollout int       // index into its minibatch's rollouts
}

// minibatch is what one update is made of.
type minibatch struct {
	rollouts []loss.Rollout
	norm     loss.Norm
	micro    [][]row // live rows, each inner slice one forward and backward
	tokens   int     // policy tokens in live rows
}

// pack deals the retained groups to minibatches and cuts each into micro-batches of at most `budget` tokens
// (a longer row, or for sequence-level losses a rollout, stands alone). Counts are taken over all retained
// rollouts first; rows the loss declares dead are then left out. With several ranks the number of micro-batches is a multiple
// of theirs, so that every rank runs as many. The result depends on the arguments alone.
func pack(groups []group, l loss.Loss, minibatches, budget, ranks int) []minibatch {
	var out []minibatch
	for _, part := range deal(groups, l, minibatches) {
		var m minibatch
		var units [][]row // rows that must stay together
		for _, g := range part {
			for j, rec := range g.records {
				units = append(units, m.add(rec, g.advantage[j], l)...)
			}
		}
		m.micro = cutForRanks(units, budget, ranks)
		out = append(out, m)
	}
	return out
}

// deal spreads the groups over n minibatches, those with something to learn and those without apart, so that
// each minibatch gets its share of both.
func deal(groups []group, l loss.Loss, n int) [][]group {
	out := make([][]group, n)
	for _, live := range []bool{true, false} {
		next := 0
		for _, g := range groups {
			if g.live(l) == live {
				out[next%n] = append(out[next%n], g)
				next++
			}
		}
	}
	return out
}

func (g group) live(l loss.Loss) bool {
	for _, a := range g.advantage {
		if l.Dead == nil || !l.Dead(a) {
			return true
		}
	}
	return false
}

// add counts a rollout and returns its live rows, grouped as they must stay together.
func (m *minibatch) add(rec *rollout.Record, advantage float64, l loss.Loss) [][]row {
	var rows []row
	tokens := 0
	for _, r := range rec.Rows {
		n := lastPolicy(r.Mask) + 1
		for _, bit := range r.Mask[:n] {
			tokens += int(bit)
		}
		if n > 0 { // what comes after the last policy token changes nothing
			rows = append(rows, row{id: rec.ID, tokens: r.Tokens[:n], mask: r.Mask[:n], sampler: r.Logprobs[:n], rollout: len(m.rollouts)})
		}
	}
	m.rollouts = append(m.rollouts, loss.Rollout{Advantage: advantage, Tokens: tokens})
	m.norm.Rollouts++
	m.norm.Tokens += tokens
	if advantage != 0 {
		m.norm.Live++
		m.norm.LiveTok += tokens
	}
	if len(rows) == 0 || l.Dead != nil && l.Dead(advantage) {
		return nil
	}
	m.tokens += tokens
	if l.Level == loss.Sequence {
		return [][]row{rows}
	}
	units := make([][]row, len(rows))
	for i := range rows {
		units[i] = rows[i : i+1]
	}
	return units
}

// lastPolicy is the index of the last policy token, -1 without one.
func lastPolicy(mask []uint8) int {
	for t := len(mask) - 1; t >= 0; t-- {
		if mask[t] != 0 {
			return t
		}
	}
	return -1
}

// cutForRanks cuts into a multiple of ranks micro-batches, the least that the budget allows, and those as equal as can be:
// with the smallest budget that needs no more of them. Too few units for that many leave some ranks idle.
func cutForRanks(units [][]row, budget, ranks int) [][]row {
	least := cut(units, budget)
	if ranks == 1 || len(least) == 0 {
		return least
	}
	most := (len(least) + ranks - 1) / ranks * ranks
	lo, hi := 1, budget // cut(units, hi) has at most `most` parts
	for lo < hi {
		if mid := (lo + hi) / 2; len(cut(units, mid)) <= most {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return cut(units, hi)
}

func unitTokens(u []row) int {
	size := 0
	for _, r := range u {
		size += len(r.tokens)
	}
	return size
}

func cut(units [][]row, budget int) [][]row {
	var out [][]row
	var used int
	for _, u := range units {
		size := unitTokens(u)
		if len(out) == 0 || used+size > budget {
			out, used = append(out, nil), 0
		}
		out[len(out)-1] = append(out[len(out)-1], u...)
		used += size
	}
	return out
}

// forModel is all micro-batches as the model takes them.
func (m *minibatch) forModel() []model.Batch {
	out := make([]model.Batch, len(m.micro))
	for i, rows := range m.micro {
		out[i] = forModel(rows)
	}
	return out
}

// forModel is a micro-batch as the model takes it.
func forModel(rows []row) model.Batch {
	var b model.Batch
	for _, r := range rows {
		want := make([]bool, len(r.mask))
		for t, bit := range r.mask {
			want[t] = bit != 0
		}
		b.Add(r.tokens, want)
	}
	return b
}

// forLoss is a micro-batch as the loss takes it, with the log-probs the model gave.
func (m *minibatch) forLoss(rows []row, logp []float32) loss.Batch {
	b := loss.Batch{Logp: widen(logp), Rollouts: m.rollouts, Norm: m.norm}
	b.Detached = b.Logp
	for _, r := range rows {
		start := len(b.Mask)
		b.Old = append(b.Old, widen(r.old)...)
		b.Sampler = append(b.Sampler, widen(r.sampler)...)
		b.Mask = append(b.Mask, r.mask...)
		b.Rows = append(b.Rows, loss.Row{Start: start, End: len(b.Mask), Rollout: r.rollout})
	}
	return b
}

func widen(x []float32) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = float64(v)
	}
	return out
}

func narrow(x []float64) []float32 {
	out := make([]float32, len(x))
	for i, v := range x {
		out[i] = float32(v)
	}
	return out
}
