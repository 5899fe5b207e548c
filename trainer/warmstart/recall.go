package warmstart

import (
	"math/rand/v2"
	"strconv"
	"strings"

	"harness-s/rollout/env/sqlenv/taskgen"
)

// recallText is pairs as a catalogue look-up shows them, then queries in the words of the note that follows one: the
// answer of each query must be copied from the pairs. It teaches the copying that look-ups need, before there is
// anything to look up. parts alternate: given, asked for, given, ...
func recallText(rng *rand.Rand) (parts []string) {
	const pairs, queries = 5, 12
	keys, values := recallWords(rng, pairs)
	shown := make([]string, pairs)
	for i := range keys {
		shown[i] = keys[i] + " " + values[i]
	}
	parts = []string{strings.Join(shown, ", ") + "\n"}
	for range queries {
		i := rng.IntN(pairs)
		parts[len(parts)-1] += keys[i] + " is"
		parts = append(parts, " "+values[i], ". ")
	}
	return parts
}

// recallWords draws distinct keys (concepts, names) and distinct values (codes, names, numbers).
func recallWords(rng *rand.Rand, n int) (keys, values []string) {
	used := map[string]bool{}
	draw := func(f func() string) string {
		for {
			if w := f(); !used[w] {
				used[w] = true
				return w
			}
		}
	}
	concepts, syllables := taskgen.Concepts(), taskgen.Syllables()
	pick := func(from []string) string { return from[rng.IntN(len(from))] }
	name := func() string { return pick(syllables) + pick(syllables) }
	code := func() string { return pick(syllables) + strconv.Itoa(1+rng.IntN(9)) }
	number := func() string { return strconv.Itoa(1 + rng.IntN(99)) }
	kind := rng.IntN(4)
	for range n {
		if rng.IntN(2) == 0 {
			keys = append(keys, draw(func() string { return pick(concepts) }))
		} else {
			keys = append(keys, draw(name))
		}
		switch kind {
		case 0, 1:
			values = append(values, draw(code))
		case 2:
			values = append(values, draw(name))
		default:
			values = append(values, draw(number))
		}
	}
	return keys, values
}
