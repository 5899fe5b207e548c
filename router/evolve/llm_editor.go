package evolve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"harness-s/internal/strictyaml"
	"harness-s/model/chat"
	"harness-s/rollout"
	"harness-s/rollout/harness"
	"harness-s/router/llm"
)

// LLMEditor edits by asking a language model. The model sees the parent, the direction and what is said of its failures, never
// a log of an attempt. What it returns is read as strictly as a spec file; what changed is found by comparing with the parent.
type LLMEditor struct {
	Client *llm.Client
	Seed   int64
	Tools  []chat.Tool // the environment's
}

var _ Editor = (*LLMEditor)(nil)

// editReply is what the model answers.
type editReply struct {
	Candidates []editedChild `json:"candidates"`
}

// editedChild holds the components that a child changes, as the model wrote them.
type editedChild struct {
	Prompt  json.RawMessage `json:"prompt,omitempty"`
	Tools   json.RawMessage `json:"tools,omitempty"`
	Memory  json.RawMessage `json:"memory,omitempty"`
	Rules   json.RawMessage `json:"rules,omitempty"`
	Changes []string        `json:"changes"`
	Why     string          `json:"why"`
	Expect  string          `json:"expect"`
}

// editSchema describes an editReply to the server, components spelled out.
var editSchema = llm.SchemaOf[struct {
	Candidates []struct {
		Prompt  *harness.Prompt `json:"prompt,omitempty"`
		Tools   []harness.Tool  `json:"tools,omitempty"`
		Memory  *harness.Memory `json:"memory,omitempty"`
		Rules   *harness.Rules  `json:"rules,omitempty"`
		Changes []string        `json:"changes"`
		Why     string          `json:"why"`
		Expect  string          `json:"expect"`
	} `json:"candidates"`
}]()

// Edit asks for n children. An answer without a valid child is told what is wrong and asked again; what is invalid to the end
// comes back as candidates without a spec, so that the gate counts them. An error means that the model could not be asked.
func (e *LLMEditor) Edit(ctx context.Context, parent *harness.Spec, d Direction, n, attempt int, problems []string) ([]Candidate, error) {
	var last []Candidate
	_, err := llm.AskJSON(ctx, e.Client, llm.Request{
		Schema: editSchema,
		Seed:   rollout.Seed(e.Seed, Phase, attempt, "edit "+parent.Hash()+" "+d.ID, 0, 0),
		Messages: []llm.Message{
			{Role: "system", Content: editPrompt + llm.Rules},
			{Role: "user", Content: editQuestion(parent, e.Tools, d, n, problems)},
		},
	}, func(r editReply) error {
		last = e.candidates(parent, r.Candidates[:min(len(r.Candidates), n)])
		return usable(last)
	})
	switch {
	case err == nil:
		return last, nil
	case !errors.Is(err, llm.ErrAnswer):
		return nil, fmt.Errorf("edit harness %s for %s: %w", parent.ID, d.ID, err)
	case last == nil:
		last = []Candidate{{Problem: err.Error()}}
	}
	return last, nil
}

// usable is nil when one candidate is valid, else what is wrong with the first.
func usable(all []Candidate) error {
	if len(all) == 0 {
		return errors.New("there are no candidates")
	}
	for _, c := range all {
		if c.Spec != nil {
			return nil
		}
	}
	return errors.New(all[0].Problem)
}

func (e *LLMEditor) candidates(parent *harness.Spec, children []editedChild) []Candidate {
	out := make([]Candidate, 0, len(children))
	for i, c := range children {
		m := Manifest{Changes: c.Changes, Why: c.Why, Expect: c.Expect}
		s, err := c.spec(parent, e.Tools)
		if err != nil {
			out = append(out, Candidate{Problem: fmt.Sprintf("candidate %d: %s", i+1, plainText(err.Error(), maxSentence)), Manifest: m.plain()})
			continue
		}
		m.Components = changes(parent, s)
		out = append(out, Candidate{Spec: s, Manifest: m.plain()})
	}
	return out
}

// spec is a copy of the parent with the child's components, which are read as those of a file.
func (c editedChild) spec(parent *harness.Spec, tools []chat.Tool) (*harness.Spec, error) {
	copied, err := harness.Parse("harness "+parent.ID, parent.YAML())
	if err != nil {
		return nil, err
	}
	own := [4]json.RawMessage{c.Prompt, c.Tools, c.Memory, c.Rules}
	s, err := harness.Parse("candidate", document(parent, own))
	if err != nil {
		return nil, err
	}
	for i, keep := range []func(){
		func() { s.Prompt = copied.Prompt }, func() { s.Tools = copied.Tools },
		func() { s.Memory = copied.Memory }, func() { s.Rules = copied.Rules },
	} {
		if !given(own[i]) {
			keep()
		}
	}
	if err := s.Validate(tools); err != nil {
		return nil, err
	}
	if len(changes(parent, s)) == 0 {
		return nil, errors.New("it changes nothing")
	}
	return s, nil
}

func given(v json.RawMessage) bool { return len(v) > 0 && string(v) != "null" }

// document is a spec file with the given components. JSON is YAML. The prompt of the parent stands where none is given, for a
// spec needs one.
func document(parent *harness.Spec, own [4]json.RawMessage) []byte {
	if !given(own[0]) {
		user, _ := strictyaml.Marshal(parent.Prompt.User) // a text
		own[0] = fmt.Appendf(nil, `{"user":%s}`, user)
	}
	b := []byte(`{"id":"candidate","parent":"origin","direction":"edit"`)
	for i, v := range own {
		if given(v) {
			b = fmt.Appendf(b, ",\n%q:%s", componentNames[i], v)
		}
	}
	return append(b, '}')
}
