package sqlenv

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/mattn/go-sqlite3"
)

// registerFuncs adds functions of MySQL that SQLite lacks (it has CONCAT, CONCAT_WS, IF, SUBSTRING itself). Each is
// deterministic, linear in its input, and gives NULL for NULL.
func registerFuncs(c *sqlite3.SQLiteConn) error {
	for name, f := range map[string]any{
		"regexp": matchRegexp, "left": leftChars, "right": rightChars, "locate": locate, "substring_index": substringIndex,
		"ucase": func(v any) any { return mapText(v, strings.ToUpper) }, "lcase": func(v any) any { return mapText(v, strings.ToLower) },
		"char_length": charLength,
	} {
		if err := c.RegisterFunc(name, f, true); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// argText is an argument as text; ok is false for NULL, which the driver passes as an empty blob.
func argText(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case []byte:
		return string(v), len(v) > 0
	case nil:
		return "", false
	}
	return fmt.Sprint(v), true
}

func mapText(v any, f func(string) string) any {
	s, ok := argText(v)
	if !ok {
		return nil
	}
	return f(s)
}

// matchRegexp is X REGEXP Y with Go's (linear time) expressions, ignoring case as MySQL does.
func matchRegexp(pattern, v any) (any, error) {
	p, ok := argText(pattern)
	s, ok2 := argText(v)
	if !ok || !ok2 {
		return nil, nil
	}
	if len(p) > 200 {
		return nil, fmt.Errorf("regular expression is longer than 200 bytes")
	}
	re, err := regexp.Compile("(?i)" + p)
	if err != nil {
		return nil, fmt.Errorf("bad regular expression")
	}
	return re.MatchString(s), nil
}

func leftChars(v any, n int64) any {
	s, ok := argText(v)
	if !ok {
		return nil
	}
	return clip(s, int(max(0, min(n, maxValue))))
}

func rightChars(v any, n int64) any {
	s, ok := argText(v)
	if !ok {
		return nil
	}
	skip := utf8.RuneCountInString(s) - int(max(0, min(n, maxValue)))
	return s[len(clip(s, max(0, skip))):]
}

// locate is the place of part in s, in characters from 1; 0 when it is not there.
func locate(part, s any) any {
	p, ok := argText(part)
	t, ok2 := argText(s)
	if !ok || !ok2 {
		return nil
	}
	i := strings.Index(strings.ToLower(t), strings.ToLower(p))
	if i < 0 {
		return int64(0)
	}
	return int64(utf8.RuneCountInString(strings.ToLower(t)[:i]) + 1)
}

// substringIndex is what stands before the n-th delimiter, or after it counted from the end when n < 0.
func substringIndex(v, delim any, n int64) any {
	s, ok := argText(v)
	d, ok2 := argText(delim)
	if !ok || !ok2 {
		return nil
	}
	if d == "" || n == 0 {
		return ""
	}
	parts := strings.Split(s, d)
	if k := int(min(n, int64(len(parts)))); n > 0 {
		return strings.Join(parts[:k], d)
	}
	return strings.Join(parts[max(0, len(parts)+int(max(n, -int64(len(parts))))):], d)
}

func charLength(v any) any {
	s, ok := argText(v)
	if !ok {
		return nil
	}
	return int64(utf8.RuneCountInString(s))
}
