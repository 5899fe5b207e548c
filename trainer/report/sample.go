package report

import (
	"fmt"
	"strings"

	"harness-s/rollout"
)

// sample is one rollout as a page shows it.
type sample struct {
	ID, Harness, Kind, Phase, Status, Note string
	Step                                   int
	Success, Open, HasAdvantage, Replaced  bool
	Advantage                              float64
	Prompt                                 string // the first row up to where the policy speaks, as text
	Turns                                  []rollout.Turn
	Rows                                   [][]tokenSpan
}

// tokenSpan is one token of a row.
type tokenSpan struct{ Text, Class, Title string }

// decoder turns one token id into the text it stands for.
type decoder func(id int32) string

func newSample(r *rollout.Record, text decoder) sample {
	s := sample{
		ID: r.ID, Harness: r.Harness, Kind: r.TaskKind, Phase: r.Phase, Status: string(r.Status), Step: r.Step,
		Success: r.Success, Turns: r.Turns,
	}
	if s.Status == string(rollout.Completed) && !s.Success {
		s.Status = "failed"
	}
	if r.Advantage != nil {
		s.HasAdvantage, s.Advantage = true, *r.Advantage
	}
	if s.Replaced = r.Replaced; s.Replaced {
		s.Note = "Every attempt of its group failed: the group was replaced by rescue attempts and this row was not trained on."
	}
	s.Prompt = prompt(r, text)
	for _, row := range r.Rows {
		s.Rows = append(s.Rows, spans(row, r.Advantage, text))
	}
	return s
}

// maxPromptTokens bounds what is shown of a prompt.
const maxPromptTokens = 2000

// prompt is what the policy read before its first turn.
func prompt(r *rollout.Record, text decoder) string {
	if len(r.Rows) == 0 || len(r.Rows[0].TurnBounds) == 0 {
		return ""
	}
	var b strings.Builder
	for _, id := range r.Rows[0].Tokens[:min(r.Rows[0].TurnBounds[0][0], maxPromptTokens)] {
		b.WriteString(text(id))
	}
	return strings.TrimSpace(b.String())
}

// spans classifies each token: ctx (not sampled), pos, neg or zero by the sign of the advantage.
func spans(row rollout.Row, advantage *float64, text decoder) []tokenSpan {
	out := make([]tokenSpan, len(row.Tokens))
	for t, id := range row.Tokens {
		out[t] = tokenSpan{Text: text(id), Class: "ctx", Title: fmt.Sprintf("id %d", id)}
		if row.Mask[t] == 0 {
			continue
		}
		out[t].Title = fmt.Sprintf("id %d, log-prob %.4f", id, row.Logprobs[t])
		switch {
		case advantage == nil || *advantage == 0:
			out[t].Class = "zero"
		case *advantage > 0:
			out[t].Class = "pos"
		default:
			out[t].Class = "neg"
		}
	}
	return out
}

// pickSamples chooses at most n rollouts that show how a step works: a rescued group (one replaced failure, one rescue
// that solved it, one that did not), a base success and a base failure, then evaluation.
func pickSamples(records []*rollout.Record, n int) []*rollout.Record {
	wants := []func(*rollout.Record) bool{
		func(r *rollout.Record) bool { return r.Phase == "rescue" && r.Success },
		func(r *rollout.Record) bool { return r.Replaced },
		func(r *rollout.Record) bool { return r.Phase == "rescue" && !r.Success },
		func(r *rollout.Record) bool {
			return r.Phase == "train" && r.Success && r.Advantage != nil && *r.Advantage > 0
		},
		func(r *rollout.Record) bool {
			return r.Phase == "train" && !r.Success && r.Advantage != nil && *r.Advantage < 0
		},
		func(r *rollout.Record) bool { return r.Phase == "eval" && r.Success },
		func(r *rollout.Record) bool { return r.Phase == "eval" && !r.Success },
	}
	var out []*rollout.Record
	taken := map[*rollout.Record]bool{}
	group := ""
	for _, want := range wants {
		if len(out) == n {
			break
		}
		best := findRecord(records, taken, want, group)
		if best == nil {
			continue
		}
		taken[best] = true
		out = append(out, best)
		if group == "" {
			group = best.Group // show the other sides of the same group first
		}
	}
	return out
}

// findRecord is the last record that fits, one of the given group preferred.
func findRecord(records []*rollout.Record, taken map[*rollout.Record]bool, want func(*rollout.Record) bool, group string) *rollout.Record {
	var best *rollout.Record
	for _, r := range records {
		if taken[r] || !want(r) {
			continue
		}
		if group != "" && r.Group == group {
			return r
		}
		best = r
	}
	return best
}
