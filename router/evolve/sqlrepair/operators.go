package sqlrepair

import (
	"slices"
	"strconv"
	"strings"

	"harness-s/internal/strictyaml"
	"harness-s/rollout/env/sqlenv"
	"harness-s/rollout/harness"
)

// operator is one typed edit of a spec. It changes the clone it is given, with parameters from the direction's facts, and says
// in a sentence what it did; "" when there was nothing to do.
type operator func(s *harness.Spec, facts map[string]string) string

// instruct puts a sentence of the library into the system prompt. Sentences stand in the order in which they are acted
// on, after whatever else the prompt says; one of the same slot is replaced.
func instruct(name string) operator {
	i := slices.IndexFunc(sentences, func(e sentence) bool { return e.name == name })
	if i < 0 {
		panic("sqlrepair: no sentence " + name)
	}
	return func(s *harness.Spec, _ map[string]string) string {
		rest, have := splitSystem(s.Prompt.System)
		have = slices.DeleteFunc(have, func(k int) bool { return sentences[k].slot == sentences[i].slot })
		have = append(have, i)
		slices.Sort(have)
		system := rest
		for _, k := range have {
			system = strings.TrimSpace(system + " " + sentences[k].text)
		}
		if system == s.Prompt.System {
			return ""
		}
		s.Prompt.System = system
		return "The system prompt says: " + sentences[i].text
	}
}

// splitSystem takes the library's sentences, by index, out of a system prompt.
func splitSystem(system string) (rest string, have []int) {
	rest = system
	for i, e := range sentences {
		if before, after, found := strings.Cut(rest, e.text); found {
			have = append(have, i)
			rest = strings.TrimSpace(strings.TrimSpace(before) + " " + strings.TrimSpace(after))
		}
	}
	return rest, have
}

// textRule turns on a rule whose only setting is a text. A text that is there already stays.
func textRule(name, text string, field func(r *harness.Rules) **harness.TextRule) operator {
	return func(s *harness.Spec, _ map[string]string) string {
		rule := field(&s.Rules)
		if *rule != nil {
			return ""
		}
		*rule = &harness.TextRule{Text: text}
		return "The rule " + name + " says: " + text
	}
}

var (
	schemaOnError = textRule("schema_on_error", "Schema:", func(r *harness.Rules) **harness.TextRule { return &r.SchemaOnError })
	refuseRepeat  = textRule("refuse_repeat", "You ran this before. Try something else.", func(r *harness.Rules) **harness.TextRule { return &r.RefuseRepeat })
	formatRepair  = textRule("format_repair", "Call one of the tools.", func(r *harness.Rules) **harness.TextRule { return &r.FormatRepair })
	emptyHint     = textRule("empty_hint", "The result is empty. Look at the stored values.", func(r *harness.Rules) **harness.TextRule { return &r.EmptyHint })
	truncatedHint = textRule("truncated_hint", "The result is cut. Read the next page.", func(r *harness.Rules) **harness.TextRule { return &r.TruncatedHint })
)

func verifyBeforeFinish(s *harness.Spec, _ map[string]string) string {
	if s.Rules.VerifyBeforeFinish != nil {
		return ""
	}
	s.Rules.VerifyBeforeFinish = &harness.Verify{Tool: sqlenv.ToolCommit, Text: "Check the result first, then commit."}
	return "The first answer of an attempt is refused and asks for a check."
}

// nudge warns one turn before the limit, or one earlier than the parent does.
func nudge(s *harness.Spec, _ map[string]string) string {
	turns := 1
	if n := s.Rules.NudgeBeforeLimit; n != nil {
		turns = n.Turns + 1
	}
	text := "One turn is left. Commit your answer."
	if turns > 1 {
		text = strconv.Itoa(turns) + " turns are left. Commit your answer."
	}
	s.Rules.NudgeBeforeLimit = &harness.Nudge{Turns: turns, Text: text}
	return "With this many turns left the policy is told to commit: " + strconv.Itoa(turns)
}

// moreTurns lifts the parent's own limit; the run's stays.
func moreTurns(s *harness.Spec, _ map[string]string) string {
	if s.Rules.MaxTurns == nil {
		return ""
	}
	s.Rules.MaxTurns = nil
	return "The harness no longer lowers the number of turns."
}

// showMore doubles the characters shown of an observation, where the harness is what cut it.
func showMore(s *harness.Spec, facts map[string]string) string {
	if facts["cut_by"] != "harness" || s.Memory.MaxObservationChars == 0 {
		return ""
	}
	s.Memory.MaxObservationChars *= 2
	return "An observation is cut only after this many characters: " + strconv.Itoa(s.Memory.MaxObservationChars)
}

// shortMemory keeps the context small for attempts that end at its limit: it halves what is kept of old results.
func shortMemory(s *harness.Spec, facts map[string]string) string {
	if facts["limit"] != "tokens" || s.Memory.Mode == harness.MemoryNotes {
		return ""
	}
	keep := 4
	if s.Memory.Mode == harness.MemoryLastK {
		keep = s.Memory.Keep / 2
	}
	if keep < 1 {
		return ""
	}
	s.Memory.Mode, s.Memory.Keep = harness.MemoryLastK, keep
	return "Only this many of the last results stay in the context: " + strconv.Itoa(keep)
}

// describeAnswers re-describes the argument of the answer, where the policy is shown descriptions at all.
func describeAnswers(s *harness.Spec, _ map[string]string) string {
	const text = "The values asked for and nothing else, each as a text of its own, written as the result shows them."
	if s.Prompt.ToolsBlock == harness.ToolsNone {
		return ""
	}
	if len(s.Tools) == 0 {
		s.Tools = []harness.Tool{{Name: sqlenv.ToolSQL}, {Name: sqlenv.ToolCommit}}
	}
	i := slices.IndexFunc(s.Tools, func(t harness.Tool) bool { return t.Name == sqlenv.ToolCommit })
	if i < 0 {
		return ""
	}
	s.Tools = slices.Clone(s.Tools)
	arg := harness.Arg{Name: "answers", Description: text}
	if slices.Contains(s.Tools[i].Arguments, arg) {
		return ""
	}
	args := slices.DeleteFunc(slices.Clone(s.Tools[i].Arguments), func(a harness.Arg) bool { return a.Name == arg.Name })
	s.Tools[i].Arguments = append(args, arg)
	return "The argument of " + sqlenv.ToolCommit + " is described as: " + text
}

// showCall puts one finished conversation before the task, so that the form of a call has been seen.
func showCall(s *harness.Spec, _ map[string]string) string {
	if len(s.Prompt.FewShot) > 0 {
		return ""
	}
	call := func(name, key, value string) []harness.ShotCall {
		return []harness.ShotCall{{Name: name, Arguments: []strictyaml.Field{{Key: key, Value: []byte(value)}}}}
	}
	s.Prompt.FewShot = []harness.Shot{
		{Role: "user", Content: "How much is one and one?"},
		{Role: "assistant", Calls: call(sqlenv.ToolSQL, "query", `"SELECT 1 + 1"`)},
		{Role: "tool", Content: "[(2,)]"},
		{Role: "assistant", Calls: call(sqlenv.ToolCommit, "answers", `["2"]`)},
		{Role: "tool", Content: "The answer is committed."},
		{Role: "assistant", Content: "Two."},
	}
	return "One example of two calls stands before the task."
}
