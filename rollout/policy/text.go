package policy

import (
	"bytes"
	"strings"
)

// Tokenizer turns text into token ids and back.
type Tokenizer interface {
	// Encode: with special, special tokens written in the text become their ids.
	Encode(text string, special bool) []int32
	// Stream decodes ids one by one; without special tokens when skipSpecial.
	Stream(skipSpecial bool) TextStream
	// Piece is the token as the vocabulary writes it ("Ġthe").
	Piece(id int32) string
	// Bytes are the bytes the token stands for.
	Bytes(id int32) []byte
}

// TextStream decodes one sequence of ids.
type TextStream interface {
	Push(id int32) string // text that has become certain
	Flush() string        // what an incomplete tail decodes to
}

// decodeText is the text of ids.
func decodeText(tok Tokenizer, ids []int32, skipSpecial bool) string {
	if len(ids) == 0 {
		return ""
	}
	st, b := tok.Stream(skipSpecial), strings.Builder{}
	for _, id := range ids {
		b.WriteString(st.Push(id))
	}
	b.WriteString(st.Flush())
	return b.String()
}

// stopScanner looks for stop strings in the text of a growing sequence; a string may span tokens.
type stopScanner struct {
	stream TextStream
	stops  []string
	text   []byte
	from   int // no stop string begins before it
	keep   int // longest stop string
}

func newStopScanner(tok Tokenizer, p *Params) *stopScanner {
	s := &stopScanner{stream: tok.Stream(p.SkipSpecial), stops: p.Stop}
	for _, t := range p.Stop {
		s.keep = max(s.keep, len(t))
	}
	return s
}

// push adds a token and reports the stop string that begins first, with its byte offset. Text before check is
// set is never matched against later.
func (s *stopScanner) push(id int32, check bool) (stop string, at int) {
	s.text = append(s.text, s.stream.Push(id)...)
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
