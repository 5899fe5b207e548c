package sqlrepair

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"

	"harness-s/rollout/env/sqlenv"
	"harness-s/rollout/harness"
	"harness-s/router/evolve"
)

func direction(t *testing.T, cause string, facts map[string]string) evolve.Direction {
	return evolve.Direction{ID: cause, Description: causeNamed(t, cause).what, Evidence: []string{"r1", "r2"}, Tasks: 2, Facts: facts}
}

func children(t *testing.T, parent *harness.Spec, d evolve.Direction, n, attempt int) []evolve.Candidate {
	t.Helper()
	out, err := Editor{}.Edit(context.Background(), parent, d, n, attempt, nil)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestEditWritesWhatTheCauseAsksFor(t *testing.T) {
	got := children(t, h0(t), direction(t, "guesses-names", nil), 4, 0)
	if len(got) != 4 {
		t.Fatalf("%d children", len(got))
	}
	look, retry, schema := got[0], got[2], got[3]
	if look.Spec.Prompt.System != "Use the tools to answer. Look up the schema first." || look.Spec.Rules != (harness.Rules{}) {
		t.Errorf("look:\n%s", look.Spec.YAML())
	}
	if retry.Spec.Prompt.System != "Use the tools to answer. After an error, try again." || retry.Spec.Rules.SchemaOnError == nil {
		t.Errorf("retry:\n%s", retry.Spec.YAML())
	}
	if schema.Spec.Prompt.System != "Use the tools to answer." || schema.Spec.Rules.SchemaOnError == nil {
		t.Errorf("schema:\n%s", schema.Spec.YAML())
	}
	want := evolve.Manifest{
		Parent: "h0", Direction: "guesses-names", Components: []string{"prompt", "rules"}, Evidence: []string{"r1", "r2"},
		Changes: []string{"The system prompt says: After an error, try again.", "The rule schema_on_error says: Schema:"},
		Why:     "Under h0 the policy guesses names of columns or tables instead of looking them up (2 failed attempts, 2 tasks).",
		Expect:  "Attempts that fail because the policy guesses names of columns or tables instead of looking them up.",
	}
	if !reflect.DeepEqual(retry.Manifest, want) {
		t.Errorf("manifest %+v\nwant     %+v", retry.Manifest, want)
	}
	if !slices.Equal(schema.Manifest.Components, []string{"rules"}) || !slices.Equal(look.Manifest.Components, []string{"prompt"}) {
		t.Errorf("components %v, %v", schema.Manifest.Components, look.Manifest.Components)
	}
}

// A child of a child asks for both, in the order of acting, whichever came first; the same content is made by both ways.
func TestEditsCombine(t *testing.T) {
	ask := func(parent *harness.Spec, cause string) *harness.Spec {
		return children(t, parent, direction(t, cause, nil), 1, 0)[0].Spec
	}
	a := ask(ask(h0(t), "guesses-names"), "compares-exactly")
	b := ask(ask(h0(t), "compares-exactly"), "guesses-names")
	if want := "Use the tools to answer. Look up the schema first. Compare text with lower(trim())."; a.Prompt.System != want {
		t.Errorf("system prompt %q, want %q", a.Prompt.System, want)
	}
	if a.Hash() != b.Hash() {
		t.Errorf("%s\n%s", a.YAML(), b.YAML())
	}
	// Of two sentences for one thing the newer one stands; what a person wrote stays.
	p := h0(t)
	p.Prompt.System = "Answer {{question}} well. After an error, look up the schema and try again. Be brief."
	retry := children(t, p, direction(t, "misreads-schema", nil), 1, 0)[0].Spec
	if want := "Answer {{question}} well. Be brief. After an error, try again."; retry.Prompt.System != want {
		t.Errorf("system prompt %q, want %q", retry.Prompt.System, want)
	}
}

// Every cause, at H0 and at a parent that has everything: distinct, valid children that say what they changed, and only that.
func TestEveryEditIsValid(t *testing.T) {
	tools := sqlenv.New(sqlenv.Options{}).Tools()
	crowded := parse(t, `id: crowded
parent: h0
direction: d
prompt: {system: Look up the schema first. Count with COUNT(*)., user: "{{question}}"}
tools: [{name: execute_sql}, {name: commit_final_answer, description: Finish., arguments: [{name: answers, description: Values.}]}]
memory: {mode: last_k, keep: 4, max_observation_chars: 200}
rules: {max_turns: {turns: 4}, nudge_before_limit: {turns: 1, text: Hurry.}, schema_on_error: {text: Mine}}
`)
	facts := map[string]string{"cut_by": "harness", "limit": "tokens"}
	for _, parent := range []*harness.Spec{h0(t), crowded} {
		before := string(parent.YAML())
		for _, c := range causes {
			seen := map[string]bool{parent.Hash(): true}
			all := children(t, parent, direction(t, c.name, facts), 10, 0)
			if len(all) < 2 {
				t.Errorf("%s, %s: %d children", parent.ID, c.name, len(all))
			}
			for _, cand := range all {
				if err := cand.Spec.Validate(tools); err != nil {
					t.Errorf("%s, %s: %v", parent.ID, c.name, err)
				}
				if seen[cand.Spec.Hash()] {
					t.Errorf("%s, %s: a copy:\n%s", parent.ID, c.name, cand.Spec.YAML())
				}
				seen[cand.Spec.Hash()] = true
				if len(cand.Manifest.Changes) == 0 || len(cand.Manifest.Components) == 0 {
					t.Errorf("%s, %s: says nothing: %+v", parent.ID, c.name, cand.Manifest)
				}
			}
			// A second attempt proposes others as long as there are any.
			firsts, others := children(t, parent, direction(t, c.name, facts), 1, 0), children(t, parent, direction(t, c.name, facts), len(all)-1, 1)
			for _, cand := range append(firsts, others...) {
				delete(seen, cand.Spec.Hash())
			}
			if len(seen) != 1 { // the parent
				t.Errorf("%s, %s: two attempts leave out %d of %d", parent.ID, c.name, len(seen)-1, len(all))
			}
			if rest := children(t, parent, direction(t, c.name, facts), len(all), 2); len(rest) != 0 {
				t.Errorf("%s, %s: a third attempt proposes %d more", parent.ID, c.name, len(rest))
			}
		}
		if string(parent.YAML()) != before {
			t.Errorf("%s was changed", parent.ID)
		}
	}
}

func TestOperatorsTakeTheirParametersFromEvidence(t *testing.T) {
	parent := parse(t, "id: h0\nprompt: {user: \"{{question}}\"}\nmemory: {max_observation_chars: 100}\nrules: {max_turns: {turns: 3}}\n")
	first := func(cause string, facts map[string]string) *harness.Spec {
		return children(t, parent, direction(t, cause, facts), 1, 0)[0].Spec
	}
	if s := first("copies-cut-result", map[string]string{"cut_by": "harness"}); s.Memory.MaxObservationChars != 200 {
		t.Errorf("cut by the harness:\n%s", s.YAML())
	}
	if s := first("copies-cut-result", map[string]string{"cut_by": "environment"}); s.Memory.MaxObservationChars != 100 || s.Rules.TruncatedHint == nil {
		t.Errorf("cut by the environment:\n%s", s.YAML())
	}
	if s := first("runs-out-of-turns", nil); s.Rules.MaxTurns != nil {
		t.Errorf("turns:\n%s", s.YAML())
	}
	all := children(t, parent, direction(t, "runs-out-of-turns", map[string]string{"limit": "tokens"}), 2, 0)
	if s := all[1].Spec; s.Memory.Mode != harness.MemoryLastK || s.Memory.Keep != 4 {
		t.Errorf("tokens:\n%s", s.YAML())
	}
	if s := first("wrong-form", nil); len(s.Tools) != 2 || s.Tools[1].Arguments[0].Name != "answers" {
		t.Errorf("answers:\n%s", s.YAML())
	}
	if s := children(t, h0(t), direction(t, "wrong-form", nil), 1, 0)[0].Spec; len(s.Tools) != 0 {
		t.Errorf("described tools that the prompt does not show:\n%s", s.YAML())
	}
}

func TestUnknownDirectionHasNoEdit(t *testing.T) {
	if got := children(t, h0(t), evolve.Direction{ID: "made-up"}, 3, 0); len(got) != 0 {
		t.Errorf("%+v", got)
	}
}

// The sentences are apart: none is inside another, so that taking one out of a prompt leaves the rest.
func TestSentencesAreApart(t *testing.T) {
	for i, a := range sentences {
		for k, b := range sentences {
			if i != k && (strings.Contains(b.text, a.text) || a.name == b.name) {
				t.Errorf("%q and %q", a.text, b.text)
			}
		}
	}
}
