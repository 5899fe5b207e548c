package harness

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"unicode/utf8"

	"harness-s/internal/strictyaml"
	"harness-s/model/chat"
)

// Bounds of a spec. Evolved specs come from a model: nothing in them may grow without end.
const (
	MaxSystemBytes    = 16 << 10
	MaxUserBytes      = 8 << 10
	MaxRuleBytes      = 2 << 10
	MaxDirectionBytes = 1 << 10
	MaxShots          = 32
	MaxShotBytes      = 4 << 10
	MaxTools          = 64
	MaxTurnsLimit     = 1000
)

var validID = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`)

// Validate checks the spec, also against the environment's tools where env is not nil.
func (s *Spec) Validate(env []chat.Tool) error { return first(s.problems(env)) }

// problems lists everything wrong with the spec. env nil leaves out what needs the environment's tools.
func (s *Spec) problems(env []chat.Tool) []strictyaml.Problem {
	c := checker{spec: s, doc: s.doc}
	if c.doc == nil {
		c.doc = &strictyaml.Doc{File: "harness " + s.ID}
	}
	c.labels()
	c.prompt()
	c.tools(env)
	c.memory()
	c.rules(env)
	return c.found
}

type checker struct {
	spec  *Spec
	doc   *strictyaml.Doc
	found []strictyaml.Problem
}

func (c *checker) fail(path, format string, args ...any) {
	c.found = append(c.found, c.doc.Problem(path, path+": "+format, args...))
}

// text checks one piece of text. Control characters are refused: they are never meant and some end a turn.
func (c *checker) text(path, s string, max int, required bool) {
	switch {
	case required && s == "":
		c.fail(path, "missing")
	case len(s) > max:
		c.fail(path, "%d bytes; at most %d", len(s), max)
	case !utf8.ValidString(s):
		c.fail(path, "not valid UTF-8")
	default:
		for _, r := range s {
			if r < ' ' && r != '\n' && r != '\t' || r == 0x7f {
				c.fail(path, "control character %U", r)
				return
			}
		}
	}
}

func (c *checker) template(path, s string) []string {
	names, err := Variables(s)
	if err != nil {
		c.fail(path, "%v", err)
	}
	return names
}

func (c *checker) labels() {
	s := c.spec
	if !validID.MatchString(s.ID) {
		c.fail("id", "%q: want lower-case letters, digits, - and _, at most 64", s.ID)
	}
	c.text("direction", s.Direction, MaxDirectionBytes, s.Parent != "")
	switch {
	case s.ID == BaseID && s.Parent != "":
		c.fail("parent", "%s has no parent", BaseID)
	case s.ID != BaseID && s.Parent == "":
		c.fail("parent", "missing; only %s has none", BaseID)
	case s.Parent != "" && !validID.MatchString(s.Parent):
		c.fail("parent", "%q is not an id", s.Parent)
	case s.Parent != "" && s.Parent == s.ID:
		c.fail("parent", "a harness cannot be its own parent")
	}
}

func (c *checker) prompt() {
	p := c.spec.Prompt
	c.text("prompt.system", p.System, MaxSystemBytes, false)
	c.template("prompt.system", p.System)
	c.text("prompt.user", p.User, MaxUserBytes, true)
	if p.User != "" && len(c.template("prompt.user", p.User)) == 0 {
		c.fail("prompt.user", "uses no variable of the task, such as {{question}}")
	}
	if b := p.ToolsBlock; b != "" && b != ToolsFull && b != ToolsNone {
		c.fail("prompt.tools_block", "%q: want %s or %s", b, ToolsFull, ToolsNone)
	}
	if len(p.FewShot) > MaxShots {
		c.fail("prompt.few_shot", "%d turns; at most %d", len(p.FewShot), MaxShots)
	}
	for i, shot := range p.FewShot {
		path := fmt.Sprintf("prompt.few_shot[%d]", i)
		c.text(path+".content", shot.Content, MaxShotBytes, len(shot.Calls) == 0)
		c.shotOrder(path, i)
		for j, call := range shot.Calls {
			c.shotCall(fmt.Sprintf("%s.calls[%d]", path, j), call)
		}
		if len(shot.Calls) > 0 && shot.Role != "assistant" {
			c.fail(path+".calls", "only an assistant turn has calls")
		}
	}
	if n := len(p.FewShot); n > 0 && p.FewShot[n-1].Role != "assistant" {
		c.fail(fmt.Sprintf("prompt.few_shot[%d].role", n-1), "the examples end with an assistant turn")
	}
}

func (c *checker) shotCall(path string, call ShotCall) {
	c.text(path+".name", call.Name, 64, true)
	for _, a := range call.Arguments {
		if len(a.Value) > MaxShotBytes || !json.Valid(a.Value) {
			c.fail(path+".arguments", "%q: want JSON of at most %d bytes", a.Key, MaxShotBytes)
		}
	}
}

// shotOrder checks that turn i may follow the one before it.
func (c *checker) shotOrder(path string, i int) {
	shots := c.spec.Prompt.FewShot
	before := Shot{Role: "assistant"} // an example conversation may begin wherever one may have ended
	if i > 0 {
		before = shots[i-1]
	}
	calls := i > 0 && len(before.Calls) > 0
	switch shots[i].Role {
	case "user":
		if before.Role != "assistant" || calls {
			c.fail(path+".role", "a user turn opens an example or follows an assistant turn without calls")
		}
	case "tool":
		if !calls && before.Role != "tool" {
			c.fail(path+".role", "a tool turn follows an assistant turn with calls")
		}
	case "assistant":
		if before.Role == "assistant" {
			c.fail(path+".role", "an assistant turn follows a user or tool turn")
		}
	default:
		c.fail(path+".role", "%q: want user, assistant or tool", shots[i].Role)
	}
}

func (c *checker) tools(env []chat.Tool) {
	s := c.spec
	if len(s.Tools) > MaxTools {
		c.fail("tools", "%d tools; at most %d", len(s.Tools), MaxTools)
	}
	seen := map[string]bool{}
	for i, t := range s.Tools {
		path := fmt.Sprintf("tools[%d]", i)
		c.text(path+".name", t.Name, 64, true)
		c.text(path+".description", t.Description, MaxRuleBytes, false)
		if seen[t.Name] {
			c.fail(path+".name", "%q stands twice", t.Name)
		}
		seen[t.Name] = true
		if c.spec.Prompt.ToolsBlock == ToolsNone && (t.Description != "" || len(t.Arguments) > 0) {
			c.fail(path, "re-described, but prompt.tools_block: none shows the policy no description")
		}
		for j, a := range t.Arguments {
			argPath := fmt.Sprintf("%s.arguments[%d]", path, j)
			c.text(argPath+".name", a.Name, 64, true)
			c.text(argPath+".description", a.Description, MaxRuleBytes, false)
			if a.Hide == (a.Description != "") {
				c.fail(argPath, "give a description or hide: true")
			}
		}
		if env != nil {
			one := Spec{ID: s.ID, Tools: []Tool{t}}
			if _, err := one.Offer(env); err != nil {
				c.fail(path, "%v", err)
			}
		}
	}
	if env == nil {
		return
	}
	for i, shot := range s.Prompt.FewShot {
		for j, call := range shot.Calls {
			if !s.offers(env, call.Name) {
				c.fail(fmt.Sprintf("prompt.few_shot[%d].calls[%d]", i, j), "tool %q is not offered", call.Name)
			}
		}
	}
}

// offers says whether the policy may call the tool under this spec.
func (s *Spec) offers(env []chat.Tool, name string) bool {
	offered, err := s.Offer(env)
	if err != nil {
		return true // reported by tools
	}
	for _, t := range offered {
		if t.Name == name {
			return true
		}
	}
	return false
}

func (c *checker) memory() {
	m := c.spec.Memory
	switch m.Mode {
	case "", MemoryAll:
		if m.Keep != 0 {
			c.fail("memory.keep", "has no meaning with mode all")
		}
	case MemoryLastK, MemoryNotes:
		if m.Keep < 1 || m.Keep > MaxTurnsLimit {
			c.fail("memory.keep", "%d; want 1 to %d with mode %s", m.Keep, MaxTurnsLimit, m.Mode)
		}
	default:
		c.fail("memory.mode", "%q: want %s, %s or %s", m.Mode, MemoryAll, MemoryLastK, MemoryNotes)
	}
	if n := m.MaxObservationChars; n != 0 && (n < 32 || n > 1<<20) {
		c.fail("memory.max_observation_chars", "%d; want 32 to %d, or leave it out", n, 1<<20)
	}
}

func (c *checker) rules(env []chat.Tool) {
	r := c.spec.Rules
	if r.MaxTurns != nil {
		c.turns("rules.max_turns.turns", r.MaxTurns.Turns)
	}
	if n := r.NudgeBeforeLimit; n != nil {
		c.turns("rules.nudge_before_limit.turns", n.Turns)
		c.text("rules.nudge_before_limit.text", n.Text, MaxRuleBytes, true)
	}
	if v := r.VerifyBeforeFinish; v != nil {
		c.text("rules.verify_before_finish.text", v.Text, MaxRuleBytes, true)
		c.text("rules.verify_before_finish.tool", v.Tool, 64, true)
		if env != nil && v.Tool != "" && !c.spec.offers(env, v.Tool) {
			c.fail("rules.verify_before_finish.tool", "tool %q is not offered", v.Tool)
		}
	}
	for _, rule := range []struct {
		name string
		rule *TextRule
	}{
		{"refuse_repeat", r.RefuseRepeat},
		{"schema_on_error", r.SchemaOnError},
		{"format_repair", r.FormatRepair},
		{"empty_hint", r.EmptyHint},
		{"truncated_hint", r.TruncatedHint},
	} {
		if rule.rule != nil {
			c.text("rules."+rule.name+".text", rule.rule.Text, MaxRuleBytes, rule.name != "schema_on_error")
		}
	}
}

func (c *checker) turns(path string, n int) {
	if n < 1 || n > MaxTurnsLimit {
		c.fail(path, "%d; want 1 to %d", n, MaxTurnsLimit)
	}
}

// ErrPoolTooSmall is what RequireK wraps.
var ErrPoolTooSmall = errors.New("pool too small")
