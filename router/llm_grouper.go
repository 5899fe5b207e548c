package router

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"harness-s/router/llm"
)

// LLMGrouper lets a language model say which groups of the embedded grouper show the same behaviour, and put it into words. It
// cannot invent evidence: counts and rollout ids are added up here, from the groups it names. Harnesses and kinds never mix.
type LLMGrouper struct {
	Model *llm.Client
	Seed  int64
}

const grouperPrompt = `An agent worked on the same tasks under a base harness h0 and under another harness. Each numbered line is a group of paired attempts: where, how the traces differ from h0's ("+" only under the harness, "-" only under h0), and what came of it.
Put lines that show the same behaviour into one group and say in one sentence, of at most 30 words, when the harness helps or hinders and by what behaviour.
Answer with {"groups": [{"lines": [1, 2], "note": "..."}, ...]}. Every line stands in exactly one group.
` + llm.Rules

var groupingSchema = json.RawMessage(`{"type":"object","properties":{"groups":{"type":"array","items":{"type":"object","properties":{"lines":{"type":"array","items":{"type":"integer"}},"note":{"type":"string"}},"required":["lines","note"],"additionalProperties":false}}},"required":["groups"],"additionalProperties":false}`)

// maxNote bounds a note, in bytes.
const maxNote = 240

type grouping struct {
	Groups []struct {
		Lines []int  `json:"lines"`
		Note  string `json:"note"`
	} `json:"groups"`
}

// maxGrouperFaults is how many questions in a row may meet a fault of the endpoint before no more are asked: each may take
// its time-out and all its retries, and there is one a harness and kind.
const maxGrouperFaults = 3

// Group asks once a harness and kind. Where no usable answer comes the embedded groups stay as they are, and where the
// endpoint is down all that are left; an error means that nobody waits any more.
func (g *LLMGrouper) Group(ctx context.Context, step int, ps []pair) ([]Entry, error) {
	groups := groupByBehaviour(ps)
	var out []Entry
	faults := 0 // in a row
	for len(groups) > 0 {
		if faults == maxGrouperFaults {
			return append(out, entriesOf(groups)...), nil
		}
		n := 1
		for n < len(groups) && groups[n].harness == groups[0].harness && groups[n].kind == groups[0].kind {
			n++
		}
		entries, err := g.cell(ctx, step, groups[:n])
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, llm.ErrAnswer):
			entries, faults = entriesOf(groups[:n]), 0
		case err != nil:
			entries, faults = entriesOf(groups[:n]), faults+1
		default:
			faults = 0
		}
		out = append(out, entries...)
		groups = groups[n:]
	}
	return out, nil
}

// cell groups what is known of one harness and kind.
func (g *LLMGrouper) cell(ctx context.Context, step int, groups []pairGroup) ([]Entry, error) {
	var b strings.Builder
	for i, gr := range groups {
		fmt.Fprintf(&b, "%d. %s\n", i+1, gr.entry().inWords())
	}
	answer, err := llm.AskJSON(ctx, g.Model, llm.Request{
		Schema: groupingSchema, Seed: hashSeed(g.Seed, "group", groups[0].harness, groups[0].kind, fmt.Sprint(step)),
		Messages: []llm.Message{{Role: "system", Content: grouperPrompt}, {Role: "user", Content: llm.Quote("lines", b.String(), maxProfileText)}},
	}, func(a grouping) error { return a.check(len(groups)) })
	if err != nil {
		return nil, err
	}
	var out []Entry
	for _, a := range answer.Groups {
		merged := pairGroup{harness: groups[0].harness, kind: groups[0].kind}
		for i, line := range a.Lines {
			merged.pairs = append(merged.pairs, groups[line-1].pairs...)
			if i == 0 {
				merged.behaviour = groups[line-1].behaviour
			} else {
				merged.behaviour = common(merged.behaviour, groups[line-1].behaviour)
			}
		}
		e := merged.entry()
		e.Note = clip(strings.Join(strings.Fields(a.Note), " "), maxNote)
		out = append(out, e)
	}
	return out, nil
}

// check says whether every line stands in exactly one group.
func (g grouping) check(lines int) error {
	seen := map[int]bool{}
	for _, a := range g.Groups {
		if len(a.Lines) == 0 {
			return errors.New("a group without lines")
		}
		for _, l := range a.Lines {
			if l < 1 || l > lines || seen[l] {
				return fmt.Errorf("line %d is not there or stands twice", l)
			}
			seen[l] = true
		}
	}
	if len(seen) != lines {
		return fmt.Errorf("%d of %d lines are in no group", lines-len(seen), lines)
	}
	return nil
}

// common are the names in both.
func common(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return !slices.Contains(b, s) })
}
