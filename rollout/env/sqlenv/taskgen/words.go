package taskgen

import (
	"hash/fnv"
	"strconv"
	"sync"
)

// Invented words are made of consonant-vowel syllables, so that a tokenizer that knows the syllables knows every
// word, held-out ones included.
const (
	consonants = "bdfgklmnprstvz"
	vowels     = "aeiou"
)

// Syllables are the pieces of all invented words.
func Syllables() []string {
	var out []string
	for _, c := range consonants {
		for _, v := range vowels {
			out = append(out, string(c)+string(v))
		}
	}
	return out
}

// Concepts are the ordinary words that questions ask for; every split uses them.
func Concepts() []string { return append([]string{}, concepts...) }

// QuotedConcepts are concepts that are no plain SQL name: two words, or a reserved one.
func QuotedConcepts() []string { return append([]string{}, quotedConcepts...) }

// Links are the columns that lead from one table of a join to the other.
func Links() []string { return append([]string{}, links...) }

var (
	concepts       = []string{"price", "weight", "age", "score", "speed", "height", "stock", "depth", "power", "length", "width", "volume"}
	quotedConcepts = []string{"unit price", "net weight", "top speed", "full length", "order", "group", "index", "limit"}
	links          = []string{"owner", "maker", "leader", "parent"}
	adjectives     = []string{"old", "new", "big", "small"} // of table names with a space
)

// taken are words of two syllables that mean something in questions or in SQL.
var taken = map[string]bool{
	"like": true, "date": true, "time": true, "name": true, "none": true, "size": true, "rate": true, "more": true, "note": true, "done": true, "rule": true,
}

type role string

const (
	entityRole role = "entity" // two syllables: tavo
	tableRole  role = "table"  // two syllables and s: ravis
	codeRole   role = "code"   // a syllable and a digit: vo7
)

// Splits in order. Demonstrations have tables of their own and share the other words with train.
const (
	Train = "train"
	Val   = "val"
	Test  = "test"
	Demo  = "demo"
)

// owner is the split a word belongs to, by a hash of the word alone: a held-out word is held out under every seed.
func owner(r role, word string) string {
	h := fnv.New32a()
	h.Write([]byte(string(r) + ":" + word))
	switch k := h.Sum32() % 16; {
	case k < 4:
		return Test
	case k < 6:
		return Val
	case k < 10 && r == tableRole:
		return Demo
	}
	return Train
}

// vocabulary is all words by role and split.
var vocabulary = sync.OnceValue(func() map[role]map[string][]string {
	v := map[role]map[string][]string{entityRole: {}, tableRole: {}, codeRole: {}}
	add := func(r role, w string) { s := owner(r, w); v[r][s] = append(v[r][s], w) }
	for _, a := range Syllables() {
		for _, b := range Syllables() {
			if !taken[a+b] {
				add(entityRole, a+b)
				add(tableRole, a+b+"s")
			}
		}
		for d := 1; d <= 9; d++ {
			add(codeRole, a+strconv.Itoa(d))
		}
	}
	for _, r := range []role{entityRole, codeRole} {
		v[r][Demo] = v[r][Train]
	}
	return v
})
