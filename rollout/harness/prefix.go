package harness

import (
	"math/rand/v2"
	"strings"
)

// PrefixWords is the length of a meaningless prefix: about 100 tokens of a large vocabulary, the least that LoPE
// (arXiv 2605.05566) draws.
const PrefixWords = 32

// PrefixSuffix ends the id of a prefixed variant.
const PrefixSuffix = "-prefix"

var syllables = strings.Fields("lo rem ip sum do lor sit a met con sec te tur ad i pis cing e lit sed ei us mod tem por in ci di dunt ut la bo re et ma gna a li qua")

// WithPrefix is the control that asks whether any change of context would do: the same harness with meaningless
// words, drawn by seed, before the task. The words belong to the content, so each seed has its own hash.
func WithPrefix(s *Spec, seed int64) *Spec {
	r := rand.New(rand.NewPCG(uint64(seed), 0x6c6f7065))
	words := make([]string, PrefixWords)
	for i := range words {
		for range 2 + r.IntN(2) {
			words[i] += syllables[r.IntN(len(syllables))]
		}
	}
	c := *s
	c.ID, c.doc = s.ID+PrefixSuffix, nil
	if s.ID == BaseID {
		c.Parent, c.Direction = BaseID, "none: a meaningless prefix"
	}
	c.Prompt.User = strings.Join(words, " ") + ".\n" + s.Prompt.User
	return &c
}
