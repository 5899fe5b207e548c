package sqlenv

import (
	"fmt"

	"harness-s/rollout"
)

// Answering is a Problem that says its answer, for checks that no harness holds it.
type Answering interface {
	GoldAnswers() []string
}

var _ rollout.Secretive = (*Env)(nil)

// Secrets are the names of the task's tables and columns, what their cells hold, and the answer.
func (e *Env) Secrets(t rollout.Task) []string {
	p, ok := t.Data.(Problem)
	if !ok {
		return nil
	}
	var out []string
	if a, ok := p.(Answering); ok {
		out = append(out, a.GoldAnswers()...)
	}
	for _, tab := range p.Tables() {
		out = append(out, tab.Name)
		for _, c := range tab.Columns {
			out = append(out, c.Name)
			if c.Comment != "" {
				out = append(out, c.Comment)
			}
		}
		for _, row := range tab.Rows {
			for _, cell := range row {
				if cell != nil {
					out = append(out, fmt.Sprint(cell))
				}
			}
		}
	}
	return out
}
