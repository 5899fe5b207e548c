package rollout

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"harness-s/internal/strictyaml"
	"harness-s/model/chat"
)

const (
	noCallText    = "No tool call found. Call a tool."
	cutTurnText   = "Your turn was cut at its length limit."
	truncatedMark = "[TRUNCATED]"
)

// ruleState is what the rules remember of an attempt.
type ruleState struct {
	verified bool
	ran      map[string]bool // calls that ran since the last change
}

// respond runs the calls of a turn and says what came of them.
func (a *attempt) respond(ctx context.Context, answer Reply) (reply, error) {
	turn := &a.rec.Turns[len(a.rec.Turns)-1]
	parsed := a.o.Renderer.Parse(turn.Text, a.tools)
	turn.Calls = parsed.Calls
	a.rec.Usage.ParseErrors += len(parsed.Errors)
	if len(parsed.Calls) == 0 {
		return a.noCall(parsed.Errors, answer.FinishReason == "length"), nil
	}
	var r reply
	for i, call := range parsed.Calls {
		if i == maxCallsPerTurn {
			r.results = append(r.results, fmt.Sprintf("Only the first %d calls of a turn are run.", maxCallsPerTurn))
			break
		}
		text, err := a.call(ctx, call)
		if err != nil {
			return r, err
		}
		r.results = append(r.results, text)
		if a.done {
			return r, nil // what follows the end of the episode is not run
		}
	}
	if len(parsed.Errors) > 0 {
		r.results = append(r.results, strings.Join(parsed.Errors, "\n"))
		a.repairFormat(&r)
	}
	return r, nil
}

// noCall answers a turn in which no call could be read.
func (a *attempt) noCall(errs []string, cut bool) reply {
	r := reply{user: noCallText}
	if len(errs) > 0 {
		r.user = strings.Join(errs, "\n")
	}
	if cut {
		r.addText(cutTurnText)
	}
	a.repairFormat(&r)
	a.rec.Turns = append(a.rec.Turns, Turn{Role: "user", Text: r.user})
	return r
}

func (a *attempt) repairFormat(r *reply) {
	if rule := a.o.Spec.Rules.FormatRepair; rule != nil {
		r.addText(rule.Text)
	}
}

// nudge speaks when a set number of turns is left.
func (a *attempt) nudge(r *reply, left int) {
	if rule := a.o.Spec.Rules.NudgeBeforeLimit; rule != nil && left == rule.Turns {
		r.addText(rule.Text)
		a.rec.Turns = append(a.rec.Turns, Turn{Role: "user", Text: rule.Text})
	}
}

// call runs one call, or keeps it from running, and returns what the policy is told.
func (a *attempt) call(ctx context.Context, call chat.ToolCall) (string, error) {
	if !a.offered(call.Name) {
		text := a.unknownTool(call.Name)
		a.rec.Turns = append(a.rec.Turns, Turn{Role: "tool", Text: call.Name, Observation: text, Refused: "unknown_tool"})
		return text, nil
	}
	key := callKey(call)
	if rule, text := a.refuse(call, key); rule != "" {
		a.rec.Turns = append(a.rec.Turns, Turn{Role: "tool", Text: call.Name, Observation: text, Refused: rule})
		return text, nil
	}
	began := time.Now()
	var obs Observation
	if err := a.environment(ctx, call.Name, func(ctx context.Context) (err error) {
		obs, err = a.session.Act(ctx, call)
		return err
	}); err != nil {
		return "", err
	}
	a.remember(key, obs)
	a.done = obs.Done
	text, err := a.tell(ctx, obs)
	if err != nil {
		return "", err
	}
	a.rec.Turns = append(a.rec.Turns, Turn{Role: "tool", Text: call.Name, Observation: text, ActMS: ms(time.Since(began))})
	return text, nil
}

func (a *attempt) offered(name string) bool {
	for _, t := range a.tools {
		if t.Name == name {
			return true
		}
	}
	return false
}

func (a *attempt) unknownTool(name string) string {
	names := make([]string, len(a.tools))
	for i, t := range a.tools {
		names[i] = t.Name
	}
	return fmt.Sprintf("Unknown tool %q. The tools are: %s.", cut(name, 60), strings.Join(names, ", "))
}

// refuse asks the rules that keep a call from running: the rule's name and its words, or "".
func (a *attempt) refuse(call chat.ToolCall, key string) (rule, text string) {
	if r := a.o.Spec.Rules.RefuseRepeat; r != nil && a.rules.ran[key] {
		return "refuse_repeat", r.Text
	}
	if r := a.o.Spec.Rules.VerifyBeforeFinish; r != nil && call.Name == r.Tool && !a.rules.verified {
		a.rules.verified = true
		return "verify_before_finish", r.Text
	}
	return "", ""
}

// remember notes that a call ran. After a change an earlier call may well answer otherwise, so only the change itself
// counts as repeated.
func (a *attempt) remember(key string, obs Observation) {
	if a.rules.ran == nil || obs.Kind == "change" && !obs.Error {
		a.rules.ran = map[string]bool{}
	}
	a.rules.ran[key] = true
}

// callKey is equal for calls that ask for the same.
func callKey(call chat.ToolCall) string {
	j, err := strictyaml.Marshal(call)
	if err != nil { // an argument that is no JSON: the parser's bug, kept harmless
		return fmt.Sprintf("%q", call)
	}
	return string(j)
}

// tell is an observation as the policy reads it: cut to length, followed by what the rules add.
func (a *attempt) tell(ctx context.Context, obs Observation) (string, error) {
	r := a.o.Spec.Rules
	text, wasCut := limit(obs.Text, a.o.Spec.Memory.MaxObservationChars)
	told := reply{user: text}
	if r.SchemaOnError != nil && obs.Error {
		var catalogue string
		if err := a.environment(ctx, "catalogue", func(context.Context) error {
			catalogue = a.session.Catalogue()
			return nil
		}); err != nil {
			return "", err
		}
		if r.SchemaOnError.Text != "" {
			told.addText(r.SchemaOnError.Text)
		}
		told.addText(cut(strings.ToValidUTF8(catalogue, "\uFFFD"), maxCatalogueBytes))
	}
	if r.EmptyHint != nil && obs.Kind == "select" && obs.Rows == 0 && !obs.Error {
		told.addText(r.EmptyHint.Text)
	}
	if r.TruncatedHint != nil && (wasCut || strings.HasSuffix(strings.TrimSpace(text), truncatedMark)) {
		told.addText(r.TruncatedHint.Text)
	}
	return told.user, nil
}

// limit cuts text to max characters (0: only to the hard bound) and marks the cut as DBBench does.
func limit(text string, max int) (string, bool) {
	bounded := strings.ToValidUTF8(cut(text, maxObservationBytes), "\uFFFD")
	wasCut := len(text) > maxObservationBytes
	if max > 0 && utf8.RuneCountInString(bounded) > max {
		bounded, wasCut = string([]rune(bounded)[:max]), true
	}
	if wasCut {
		bounded += truncatedMark
	}
	return bounded, wasCut
}
