package harness

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"harness-s/internal/strictyaml"
	"harness-s/model/chat"
)

// Messages is the conversation before the policy's first turn: system, examples, the task.
func (s *Spec) Messages(vars map[string]string) ([]chat.Message, error) {
	var msgs []chat.Message
	system, err := expand(s.Prompt.System, vars)
	if err != nil {
		return nil, fmt.Errorf("harness %s: prompt.system: %w", s.ID, err)
	}
	if system != "" {
		msgs = append(msgs, chat.Message{Role: "system", Content: system})
	}
	for _, shot := range s.Prompt.FewShot {
		msgs = append(msgs, shot.message())
	}
	user, err := expand(s.Prompt.User, vars)
	if err != nil {
		return nil, fmt.Errorf("harness %s: prompt.user: %w", s.ID, err)
	}
	return append(msgs, chat.Message{Role: "user", Content: user}), nil
}

func (shot Shot) message() chat.Message {
	m := chat.Message{Role: shot.Role, Content: shot.Content}
	for _, c := range shot.Calls {
		call := chat.ToolCall{Name: c.Name}
		for _, a := range c.Arguments {
			call.Args = append(call.Args, chat.Arg{Key: a.Key, Value: a.Value})
		}
		m.Calls = append(m.Calls, call)
	}
	return m
}

// Offer is what the policy is offered of the environment's tools: in the spec's order and words where it lists tools,
// all of them as they are where it does not.
func (s *Spec) Offer(env []chat.Tool) ([]chat.Tool, error) {
	if len(s.Tools) == 0 {
		return env, nil
	}
	var out []chat.Tool
	for _, t := range s.Tools {
		i := slices.IndexFunc(env, func(e chat.Tool) bool { return e.Name == t.Name })
		if i < 0 {
			return nil, fmt.Errorf("harness %s: tool %q is not offered by the environment", s.ID, t.Name)
		}
		tool := env[i]
		if t.Description != "" {
			tool.Description = t.Description
		}
		params, err := redescribe(tool.Parameters, t.Arguments)
		if err != nil {
			return nil, fmt.Errorf("harness %s: tool %s: %w", s.ID, t.Name, err)
		}
		tool.Parameters = params
		out = append(out, tool)
	}
	return out, nil
}

// redescribe edits a JSON schema of type object, key order kept: descriptions replaced, optional properties removed.
func redescribe(schema json.RawMessage, args []Arg) (json.RawMessage, error) {
	if len(args) == 0 {
		return schema, nil
	}
	top, err := object(schema)
	if err != nil {
		return nil, fmt.Errorf("parameters: %w", err)
	}
	props, err := object(get(top, "properties"))
	if err != nil {
		return nil, fmt.Errorf("parameters.properties: %w", err)
	}
	var required []string
	if r := get(top, "required"); r != nil {
		if err := json.Unmarshal(r, &required); err != nil {
			return nil, fmt.Errorf("parameters.required: %w", err)
		}
	}
	for _, a := range args {
		i := slices.IndexFunc(props, func(f strictyaml.Field) bool { return f.Key == a.Name })
		switch {
		case i < 0:
			return nil, fmt.Errorf("it has no argument %q", a.Name)
		case a.Hide && slices.Contains(required, a.Name):
			return nil, fmt.Errorf("argument %q is required and cannot be hidden", a.Name)
		case a.Hide:
			props = slices.Delete(props, i, i+1)
		case a.Description != "":
			prop, err := object(props[i].Value)
			if err != nil {
				return nil, fmt.Errorf("argument %q: %w", a.Name, err)
			}
			text, err := strictyaml.Marshal(a.Description)
			if err != nil {
				return nil, err
			}
			props[i].Value = build(set(prop, "description", text))
		}
	}
	return build(set(top, "properties", build(props))), nil
}

// object splits a JSON object into its entries, in order, values as they stand.
func object(raw json.RawMessage) ([]strictyaml.Field, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, fmt.Errorf("want a JSON object")
	}
	var fields []strictyaml.Field
	for d.More() {
		k, err := d.Token()
		if err != nil {
			return nil, err
		}
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			return nil, err
		}
		fields = append(fields, strictyaml.Field{Key: k.(string), Value: v})
	}
	return fields, nil
}

func build(fields []strictyaml.Field) json.RawMessage {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, f := range fields {
		if i > 0 {
			b.WriteByte(',')
		}
		k, _ := strictyaml.Marshal(f.Key) // a string always marshals
		b.Write(k)
		b.WriteByte(':')
		b.Write(f.Value)
	}
	b.WriteByte('}')
	return b.Bytes()
}

func get(fields []strictyaml.Field, key string) json.RawMessage {
	for _, f := range fields {
		if f.Key == key {
			return f.Value
		}
	}
	return nil
}

func set(fields []strictyaml.Field, key string, v json.RawMessage) []strictyaml.Field {
	for i := range fields {
		if fields[i].Key == key {
			fields[i].Value = v
			return fields
		}
	}
	return append(fields, strictyaml.Field{Key: key, Value: v})
}
