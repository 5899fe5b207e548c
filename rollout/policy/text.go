package policy

import (
	"bytes"
	"unicode/utf8"

	"harness-s/model/tokenizer"
)

// stopScanner looks for stop strings in the text of a growing sequence; a string may span tokens.
type stopScanner struct {
	stream *tokenizer.Stream
	stops  []string
	text   []byte
	from   int // no stop string begins before it
	keep   int // longest stop string
}

func newStopScanner(tok *tokenizer.Tokenizer, p *Params) *stopScanner {
	s := &stopScanner{stream: tok.NewStream(p.SkipSpecial), stops: p.Stop}
	for _, t := range p.Stop {
		s.keep = max(s.keep, len(t))
	}
	return s
}

// push adds a token and reports the stop string that begins first, with its byte offset. Text before check is
// set is never matched against later.
func (s *stopScanner) push(id int32, check bool) (stop string, at int) {
	s.text = append(s.text, s.stream.Step(id)...)
	if !check {
		s.from = len(s.text)
		return "", -1
	}
	at = -1
	for _, t := range s.stops {
		if i := bytes.Index(s.text[s.from:], []byte(t)); i >= 0 && (at < 0 || s.from+i < at) {
			stop, at = t, s.from+i
		}
	}
	s.from = max(s.from, len(s.text)-s.keep+1)
	return stop, at
}

// piece is a token as tokenizer.json's vocabulary writes it: every byte a printable character ("Ġthe").
func piece(tok *tokenizer.Tokenizer, id int32) string {
	raw := tok.TokenBytes(id)
	if _, added := tok.ID(string(raw)); added {
		return string(raw)
	}
	var b []byte
	for _, c := range raw {
		b = utf8.AppendRune(b, byteRunes[c])
	}
	return string(b)
}

// byteRunes is GPT-2's table: printable Latin-1 bytes stand for themselves, the others, in order, for U+0100 on.
var byteRunes = func() (t [256]rune) {
	next := rune(256)
	for c := range 256 {
		r := rune(c)
		if !(r >= '!' && r <= '~' || r >= 0xa1 && r <= 0xac || r >= 0xae) {
			r, next = next, next+1
		}
		t[c] = r
	}
	return t
}()
