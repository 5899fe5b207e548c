package evolve

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"harness-s/internal/strictyaml"
	"harness-s/model/chat"
	"harness-s/rollout"
	"harness-s/rollout/harness"
)

// Reasons for which the gate turns a candidate away.
const (
	BadSchema     = "schema"     // no valid spec of this environment
	TooLarge      = "size"       // more bytes than allowed
	SameContent   = "same"       // the content of its parent or of another harness
	BadManifest   = "components" // changes a component that its manifest does not name
	LosesTask     = "task"       // no longer tells the policy the task, or asks for a variable that tasks lack
	Leaks         = "leak"       // holds something of a training or validation task
	Forges        = "forged"     // speaks in the policy's name
	SmokeBroken   = "broken"     // its attempt did not end
	SmokeCrash    = "crash"      // its attempt could not be made
	PromptTooLong = "prompt"     // the rendered prompt leaves no room for a turn
	Unmeasured    = "unmeasured" // every validation attempt was broken
)

// proposal is a candidate as it is kept: text, so that nothing of it is shared with its parent.
type proposal struct {
	YAML     string   `json:"yaml"`              // canonical; with a problem, as far as it can be written
	Problem  string   `json:"problem,omitempty"` // why it is no valid spec
	Manifest Manifest `json:"manifest"`
}

// propose writes a candidate down. tools are the environment's.
func propose(c Candidate, parent *harness.Spec, d Direction, tools []chat.Tool) (p proposal) {
	p.Manifest = c.Manifest.plain()
	if c.Spec == nil {
		p.Problem = cmp.Or(plainText(c.Problem, maxSentence), "the candidate has no spec")
		return p
	}
	s := *c.Spec
	s.ID, s.Parent, s.Direction = "candidate", parent.ID, d.Description
	if err := s.Validate(tools); err != nil {
		p.Problem = err.Error()
		if text, err := json.Marshal(&s); err == nil {
			p.YAML = string(text[:min(len(text), harness.MaxFileBytes)]) // JSON is YAML; for people alone
		}
		return p
	}
	p.YAML = string(s.YAML())
	if _, err := harness.Parse("candidate", []byte(p.YAML)); err != nil {
		p.Problem = err.Error()
	}
	return p
}

// maxChanges bounds the sentences of a manifest.
const maxChanges = 32

// plain is the manifest with its texts as single lines of bounded length: a model may have written it.
func (m Manifest) plain() Manifest {
	out := Manifest{Components: m.Components[:min(len(m.Components), maxChanges)], Evidence: m.Evidence}
	for _, c := range m.Changes[:min(len(m.Changes), maxChanges)] {
		out.Changes = append(out.Changes, plainText(c, maxSentence))
	}
	out.Why, out.Expect = plainText(m.Why, maxSentence), plainText(m.Expect, maxSentence)
	return out
}

// gate says whether a candidate may become a child.
type gate struct {
	tools    []chat.Tool
	maxBytes int
	leaks    *leaks
	vars     []map[string]string // of tasks, one for each set of variables
	byHash   map[string]string   // content hash to id: the base, all children, and those on their way
}

func newGate(o *Options) *gate {
	tasks := slices.Concat(o.Train, o.Validation)
	g := &gate{
		tools: o.Tools, maxBytes: o.Size.MaxBytes, byHash: map[string]string{o.Base.Hash(): o.Base.ID},
		leaks: newLeaks(tasks, o.Secrets, known(o.Base, o.Tools)),
	}
	seen := map[string]bool{}
	for _, t := range tasks {
		names := make([]string, 0, len(t.Vars))
		for k := range t.Vars {
			names = append(names, k)
		}
		slices.Sort(names)
		if key := strings.Join(names, " "); !seen[key] {
			seen[key] = true
			g.vars = append(g.vars, t.Vars)
		}
	}
	return g
}

// rejection is why a candidate was turned away; what is told to its editor.
type rejection struct{ reason, detail string }

func (r *rejection) Error() string { return r.reason + ": " + r.detail }

func reject(reason, format string, args ...any) *rejection {
	return &rejection{reason, fmt.Sprintf(format, args...)}
}

// static checks all that can be checked without an attempt, and gives the child with its id. The child's manifest names
// what changed in fact.
func (g *gate) static(p *proposal, id string, parent *harness.Spec) (*harness.Spec, *rejection) {
	if p.Problem != "" {
		return nil, reject(BadSchema, "%s", p.Problem)
	}
	if max := g.maxBytes; max > 0 && len(p.YAML) > max {
		return nil, reject(TooLarge, "%d bytes of YAML; at most %d", len(p.YAML), max)
	}
	s, err := harness.Parse(id, []byte(p.YAML))
	if err != nil {
		return nil, reject(BadSchema, "%v", err)
	}
	s.ID = id
	for _, check := range []func() *rejection{
		func() *rejection { return g.differs(s) },
		func() *rejection { return components(p, parent, s) },
		func() *rejection { return g.keepsTask(s, parent) },
		func() *rejection { return g.texts(s) },
	} {
		if r := check(); r != nil {
			return nil, r
		}
	}
	g.byHash[s.Hash()] = id
	return s, nil
}

