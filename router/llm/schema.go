package llm

import (
	"encoding/json"
	"reflect"
	"strings"

	"harness-s/internal/strictyaml"
)

// SchemaOf is the JSON schema of what Decode takes for a T: objects with T's keys and no others, those without omitempty
// required. It knows structs, lists, text, whole numbers, truth values, pointers to these, mappings to text and lists of
// strictyaml.Field, which are mappings to anything.
func SchemaOf[T any]() json.RawMessage {
	raw, err := strictyaml.Marshal(schemaOf(reflect.TypeFor[T]()))
	if err != nil {
		panic("llm: " + err.Error()) // it is made of texts and lists
	}
	return raw
}

type schema struct {
	Type       string     `json:"type"`
	Properties properties `json:"properties,omitempty"`
	Required   []string   `json:"required,omitempty"`
	Items      *schema    `json:"items,omitempty"`
	Additional any        `json:"additionalProperties,omitempty"` // false, or the schema of values
}

// properties keep the order of a struct's fields.
type properties []property

type property struct {
	key string
	of  *schema
}

func (p properties) MarshalJSON() ([]byte, error) {
	var b strings.Builder
	b.WriteByte('{')
	for i, f := range p {
		raw, err := strictyaml.Marshal(f.of)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`"` + f.key + `":` + string(raw))
	}
	b.WriteByte('}')
	return []byte(b.String()), nil
}

func schemaOf(t reflect.Type) *schema {
	switch {
	case t == reflect.TypeFor[[]strictyaml.Field]():
		return &schema{Type: "object"}
	case t.Kind() == reflect.Pointer:
		return schemaOf(t.Elem())
	case t.Kind() == reflect.Slice:
		return &schema{Type: "array", Items: schemaOf(t.Elem())}
	case t.Kind() == reflect.Map:
		return &schema{Type: "object", Additional: schemaOf(t.Elem())}
	case t.Kind() == reflect.Struct:
		return structSchema(t)
	case t.Kind() == reflect.String:
		return &schema{Type: "string"}
	case t.Kind() == reflect.Bool:
		return &schema{Type: "boolean"}
	case t.Kind() == reflect.Int:
		return &schema{Type: "integer"}
	}
	panic("llm: no schema for type " + t.String())
}

func structSchema(t reflect.Type) *schema {
	s := &schema{Type: "object", Additional: false}
	fields := fieldsOf(t)
	for _, name := range namesOf(t) {
		f, known := fields[name]
		if !known {
			continue
		}
		s.Properties = append(s.Properties, property{name, schemaOf(f.of)})
		if f.required {
			s.Required = append(s.Required, name)
		}
	}
	return s
}
