package policy

import (
	"strconv"
	"sync"
	"unicode/utf8"
)

// Replies are written by appending to pooled buffers: a reply of some thousand tokens must not cost more than
// sampling them.

var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 16<<10); return &b }}

const maxPooled = 1 << 20

func putBuffer(b *[]byte) {
	if cap(*b) <= maxPooled {
		buffers.Put(b)
	}
}

func appendInt[T ~int | ~int32 | ~int64](b []byte, v T) []byte {
	return strconv.AppendInt(b, int64(v), 10)
}

// appendFloat writes the shortest decimal that reads back as the same float32. v is finite.
func appendFloat(b []byte, v float32) []byte {
	if v == 0 {
		return append(b, "0.0"...) // never -0
	}
	return strconv.AppendFloat(b, float64(v), 'g', -1, 32)
}

func appendInts(b []byte, ids []int32) []byte {
	b = append(b, '[')
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendInt(b, id)
	}
	return append(b, ']')
}

const hexDigits = "0123456789abcdef"

// appendString writes s as a JSON string; bytes that are not UTF-8 become U+FFFD.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c == '\n':
			b = append(b, '\\', 'n')
		case c < 0x20 || c == 0x7f:
			b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		case c < utf8.RuneSelf:
			b = append(b, c)
		default:
			r, n := utf8.DecodeRuneInString(s[i:])
			b = utf8.AppendRune(b, r)
			i += n
			continue
		}
		i++
	}
	return append(b, '"')
}