func (g *gate) differs(s *harness.Spec) *rejection {
	if other, ok := g.byHash[s.Hash()]; ok {
		return reject(SameContent, "the same content as %s", other)
	}
	return nil
}

// components compares the child with its parent, component by component, and puts the changes into the manifest.
func components(p *proposal, parent, child *harness.Spec) *rejection {
	changed := changes(parent, child)
	for _, claim := range p.Manifest.Components {
		if !slices.Contains(componentNames, claim) {
			return reject(BadManifest, "the manifest names %q; components are %s", claim, strings.Join(componentNames, ", "))
		}
	}
	for _, name := range changed {
		if !slices.Contains(p.Manifest.Components, name) {
			return reject(BadManifest, "%s changed, but the manifest names only [%s]", name, strings.Join(p.Manifest.Components, ", "))
		}
	}
	p.Manifest.Components = changed
	return nil
}

// changes names the components in which two specs differ.
func changes(a, b *harness.Spec) []string {
	var out []string
	x, y := parts(a), parts(b)
	for i, name := range componentNames {
		if !bytes.Equal(x[i], y[i]) {
			out = append(out, name)
		}
	}
	return out
}

var componentNames = []string{"prompt", "tools", "memory", "rules"}

// parts are the canonical components in the order of componentNames; a default spelled out equals one left out.
func parts(s *harness.Spec) [4]json.RawMessage {
	prompt, memory := s.Prompt, s.Memory
	if prompt.ToolsBlock == harness.ToolsFull {
		prompt.ToolsBlock = ""
	}
	if memory.Mode == harness.MemoryAll {
		memory.Mode = ""
	}
	var out [4]json.RawMessage
	for i, v := range []any{prompt, s.Tools, memory, s.Rules} {
		j, err := strictyaml.Marshal(v)
		if err != nil {
			panic("evolve: " + err.Error()) // a parsed spec is plain data
		}
		out[i] = j
	}
	return out
}

// keepsTask checks that the policy is still told the task, and that every task has the variables asked for.
func (g *gate) keepsTask(s, parent *harness.Spec) *rejection {
	need, _ := harness.Variables(parent.Prompt.User) // valid: the parent is
	have, _ := harness.Variables(s.Prompt.System + "\n" + s.Prompt.User)
	for _, name := range need {
		if !slices.Contains(have, name) {
			return reject(LosesTask, "the prompt no longer says {{%s}}", name)
		}
	}
	for _, vars := range g.vars {
		if _, err := s.Messages(vars); err != nil {
			return reject(LosesTask, "%v", err)
		}
	}
	return nil
}

// marks of the chat format: text that holds them imitates another speaker.
var marks = []string{"<|im_start|>", "<|im_end|>", "<|endoftext|>"}

// texts scans everything the spec says.
func (g *gate) texts(s *harness.Spec) *rejection {
	for _, p := range texts(s) {
		for _, m := range marks {
			if strings.Contains(p.text, m) {
				return reject(Forges, "%s holds %s, a mark of the chat format", p.at, m)
			}
		}
		if what := g.leaks.find(p.text); what != "" {
			return reject(Leaks, "%s holds %s", p.at, what)
		}
	}
	return nil
}

// unquote is the text of a JSON value: what a string says, else the JSON.
func unquote(v json.RawMessage) string {
	var s string
	if json.Unmarshal(v, &s) == nil {
		return s
	}
	return string(v)
}

// smoke is what one attempt under a candidate came to.
type smoke struct {
	Status rollout.Status `json:"status,omitempty"`
	Turns  int            `json:"turns"`
	Error  string         `json:"error,omitempty"` // the attempt could not be made, or why it is broken
	Made   bool           `json:"made"`
}

// judge is the gate's verdict on it.
func (s smoke) judge() *rejection {
	switch {
	case !s.Made:
		return reject(SmokeCrash, "the attempt could not be made: %s", s.Error)
	case s.Status.Broken():
		return reject(SmokeBroken, "the attempt ended as %s: %s", s.Status, s.Error)
	case s.Status == rollout.TokenLimit && s.Turns == 0:
		return reject(PromptTooLong, "the prompt leaves no room for a turn within the context")
	}
	return nil
}
