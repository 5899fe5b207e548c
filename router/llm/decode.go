package llm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode/utf8"

	"harness-s/internal/strictjson"
)

// Bounds of an answer.
const (
	maxAnswer = 256 << 10 // bytes
	maxDepth  = 32
	maxNumber = 40 // bytes of one number
)

// Decode reads the one JSON value of a model's answer (see Extract) into what into points to. encoding/json lets much pass
// that a model gets wrong; this is an error here: a key that the struct does not have, in another case or given twice, a
// key without omitempty that is missing, null in the place of text, a number, a truth value or an object, bytes that are no
// UTF-8, text after the value, more than 256 KiB, more than 32 levels, numbers of more than 40 characters. In values that
// the target keeps as they are (json.RawMessage) keys given twice and the bounds are refused as well.
func Decode(text string, into any) error {
	s := Extract(text)
	switch {
	case s == "":
		return errors.New("the answer is empty")
	case len(s) > maxAnswer:
		return fmt.Errorf("the answer has %d bytes; at most %d", len(s), maxAnswer)
	case !utf8.ValidString(s):
		return errors.New("the answer is not valid UTF-8")
	}
	target := reflect.ValueOf(into).Elem()
	w := walker{json.NewDecoder(strings.NewReader(s))}
	w.UseNumber()
	if err := w.value(target.Type(), "", 0); err != nil {
		return notJSON(err)
	}
	if _, err := w.Token(); err != io.EOF {
		return errors.New("text after the JSON value")
	}
	target.SetZero()
	return strictjson.Explain(json.Unmarshal([]byte(s), into))
}

func notJSON(err error) error {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("it is not one JSON value: %w", strictjson.Explain(err))
	}
	return err
}

// walker reads a value token by token beside the type it is meant for; a nil type takes anything.
type walker struct{ *json.Decoder }

var rawMessage = reflect.TypeFor[json.RawMessage]()

func (w walker) value(t reflect.Type, path string, depth int) error {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t != nil && (t == rawMessage || t.Kind() == reflect.Interface) {
		t = nil
	}
	tok, err := w.Token()
	if err != nil {
		return err
	}
	switch x := tok.(type) {
	case json.Delim:
		if depth == maxDepth {
			return fmt.Errorf("%s is nested deeper than %d", place(path), maxDepth)
		}
		if x == '{' {
			return w.object(t, path, depth+1)
		}
		return w.list(t, path, depth+1)
	case json.Number:
		if len(x) > maxNumber {
			return fmt.Errorf("%s is a number of %d characters", place(path), len(x))
		}
	case nil:
		if t != nil && t.Kind() != reflect.Slice && t.Kind() != reflect.Map {
			return fmt.Errorf("%s is null", place(path))
		}
	}
	return nil
}

func (w walker) object(t reflect.Type, path string, depth int) error {
	fields := fieldsOf(t)
	seen := map[string]bool{}
	for w.More() {
		tok, err := w.Token()
		if err != nil {
			return err
		}
		key := tok.(string) // the decoder gives nothing else here
		if seen[key] {
			return fmt.Errorf("key %q stands twice", clip(join(path, key), 200))
		}
		seen[key] = true
		var of reflect.Type
		switch {
		case fields != nil:
			f, known := fields[key]
			if !known {
				return fmt.Errorf("unknown key %q; known here: %s", clip(join(path, key), 200), strings.Join(namesOf(t), ", "))
			}
			of = f.of
		case t != nil && t.Kind() == reflect.Map:
			of = t.Elem()
		}
		if err := w.value(of, join(path, key), depth); err != nil {
			return err
		}
	}
	for _, name := range namesOf(t) {
		if fields[name].required && !seen[name] {
			return fmt.Errorf("key %q is missing", join(path, name))
		}
	}
	_, err := w.Token() // the closing brace
	return err
}

func (w walker) list(t reflect.Type, path string, depth int) error {
	var of reflect.Type
	if t != nil && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) {
		of = t.Elem()
	}
	for i := 0; w.More(); i++ {
		if err := w.value(of, fmt.Sprintf("%s[%d]", path, i), depth); err != nil {
			return err
		}
	}
	_, err := w.Token()
	return err
}

// field is one key that a struct takes.
type field struct {
	of       reflect.Type
	required bool
}

// fieldsOf lists the keys of a struct type; nil for any other.
func fieldsOf(t reflect.Type) map[string]field {
	if t == nil || t.Kind() != reflect.Struct {
		return nil
	}
	out := map[string]field{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.IsExported() && name != "" && name != "-" {
			out[name] = field{f.Type, !strings.Contains(rest, "omit")}
		}
	}
	return out
}

// namesOf lists them in order.
func namesOf(t reflect.Type) []string {
	if t == nil || t.Kind() != reflect.Struct {
		return nil
	}
	var out []string
	for i := range t.NumField() {
		if name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); name != "" && name != "-" {
			out = append(out, name)
		}
	}
	return out
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func place(path string) string {
	if path == "" {
		return "the answer"
	}
	return clip(path, 200)
}
