package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Bounds on what is read of one turn.
const (
	maxTurnBytes = 1 << 20
	maxCalls     = 16
	maxArgs      = 64  // a call
	maxNameBytes = 128 // names of tools and arguments
)

// Parsed is what a turn of the policy says. Errors tell the policy, in its own terms, what could not be read; a call
// that could not be read is not in Calls.
type Parsed struct {
	Content   string
	Reasoning string
	Calls     []ToolCall
	Errors    []string
}

// Parse reads an assistant turn. It takes Qwen3.5's calls and JSON calls ({"name", "arguments"} in <tool_call>), and
// forgives missing closers where nothing is lost by it, text around calls, a missing <tool_call>. Values are typed by
// the tool's schema: text where it says string or nothing, else JSON (or a Python literal), else text again, for the
// tool to refuse. Names of tools are not checked. Time is linear in the text.
func Parse(text string, tools []Tool) Parsed { return parse(text, tools, false) }

func parse(text string, tools []Tool, thinking bool) Parsed {
	if len(text) > maxTurnBytes {
		return Parsed{Errors: []string{fmt.Sprintf("The turn is longer than %d bytes and was not read.", maxTurnBytes)}}
	}
	text = strings.ToValidUTF8(text, "\uFFFD")
	reasoning, rest, err := splitThinking(text, thinking)
	p := parser{lexer: lexer{text: rest}, tools: tools}
	p.out.Reasoning = trim(reasoning)
	if err != nil {
		p.fail(err)
	}
	p.run()
	return p.out
}

// splitThinking cuts a turn into its thinking and the rest. A call ends thinking that is never closed; a call inside
// closed thinking is only thought of.
func splitThinking(text string, open bool) (reasoning, rest string, err error) {
	if body, ok := strings.CutPrefix(strings.TrimLeftFunc(text, isPySpace), thinkOpen); ok {
		text, open = body, true
	}
	call, end := strings.Index(text, callOpen), strings.Index(text, thinkClose)
	switch {
	case end < 0 && !open, end >= 0 && !open && call >= 0 && call < end:
		return "", text, nil
	case end < 0 && call < 0:
		return text, "", nil
	case end < 0:
		return text[:call], text[call:], nil
	}
	reasoning, rest = text[:end], text[end+len(thinkClose):]
	if call >= 0 && call < end && !strings.Contains(rest, functionOpen) && !strings.Contains(rest, callOpen) {
		err = tell("A tool call inside %s is not run. Write it after %s.", thinkOpen, thinkClose)
	}
	return reasoning, rest, err
}

// parser walks over the markers of a turn.
type parser struct {
	lexer
	tools   []Tool
	out     Parsed
	content strings.Builder
	tried   int // calls begun, read or not
}

func (p *parser) fail(err error) { p.out.Errors = append(p.out.Errors, err.Error()) }

// run reads the turn: text, and calls by their opening markers.
func (p *parser) run() {
	defer func() { p.out.Content = trim(p.content.String()) }()
	from := 0
	for {
		t, ok := p.next()
		if !ok {
			p.content.WriteString(p.text[from:])
			return
		}
		if t.kind != tagCall && t.kind != tagFunction {
			continue // a stray marker is text
		}
		p.content.WriteString(p.text[from:t.start])
		if p.tried == maxCalls {
			p.fail(tell("Only the first %d tool calls of a turn are read.", maxCalls))
			return
		}
		p.tried++
		call, err := p.readCall(t)
		if err == nil {
			p.out.Calls = append(p.out.Calls, call)
		} else {
			p.fail(tell("Tool call %d could not be read: %w", p.tried, err))
		}
		p.skipBlank()
		if strings.HasPrefix(p.text[p.pos:], callClose) {
			p.pos += len(callClose)
		}
		from = p.pos
	}
}

// readCall reads a call behind its opening marker and leaves pos behind what it read.
func (p *parser) readCall(t tag) (ToolCall, error) {
	if t.kind == tagFunction {
		return p.readFunction(t.name)
	}
	p.skipBlank()
	if strings.HasPrefix(p.text[p.pos:], "{") {
		return p.readJSONCall()
	}
	inner, ok := p.next()
	switch {
	case !ok:
		p.pos = len(p.text)
	case inner.kind == tagFunction:
		return p.readFunction(inner.name)
	case inner.kind == tagCallClose || inner.kind == tagCall:
		p.pos = inner.start
	}
	return ToolCall{}, tell("there is no %sNAME> after %s.", functionOpen, callOpen)
}

