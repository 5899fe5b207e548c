package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// Decode is the text of ids, special tokens kept, with one U+FFFD per maximal invalid subpart. Ids that are no tokens
// (a model's padded head can sample them) give no text.
func (t *Tokenizer) Decode(ids []int32) string { return lossy(t.appendBytes(nil, ids, false)) }

// DecodeSkipSpecial is Decode without the special tokens.
func (t *Tokenizer) DecodeSkipSpecial(ids []int32) string {
	return lossy(t.appendBytes(nil, ids, true))
}

func (t *Tokenizer) appendBytes(dst []byte, ids []int32, skipSpecial bool) []byte {
	for _, id := range ids {
		if !t.Has(id) || skipSpecial && t.special[id] {
			continue
		}
		dst = append(dst, t.tokens[id]...)
	}
	return dst
}

// lossy reads b as UTF-8 with one U+FFFD per maximal invalid subpart (Unicode Standard, 3.9, as WHATWG and Rust do;
// Go's own conversions give one per byte or one per run).
func lossy(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	var out strings.Builder
	for len(b) > 0 {
		r, w := utf8.DecodeRune(b)
		if r == utf8.RuneError && w == 1 {
			out.WriteRune(utf8.RuneError)
			b = b[invalidLen(b):]
			continue
		}
		out.Write(b[:w])
		b = b[w:]
	}
	return out.String()
}

// invalidLen is the length of the maximal subpart at the start of b, which does not begin a whole character: the
// longest beginning of a well-formed sequence, at least one byte. Ranges are table 3-7 of the Unicode Standard.
func invalidLen(b []byte) int {
	lo, hi, more := byte(0x80), byte(0xbf), 0
	switch c := b[0]; {
	case c >= 0xc2 && c <= 0xdf:
		more = 1
	case c == 0xe0:
		lo, more = 0xa0, 2
	case c == 0xed:
		hi, more = 0x9f, 2
	case c >= 0xe1 && c <= 0xef:
		more = 2
	case c == 0xf0:
		lo, more = 0x90, 3
	case c == 0xf4:
		hi, more = 0x8f, 3
	case c >= 0xf1 && c <= 0xf3:
		more = 3
	}
	n := 1
	for n <= more && n < len(b) && lo <= b[n] && b[n] <= hi {
		lo, hi = 0x80, 0xbf
		n++
	}
	return n
}

// Stream decodes token by token and holds back the bytes of an unfinished character. The zero value is not usable;
// one goroutine uses it.
type Stream struct {
	t           *Tokenizer
	skipSpecial bool
	tail        []byte // at most the last token's bytes and 3 before
}

// NewStream begins a streamed Decode, or DecodeSkipSpecial.
func (t *Tokenizer) NewStream(skipSpecial bool) *Stream {
	return &Stream{t: t, skipSpecial: skipSpecial}
}

// Step is the text that id completes, "" while a character is unfinished.
func (s *Stream) Step(id int32) string {
	s.tail = s.t.appendBytes(s.tail, []int32{id}, s.skipSpecial)
	cut := len(s.tail) - unfinished(s.tail)
	text := lossy(s.tail[:cut])
	s.tail = append(s.tail[:0], s.tail[cut:]...)
	return text
}

// Flush is the text of what was held back, and ends the stream.
func (s *Stream) Flush() string {
	text := lossy(s.tail)
	s.tail = nil
	return text
}

// unfinished is how many bytes at the end of b begin a character that more bytes could complete.
func unfinished(b []byte) int {
	for n := 1; n <= 3 && n <= len(b); n++ {
		if tail := b[len(b)-n:]; utf8.RuneStart(tail[0]) {
			if !utf8.FullRune(tail) {
				return n
			}
			return 0
		}
	}
	return 0
}
