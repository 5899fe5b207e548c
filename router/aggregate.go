package router

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Rules that make one ranking of several.
const (
	MeanRank   = "mean_rank"
	Borda      = "borda"
	Reciprocal = "reciprocal"
	Kemeny     = "kemeny"
)

// Aggregations are the rules by name, the default first.
var Aggregations = []string{Borda, MeanRank, Reciprocal, Kemeny}

// reciprocalOffset is the k of reciprocal rank fusion (Cormack, Clarke, Buettcher, SIGIR 2009).
const reciprocalOffset = 60

// MaxKemeny is the largest pool that Kemeny's rule is computed for: exact, over 2^n subsets.
const MaxKemeny = 16

// CheckAggregation says what is wrong with a rule for a pool of n harnesses, H0 included.
func CheckAggregation(rule string, n int) error {
	if !slices.Contains(Aggregations, rule) {
		return fmt.Errorf("%q: want one of %s", rule, strings.Join(Aggregations, ", "))
	}
	if rule == Kemeny && n > MaxKemeny {
		return fmt.Errorf("kemeny is exact and takes at most %d harnesses, and the pool has %d; use %s", MaxKemeny, n, Borda)
	}
	return nil
}

// aggregate makes one ranking of all candidates out of ballots, each best first. A ballot may leave candidates out; what that
// says depends on the rule:
//
//	mean_rank   the mean of a candidate's ranks; left out, it shares the places that the ballot left free
//	borda       n - rank points; left out, none
//	reciprocal  1 / (60 + rank) points; left out, none
//	kemeny      the order with the fewest pairwise disagreements; a candidate left out is behind those named, and two left
//	            out are not compared
//
// Of equals the first in order is first; kemeny takes, of the best orders, the one that is least by order. Ballots hold
// candidates of order, each once at most.
func aggregate(rule string, order []string, ballots [][]string) []string {
	ranks := ranksOf(order, ballots)
	if rule == Kemeny {
		return kemeny(order, ranks)
	}
	score := make([]float64, len(order)) // more is better
	for c := range order {
		score[c] = points(rule, len(order), ranks[c])
	}
	by := make([]int, len(order))
	for c := range by {
		by[c] = c
	}
	slices.SortStableFunc(by, func(a, b int) int { return cmp.Compare(score[b], score[a]) })
	out := make([]string, len(order))
	for i, c := range by {
		out[i] = order[c]
	}
	return out
}

// place is where a ballot puts a candidate.
type place struct {
	rank  int // from 1; 0: left out
	named int // candidates that the ballot names
}

// ranksOf is [candidate][ballot].
func ranksOf(order []string, ballots [][]string) [][]place {
	out := make([][]place, len(order))
	for c, id := range order {
		out[c] = make([]place, len(ballots))
		for b, ballot := range ballots {
			out[c][b] = place{slices.Index(ballot, id) + 1, len(ballot)}
		}
	}
	return out
}

// points is a candidate's score. Its addends are summed in an order that does not depend on the voters'.
func points(rule string, n int, places []place) float64 {
	places = slices.Clone(places)
	slices.SortFunc(places, func(a, b place) int { return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.named, b.named)) })
	sum := 0.0
	for _, p := range places {
		switch {
		case rule == MeanRank && p.rank == 0:
			sum -= float64(p.named+1+n) / 2
		case rule == MeanRank:
			sum -= float64(p.rank)
		case p.rank == 0:
		case rule == Borda:
			sum += float64(n - p.rank)
		case rule == Reciprocal:
			sum += 1 / float64(reciprocalOffset+p.rank)
		}
	}
	return sum
}

// kemeny finds the best order exactly, by dynamic programming over the sets of candidates still to place: the cheapest order
// of a set is, over the choice of its first, that first's disagreements with the rest and the cheapest order of the rest.
func kemeny(order []string, ranks [][]place) []string {
	n := len(order)
	if n > MaxKemeny {
		panic(fmt.Sprintf("router: kemeny over %d candidates", n))
	}
	against := disagreements(ranks)
	cost := make([]int, 1<<n)
	first := func(set, c int) int { // cost of set with c first
		sum := cost[set&^(1<<c)]
		for o := range n {
			if set>>o&1 == 1 {
				sum += against[c][o]
			}
		}
		return sum
	}
	best := func(set int) (int, int) {
		at, least := -1, 0
		for c := range n {
			if set>>c&1 == 0 {
				continue
			}
			if sum := first(set, c); at < 0 || sum < least {
				at, least = c, sum
			}
		}
		return at, least
	}
	for set := 1; set < 1<<n; set++ {
		_, cost[set] = best(set)
	}
	var out []string
	for set := 1<<n - 1; set > 0; {
		c, _ := best(set)
		out = append(out, order[c])
		set &^= 1 << c
	}
	return out
}

// disagreements[a][b] is how many ballots would rather have b before a.
func disagreements(ranks [][]place) [][]int {
	out := make([][]int, len(ranks))
	for a := range ranks {
		out[a] = make([]int, len(ranks))
		for b := range ranks {
			for v := range ranks[a] {
				pa, pb := ranks[a][v].rank, ranks[b][v].rank
				if pb > 0 && (pa == 0 || pb < pa) {
					out[a][b]++
				}
			}
		}
	}
	return out
}
