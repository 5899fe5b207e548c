package pylit

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Repr is Python's repr(v). Types outside the package's table are a bug of the caller and panic.
// Which characters count as printable follows Go's Unicode tables, which may be a version apart from Python's.
func Repr(v any) string { return string(AppendRepr(nil, v)) }

// Str is Python's str(v): Repr except that text stands as it is.
func Str(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	return Repr(v)
}

// AppendRepr appends Python's repr(v) to dst.
func AppendRepr(dst []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(dst, "None"...)
	case bool:
		if v {
			return append(dst, "True"...)
		}
		return append(dst, "False"...)
	case int64:
		return strconv.AppendInt(dst, v, 10)
	case *big.Int:
		return v.Append(dst, 10)
	case float64:
		return append(dst, Float(v)...)
	case string:
		return appendText(dst, v)
	case Bytes:
		return appendBytes(dst, string(v))
	case List:
		return append(appendItems(append(dst, '['), v), ']')
	case Tuple:
		dst = appendItems(append(dst, '('), v)
		if len(v) == 1 {
			dst = append(dst, ',')
		}
		return append(dst, ')')
	case Dict:
		return appendDict(dst, v)
	}
	panic(fmt.Sprintf("pylit: no repr for %T", v))
}

func appendItems(dst []byte, items []any) []byte {
	for i, it := range items {
		if i > 0 {
			dst = append(dst, ", "...)
		}
		dst = AppendRepr(dst, it)
	}
	return dst
}

func appendDict(dst []byte, d Dict) []byte {
	dst = append(dst, '{')
	for i, p := range d {
		if i > 0 {
			dst = append(dst, ", "...)
		}
		dst = append(AppendRepr(dst, p.Key), ": "...)
		dst = AppendRepr(dst, p.Value)
	}
	return append(dst, '}')
}

// Float is Python's repr of a float: the shortest text that reads back the same, with an exponent outside 1e-4..1e16.
func Float(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	e := strconv.FormatFloat(f, 'e', -1, 64)
	exp, _ := strconv.Atoi(e[strings.IndexByte(e, 'e')+1:])
	if f != 0 && (exp < -4 || exp >= 16) {
		return e
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if strings.IndexByte(s, '.') < 0 {
		s += ".0"
	}
	return s
}

// quoteFor picks Python's quote: single, unless the text has a single and no double one.
func quoteFor(s string) byte {
	if strings.IndexByte(s, '\'') >= 0 && strings.IndexByte(s, '"') < 0 {
		return '"'
	}
	return '\''
}

func appendText(dst []byte, s string) []byte {
	q := quoteFor(s)
	dst = append(dst, q)
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		i += n
		switch {
		case r == rune(q) || r == '\\':
			dst = append(dst, '\\', byte(r))
		case unicode.IsPrint(r):
			dst = utf8.AppendRune(dst, r)
		default:
			dst = appendEscape(dst, r)
		}
	}
	return append(dst, q)
}

func appendEscape(dst []byte, r rune) []byte {
	switch {
	case r == '\n':
		return append(dst, `\n`...)
	case r == '\r':
		return append(dst, `\r`...)
	case r == '\t':
		return append(dst, `\t`...)
	case r < 0x100:
		return fmt.Appendf(dst, `\x%02x`, r)
	case r < 0x10000:
		return fmt.Appendf(dst, `\u%04x`, r)
	}
	return fmt.Appendf(dst, `\U%08x`, r)
}

func appendBytes(dst []byte, s string) []byte {
	q := quoteFor(s)
	dst = append(dst, 'b', q)
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == q || c == '\\':
			dst = append(dst, '\\', c)
		case c >= ' ' && c < 0x7f:
			dst = append(dst, c)
		default:
			dst = appendEscape(dst, rune(c))
		}
	}
	return append(dst, q)
}
