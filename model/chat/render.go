package chat

import (
	"errors"
	"fmt"
	"strings"

	"harness-s/model/tokenizer"
)

// RenderOptions says how a conversation is written out.
type RenderOptions struct {
	// Generate ends the text with the opening of an assistant turn.
	Generate bool
	// Thinking opens the think block of that turn for the policy to fill; else the block is written empty.
	Thinking bool
	// KeepThinking keeps the thinking of every assistant turn. The stock template drops it from turns before the last
	// user message, which rewrites earlier tokens.
	KeepThinking bool
}

// Render is the text of a whole conversation, byte for byte what Qwen3.5's chat template gives.
func Render(messages []Message, tools []Tool, o RenderOptions) (string, error) {
	s, err := render(messages, tools, o)
	if err != nil {
		return "", err
	}
	return s.String(), nil
}

// RenderIDs is the token ids of Render's text. Only the markers of the format become special tokens; the same words in
// a message stay text.
func RenderIDs(tok *tokenizer.Tokenizer, messages []Message, tools []Tool, o RenderOptions) ([]int32, error) {
	s, err := render(messages, tools, o)
	if err != nil {
		return nil, err
	}
	return tok.EncodeParts(nil, s.parts...), nil
}

func render(messages []Message, tools []Tool, o RenderOptions) (*script, error) {
	lastQuery, err := lastQuery(messages)
	if err != nil {
		return nil, err
	}
	s := &script{}
	if err := s.system(messages[0], tools); err != nil {
		return nil, err
	}
	for i, m := range messages {
		switch m.Role {
		case "system":
			if i > 0 {
				return nil, fmt.Errorf("message %d: a system message must be the first", i)
			}
		case "user":
			s.user(m.Content)
		case "assistant":
			if err := s.assistant(m, o.KeepThinking || i > lastQuery); err != nil {
				return nil, fmt.Errorf("message %d: %w", i, err)
			}
		case "tool":
			s.result(m.Content, i == 0 || messages[i-1].Role != "tool", i == len(messages)-1 || messages[i+1].Role != "tool")
		default:
			return nil, fmt.Errorf("message %d: unknown role %q, want system, user, assistant or tool", i, m.Role)
		}
	}
	if o.Generate {
		s.generate(o.Thinking)
	}
	return s, nil
}

// lastQuery is the index of the last message a user really wrote (tool results also come in user turns).
func lastQuery(messages []Message) (int, error) {
	if len(messages) == 0 {
		return 0, errors.New("no messages")
	}
	for i := len(messages) - 1; i >= 0; i-- {
		text := trim(messages[i].Content)
		if messages[i].Role == "user" && !(strings.HasPrefix(text, resultOpen) && strings.HasSuffix(text, resultClose)) {
			return i, nil
		}
	}
	return 0, errors.New("no user message")
}

// system writes the system turn: tools, their format, and the first message when it is a system message.
func (s *script) system(first Message, tools []Tool) error {
	isSystem := first.Role == "system"
	text := trim(first.Content)
	if len(tools) == 0 {
		if isSystem {
			s.turn("system", text)
		}
		return nil
	}
	s.mark(imStart + "system\n")
	if err := s.tools(tools); err != nil {
		return err
	}
	if isSystem && text != "" {
		s.mark("\n\n")
		s.plain(text)
	}
	s.mark(imEnd + "\n")
	return nil
}

func (s *script) turn(role, text string) {
	s.mark(imStart + role + "\n")
	s.plain(text)
	s.mark(imEnd + "\n")
}

func (s *script) user(text string) { s.turn("user", trim(text)) }

func (s *script) assistant(m Message, withThinking bool) error {
	reasoning, content := m.Reasoning, trim(m.Content)
	if reasoning == "" {
		reasoning, content = splitWritten(content)
	}
	s.mark(imStart + "assistant\n")
	if withThinking {
		s.mark(thinkOpen + "\n")
		s.plain(trim(reasoning))
		s.mark("\n" + thinkClose + "\n\n")
	}
	s.plain(content)
	for i, c := range m.Calls {
		switch {
		case i > 0:
			s.mark("\n")
		case trim(content) != "":
			s.mark("\n\n")
		}
		if err := s.call(c); err != nil {
			return err
		}
	}
	s.mark(imEnd + "\n")
	return nil
}

// splitWritten takes the thinking out of an assistant's text, as the template does where none is given apart.
func splitWritten(content string) (reasoning, rest string) {
	first := strings.Index(content, thinkClose)
	if first < 0 {
		return "", content
	}
	reasoning = strings.TrimRight(content[:first], "\n")
	if i := strings.LastIndex(reasoning, thinkOpen); i >= 0 {
		reasoning = reasoning[i+len(thinkOpen):]
	}
	last := strings.LastIndex(content, thinkClose)
	return strings.TrimLeft(reasoning, "\n"), strings.TrimLeft(content[last+len(thinkClose):], "\n")
}

// result writes one tool result. Neighbouring results share a user turn.
func (s *script) result(text string, opens, closes bool) {
	if opens {
		s.mark(imStart + "user")
	}
	s.mark("\n" + resultOpen + "\n")
	s.plain(trim(text))
	s.mark("\n" + resultClose)
	if closes {
		s.mark(imEnd + "\n")
	}
}

func (s *script) generate(thinking bool) {
	s.mark(imStart + "assistant\n" + thinkOpen + "\n")
	if !thinking {
		s.mark("\n" + thinkClose + "\n\n")
	}
}
