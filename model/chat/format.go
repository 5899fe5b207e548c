package chat

import (
	"encoding/json"
	"fmt"
	"strings"

	"harness-s/model/tokenizer"
)

// Tokens and markers of Qwen3.5's format.
const (
	imStart    = "<|im_start|>"
	imEnd      = "<|im_end|>"
	endOfText  = "<|endoftext|>"
	thinkOpen  = "<think>"
	thinkClose = "</think>"

	callOpen      = "<tool_call>"
	callClose     = "</tool_call>"
	functionOpen  = "<function="
	functionClose = "</function>"
	paramOpen     = "<parameter="
	paramClose    = "</parameter>"
	resultOpen    = "<tool_response>"
	resultClose   = "</tool_response>"
)

// EOS ends a turn, Pad fills batches: what tokenizer_config.json names.
const (
	EOS = imEnd
	Pad = endOfText
)

// AddedTokens is what a tokenizer for this format has beside its vocabulary, in Qwen's order. The markers are not
// special: servers must show them to their tool parsers.
func AddedTokens() []tokenizer.Added {
	return []tokenizer.Added{
		{Content: endOfText, Special: true}, {Content: imStart, Special: true}, {Content: imEnd, Special: true},
		{Content: callOpen}, {Content: callClose}, {Content: resultOpen}, {Content: resultClose},
		{Content: thinkOpen}, {Content: thinkClose},
	}
}

// The system block around the tools, word for word what Qwen3.5 was trained on.
const (
	toolsHead = "# Tools\n\nYou have access to the following functions:\n\n<tools>"
	toolsTail = "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n" +
		"<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n" +
		"<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple lines\n" +
		"</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n" +
		"- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within <tool_call></tool_call> XML tags\n" +
		"- Required parameters MUST be specified\n" +
		"- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT after\n" +
		"- If there is no function call available, answer the question like normal with your current knowledge and do not tell the user about function calls\n" +
		"</IMPORTANT>"
)

// script is a text in the making. Markers become token ids; what people, tasks and tools wrote is plain text whatever
// it contains.
type script struct {
	parts []tokenizer.Part
}

func (s *script) mark(text string) {
	s.parts = append(s.parts, tokenizer.Part{Text: text, Special: true})
}
func (s *script) plain(text string) { s.parts = append(s.parts, tokenizer.Part{Text: text}) }

func (s *script) String() string {
	var b strings.Builder
	for _, p := range s.parts {
		b.WriteString(p.Text)
	}
	return b.String()
}

// tools writes the list of tools and the format of calls.
func (s *script) tools(tools []Tool) error {
	s.mark(toolsHead)
	for _, t := range tools {
		line, err := toolLine(t)
		if err != nil {
			return err
		}
		s.mark("\n")
		s.plain(line)
	}
	s.mark(toolsTail)
	return nil
}

// toolLine is the JSON of one tool, as the OpenAI API describes it.
func toolLine(t Tool) (string, error) {
	head := `{"type": "function", "function": {"name": ` + quote(t.Name)
	if t.Description != "" {
		head += `, "description": ` + quote(t.Description)
	}
	if len(t.Parameters) > 0 {
		schema, err := pyJSON(t.Parameters)
		if err != nil {
			return "", fmt.Errorf("tool %q: parameters: %w", t.Name, err)
		}
		head += `, "parameters": ` + schema
	}
	return head + "}}", nil
}

// call writes one call.
func (s *script) call(c ToolCall) error {
	s.mark(callOpen + "\n" + functionOpen)
	s.plain(c.Name)
	s.mark(">\n")
	for _, a := range c.Args {
		value, err := pyString(a.Value)
		if err != nil {
			return fmt.Errorf("call of %q: argument %q: %w", c.Name, a.Key, err)
		}
		s.mark(paramOpen)
		s.plain(a.Key)
		s.mark(">\n")
		s.plain(value)
		s.mark("\n" + paramClose + "\n")
	}
	s.mark(functionClose + "\n" + callClose)
	return nil
}

// FormatCall is a call as the policy writes it; Parse reads it back. The format has no escapes: a value that holds a
// closing marker of the format does not survive. The error names an argument that is not JSON.
func FormatCall(c ToolCall) (string, error) {
	var s script
	if err := s.call(c); err != nil {
		return "", err
	}
	return s.String(), nil
}

// StringArg is an argument with a text value.
func StringArg(key, value string) Arg {
	return Arg{Key: key, Value: jsonString(value)}
}

func jsonString(s string) json.RawMessage { return json.RawMessage(quote(s)) }
