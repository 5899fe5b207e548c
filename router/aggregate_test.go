package router

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func letters(s string) []string { return strings.Split(s, "") }

func ballotsOf(s ...string) (out [][]string) {
	for _, b := range s {
		out = append(out, letters(b))
	}
	return out
}

// Worked by hand. In "three" a: ranks 1,1,3; b: 2,3,1; c: 3,2,2. In "split" the rules part: a is first twice and last three
// times, b second five times, so Borda (n = 4) gives a 6, b 10, c 7, d 7.
func TestAggregateByHand(t *testing.T) {
	split := ballotsOf("abcd", "abdc", "cbda", "dbca", "cbda")
	for _, c := range []struct {
		name, rule, order string
		ballots           [][]string
		want              string
	}{
		{"three", MeanRank, "abc", ballotsOf("abc", "acb", "bca"), "abc"},
		{"three, b and c by order", Borda, "acb", ballotsOf("abc", "acb", "bca"), "abc"}, // a 4, b 3, c 2
		{"three", Kemeny, "abc", ballotsOf("abc", "acb", "bca"), "abc"},
		// a 6, b 10, c 1+0+3+1+3 = 8, d 0+1+1+3+1 = 6
		{"split", Borda, "abcd", split, "bcad"},
		{"split, a tie by order", Borda, "dcba", split, "bcda"},
		{"split", MeanRank, "abcd", split, "bcad"},
		// a 2/61+3/64 = .07966, b 5/62 = .08065, c 2/61+2/63+1/64 = .08016, d 1/61+3/63+1/64 = .07964
		{"split", Reciprocal, "abcd", split, "bcad"},
		// A cycle: a>b 3:2, b>c 4:1, c>a 3:2. abc and bca cost 6 each, cab 8: the order of ties decides
		{"cycle", Kemeny, "abc", ballotsOf("abc", "abc", "bca", "bca", "cab"), "abc"},
		{"the cycle by another order", Kemeny, "cba", ballotsOf("abc", "abc", "bca", "bca", "cab"), "bca"},
		// Partial: d stands in no ballot. mean_rank: a 1+1, b 2 and (1+1+4)/2 = 3, c 3 twice, d 4 and 3
		{"partial", MeanRank, "abcd", ballotsOf("abc", "a"), "abcd"},
		{"partial", Borda, "dcba", ballotsOf("ab", "c"), "cabd"}, // a 3, b 2, c 3: c and a tie, by order c first
		{"partial", Reciprocal, "abcd", ballotsOf("c", "cd"), "cdab"},
		{"partial", Kemeny, "abcd", ballotsOf("c", "cd"), "cdab"},
		{"nobody", Borda, "cab", nil, "cab"},
		{"nobody", Kemeny, "cab", nil, "cab"},
	} {
		if got := strings.Join(aggregate(c.rule, letters(c.order), c.ballots), ""); got != c.want {
			t.Errorf("%s by %s: %s, want %s", c.name, c.rule, got, c.want)
		}
	}
}

func TestCheckAggregation(t *testing.T) {
	if err := CheckAggregation(Kemeny, MaxKemeny); err != nil {
		t.Error(err)
	}
	for rule, n := range map[string]int{Kemeny: MaxKemeny + 1, "plurality": 3} {
		if CheckAggregation(rule, n) == nil {
			t.Errorf("%s for %d harnesses accepted", rule, n)
		}
	}
}

// brute is Kemeny's rule by trying every order, in the order of ties.
func brute(order []string, ballots [][]string) []string {
	against := disagreements(ranksOf(order, ballots))
	var best []int
	least := -1
	var walk func(prefix []int, cost int)
	walk = func(prefix []int, cost int) {
		if len(prefix) == len(order) {
			if least < 0 || cost < least {
				best, least = slices.Clone(prefix), cost
			}
			return
		}
		for c := range order {
			if slices.Contains(prefix, c) {
				continue
			}
			more := 0
			for o := range order {
				if o != c && !slices.Contains(prefix, o) {
					more += against[c][o]
				}
			}
			walk(append(prefix, c), cost+more)
		}
	}
	walk(nil, 0)
	var out []string
	for _, c := range best {
		out = append(out, order[c])
	}
	return out
}

