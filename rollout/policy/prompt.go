package policy

import (
	"bytes"
	"encoding/json"
	"fmt"

	"harness-s/model/tokenizer"
)

// prompts is the union of completions: a text, texts, ids, or lists of ids.
type prompts struct {
	ids  [][]int32
	text []string // parallel to ids; "" when the ids were given
}

// readPrompts parses the prompt field; texts are encoded with special tokens recognised.
func readPrompts(raw json.RawMessage, tok *tokenizer.Tokenizer) (prompts, *apiError) {
	missing := badValue("prompt", "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)")
	if len(raw) == 0 || string(raw) == "null" || string(raw) == `""` {
		return prompts{}, missing
	}
	var p prompts
	if tok == nil && bytes.IndexByte(raw, '"') >= 0 {
		return p, noTokenizer("prompt")
	}
	if raw[0] != '[' {
		var text string
		if err := json.Unmarshal(raw, &text); err != nil {
			return p, validation("string_type", "body.prompt", "Input should be a valid string", "")
		}
		p.add(tok, text)
		return p, p.check()
	}
	var items []json.RawMessage
	if ids, err := readIDs(raw, "body.prompt"); err == nil {
		if len(ids) == 0 {
			return p, badValue("", "You must pass at least one prompt")
		}
		p.ids, p.text = [][]int32{ids}, []string{""}
		return p, nil
	} else if json.Unmarshal(raw, &items) != nil || len(items) == 0 || (items[0][0] != '[' && items[0][0] != '"') {
		return p, err
	}
	if len(items) > maxPromptList {
		return p, badValue("prompt", "at most %d prompts in one request, got %d", maxPromptList, len(items))
	}
	for i, item := range items {
		var text string
		if item[0] == '"' && json.Unmarshal(item, &text) == nil {
			p.add(tok, text)
			continue
		}
		ids, err := readIDs(item, fmt.Sprintf("body.prompt.%d", i))
		if err != nil {
			return p, err
		}
		p.ids, p.text = append(p.ids, ids), append(p.text, "")
	}
	return p, p.check()
}

func (p *prompts) add(tok *tokenizer.Tokenizer, text string) {
	p.ids, p.text = append(p.ids, tok.Encode(text, true)), append(p.text, text)
}

func (p *prompts) check() *apiError {
	for _, ids := range p.ids {
		if len(ids) == 0 {
			return badValue("", "The decoder prompt cannot be empty")
		}
	}
	return nil
}

// readIDs parses a JSON list of token ids. Written by hand: prompts are most of what a rollout sends.
func readIDs(raw []byte, loc string) ([]int32, *apiError) {
	bad := func(i int) *apiError {
		return validation("int_type", fmt.Sprintf("%s.%d", loc, i), "Input should be a valid integer", "")
	}
	if len(raw) < 2 || raw[0] != '[' {
		return nil, validation("list_type", loc, "Input should be a valid list", "")
	}
	ids, at := make([]int32, 0, len(raw)/4), skipSpace(raw, 1)
	if raw[at] == ']' {
		return ids, nil
	}
	for {
		if raw[at] == '-' {
			return nil, validation("greater_than_equal", fmt.Sprintf("%s.%d", loc, len(ids)), "Input should be greater than or equal to 0", "negative")
		}
		v, start := int64(0), at
		for ; at < len(raw) && raw[at] >= '0' && raw[at] <= '9' && at-start < 10; at++ {
			v = v*10 + int64(raw[at]-'0')
		}
		if at == start {
			return nil, bad(len(ids))
		}
		ids = append(ids, int32(min(v, 1<<31-1))) // ids of no vocabulary are refused later
		switch at = skipSpace(raw, at); {
		case raw[at] == ',':
			at = skipSpace(raw, at+1)
		case raw[at] == ']':
			return ids, nil
		default:
			return nil, bad(len(ids) - 1)
		}
	}
}

// skipSpace moves over white space; raw is a valid JSON value that ends in a bracket, so it never runs out.
func skipSpace(raw []byte, at int) int {
	for at < len(raw)-1 && (raw[at] == ' ' || raw[at] == '\n' || raw[at] == '\t' || raw[at] == '\r') {
		at++
	}
	return at
}
