package chat

import (
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// pyLiteral reads a list, tuple or dict in Python's spelling ('single quotes', True, None), which models write where
// JSON is asked for, and gives it as JSON. ok is false for anything else.
func pyLiteral(text string) (raw json.RawMessage, ok bool) {
	if text == "" || !strings.Contains("[({", text[:1]) {
		return nil, false
	}
	r := literalReader{text: text}
	if !r.value(0) || !blank(r.text[r.pos:]) {
		return nil, false
	}
	raw = json.RawMessage(r.out.String())
	return raw, json.Valid(raw)
}

type literalReader struct {
	text string
	pos  int
	out  strings.Builder
}

// peek is the next byte that is no blank, 0 at the end.
func (r *literalReader) peek() byte {
	for r.pos < len(r.text) && strings.IndexByte(" \t\r\n", r.text[r.pos]) >= 0 {
		r.pos++
	}
	if r.pos == len(r.text) {
		return 0
	}
	return r.text[r.pos]
}

func (r *literalReader) value(depth int) bool {
	if depth > maxJSONDepth {
		return false
	}
	switch r.peek() {
	case '[':
		return r.items(']', '[', ']', false, depth)
	case '(':
		return r.items(')', '[', ']', false, depth)
	case '{':
		return r.items('}', '{', '}', true, depth)
	case '\'', '"':
		return r.str()
	}
	return r.word()
}

// items reads what lies between brackets, a trailing comma allowed, and writes it between open and end.
func (r *literalReader) items(closer, open, end byte, pairs bool, depth int) bool {
	r.pos++
	r.out.WriteByte(open)
	for n := 0; ; n++ {
		if r.peek() == closer {
			break
		}
		if n > 0 {
			r.out.WriteByte(',')
		}
		if pairs {
			if c := r.peek(); c != '\'' && c != '"' || !r.str() || r.peek() != ':' {
				return false
			}
			r.pos++
			r.out.WriteByte(':')
		}
		if !r.value(depth + 1) {
			return false
		}
		if r.peek() == ',' {
			r.pos++
			continue
		}
		if r.peek() != closer {
			return false
		}
	}
	r.pos++
	r.out.WriteByte(end)
	return true
}

// str reads a quoted text with the common escapes.
func (r *literalReader) str() bool {
	q := r.text[r.pos]
	r.pos++
	var b strings.Builder
	for r.pos < len(r.text) {
		c, w := utf8.DecodeRuneInString(r.text[r.pos:])
		r.pos += w
		switch {
		case c == rune(q):
			r.out.WriteString(quote(b.String()))
			return true
		case c == '\n':
			return false
		case c != '\\':
			b.WriteRune(c)
			continue
		}
		if r.pos == len(r.text) {
			return false
		}
		plain, ok := map[byte]string{'n': "\n", 't': "\t", 'r': "\r", '\\': "\\", '\'': "'", '"': `"`}[r.text[r.pos]]
		if !ok {
			return false // rarer escapes are not guessed at
		}
		b.WriteString(plain)
		r.pos++
	}
	return false
}

// word reads a number or a name.
func (r *literalReader) word() bool {
	from := r.pos
	for r.pos < len(r.text) && strings.IndexByte(",]}): \t\r\n", r.text[r.pos]) < 0 {
		r.pos++
	}
	w := r.text[from:r.pos]
	if py, ok := pyWords[w]; ok {
		w = py
	}
	if w == "" || !json.Valid([]byte(w)) {
		return false
	}
	r.out.WriteString(w)
	return true
}
