package pylit

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// text reads one or more adjacent string literals, which Python joins. Strings and bytes do not mix.
func (p *parser) text() (any, error) {
	var b strings.Builder
	var isBytes bool
	for n := 0; ; n++ {
		raw, byt, ok := p.prefix()
		if !ok {
			if n == 0 {
				return nil, p.fail("bad string prefix")
			}
			break
		}
		if n > 0 && byt != isBytes {
			return nil, p.fail("bytes and text side by side")
		}
		isBytes = byt
		if err := p.quoted(&b, raw, byt); err != nil {
			return nil, err
		}
		p.blank()
	}
	if isBytes {
		return Bytes(b.String()), nil
	}
	return b.String(), nil
}

// prefix reads an optional r, b, u, rb, br before a quote; ok is false (and nothing is read) when no string starts here.
func (p *parser) prefix() (raw, byt, ok bool) {
	j := p.i
	for j < len(p.s) && j-p.i < 3 && isNameByte(p.s[j]) {
		j++
	}
	if j >= len(p.s) || p.s[j] != '\'' && p.s[j] != '"' {
		return false, false, false
	}
	switch strings.ToLower(p.s[p.i:j]) {
	case "", "u":
	case "r":
		raw = true
	case "b":
		byt = true
	case "rb", "br":
		raw, byt = true, true
	default:
		return false, false, false
	}
	p.i = j
	return raw, byt, true
}

func (p *parser) quoted(b *strings.Builder, raw, byt bool) error {
	q := p.s[p.i]
	end := string(q)
	triple := strings.HasPrefix(p.s[p.i:], strings.Repeat(end, 3))
	if triple {
		end = strings.Repeat(end, 3)
	}
	p.i += len(end)
	for p.i < len(p.s) {
		c := p.s[p.i]
		switch {
		case strings.HasPrefix(p.s[p.i:], end):
			p.i += len(end)
			return nil
		case c == '\n' && !triple:
			return p.fail("line break in a string")
		case c == '\\':
			if err := p.escape(b, raw, byt); err != nil {
				return err
			}
		case byt && c >= utf8.RuneSelf:
			return p.fail("non-ASCII character in bytes")
		default:
			b.WriteByte(c)
			p.i++
		}
	}
	return p.fail("unterminated string")
}

const simpleEscapes = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v"

// escape reads one backslash sequence. Unknown ones keep the backslash, as in Python.
func (p *parser) escape(b *strings.Builder, raw, byt bool) error {
	if p.i+1 >= len(p.s) {
		return p.fail("unterminated string")
	}
	c := p.s[p.i+1]
	if raw {
		b.WriteString(p.s[p.i : p.i+2])
		p.i += 2
		return nil
	}
	for k := 0; k < len(simpleEscapes); k += 2 {
		if simpleEscapes[k] == c {
			b.WriteByte(simpleEscapes[k+1])
			p.i += 2
			return nil
		}
	}
	switch {
	case c == '\n':
		p.i += 2
		return nil
	case c >= '0' && c <= '7':
		n := 1
		for n < 3 && p.i+1+n < len(p.s) && p.s[p.i+1+n] >= '0' && p.s[p.i+1+n] <= '7' {
			n++
		}
		return p.code(b, 1, n, 8, byt)
	case c == 'x':
		return p.code(b, 2, 2, 16, byt)
	case c == 'u' && !byt:
		return p.code(b, 2, 4, 16, false)
	case c == 'U' && !byt:
		return p.code(b, 2, 8, 16, false)
	case c == 'N' && !byt:
		return p.fail("named characters are not read")
	}
	b.WriteByte('\\')
	p.i++
	return nil
}

// code reads n digits that start off bytes after the backslash and writes the character (or byte) they name.
func (p *parser) code(b *strings.Builder, off, n, base int, byt bool) error {
	from := p.i + off
	if from+n > len(p.s) {
		return p.fail("short escape")
	}
	v, err := strconv.ParseUint(p.s[from:from+n], base, 32)
	if err != nil || v > utf8.MaxRune {
		return p.fail("bad escape")
	}
	p.i = from + n
	if byt {
		b.WriteByte(byte(v))
		return nil
	}
	b.WriteRune(rune(v)) // a lone surrogate becomes U+FFFD
	return nil
}
