package evolve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"harness-s/rollout"
	"harness-s/rollout/harness"
	"harness-s/router/llm"
)

// LLMAnalyst finds root causes by asking a language model. What a failed attempt says reaches the model as quoted, shortened
// data only, and what the model says about it is checked: here against the attempts it was asked about, in Run against all
// else (names, turns, facts that would give a task away).
type LLMAnalyst struct {
	Client *llm.Client
	Seed   int64
}

var _ Analyst = (*LLMAnalyst)(nil)

// labelBatch is how many attempts one question is about: few enough that each gets its own look.
const labelBatch = 4

// labelReply is what the model answers about a batch.
type labelReply struct {
	Labels []labelOf `json:"labels"`
}

type labelOf struct {
	Attempt string `json:"attempt"` // a1, a2, ... of the question
	Cause   string `json:"cause"`
	Turn    int    `json:"turn"`
	Why     string `json:"why"`
}

// Label asks about a few attempts at a time, several questions at once. A question that the model does not answer usably
// costs the labels of its attempts; when no question was, that is the error.
func (a *LLMAnalyst) Label(ctx context.Context, parent *harness.Spec, failed []*rollout.Record) ([]Label, error) {
	batches := slices.Collect(slices.Chunk(failed, labelBatch))
	found, unusable := make([][]Label, len(batches)), make([]error, len(batches))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(editors)
	for i, batch := range batches {
		g.Go(func() error {
			labels, err := a.labels(ctx, parent, batch)
			if errors.Is(err, llm.ErrAnswer) {
				unusable[i] = err
				return nil
			}
			found[i] = labels
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("label failed attempts: %w", err)
	}
	if len(batches) > 0 && !slices.Contains(unusable, nil) {
		return nil, fmt.Errorf("label failed attempts: none of %d questions: %w", len(batches), unusable[0])
	}
	return slices.Concat(found...), nil
}

func (a *LLMAnalyst) labels(ctx context.Context, parent *harness.Spec, batch []*rollout.Record) ([]Label, error) {
	reply, err := llm.AskJSON(ctx, a.Client, llm.Request{
		Schema: llm.SchemaOf[labelReply](),
		Seed:   rollout.Seed(a.Seed, Phase, 0, "label "+parent.Hash()+" "+batch[0].ID, 0, 0),
		Messages: []llm.Message{
			{Role: "system", Content: labelPrompt + llm.Rules},
			{Role: "user", Content: labelQuestion(parent, batch)},
		},
	}, func(r labelReply) error { return r.check(len(batch)) })
	if err != nil {
		return nil, err
	}
	out := make([]Label, len(reply.Labels))
	for i, l := range reply.Labels {
		out[i] = l.label(batch)
	}
	return out, nil
}

// maxLabels bounds the labels of one answer, those that are dropped included.
const maxLabels = 4 * labelBatch

// check refuses an answer that says nothing usable. Single labels that are wrong are dropped by Run, and counted.
func (r labelReply) check(attempts int) error {
	if len(r.Labels) > maxLabels {
		return fmt.Errorf("%d labels for %d attempts", len(r.Labels), attempts)
	}
	var problem error
	for _, l := range r.Labels {
		switch {
		case attemptIndex(l.Attempt, attempts) < 0:
			problem = fmt.Errorf("there is no attempt %q; there are a1 to a%d", plainText(l.Attempt, maxName), attempts)
		case !shortName(slug(l.Cause)):
			problem = fmt.Errorf("cause %q: want a few lower-case words joined by -", plainText(l.Cause, maxFact))
		default:
			return nil
		}
	}
	return problem // nil as well for an empty list: it can say nothing about any
}

// label is the label as Run takes it; one of no attempt keeps a name that no rollout has.
func (l labelOf) label(batch []*rollout.Record) Label {
	out := Label{Rollout: "?", Cause: slug(l.Cause), Turn: l.Turn, Why: plainText(l.Why, maxSentence)}
	i := attemptIndex(l.Attempt, len(batch))
	if i < 0 {
		return out
	}
	r := batch[i]
	out.Rollout, out.Task, out.Kind = r.ID, r.Task, r.TaskKind
	if l.Turn >= 0 && l.Turn < len(r.Turns) {
		if calls := r.Turns[l.Turn].Calls; len(calls) > 0 && shortName(slug(calls[0].Name)) {
			out.Facts = map[string]string{"tool": calls[0].Name} // read from the record: the model is asked for no facts
		}
	}
	return out
}

// attemptIndex is the place of attempt aN in a batch, -1 when it has none.
func attemptIndex(name string, attempts int) int {
	for i := range attempts {
		if name == attemptName(i) {
			return i
		}
	}
	return -1
}

func attemptName(i int) string { return fmt.Sprintf("a%d", i+1) }

// slug makes a name of what a model meant as one.
func slug(s string) string {
	words := strings.FieldsFunc(strings.ToLower(s), func(r rune) bool { return r == ' ' || r == '_' || r == '-' || r == '.' })
	return strings.Join(words, "-")
}

// directionReply is how the model groups causes.
type directionReply struct {
	Directions []directionOf `json:"directions"`
}

type directionOf struct {
	ID          string   `json:"id"`
	Description string   `json:"description"`
	Causes      []string `json:"causes"` // c1, c2, ... of the question
}

const (
	maxCauses   = 64 // shown to the model, those with most tasks
	maxExamples = 4
)

// Directions asks the model which causes are one thing to repair. A cause goes into the first direction that names it; names
// of causes that do not exist are dropped, and so are directions without a cause or a usable name.
func (a *LLMAnalyst) Directions(ctx context.Context, parent *harness.Spec, labels []Label, max int) ([]Direction, error) {
	causes := gather(labels)
	if len(causes) == 0 || max <= 0 {
		return nil, nil
	}
	causes = causes[:min(len(causes), maxCauses)]
	var out []Direction
	_, err := llm.AskJSON(ctx, a.Client, llm.Request{
		Schema: llm.SchemaOf[directionReply](),
		Seed:   rollout.Seed(a.Seed, Phase, 0, "directions "+parent.Hash()+" "+labels[0].Rollout, 0, 0),
		Messages: []llm.Message{
			{Role: "system", Content: directionPrompt + llm.Rules},
			{Role: "user", Content: directionQuestion(parent, causes, max)},
		},
	}, func(r directionReply) error {
		if out = r.directions(causes); len(out) == 0 {
			return fmt.Errorf("no direction has a short name and one of the causes c1 to c%d that no other has", len(causes))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("group %d causes into directions: %w", len(causes), err)
	}
	return out[:min(len(out), max)], nil
}

// cause is all labels of one name.
type cause struct {
	name   string
	labels []Label
	tasks  int
}

// gather groups labels by cause, the one with most tasks first, equal ones by name.
func gather(labels []Label) []cause {
	var out []cause
	for _, l := range labels {
		i := slices.IndexFunc(out, func(c cause) bool { return c.name == l.Cause })
		if i < 0 {
			out = append(out, cause{name: l.Cause})
			i = len(out) - 1
		}
		out[i].labels = append(out[i].labels, l)
	}
	for i := range out {
		out[i].tasks = tasksOf(out[i].labels)
	}
	slices.SortFunc(out, func(a, b cause) int { return cmp.Or(b.tasks-a.tasks, strings.Compare(a.name, b.name)) })
	return out
}

func tasksOf(labels []Label) int {
	seen := map[string]bool{}
	for _, l := range labels {
		seen[l.Task] = true
	}
	return len(seen)
}

func causeName(i int) string { return fmt.Sprintf("c%d", i+1) }

// directions are the usable ones, the one with most tasks first, equal ones by name.
func (r directionReply) directions(causes []cause) []Direction {
	var out []Direction
	taken := make([]bool, len(causes))
	names := map[string]bool{}
	for _, d := range r.Directions {
		id := slug(d.ID)
		if !shortName(id) || names[id] {
			continue
		}
		var labels []Label
		for i, c := range causes {
			if !taken[i] && slices.Contains(d.Causes, causeName(i)) {
				taken[i] = true
				labels = append(labels, c.labels...)
			}
		}
		if len(labels) == 0 {
			continue
		}
		names[id] = true
		out = append(out, direction(id, d.Description, labels))
	}
	slices.SortFunc(out, func(a, b Direction) int { return cmp.Or(b.Tasks-a.Tasks, strings.Compare(a.ID, b.ID)) })
	return out
}

func direction(id, description string, labels []Label) Direction {
	d := Direction{ID: id, Description: plainText(description, harness.MaxDirectionBytes), Tasks: tasksOf(labels)}
	for i, l := range labels {
		d.Evidence = append(d.Evidence, l.Rollout)
		if why := plainText(l.Why, maxFact); why != "" && len(d.Examples) < maxExamples && !slices.Contains(d.Examples, why) {
			d.Examples = append(d.Examples, why)
		}
		if i == 0 {
			d.Facts = l.Facts
		}
	}
	d.Facts = shared(d.Facts, labels)
	return d
}

// shared are the facts that all labels agree on.
func shared(facts map[string]string, labels []Label) map[string]string {
	var out map[string]string
	for k, v := range facts {
		if !slices.ContainsFunc(labels, func(l Label) bool { return l.Facts[k] != v }) {
			if out == nil {
				out = map[string]string{}
			}
			out[k] = v
		}
	}
	return out
}
