package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// maxJSONDepth bounds the nesting of values that are written out or read.
const maxJSONDepth = 64

// pyJSON spells a JSON value as Python's json.dumps(value, ensure_ascii=False) does, which is how the models saw tools
// and arguments in training: ", " and ": " between, keys in their order, non-ASCII text as it is.
func pyJSON(raw json.RawMessage) (string, error) {
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.UseNumber()
	var b strings.Builder
	if err := writePyJSON(&b, d, 0); err != nil {
		return "", err
	}
	if _, err := d.Token(); err != io.EOF {
		return "", errors.New("more text after the JSON value")
	}
	return b.String(), nil
}

func writePyJSON(b *strings.Builder, d *json.Decoder, depth int) error {
	if depth > maxJSONDepth {
		return fmt.Errorf("JSON nested deeper than %d", maxJSONDepth)
	}
	tok, err := d.Token()
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	if err != nil {
		return err
	}
	open, ok := tok.(json.Delim)
	if !ok {
		b.WriteString(pyScalar(tok))
		return nil
	}
	b.WriteString(open.String())
	for n := 0; d.More(); n++ {
		if n > 0 {
			b.WriteString(", ")
		}
		if open == '{' {
			key, err := d.Token()
			if err != nil {
				return err
			}
			b.WriteString(quote(key.(string)))
			b.WriteString(": ")
		}
		if err := writePyJSON(b, d, depth+1); err != nil {
			return err
		}
	}
	end, err := d.Token()
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	if err != nil {
		return err
	}
	b.WriteString(end.(json.Delim).String())
	return nil
}

func pyScalar(tok json.Token) string {
	switch v := tok.(type) {
	case string:
		return quote(v)
	case json.Number:
		return pyNumber(string(v), "Infinity")
	case bool:
		return strconv.FormatBool(v)
	}
	return "null"
}

// quote is a JSON string with the escapes Python writes: quote, backslash and control characters.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\b':
			b.WriteString(`\b`)
		case r == '\f':
			b.WriteString(`\f`)
		case r < 0x20:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// pyNumber is a number as Python reads and prints it: whole numbers digit by digit, the rest as float.__repr__.
func pyNumber(text, infinity string) string {
	if !strings.ContainsAny(text, ".eE") {
		if text == "-0" {
			return "0"
		}
		return text
	}
	f, _ := strconv.ParseFloat(text, 64) // out of range gives an infinity, as in Python
	switch {
	case math.IsInf(f, 1):
		return infinity
	case math.IsInf(f, -1):
		return "-" + infinity
	}
	exp := strconv.FormatFloat(f, 'e', -1, 64) // d.ddde±dd
	mantissa, power, _ := strings.Cut(exp, "e")
	if p, _ := strconv.Atoi(power); p >= -4 && p < 16 {
		plain := strconv.FormatFloat(f, 'f', -1, 64)
		if !strings.Contains(plain, ".") {
			plain += ".0"
		}
		return plain
	}
	return mantissa + "e" + power
}

// pyString is Python's str of a JSON value, which is how the template writes an argument: text as it is, True, False
// and None, objects and lists as JSON.
func pyString(raw json.RawMessage) (string, error) {
	text := strings.TrimSpace(string(raw))
	if !json.Valid([]byte(text)) {
		return "", errors.New("not JSON")
	}
	switch text[0] {
	case '"':
		var s string
		err := json.Unmarshal([]byte(text), &s)
		return s, err
	case '{', '[':
		return pyJSON(raw)
	case 't':
		return "True", nil
	case 'f':
		return "False", nil
	case 'n':
		return "None", nil
	}
	return pyNumber(text, "inf"), nil
}

// trim is Python's str.strip, which the template applies to contents.
func trim(s string) string { return strings.TrimFunc(s, isPySpace) }

func isPySpace(r rune) bool {
	switch r {
	case ' ', '\t', '\n', '\v', '\f', '\r', 0x1c, 0x1d, 0x1e, 0x1f, 0x85, 0xa0, 0x1680, 0x2028, 0x2029, 0x202f, 0x205f, 0x3000:
		return true
	}
	return r >= 0x2000 && r <= 0x200a
}
