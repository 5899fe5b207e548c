package evolve

import (
	"fmt"
	"strings"

	"harness-s/model/chat"
	"harness-s/rollout"
	"harness-s/rollout/harness"
	"harness-s/router/llm"
)

// What language models are told. Each system prompt ends with llm.Rules, which says what data blocks are.

const labelPrompt = `You find out why an agent failed. It works on tasks under a harness: a system prompt, tools, memory and rules around it. You get its harness and the logs of some failed attempts, each named a1, a2 and so on.
For each attempt find the earliest wrong decision: what the agent should have done otherwise so that the rest could go well. Give
- attempt: its name
- cause: the kind of mistake in two to four lower-case words joined by -, general enough to fit other tasks, such as "no-schema-lookup". The same mistake has the same name everywhere.
- turn: the number of the turn with that decision; -1 when it is in no turn
- why: one sentence of at most 30 words in general terms. It names no table, column, stored value, answer or task.
Leave out an attempt whose log does not show why it failed.
`

const directionPrompt = `You plan repairs of a harness: the system prompt, tools, memory and rules around an agent. You get the causes of its failures, each named c1, c2 and so on.
Put causes that one change of the harness would repair into one direction. A cause is in one direction at most; leave out what no harness could repair. Put the direction with the most failed tasks first. Give
- id: two to four lower-case words joined by -
- description: one sentence of at most 25 words: what goes wrong, not how to repair it. It names no table, column, stored value, answer or task.
- causes: the names of its causes
`

const editPrompt = `You repair a harness: the system prompt, tools, memory and rules around an agent whose weights you cannot change. You get the harness, one kind of failure, and how many different children to make. Each child changes the harness so that this failure becomes rarer and all else stays as good as it is.
A child gives only the components that it changes, each of them whole:
- prompt: system, user, few_shot (example turns; start with user, end with assistant), tools_block (full or none: whether the prompt describes the tools). {{name}} stands for a variable of the task: keep those that are there, invent none.
- tools: which of the environment's tools are offered, perhaps described in other words; arguments re-describes arguments or hides optional ones. No other tools exist.
- memory: mode all, last_k (the last keep observations stay) or notes (the last keep turns and lines that begin with "note:" stay); max_observation_chars cuts long observations.
- rules, all of them or some:
  max_turns {turns}: ends an attempt
  nudge_before_limit {turns, text}: text when so many turns are left
  verify_before_finish {tool, text}: text instead of the first call of that tool
  refuse_repeat {text}: text instead of a call that already ran
  schema_on_error {text}: text and the task's catalogue after a failed call
  format_repair {text}: text after a turn without a call that can be read
  empty_hint {text}: text after a selection without rows
  truncated_hint {text}: text after an observation that was cut
Change one thing a child, and as little as does it. A short plain sentence in the system prompt is often best. Texts must hold for every task: no table, column, stored value, answer or task in them, and nothing that does the agent's work for it.
Say of each child: changes (one sentence for each change), why, expect (which failures should end).
`

// Bounds of what goes into a question, in bytes.
const (
	maxSpecText   = 24 << 10
	maxTrace      = 6 << 10
	maxTurnText   = 600 // of what a turn says, each of its calls, and what it sees
	minTurnText   = 80
	endTurns      = 20 // shown of the beginning and of the end
	maxCalls      = 8  // shown of a turn
	maxGraderText = 600
	maxProblem    = 600
	maxToolText   = 400
)

// specText is a harness as a model sees it. It is quoted: a model may have written it.
func specText(s *harness.Spec) string { return llm.Quote("the harness", string(s.YAML()), maxSpecText) }

func labelQuestion(parent *harness.Spec, batch []*rollout.Record) string {
	var b strings.Builder
	b.WriteString(specText(parent))
	for i, r := range batch {
		b.WriteString("\n\n" + llm.Quote("attempt "+attemptName(i), traceText(r), maxTrace))
	}
	fmt.Fprintf(&b, "\n\nLabel the attempts a1 to a%d.", len(batch))
	return b.String()
}

