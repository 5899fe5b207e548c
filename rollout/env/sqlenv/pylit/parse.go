// Package pylit reads and writes Python literals as text, without evaluating anything.
//
// DBBench shows query results as the repr of a list of tuples and compares answers after evaluating them as
// Python. This package gives both directions for the values that occur there:
//
//	None -> nil        True/False -> bool      int -> *big.Int (int64 is accepted when writing)
//	float -> float64   str -> string           bytes -> Bytes
//	list -> List       tuple -> Tuple          dict -> Dict (order kept)
//
// Names, calls, operators (besides a sign), sets, f-strings and complex numbers are not literals: Parse refuses them.
package pylit

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bytes is a Python bytes value.
type Bytes string

// List is a Python list.
type List []any

// Tuple is a Python tuple.
type Tuple []any

// Pair is one entry of a Dict.
type Pair struct{ Key, Value any }

// Dict is a Python dict in the order written.
type Dict []Pair

// Bounds on what Parse reads: the text comes from a model.
const (
	MaxInput = 1 << 20 // bytes
	maxDepth = 64      // nested containers
	maxInt   = 4300    // digits, CPython's own bound on int from text
)

// Parse reads one literal. Blanks around it are allowed, anything else is an error that names the byte offset.
func Parse(s string) (any, error) {
	if len(s) > MaxInput {
		return nil, fmt.Errorf("literal of %d bytes is longer than %d", len(s), MaxInput)
	}
	p := parser{s: s}
	p.blank()
	v, err := p.value(0)
	if err != nil {
		return nil, err
	}
	p.blank()
	if p.i < len(p.s) {
		return nil, p.fail("text after the literal")
	}
	return v, nil
}

type parser struct {
	s string
	i int
}

func (p *parser) fail(what string) error {
	return fmt.Errorf("python literal: %s at byte %d", what, p.i)
}

func (p *parser) peek() byte {
	if p.i < len(p.s) {
		return p.s[p.i]
	}
	return 0
}

func (p *parser) blank() {
	for p.i < len(p.s) && strings.IndexByte(" \t\n\r\f", p.s[p.i]) >= 0 {
		p.i++
	}
}

func (p *parser) value(depth int) (any, error) {
	if depth > maxDepth {
		return nil, p.fail("nested too deep")
	}
	switch c := p.peek(); {
	case c == '[':
		items, _, err := p.items(']', depth)
		return List(items), err
	case c == '(':
		return p.paren(depth)
	case c == '{':
		return p.dict(depth)
	case c == '+' || c == '-':
		return p.signed()
	case c >= '0' && c <= '9' || c == '.':
		return p.number()
	case c == '\'' || c == '"':
		return p.text()
	case isNameByte(c):
		return p.word()
	}
	return nil, p.fail("expected a value")
}

// items reads "open value, value, ... close"; comma says whether at least one comma was there.
func (p *parser) items(end byte, depth int) (out []any, comma bool, err error) {
	p.i++
	out = []any{}
	for {
		p.blank()
		if p.peek() == end && p.i < len(p.s) {
			p.i++
			return out, comma, nil
		}
		v, err := p.value(depth + 1)
		if err != nil {
			return nil, false, err
		}
		out = append(out, v)
		p.blank()
		switch p.peek() {
		case ',':
			p.i++
			comma = true
		case end:
		default:
			return nil, false, p.fail("expected a comma or " + string(end))
		}
	}
}

func (p *parser) paren(depth int) (any, error) {
	items, comma, err := p.items(')', depth)
	if err != nil {
		return nil, err
	}
	if len(items) == 1 && !comma {
		return items[0], nil // (x) is x
	}
	return Tuple(items), nil
}

func (p *parser) dict(depth int) (any, error) {
	p.i++
	out := Dict{}
	for {
		p.blank()
		if p.peek() == '}' {
			p.i++
			return out, nil
		}
		k, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		if p.blank(); p.peek() != ':' {
			return nil, p.fail("expected a colon")
		}
		p.i++
		p.blank()
		v, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		out = append(out, Pair{k, v})
		p.blank()
		switch p.peek() {
		case ',':
			p.i++
		case '}':
		default:
			return nil, p.fail("expected a comma or }")
		}
	}
}