func drawBallots(t *rapid.T, order []string, partial bool) [][]string {
	ballots := make([][]string, rapid.IntRange(1, 6).Draw(t, "voters"))
	for b := range ballots {
		n := len(order)
		if partial {
			n = rapid.IntRange(0, n).Draw(t, "named")
		}
		ballots[b] = rapid.Permutation(order).Draw(t, "ballot")[:n]
	}
	return ballots
}

func TestAggregateProperties(t *testing.T) {
	for _, rule := range Aggregations {
		t.Run(rule, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				order := letters("habcdef")[:rapid.IntRange(2, 6).Draw(t, "candidates")]
				ballots := drawBallots(t, order, true)
				got := aggregate(rule, order, ballots)
				if !reflect.DeepEqual(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(order))) {
					t.Fatalf("%v is no ranking of %v", got, order)
				}
				// Voters are equal.
				if other := aggregate(rule, order, rapid.Permutation(ballots).Draw(t, "voters' order")); !reflect.DeepEqual(other, got) {
					t.Fatalf("the order of voters matters: %v, %v", other, got)
				}
				// Candidates are equal but for ties: under other names, in the same order of ties, the result is the same.
				name := map[string]string{}
				for i, id := range rapid.Permutation(order).Draw(t, "names") {
					name[order[i]] = id
				}
				rename := func(ids []string) (out []string) {
					for _, id := range ids {
						out = append(out, name[id])
					}
					return out
				}
				var renamed [][]string
				for _, b := range ballots {
					renamed = append(renamed, rename(b))
				}
				if other := aggregate(rule, rename(order), renamed); !reflect.DeepEqual(other, rename(got)) {
					t.Fatalf("names matter: %v, %v", other, rename(got))
				}
			})
		})
		t.Run(rule+" unanimous", func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				order := letters("habcde")
				first := rapid.SampledFrom(order).Draw(t, "first")
				var ballots [][]string
				for _, b := range drawBallots(t, order, true) {
					b = slices.DeleteFunc(slices.Clone(b), func(id string) bool { return id == first })
					ballots = append(ballots, append([]string{first}, b...))
				}
				if got := aggregate(rule, order, ballots); got[0] != first {
					t.Fatalf("%v: all put %s first", got, first)
				}
				same := rapid.Permutation(order).Draw(t, "same")
				if got := aggregate(rule, order, [][]string{same, same, same}); !reflect.DeepEqual(got, same) {
					t.Fatalf("all vote %v, and the result is %v", same, got)
				}
			})
		})
	}
}

func TestKemenyProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		order := letters("habcde")[:rapid.IntRange(1, 6).Draw(t, "candidates")]
		ballots := drawBallots(t, order, rapid.Bool().Draw(t, "partial"))
		got := kemeny(order, ranksOf(order, ballots))
		if want := brute(order, ballots); !reflect.DeepEqual(got, want) {
			t.Fatalf("%v, want %v", got, want)
		}
		against := disagreements(ranksOf(order, ballots))
		for a := range order { // whoever beats every other stands first, and whoever loses to every other last (Condorcet)
			wins, losses := 0, 0
			for b := range order {
				if a != b && against[b][a] > against[a][b] {
					wins++
				}
				if a != b && against[b][a] < against[a][b] {
					losses++
				}
			}
			if wins == len(order)-1 && got[0] != order[a] || losses == len(order)-1 && got[len(got)-1] != order[a] {
				t.Fatalf("%s beats %d and loses to %d of %d: %v", order[a], wins, losses, len(order)-1, got)
			}
		}
	})
}

func BenchmarkKemeny(b *testing.B) {
	var order []string
	for i := range MaxKemeny {
		order = append(order, fmt.Sprint(i))
	}
	back := slices.Clone(order)
	slices.Reverse(back)
	for b.Loop() {
		aggregate(Kemeny, order, [][]string{order, back, order})
	}
}
