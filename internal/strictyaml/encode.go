package strictyaml

import (
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// Encode writes a struct (or a pointer to one) as YAML that Decode reads back to the same value. Keys come in field
// order; a field tagged ",omitempty" is left out at its zero value. Text must be valid UTF-8 without control
// characters other than newline and tab.
func Encode(v any) []byte {
	var e encoder
	e.mapping(reflect.Indirect(reflect.ValueOf(v)), 0)
	return []byte(e.b.String())
}

type encoder struct{ b strings.Builder }

func (e *encoder) pad(indent int) { e.b.WriteString(strings.Repeat("  ", indent)) }

// mapping writes the fields of struct v, each on its own line at indent; the caller has written the first pad.
func (e *encoder) mapping(v reflect.Value, indent int) {
	first := true
	for i := range v.NumField() {
		f := v.Type().Field(i)
		key := tagKey(f)
		if key == "" || strings.HasSuffix(f.Tag.Get("yaml"), ",omitempty") && empty(v.Field(i)) {
			continue
		}
		if !first {
			e.pad(indent)
		}
		first = false
		e.b.WriteString(key + ":")
		e.entry(v.Field(i), indent)
	}
	if first {
		e.b.WriteString("{}\n")
	}
}

// empty is the zero value, a list of no elements included.
func empty(v reflect.Value) bool {
	return v.IsZero() || v.Kind() == reflect.Slice && v.Len() == 0
}

// entry writes what follows "key:", up to and including the newline.
func (e *encoder) entry(v reflect.Value, indent int) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			panic("strictyaml: a nil pointer needs omitempty")
		}
		e.entry(v.Elem(), indent)
	case reflect.Struct:
		e.b.WriteString("\n")
		e.pad(indent + 1)
		e.mapping(v, indent+1)
	case reflect.Slice:
		e.list(v, indent)
	case reflect.String:
		e.b.WriteString(" " + quote(v.String(), indent+1) + "\n")
	case reflect.Float64:
		e.b.WriteString(" " + strconv.FormatFloat(v.Float(), 'g', -1, 64) + "\n")
	default:
		fmt.Fprintf(&e.b, " %v\n", v.Interface())
	}
}

func (e *encoder) list(v reflect.Value, indent int) {
	if v.Len() == 0 {
		if v.Type() == reflect.TypeFor[[]Field]() {
			e.b.WriteString(" {}\n")
		} else {
			e.b.WriteString(" []\n")
		}
		return
	}
	e.b.WriteString("\n")
	for i := range v.Len() {
		e.pad(indent + 1)
		switch x := v.Index(i).Interface().(type) {
		case Field:
			e.b.WriteString(quoteLine(x.Key) + ": " + string(x.Value) + "\n") // JSON is YAML
		default:
			e.b.WriteString("-")
			if v.Index(i).Kind() == reflect.Struct {
				e.b.WriteString(" ")
				e.mapping(v.Index(i), indent+2)
			} else {
				e.entry(v.Index(i), indent+1)
			}
		}
	}
}

var (
	plain     = regexp.MustCompile(`^[a-z][a-z0-9_-]*$`)
	ambiguous = map[string]bool{"true": true, "false": true, "null": true, "yes": true, "no": true, "on": true, "off": true, "y": true, "n": true}
)

// quote picks a form for text: bare for a simple word, a literal block for clean lines, else double quotes.
func quote(s string, indent int) string {
	if plain.MatchString(s) && !ambiguous[s] {
		return s
	}
	if !blockSafe(s) {
		return quoteLine(s)
	}
	head, pad := "|-\n", strings.Repeat("  ", indent)
	if strings.HasSuffix(s, "\n") {
		head, s = "|\n", strings.TrimSuffix(s, "\n")
	}
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		if l != "" {
			lines[i] = pad + l
		}
	}
	return head + strings.Join(lines, "\n")
}

func quoteLine(s string) string {
	j, err := Marshal(s)
	if err != nil {
		panic(err) // a Go string always marshals
	}
	return string(j)
}

// blockSafe says that a literal block gives s back whatever the reader's rules on leading and trailing blanks.
func blockSafe(s string) bool {
	body := strings.TrimSuffix(s, "\n")
	if !strings.Contains(body, "\n") || strings.HasSuffix(body, "\n") || strings.HasPrefix(body, "\n") {
		return false
	}
	for _, l := range strings.Split(body, "\n") {
		if strings.TrimSpace(l) != l && (strings.TrimRight(l, " ") != l || strings.HasPrefix(l, "\t")) {
			return false
		}
	}
	if strings.HasPrefix(body, " ") {
		return false
	}
	for _, r := range body {
		if r != '\n' && !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}