// traceText is a failed attempt, shortened piece by piece so that as many turns as can be are seen. Of a very long one the
// turns in the middle are left out.
func traceText(r *rollout.Record) string {
	var b strings.Builder
	fmt.Fprintf(&b, "kind of task: %s; ended: %s; success: no\n", plainText(r.TaskKind, maxName), r.Status)
	shown := min(len(r.Turns), 2*endTurns)
	piece := min(maxTurnText, max(minTurnText, maxTrace/(2*shown+1)))
	for i, t := range r.Turns {
		switch {
		case i < endTurns || i >= len(r.Turns)-endTurns:
			turnText(&b, i, t, piece)
		case i == endTurns:
			fmt.Fprintf(&b, "... %d turns are left out ...\n", len(r.Turns)-shown)
		}
	}
	if len(r.Grader) > 0 {
		b.WriteString("grader: " + plainText(string(r.Grader), maxGraderText) + "\n")
	}
	return b.String()
}

// turnText writes one turn, each piece of it at most so many bytes.
func turnText(b *strings.Builder, i int, t rollout.Turn, piece int) {
	fmt.Fprintf(b, "turn %d, %s: %s\n", i, plainText(t.Role, maxName), plainText(t.Text, piece))
	for _, c := range t.Calls[:min(len(t.Calls), maxCalls)] {
		b.WriteString("  calls " + plainText(callText(c, 4*piece), piece) + "\n")
	}
	if t.Observation != "" {
		b.WriteString("  sees " + plainText(t.Observation, piece) + "\n")
	}
	if t.Refused != "" {
		b.WriteString("  not run: rule " + plainText(t.Refused, maxName) + "\n")
	}
}

// callText is a call; it stops where more than max bytes are written.
func callText(c chat.ToolCall, max int) string {
	var b strings.Builder
	b.WriteString(c.Name[:min(len(c.Name), max)] + "(")
	for i, a := range c.Args {
		if b.Len() > max {
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(a.Key[:min(len(a.Key), max)] + "=" + string(a.Value[:min(len(a.Value), max)]))
	}
	return b.String() + ")"
}

// causeWhys is how many sentences stand for a cause.
const causeWhys = 3

func directionQuestion(parent *harness.Spec, causes []cause, max int) string {
	var list strings.Builder
	for i, c := range causes {
		fmt.Fprintf(&list, "%s: %s (%d attempts at %d tasks)\n", causeName(i), c.name, len(c.labels), c.tasks)
		for _, l := range c.labels[:min(len(c.labels), causeWhys)] {
			list.WriteString("  - " + plainText(l.Why, maxFact) + "\n")
		}
	}
	return fmt.Sprintf("%s\n\n%s\n\nMake at most %d directions of the causes c1 to c%d.",
		specText(parent), llm.Quote("causes", list.String(), maxCauses*(causeWhys+1)*maxFact), max, len(causes))
}

func editQuestion(parent *harness.Spec, tools []chat.Tool, d Direction, n int, problems []string) string {
	var b strings.Builder
	b.WriteString(specText(parent) + "\n\nThe environment's tools:\n")
	for _, t := range tools {
		b.WriteString("- " + toolText(t) + "\n")
	}
	fmt.Fprintf(&b, "\nThe failure, seen in %d attempts at %d tasks:\n%s\n", len(d.Evidence), d.Tasks, llm.Quote("failure", failureText(d), maxSpecText))
	if len(problems) > 0 {
		var list strings.Builder
		for _, p := range problems[:min(len(problems), maxChanges)] {
			list.WriteString("- " + plainText(p, maxProblem) + "\n")
		}
		fmt.Fprintf(&b, "\nEarlier children were turned away. Avoid what was wrong with them:\n%s\n", llm.Quote("problems", list.String(), maxSpecText))
	}
	fmt.Fprintf(&b, "\nMake %d different children.", n)
	return b.String()
}

func failureText(d Direction) string {
	var b strings.Builder
	b.WriteString(d.ID + ": " + d.Description + "\n")
	for _, e := range d.Examples[:min(len(d.Examples), maxExamples)] {
		b.WriteString("- " + plainText(e, maxFact) + "\n")
	}
	return b.String()
}

// toolText is a tool in one line: its description and the schema of its arguments.
func toolText(t chat.Tool) string {
	return plainText(t.Name+": "+t.Description+" "+string(t.Parameters), maxToolText)
}
