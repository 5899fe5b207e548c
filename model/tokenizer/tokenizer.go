package tokenizer

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Tokenizer turns text into token ids and back. It is safe for concurrent use.
type Tokenizer struct {
	tokens   [][]byte // id -> bytes it decodes to; nil where the file leaves a hole
	special  []bool   // by id
	byteID   [256]int32
	merges   map[uint64]merge // pairKey -> rule
	addedIDs map[string]int32
	byFirst  [256][]string // added tokens by first byte, longest first
	split    splitter
	nfc      bool
	cache    cache
}

// Part is a stretch of a text. Special says that added tokens written in it (special tokens and markers such as
// <tool_call> alike) become their ids; in text from outside they stay plain text.
type Part struct {
	Text    string
	Special bool
}

// Encode is the token ids of text. See Part for special. Invalid UTF-8 is read as U+FFFD.
func (t *Tokenizer) Encode(text string, special bool) []int32 {
	return t.EncodeAppend(nil, text, special)
}

// EncodeAppend appends the token ids of text to dst.
func (t *Tokenizer) EncodeAppend(dst []int32, text string, special bool) []int32 {
	return t.EncodeParts(dst, Part{text, special})
}

// EncodeParts appends the token ids of the parts written one after the other. Plain text is split and merged across
// the seams, so that the ids are those of the whole text; an added token is found only inside one trusted part.
func (t *Tokenizer) EncodeParts(dst []int32, parts ...Part) []int32 {
	plain := "" // text since the last added token
	for _, p := range parts {
		text := validUTF8(p.Text)
		if !p.Special {
			plain += text
			continue
		}
		for len(text) > 0 {
			at, token := t.findAdded(text)
			if token == "" {
				plain += text
				break
			}
			dst = t.appendPlain(dst, plain+text[:at])
			dst = append(dst, t.addedIDs[token])
			plain, text = "", text[at+len(token):]
		}
	}
	return t.appendPlain(dst, plain)
}

// findAdded is the leftmost added token in text, the longest where several begin, "" for none.
func (t *Tokenizer) findAdded(text string) (at int, token string) {
	for i := range len(text) {
		for _, a := range t.byFirst[text[i]] {
			if strings.HasPrefix(text[i:], a) {
				return i, a
			}
		}
	}
	return 0, ""
}

func (t *Tokenizer) appendPlain(dst []int32, text string) []int32 {
	if text == "" {
		return dst
	}
	if t.nfc {
		text = nfc(text)
	}
	for len(text) > 0 {
		n := t.split.next(text)
		dst = t.appendPiece(dst, text[:n])
		text = text[n:]
	}
	return dst
}

func validUTF8(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return lossy([]byte(s))
}

// VocabSize is the largest token id plus one.
func (t *Tokenizer) VocabSize() int { return len(t.tokens) }

// ID is the id of an added token, by its text.
func (t *Tokenizer) ID(token string) (id int32, ok bool) {
	id, ok = t.addedIDs[token]
	return id, ok
}

// IsSpecial says whether id is a special token. False outside the vocabulary.
func (t *Tokenizer) IsSpecial(id int32) bool { return t.Has(id) && t.special[id] }

// Has says whether id is a token.
func (t *Tokenizer) Has(id int32) bool {
	return id >= 0 && int(id) < len(t.tokens) && t.tokens[id] != nil
}

// TokenBytes is the bytes of a token, a copy; nil where id is not a token.
func (t *Tokenizer) TokenBytes(id int32) []byte {
	if !t.Has(id) {
		return nil
	}
	return slices.Clone(t.tokens[id])
}
