package tokenizer

import (
	"sort"
	"strings"

	"golang.org/x/text/unicode/norm"
)

// nfc is Unicode normalization form C as Hugging Face tokenizers computes it. It differs from norm.NFC in three ways:
// the normalizer there knows fewer marks (plainMarkRanges), does not know the one composition newer than its tables,
// and never inserts U+034F into long runs of marks as Go's stream-safe form does.
//
// Text that norm calls normal is normal in the older tables too: a mark they do not know only ends a run earlier.
func nfc(s string) string {
	if isASCII(s) || norm.NFC.IsNormalString(s) {
		return s
	}
	return composeNFC(s)
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

// divesAkuru is U+11938 = U+11935 U+11930 (Unicode 13), which the older tables neither compose nor decompose.
const divesAkuru, divesAkuruFirst = 0x11938, 0x11935

// decomposed is a code point with its canonical combining class.
type decomposed struct {
	r   rune
	ccc uint8
}

// composeNFC decomposes, orders marks and composes again (Unicode Standard, 3.11, D108 to D117).
func composeNFC(s string) string {
	rs := decompose(s)
	for i := 0; i < len(rs); {
		if rs[i].ccc == 0 {
			i++
			continue
		}
		end := i + 1
		for end < len(rs) && rs[end].ccc != 0 {
			end++
		}
		run := rs[i:end]
		sort.SliceStable(run, func(a, b int) bool { return run[a].ccc < run[b].ccc })
		i = end
	}
	return compose(rs)
}

func decompose(s string) []decomposed {
	out := make([]decomposed, 0, len(s))
	for _, r := range s {
		p := norm.NFC.PropertiesString(string(r))
		if d := p.Decomposition(); d != nil && r != divesAkuru {
			for _, x := range string(d) {
				out = append(out, decomposed{x, combiningClass(x)})
			}
			continue
		}
		if jamo := decomposeHangul(r); jamo != "" {
			for _, x := range jamo {
				out = append(out, decomposed{x, 0})
			}
			continue
		}
		out = append(out, decomposed{r, combiningClass(r)})
	}
	return out
}

func combiningClass(r rune) uint8 {
	if classOf(r)&plainMark != 0 {
		return 0
	}
	return norm.NFC.PropertiesString(string(r)).CCC()
}

func decomposeHangul(r rune) string {
	if r < 0xac00 || r > 0xd7a3 {
		return ""
	}
	return norm.NFD.String(string(r))
}

// compose joins each starter with the following marks and starters that are not blocked.
func compose(rs []decomposed) string {
	starter, last := -1, uint8(0) // last is the class of the character before, 0 right after the starter
	kept := rs[:0]
	for _, c := range rs {
		adjacent := starter == len(kept)-1
		if starter >= 0 && (adjacent || last < c.ccc && last != 0) {
			if joined, ok := pair(kept[starter].r, c.r); ok {
				kept[starter].r = joined
				continue
			}
		}
		if c.ccc == 0 {
			starter = len(kept)
		}
		last = c.ccc
		kept = append(kept, c)
	}
	var b strings.Builder
	for _, c := range kept {
		b.WriteRune(c.r)
	}
	return b.String()
}

// pair is the canonical composition of two code points.
func pair(a, b rune) (rune, bool) {
	if a == divesAkuruFirst || b < 0x300 {
		return 0, false
	}
	s := norm.NFC.String(string(a) + string(b))
	for i, r := range s {
		return r, i+len(string(r)) == len(s) && r != a
	}
	return 0, false
}
