// Package config reads a run's YAML file over its defaults, applies --set overrides, and writes the commented
// reference. It knows nothing about what the keys mean: the structs live in the packages that use them, with
// the tags `yaml` (key), `doc` (one line) and `unit`.
package config

import (
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"

	"harness-s/internal/strictyaml"
)

// Read fills the struct into points to, which holds the defaults, from a YAML file and then from overrides of
// the form a.b=c. An error names the file, line and key; the struct is then not to be used.
func Read(path string, overrides []string, into any) error {
	data, err := read(path)
	if err != nil {
		return fmt.Errorf("read config: %w", err)
	}
	if err := Parse(path, data, into); err != nil {
		return err
	}
	return Override(overrides, into)
}

// maxBytes bounds a config file; what is larger is another file given by mistake.
const maxBytes = 1 << 20

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err == nil && len(data) > maxBytes {
		err = fmt.Errorf("%s: larger than %d bytes: no config", path, maxBytes)
	}
	return data, err
}

// Parse is Read of bytes; name stands for the file in messages.
func Parse(name string, data []byte, into any) error {
	_, problems := strictyaml.Decode(name, data, into)
	if len(problems) == 0 {
		return nil
	}
	text := make([]string, len(problems))
	for i, p := range problems {
		text[i] = p.Error()
	}
	return fmt.Errorf("config: %s", strings.Join(text, "\n"))
}

// Override applies a.b=c settings in order. Text values need no quotes; a list is a,b,c or a YAML list.
func Override(settings []string, into any) error {
	for _, s := range settings {
		key, value, ok := strings.Cut(s, "=")
		if !ok || key == "" {
			return fmt.Errorf("--set %s: want key=value, as in --set budget.rollouts=4000", s)
		}
		if strings.ContainsAny(key+value, "\n\r") {
			return fmt.Errorf("--set %s: one line, please", key)
		}
		doc, err := document(key, value, reflect.TypeOf(into).Elem())
		if err != nil {
			return fmt.Errorf("--set %s: %w", s, err)
		}
		if _, problems := strictyaml.Decode("--set "+s, doc, into); len(problems) > 0 {
			return fmt.Errorf("--set %s: %s", s, problems[0].Text)
		}
	}
	return nil
}

// document is the YAML text that sets one dotted key.
func document(key, value string, t reflect.Type) ([]byte, error) {
	var b strings.Builder
	parts := strings.Split(key, ".")
	for i, part := range parts {
		f, ok := field(t, part)
		if !ok {
			return nil, fmt.Errorf("no key %s; known here: %s", strings.Join(parts[:i+1], "."), strings.Join(keys(t), ", "))
		}
		t = f.Type
		b.WriteString(strings.Repeat("  ", i) + part + ":")
		if i < len(parts)-1 {
			if t.Kind() != reflect.Struct {
				return nil, fmt.Errorf("%s has no keys of its own", strings.Join(parts[:i+1], "."))
			}
			b.WriteString("\n")
		}
	}
	switch {
	case t.Kind() == reflect.Struct:
		return nil, fmt.Errorf("%s is a section; set one of its keys: %s", key, strings.Join(keys(t), ", "))
	case t.Kind() == reflect.String:
		quoted, err := strictyaml.Marshal(value)
		if err != nil {
			return nil, err
		}
		value = string(quoted)
	case t.Kind() == reflect.Slice && !strings.HasPrefix(value, "["):
		value = "[" + value + "]"
	}
	b.WriteString(" " + value + "\n")
	return []byte(b.String()), nil
}

func field(t reflect.Type, key string) (reflect.StructField, bool) {
	for i := range t.NumField() {
		if tag(t.Field(i)) == key {
			return t.Field(i), true
		}
	}
	return reflect.StructField{}, false
}

func keys(t reflect.Type) []string {
	var out []string
	for i := range t.NumField() {
		if k := tag(t.Field(i)); k != "" {
			out = append(out, k)
		}
	}
	return out
}

func tag(f reflect.StructField) string {
	key, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	return key
}

// Reference writes a struct as YAML with a comment before every key: what it is and its unit.
func Reference(v any) []byte {
	var b strings.Builder
	section(&b, reflect.Indirect(reflect.ValueOf(v)), 0)
	return []byte(b.String())
}

func section(b *strings.Builder, v reflect.Value, indent int) {
	pad := strings.Repeat("  ", indent)
	plain := string(strictyaml.Encode(v.Interface()))
	for i := range v.NumField() {
		f := v.Type().Field(i)
		doc := f.Tag.Get("doc")
		if unit := f.Tag.Get("unit"); unit != "" {
			doc += " [" + unit + "]"
		}
		if f.Type.Kind() == reflect.Struct {
			if indent == 0 {
				b.WriteString("\n")
			}
			fmt.Fprintf(b, "%s# %s\n%s%s:\n", pad, doc, pad, tag(f))
			section(b, v.Field(i), indent+1)
			continue
		}
		fmt.Fprintf(b, "%s# %s\n%s%s\n", pad, doc, pad, entry(plain, tag(f)))
	}
}

// entry is the line (or, for a list, lines joined) of one top-level key in encoded YAML.
func entry(encoded, key string) string {
	lines := strings.Split(encoded, "\n")
	for i, line := range lines {
		if !strings.HasPrefix(line, key+":") {
			continue
		}
		var items []string
		for _, l := range lines[i+1:] {
			item, ok := strings.CutPrefix(l, "  - ")
			if !ok {
				break
			}
			items = append(items, item)
		}
		if items != nil {
			return key + ": [" + strings.Join(items, ", ") + "]"
		}
		return line
	}
	panic("config: no key " + key)
}

// Diff lists the dotted keys whose values differ between two structs of one type.
func Diff(a, b any) []string {
	return diff("", reflect.Indirect(reflect.ValueOf(a)), reflect.Indirect(reflect.ValueOf(b)))
}

func diff(prefix string, a, b reflect.Value) []string {
	var out []string
	for i := range a.NumField() {
		key := prefix + tag(a.Type().Field(i))
		if a.Field(i).Kind() == reflect.Struct {
			out = append(out, diff(key+".", a.Field(i), b.Field(i))...)
		} else if !reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()) {
			out = append(out, key)
		}
	}
	return out
}