func (p *parser) signed() (any, error) {
	neg := false
	for n := 0; p.peek() == '+' || p.peek() == '-'; n++ {
		if n == maxDepth {
			return nil, p.fail("too many signs")
		}
		neg = neg != (p.peek() == '-')
		p.i++
		p.blank()
	}
	if c := p.peek(); !(c >= '0' && c <= '9' || c == '.') {
		return nil, p.fail("expected a number after the sign")
	}
	v, err := p.number()
	if err != nil || !neg {
		return v, err
	}
	switch v := v.(type) {
	case *big.Int:
		return v.Neg(v), nil
	case float64:
		return -v, nil
	}
	return nil, p.fail("expected a number after the sign")
}

func (p *parser) number() (any, error) {
	start := p.i
	for p.i < len(p.s) {
		c := p.s[p.i]
		sign := (c == '+' || c == '-') && p.i > start && (p.s[p.i-1] == 'e' || p.s[p.i-1] == 'E') && !isPrefixed(p.s[start:p.i])
		if !isNameByte(c) && c != '.' && !sign {
			break
		}
		p.i++
	}
	v, ok := parseNumber(p.s[start:p.i])
	if !ok {
		p.i = start
		return nil, p.fail("bad number")
	}
	return v, nil
}

func isPrefixed(s string) bool {
	return len(s) > 1 && s[0] == '0' && strings.IndexByte("xXoObB", s[1]) >= 0
}

func parseNumber(s string) (any, bool) {
	if len(s) > maxInt {
		return nil, false
	}
	base, digits := 10, s
	if isPrefixed(s) {
		base = map[byte]int{'x': 16, 'o': 8, 'b': 2}[s[1]|0x20]
		digits = s[2:]
		digits = strings.TrimPrefix(digits, "_")
	}
	clean, ok := dropUnderscores(digits, base)
	if !ok || clean == "" {
		return nil, false
	}
	if base != 10 || allDigits(clean) {
		if base == 10 && clean[0] == '0' && strings.Trim(clean, "0") != "" {
			return nil, false // Python has no leading zeros
		}
		return new(big.Int).SetString(clean, base)
	}
	return parseDecimal(clean)
}

// dropUnderscores removes single underscores between two digits, the only place Python allows them.
func dropUnderscores(s string, base int) (string, bool) {
	if strings.IndexByte(s, '_') < 0 {
		return s, true
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '_' {
			b.WriteByte(s[i])
			continue
		}
		if i == 0 || i+1 == len(s) || !isDigit(s[i-1], base) || !isDigit(s[i+1], base) {
			return "", false
		}
	}
	return b.String(), true
}

func isDigit(c byte, base int) bool {
	return c >= '0' && c <= '9' || base == 16 && (c|0x20) >= 'a' && (c|0x20) <= 'f'
}

func allDigits(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// parseDecimal reads digits[.digits][e[sign]digits] and nothing else that Go's ParseFloat would take.
func parseDecimal(s string) (any, bool) {
	for i := 0; i < len(s); i++ {
		if c := s[i]; !(c >= '0' && c <= '9') && strings.IndexByte(".eE+-", c) < 0 {
			return nil, false
		}
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil && err.(*strconv.NumError).Err != strconv.ErrRange {
		return nil, false
	}
	return f, true // out of range is inf, as in Python
}

func isNameByte(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || (c|0x20) >= 'a' && (c|0x20) <= 'z' || c >= utf8.RuneSelf
}

func (p *parser) word() (any, error) {
	start := p.i
	for p.i < len(p.s) && isNameByte(p.s[p.i]) {
		p.i++
	}
	w := p.s[start:p.i]
	if c := p.peek(); (c == '\'' || c == '"') && p.i < len(p.s) {
		p.i = start
		return p.text()
	}
	switch w {
	case "None":
		return nil, nil
	case "True":
		return true, nil
	case "False":
		return false, nil
	}
	p.i = start
	return nil, p.fail("a name is not a literal")
}
