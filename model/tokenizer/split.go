package tokenizer

import "unicode/utf8"

// The Split regexes of the two generations. splitQwen35 takes marks (\p{M}) for parts of a word.
const (
	splitQwen3  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	splitQwen35 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// splitter is a hand-written matcher of one of the regexes, alternative by alternative, the first that matches wins.
type splitter struct {
	word uint8 // classes that make a word: letter, or letter|mark
}

// next is the length in bytes of the first piece of s, which is not empty and valid UTF-8.
func (p splitter) next(s string) int {
	r, w := utf8.DecodeRuneInString(s)
	if r == '\'' {
		if n := contraction(s); n > 0 {
			return n
		}
	}
	class := classOf(r)
	if n := p.wordPiece(s, r, w, class); n > 0 {
		return n
	}
	if class&number != 0 {
		return w
	}
	if n := p.symbolPiece(s, r); n > 0 {
		return n
	}
	return spacePiece(s)
}

// contraction matches (?i:'s|'t|'re|'ve|'m|'ll|'d). U+017F folds to s.
func contraction(s string) int {
	if len(s) < 2 {
		return 0
	}
	switch s[1] {
	case 's', 'S', 't', 'T', 'm', 'M', 'd', 'D':
		return 2
	}
	if len(s) < 3 {
		return 0
	}
	if s[1:3] == "ſ" {
		return 3
	}
	switch string([]byte{s[1] | 0x20, s[2] | 0x20}) {
	case "re", "ve", "ll":
		return 3
	}
	return 0
}

// wordPiece matches [^\r\n\p{L}\p{N}]?\p{L}+, with marks among the letters in the newer regex.
func (p splitter) wordPiece(s string, r rune, w int, class uint8) int {
	at := 0
	if class&p.word == 0 {
		if r == '\r' || r == '\n' || class&number != 0 {
			return 0
		}
		if next, _ := utf8.DecodeRuneInString(s[w:]); w == len(s) || classOf(next)&p.word == 0 {
			return 0
		}
		at = w
	}
	for at < len(s) {
		c, cw := utf8.DecodeRuneInString(s[at:])
		if classOf(c)&p.word == 0 {
			break
		}
		at += cw
	}
	return at
}

// symbolPiece matches  ?[^\s\p{L}\p{N}]+[\r\n]*, again with marks among the letters in the newer regex.
func (p splitter) symbolPiece(s string, r rune) int {
	from := 0
	if r == ' ' {
		from = 1
	}
	at := from
	for at < len(s) {
		c, cw := utf8.DecodeRuneInString(s[at:])
		if classOf(c)&(p.word|space|number) != 0 {
			break
		}
		at += cw
	}
	if at == from {
		return 0
	}
	for at < len(s) && (s[at] == '\r' || s[at] == '\n') {
		at++
	}
	return at
}

// spacePiece matches \s*[\r\n]+|\s+(?!\S)|\s+ at a white space character: through the last line break of the run,
// else all of it but one character when text follows, so that a word keeps the blank before it.
func spacePiece(s string) int {
	end, afterBreak, lastStart := 0, 0, 0
	for end < len(s) {
		c, cw := utf8.DecodeRuneInString(s[end:])
		if classOf(c)&space == 0 {
			break
		}
		lastStart = end
		end += cw
		if c == '\r' || c == '\n' {
			afterBreak = end
		}
	}
	switch {
	case afterBreak > 0:
		return afterBreak
	case end == len(s) || lastStart == 0:
		return end
	}
	return lastStart
}
