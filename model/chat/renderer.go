package chat

import (
	"fmt"
	"slices"

	"harness-s/model/tokenizer"
)

// Renderer builds the token sequence of a conversation by appending. What the policy sampled stays as it was sampled:
//
//	tokens = Start(prompt)
//	loop:    tokens += sampled; tokens += CloseTurn(sampled); tokens += ToolResults(...) or User(...)
//
// The result equals RenderIDs with KeepThinking of the same conversation where the policy writes as the template does
// and in the tokenizer's own tokens. A Renderer is safe for concurrent use.
type Renderer struct {
	tok      *tokenizer.Tokenizer
	thinking bool
	start    int32 // <|im_start|>
	end      int32 // <|im_end|>
	stop     []int32
}

// NewRenderer makes a Renderer. With thinking the policy's turns begin inside an open think block; without, the block
// is given empty. The tokenizer must have Qwen's turn tokens.
func NewRenderer(tok *tokenizer.Tokenizer, thinking bool) (*Renderer, error) {
	r := &Renderer{tok: tok, thinking: thinking}
	var ok bool
	if r.start, ok = tok.ID(imStart); !ok {
		return nil, fmt.Errorf("chat: the tokenizer has no %s token", imStart)
	}
	if r.end, ok = tok.ID(imEnd); !ok {
		return nil, fmt.Errorf("chat: the tokenizer has no %s token", imEnd)
	}
	r.stop = []int32{r.end}
	if id, ok := tok.ID(endOfText); ok {
		r.stop = append(r.stop, id)
	}
	return r, nil
}

// Start is the prompt up to where the policy's first turn begins: messages (system, few-shot turns, the task) with the
// thinking of few-shot turns kept.
func (r *Renderer) Start(messages []Message, tools []Tool) ([]int32, error) {
	ids, err := RenderIDs(r.tok, messages, tools, RenderOptions{Generate: true, Thinking: r.thinking, KeepThinking: true})
	if err != nil {
		return nil, fmt.Errorf("chat: %w", err)
	}
	return ids, nil
}

// CloseTurn is what follows a turn as sampled: the line end after <|im_end|>, and <|im_end|> itself where the policy
// did not write it (it was cut, or ended otherwise).
func (r *Renderer) CloseTurn(sampled []int32) []int32 {
	var s script
	if len(sampled) == 0 || sampled[len(sampled)-1] != r.end {
		s.mark(imEnd)
	}
	s.mark("\n")
	return r.tok.EncodeParts(nil, s.parts...)
}

// ToolResults is the turn that answers calls, in their order, up to where the next turn of the policy begins.
func (r *Renderer) ToolResults(texts []string) []int32 {
	var s script
	for i, text := range texts {
		s.result(text, i == 0, i == len(texts)-1)
	}
	s.generate(r.thinking)
	return r.tok.EncodeParts(nil, s.parts...)
}

// User is a user turn, up to where the next turn of the policy begins.
func (r *Renderer) User(text string) []int32 {
	var s script
	s.user(text)
	s.generate(r.thinking)
	return r.tok.EncodeParts(nil, s.parts...)
}

// Stop lists the ids that end a turn.
func (r *Renderer) Stop() []int32 { return slices.Clone(r.stop) }

// Text is what the policy wrote in a turn, without the token that ended it.
func (r *Renderer) Text(sampled []int32) string {
	if n := len(sampled); n > 0 && slices.Contains(r.stop, sampled[n-1]) {
		sampled = sampled[:n-1]
	}
	return r.tok.Decode(sampled)
}

// Parse reads a turn's text (Text), which with thinking begins inside the think block.
func (r *Renderer) Parse(text string, tools []Tool) Parsed { return parse(text, tools, r.thinking) }