// readFunction reads the parameters of a call, up to its end or to where another thing begins.
func (p *parser) readFunction(name string) (ToolCall, error) {
	c := ToolCall{Name: name}
	types := p.typesOf(name)
	seen := map[string]bool{}
	var firstErr error
	body := p.pos
	for {
		t, ok := p.next()
		switch {
		case !ok:
			if len(c.Args) == 0 && firstErr == nil {
				firstErr = tell("the call of %s was cut off: %s is missing.", name, functionClose)
			}
			p.pos = len(p.text)
			return c, firstErr
		case t.kind == tagFunctionClose:
			if len(c.Args) == 0 && firstErr == nil {
				c.Args = argsFromBody(p.text[body:t.start])
			}
			return c, firstErr
		case t.kind == tagCallClose || t.kind == tagCall || t.kind == tagFunction:
			p.pos = t.start
			return c, firstErr
		case t.kind != tagParam:
			continue
		}
		value, err := p.readValue(t.name)
		switch {
		case firstErr != nil:
		case err != nil:
			firstErr = err
		case seen[t.name]:
			firstErr = tell("parameter %s is given twice.", t.name)
		case len(c.Args) == maxArgs:
			firstErr = tell("a call has at most %d parameters.", maxArgs)
		default:
			seen[t.name] = true
			c.Args = append(c.Args, Arg{Key: t.name, Value: typed(value, types[t.name])})
		}
	}
}

// readValue reads a parameter's value. A missing closer is forgiven where the next marker shows the end, not at the end
// of the turn: half a value must not run.
func (p *parser) readValue(name string) (string, error) {
	from := p.pos
	for {
		t, ok := p.next()
		switch {
		case !ok:
			p.pos = len(p.text)
			return "", tell("the value of %s was cut off: %s is missing.", name, paramClose)
		case t.kind == tagParamClose:
		case t.kind == tagParam || t.kind == tagFunctionClose || t.kind == tagCallClose:
			p.pos = t.start
		default:
			continue
		}
		value := p.text[from:t.start]
		value = strings.TrimPrefix(value, "\n")
		return strings.TrimSuffix(value, "\n"), nil
	}
}

// readJSONCall reads {"name": ..., "arguments": {...}}.
func (p *parser) readJSONCall() (ToolCall, error) {
	d := json.NewDecoder(strings.NewReader(p.text[p.pos:]))
	var raw struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	}
	if err := d.Decode(&raw); err != nil {
		p.skipTo(callClose)
		return ToolCall{}, tell("its JSON is broken (%s).", jsonTrouble(err))
	}
	p.pos += int(d.InputOffset())
	if raw.Name == "" || len(raw.Name) > maxNameBytes {
		return ToolCall{}, tell(`its JSON has no "name".`)
	}
	args, err := jsonArgs(raw.Arguments)
	if err != nil {
		return ToolCall{}, err
	}
	return ToolCall{Name: raw.Name, Args: args}, nil
}

func jsonTrouble(err error) string {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return syntax.Error()
	}
	if strings.Contains(err.Error(), "EOF") {
		return "it ends too early"
	}
	return "name must be text and arguments an object"
}

// jsonArgs reads an object of arguments in its order; some models write the object as a string.
func jsonArgs(raw json.RawMessage) ([]Arg, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	if raw[0] == '"' {
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return nil, err
		}
		raw = json.RawMessage(s)
	}
	bad := tell(`its "arguments" must be an object.`)
	if !json.Valid(raw) {
		return nil, bad
	}
	d := json.NewDecoder(strings.NewReader(string(raw)))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return nil, bad
	}
	var args []Arg
	seen := map[string]bool{}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, bad
		}
		a := Arg{Key: key.(string)}
		if err := d.Decode(&a.Value); err != nil {
			return nil, bad
		}
		switch {
		case seen[a.Key]:
			return nil, tell("parameter %.*s is given twice.", maxNameBytes, a.Key)
		case len(args) == maxArgs:
			return nil, tell("a call has at most %d parameters.", maxArgs)
		}
		seen[a.Key] = true
		args = append(args, a)
	}
	return args, nil
}

// argsFromBody takes a JSON object written in place of parameters.
func argsFromBody(body string) []Arg {
	body = trim(body)
	if !strings.HasPrefix(body, "{") {
		return nil
	}
	args, err := jsonArgs(json.RawMessage(body))
	if err != nil {
		return nil // other text between markers is ignored; the tool says which parameter it misses
	}
	return args
}

// complaint is what a policy is told of its own writing: whole sentences, unlike errors meant for people.
type complaint struct {
	text  string
	cause error
}

func (c *complaint) Error() string { return c.text }
func (c *complaint) Unwrap() error { return c.cause }

// tell is fmt.Errorf for a complaint.
func tell(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &complaint{err.Error(), errors.Unwrap(err)}
}
