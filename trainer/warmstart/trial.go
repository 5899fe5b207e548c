package warmstart

import (
	"encoding/json"
	"strings"

	"harness-s/model/chat"
	"harness-s/model/tokenizer"
	"harness-s/rollout"
)

type trialRenderer struct {
	tok *tokenizer.Tokenizer
	end int32
}

func newRenderer(tok *tokenizer.Tokenizer) (rollout.Renderer, error) {
	id, _ := tok.ID("<|im_end|>")
	return &trialRenderer{tok, id}, nil
}

const startAssistant = "<|im_start|>assistant\n<think>\n\n</think>\n\n"

func (r *trialRenderer) Start(msgs []chat.Message, tools []chat.Tool) ([]int32, error) {
	var b strings.Builder
	for _, m := range msgs {
		b.WriteString("<|im_start|>" + m.Role + "\n" + m.Content + "<|im_end|>\n")
	}
	return r.tok.Encode(b.String()+startAssistant, true), nil
}
func (r *trialRenderer) CloseTurn(s []int32) []int32 {
	if s[len(s)-1] != r.end {
		return r.tok.Encode("<|im_end|>\n", true)
	}
	return r.tok.Encode("\n", true)
}
func (r *trialRenderer) ToolResults(rs []string) []int32 {
	s := "<|im_start|>user"
	for _, x := range rs {
		s += "\n<tool_response>\n" + x + "\n</tool_response>"
	}
	return r.tok.Encode(s+"<|im_end|>\n"+startAssistant, true)
}
func (r *trialRenderer) User(text string) []int32 {
	return r.tok.Encode("<|im_start|>user\n"+text+"<|im_end|>\n"+startAssistant, true)
}
func (r *trialRenderer) Stop() []int32 { return []int32{r.end} }
func (r *trialRenderer) Text(s []int32) string {
	return strings.TrimSuffix(r.tok.Decode(s), "<|im_end|>")
}
func (r *trialRenderer) Parse(text string, tools []chat.Tool) (p rollout.Parsed) {
	_, rest, ok := strings.Cut(text, "<function=")
	if !ok {
		return p
	}
	name, rest, _ := strings.Cut(rest, ">")
	_, rest, _ = strings.Cut(rest, "<parameter=")
	key, rest, _ := strings.Cut(rest, ">\n")
	v, _, _ := strings.Cut(rest, "\n</parameter>")
	raw, _ := json.Marshal(v)
	if strings.HasPrefix(v, "[") && json.Valid([]byte(v)) {
		raw = []byte(v)
	}
	p.Calls = []chat.ToolCall{{Name: name, Args: []chat.Arg{{Key: key, Value: raw}}}}
	return p
}

func formatCall(c chat.ToolCall) string {
	s := "<tool_call>\n<function=" + c.Name + ">\n"
	for _, a := range c.Args {
		v := string(a.Value)
		var t string
		if json.Unmarshal(a.Value, &t) == nil {
			v = t
		}
		s += "<parameter=" + a.Key + ">\n" + v + "\n</parameter>\n"
	}
	return s + "</function>\n</tool_call>"
}
