package evolve

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// cover reads "abd" as the tasks a, b and d of six.
func cover(id, solved string, success float64) Cover {
	c := Cover{ID: id, Solved: make([]bool, 6), Success: success}
	for _, r := range solved {
		c.Solved[r-'a'] = true
	}
	return c
}

func TestSelectByHand(t *testing.T) {
	for _, c := range []struct {
		name string
		from []Cover
		k    int
		want []string
	}{
		{"the greatest alone is not in the best pair", []Cover{cover("big", "abcd", 0.9), cover("left", "abce", 0.5), cover("right", "df", 0.2)}, 2, []string{"left", "right"}},
		{"joint coverage before success", []Cover{cover("a", "abc", 0.9), cover("b", "abc", 0.9), cover("c", "d", 0.1)}, 2, []string{"a", "c"}},
		{"ties by mean success", []Cover{cover("a", "ab", 0.3), cover("b", "ab", 0.4), cover("c", "cd", 0.5), cover("d", "cd", 0.2)}, 2, []string{"b", "c"}},
		{"then by ids", []Cover{cover("d", "ab", 0.5), cover("b", "cd", 0.5), cover("c", "ab", 0.5), cover("a", "cd", 0.5)}, 2, []string{"a", "c"}},
		// 0.1+0.2+0.3 is not 0.3+0.2+0.1 in floating point: the sums must be equal all the same.
		{"equal means are equal", []Cover{cover("a", "a", 0.3), cover("b", "b", 0.2), cover("c", "c", 0.1), cover("d", "a", 0.1), cover("e", "c", 0.3)}, 3, []string{"a", "b", "e"}},
		{"all of few", []Cover{cover("b", "a", 0.5), cover("a", "a", 0.5)}, 3, []string{"a", "b"}},
		{"none", nil, 3, []string{}},
		{"nobody solves anything", []Cover{cover("b", "", 0), cover("a", "", 0), cover("c", "", 0)}, 2, []string{"a", "b"}},
	} {
		if got := Select(c.from, c.k); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// The greedy choice by hand: it takes the greatest first and cannot mend that.
func TestGreedyByHand(t *testing.T) {
	c := pack([]Cover{cover("big", "abcd", 0.9), cover("left", "abce", 0.5), cover("right", "df", 0.2)})
	got := c.greedy(2)
	if ids := []string{c[got[0]].id, c[got[1]].id}; !slices.Equal(ids, []string{"big", "left"}) {
		t.Errorf("greedy took %v", ids)
	}
	// ties: the greater success, then the first id
	c = pack([]Cover{cover("d", "ab", 0.5), cover("c", "ab", 0.6), cover("b", "ab", 0.6), cover("a", "ab", 0.4)})
	if got := c.greedy(1); c[got[0]].id != "b" {
		t.Errorf("greedy took %s", c[got[0]].id)
	}
}

func randomCovers(t *rapid.T) []Cover {
	tasks := rapid.IntRange(1, 70).Draw(t, "tasks")
	out := make([]Cover, rapid.IntRange(1, 9).Draw(t, "candidates"))
	for i := range out {
		out[i] = Cover{ID: fmt.Sprintf("h%d", i), Success: float64(rapid.IntRange(0, 4).Draw(t, "success")) / 4, Solved: make([]bool, tasks)}
		for k := range tasks {
			out[i].Solved[k] = rapid.IntRange(0, 3).Draw(t, "solved") == 0
		}
	}
	return out
}

func coverage(c covers, set []int) int {
	have := make([]uint64, c.words())
	for _, i := range set {
		for w, b := range c[i].bits {
			have[w] |= b
		}
	}
	return count(have)
}

func TestSelectProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		from := randomCovers(t)
		k := rapid.IntRange(1, len(from)).Draw(t, "k")
		c := pack(from)
		exact, greedy := c.exact(k), c.greedy(k)
		best, near := coverage(c, exact), coverage(c, greedy)
		if best < near || float64(near) < (1-1/math.E)*float64(best) {
			t.Fatalf("exact covers %d, greedy %d", best, near)
		}
		for _, set := range [][]int{exact, greedy} {
			if slices.Sort(set); len(set) != k || len(slices.Compact(set)) != k {
				t.Fatalf("%v are not %d distinct candidates", set, k)
			}
		}
		for mask := range 1 << len(from) { // no set of k beats the exact one
			var set []int
			var success int64
			for i := range from {
				if mask>>i&1 == 1 {
					set, success = append(set, i), success+c[i].success
				}
			}
			if len(set) != k {
				continue
			}
			var chosen int64
			for _, i := range exact {
				chosen += c[i].success
			}
			if got := coverage(c, set); got > best || got == best && success > chosen {
				t.Fatalf("%v covers %d with success %d; the exact choice %v covers %d with %d", set, got, success, exact, best, chosen)
			}
		}
		want := Select(from, k)
		seed := rapid.Uint64().Draw(t, "order")
		rand.New(rand.NewPCG(seed, 1)).Shuffle(len(from), func(i, j int) { from[i], from[j] = from[j], from[i] })
		if got := Select(from, k); !slices.Equal(got, want) {
			t.Fatalf("%v, in another order %v", want, got)
		}
	})
}

// Beyond the bound Select is greedy: it ends, and permutations change nothing there either.
func TestSelectMany(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	from := make([]Cover, 300)
	for i := range from {
		from[i] = Cover{ID: fmt.Sprintf("h%03d", i), Success: float64(r.IntN(5)) / 4, Solved: make([]bool, 100)}
		for k := range from[i].Solved {
			from[i].Solved[k] = r.IntN(8) == 0
		}
	}
	if n := sets(len(from), 5); n <= maxSets {
		t.Fatalf("%d sets are few", n)
	}
	want := Select(from, 5)
	r.Shuffle(len(from), func(i, j int) { from[i], from[j] = from[j], from[i] })
	if got := Select(from, 5); !slices.Equal(got, want) || len(got) != 5 {
		t.Errorf("%v, in another order %v", want, got)
	}
}
