package chat

import (
	"encoding/json"
	"strings"
)

// typesOf is the JSON types that a tool's schema allows for each argument; nothing for an unknown tool.
func (p *parser) typesOf(tool string) map[string][]string {
	for _, t := range p.tools {
		if t.Name != tool {
			continue
		}
		var schema struct {
			Properties map[string]struct {
				Type json.RawMessage `json:"type"`
			} `json:"properties"`
		}
		if json.Unmarshal(t.Parameters, &schema) != nil {
			return nil // a schema that cannot be read types nothing
		}
		types := make(map[string][]string, len(schema.Properties))
		for key, prop := range schema.Properties {
			types[key] = typeNames(prop.Type)
		}
		return types
	}
	return nil
}

// typeNames reads "type": "x" and "type": ["x", "null"].
func typeNames(raw json.RawMessage) []string {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return []string{one}
	}
	var several []string
	if json.Unmarshal(raw, &several) == nil {
		return several
	}
	return nil
}

// typed is the JSON of a written value. Text is the rule: a schema that allows a string, or says nothing, gives the
// words as they are, and so does a value that is none of the types allowed.
func typed(value string, types []string) json.RawMessage {
	allowed := map[string]bool{}
	for _, t := range types {
		allowed[t] = true
	}
	if len(types) == 0 || allowed["string"] {
		return jsonString(value)
	}
	text := trim(value)
	if word, ok := pyWords[text]; ok {
		text = word
	}
	raw := json.RawMessage(text)
	if !json.Valid(raw) {
		literal, ok := pyLiteral(text)
		if !ok {
			return jsonString(value)
		}
		raw = literal
	}
	if !allowed[jsonType(raw)] && !(allowed["number"] && jsonType(raw) == "integer") {
		return jsonString(value)
	}
	return raw
}

// pyWords are Python's spellings, which the template writes.
var pyWords = map[string]string{"True": "true", "False": "false", "None": "null"}

func jsonType(raw json.RawMessage) string {
	switch raw[0] {
	case '{':
		return "object"
	case '[':
		return "array"
	case '"':
		return "string"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	}
	if strings.ContainsAny(string(raw), ".eE") {
		return "number"
	}
	return "integer"
}
