package evolve

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// Cover is a harness as a candidate for parent: what it solves.
type Cover struct {
	ID      string
	Solved  []bool  // [tasks], the same tasks for all candidates
	Success float64 // mean success, breaks ties
}

// maxSets bounds how many sets Select tries; beyond it the greedy choice serves.
const maxSets = 200_000

// Select picks the k candidates that together solve most tasks; all of them when there are no more than k. Ties go to the
// set with the greater mean success, then to the set whose ids, sorted, come first. The choice is exact while the sets of k
// are few, and greedy after that: one candidate after the other, each the one that adds most (at least 1 - 1/e of the best
// coverage: Nemhauser, Wolsey and Fisher 1978). The ids come back sorted, and do not depend on the candidates' order.
func Select(candidates []Cover, k int) []string {
	c := pack(candidates)
	if k >= len(c) {
		k = len(c)
	}
	pick := c.greedy
	if sets(len(c), k) <= maxSets {
		pick = c.exact
	}
	out := make([]string, 0, k)
	for _, i := range pick(k) {
		out = append(out, c[i].id)
	}
	slices.Sort(out)
	return out
}

// packed is a candidate with its tasks as bits. Success is in whole billionths, so that sums do not depend on order.
type packed struct {
	id      string
	bits    []uint64
	success int64
}

type covers []packed

// pack sorts candidates by id.
func pack(candidates []Cover) covers {
	out := make(covers, len(candidates))
	for i, c := range candidates {
		p := packed{id: c.ID, bits: make([]uint64, (len(c.Solved)+63)/64), success: int64(math.Round(c.Success * 1e9))}
		for t, ok := range c.Solved {
			if ok {
				p.bits[t/64] |= 1 << (t % 64)
			}
		}
		out[i] = p
	}
	slices.SortFunc(out, func(a, b packed) int { return cmp.Compare(a.id, b.id) })
	return out
}

// sets is n over k, or more than maxSets where that is larger.
func sets(n, k int) int {
	count := 1
	for i := 1; i <= min(k, n-k); i++ {
		count = count * (n - i + 1) / i
		if count > maxSets {
			return maxSets + 1
		}
	}
	return count
}

// exact tries every set of k, in the order of their ids, and keeps the first best.
func (c covers) exact(k int) []int {
	var best []int
	bestCover, bestSuccess := -1, int64(-1)
	set := make([]int, k)
	union := make([][]uint64, k+1) // of the first n of the set
	for i := range union {
		union[i] = make([]uint64, c.words())
	}
	var extend func(n, from int, success int64)
	extend = func(n, from int, success int64) {
		if n == k {
			if cover := count(union[n]); cover > bestCover || cover == bestCover && success > bestSuccess {
				best, bestCover, bestSuccess = slices.Clone(set), cover, success
			}
			return
		}
		for i := from; i <= len(c)-(k-n); i++ {
			set[n] = i
			for w, b := range c[i].bits {
				union[n+1][w] = union[n][w] | b
			}
			extend(n+1, i+1, success+c[i].success)
		}
	}
	extend(0, 0, 0)
	return best
}

// greedy takes k times what adds most.
func (c covers) greedy(k int) []int {
	var out []int
	have := make([]uint64, c.words())
	for range k {
		best, bestAdds := -1, -1
		for i := range c {
			if slices.Contains(out, i) {
				continue
			}
			adds := 0
			for w, b := range c[i].bits {
				adds += bits.OnesCount64(b &^ have[w])
			}
			if adds > bestAdds || adds == bestAdds && c[i].success > c[best].success {
				best, bestAdds = i, adds
			}
		}
		out = append(out, best)
		for w, b := range c[best].bits {
			have[w] |= b
		}
	}
	return out
}

func (c covers) words() int {
	if len(c) == 0 {
		return 0
	}
	return len(c[0].bits)
}

func count(set []uint64) int {
	n := 0
	for _, w := range set {
		n += bits.OnesCount64(w)
	}
	return n
}
