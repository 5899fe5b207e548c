package tokenizer

import (
	"math/rand/v2"
	"strings"
	"testing"

	"golang.org/x/text/unicode/norm"
)

// TestNFCEqualsNorm checks the own composition against x/text where both know the characters.
func TestNFCEqualsNorm(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	bases := []rune("aeouAOU\u1100\u1161\u11a8가\u0915\u09c7\u0b47\u1025\u3046")
	for range 20000 {
		var b strings.Builder
		for range 1 + r.IntN(12) {
			c := bases[r.IntN(len(bases))]
			switch r.IntN(4) {
			case 0:
				c = rune(0x300 + r.IntN(0x70))
			case 1:
				c = rune(r.IntN(0x3100))
			case 2:
				c = rune(0xac00 + r.IntN(11172))
			}
			if classOf(c)&plainMark == 0 {
				b.WriteRune(c)
			}
		}
		if s := b.String(); composeNFC(s) != norm.NFC.String(s) {
			t.Fatalf("%+q: got %+q, want %+q", s, composeNFC(s), norm.NFC.String(s))
		}
	}
}

func TestNFCOfEveryCodePoint(t *testing.T) {
	for c := rune(0); c <= 0x10ffff; c++ {
		if c >= 0xd800 && c < 0xe000 || classOf(c)&plainMark != 0 {
			continue
		}
		if s := string(c); composeNFC(s) != norm.NFC.String(s) {
			t.Fatalf("%+q: got %+q", s, composeNFC(s))
		}
	}
}

func TestNFCDiffersFromNormWhereHuggingFaceDoes(t *testing.T) {
	for in, want := range map[string]string{
		"a" + strings.Repeat("\u0323", 40): "\u1ea1" + strings.Repeat("\u0323", 39), // no U+034F inserted
		"\u0898\u0334":                     "\u0898\u0334",                          // not reordered: a starter there
		"a\u0898\u0301":                    "a\u0898\u0301",                         // and so it blocks
		"\U00011935\U00011930":             "\U00011935\U00011930",
	} {
		if got := nfc(in); got != want {
			t.Errorf("%+q: got %+q, want %+q", in, got, want)
		}
	}
}

func TestHighPlanesHoldLettersAndMarksOnly(t *testing.T) {
	for _, ranges := range [][]rune{numberRanges, spaceRanges, plainMarkRanges} {
		if last := ranges[len(ranges)-1]; last >= classPlanes {
			t.Errorf("U+%X is outside the direct table", last)
		}
	}
	for r, want := range map[rune]uint8{'a': letter, 'ſ': letter, '\u0301': mark, '٣': number, '½': number, '\u3000': space, '\u0085': space, '!': 0, '\U00020000': letter, '\U000e0100': mark, '\U0001f600': 0, 0x10ffff: 0} {
		if got := classOf(r) &^ plainMark; got != want {
			t.Errorf("U+%04X: class %b, want %b", r, got, want)
		}
	}
}
