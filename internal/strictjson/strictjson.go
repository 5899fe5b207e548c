// Package strictjson reads one JSON object that a person or another program wrote, such as a line of an input file, and
// refuses what encoding/json lets pass: keys in another case, keys given twice, nulls in a list (which would become
// zeros), bytes that are no UTF-8, text behind the object. Its errors speak of keys and values, not of Go types.
package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"
)

// Decode reads the object data into the struct that into points to; every field has a json tag. A null in a list is an
// error unless its place, such as "weights[0]", is in mayBeNull.
func Decode(data []byte, into any, mayBeNull ...string) error {
	if !utf8.Valid(data) {
		return errors.New("not valid UTF-8")
	}
	known := tags(reflect.TypeOf(into).Elem())
	dec := json.NewDecoder(bytes.NewReader(data))
	if tok, err := dec.Token(); err != nil {
		return Explain(err)
	} else if tok != json.Delim('{') {
		return fmt.Errorf("want a JSON object with the keys %s", strings.Join(known, ", "))
	}
	var seen []string
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return Explain(err)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return Explain(err)
		}
		name := key.(string) // the decoder gives nothing else here
		switch {
		case !slices.Contains(known, name):
			return fmt.Errorf("unknown key %q; known here: %s", name, strings.Join(known, ", "))
		case slices.Contains(seen, name):
			return fmt.Errorf("key %q stands twice", name)
		}
		seen = append(seen, name)
		if err := refuseNulls(name, value, mayBeNull); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil { // the closing brace
		return Explain(err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("text after the JSON object")
	}
	return Explain(json.Unmarshal(data, into))
}

func tags(t reflect.Type) []string {
	var out []string
	for i := range t.NumField() {
		if tag, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); tag != "" && tag != "-" {
			out = append(out, tag)
		}
	}
	return out
}

// refuseNulls looks at the elements of a list only: a null in the place of a whole value reads as absent.
func refuseNulls(key string, value json.RawMessage, mayBeNull []string) error {
	if value[0] != '[' || !bytes.Contains(value, []byte("null")) {
		return nil
	}
	var items []json.RawMessage
	if err := json.Unmarshal(value, &items); err != nil {
		return Explain(err)
	}
	for i, item := range items {
		place := fmt.Sprintf("%s[%d]", key, i)
		if string(item) == "null" && !slices.Contains(mayBeNull, place) {
			return fmt.Errorf("%s is null", place)
		}
	}
	return nil
}

// Explain says in plain words what an error of encoding/json says in Go's; other errors and nil stay as they are.
func Explain(err error) error {
	var mismatch *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &mismatch):
		got := strings.NewReplacer("array", "a list", "object", "an object", "string", "a text", "bool", "true or false").Replace(mismatch.Value)
		if mismatch.Field == "" {
			return fmt.Errorf("got %s, want %s", got, wanted(mismatch.Type))
		}
		return fmt.Errorf("key %q: got %s, want %s", mismatch.Field, got, wanted(mismatch.Type))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &syntax) && syntax.Error() == "unexpected end of JSON input":
		return errors.New("the JSON ends too early (a truncated file?)")
	case syntax != nil:
		return fmt.Errorf("bad JSON at byte %d: %w", syntax.Offset, err)
	}
	return err
}

func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return fmt.Sprintf("a whole number of %d bits", t.Bits())
	case reflect.Int, reflect.Int64, reflect.Uint, reflect.Uint64:
		return "a whole number"
	case reflect.Float32:
		return "a number that fits float32"
	case reflect.Float64:
		return "a number"
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a text"
	case reflect.Slice, reflect.Array:
		return "a list"
	}
	return "an object"
}
