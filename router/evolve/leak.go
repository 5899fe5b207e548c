package evolve

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"harness-s/model/chat"
	"harness-s/rollout"
	"harness-s/rollout/harness"
)

// The rule by which a text gives a task away. Texts are compared as sequences of words: lower-case runs of letters and
// digits, whatever stands between them. What the environment calls a task's secrets (names and contents of its tables, its
// answer) and the task's own wording are searched for, except what says nothing about one task:
//
//   - what at least commonShare of all tasks have, or what the base harness or the tools' descriptions say;
//   - a single word that is a common word of English or SQL (words.go), has fewer than minWord letters, or is a number of
//     fewer than minDigits digits; a word of letters and digits (a column's code) counts from minCode on;
//   - a phrase of fewer than minPhrase words, each of which would be ignored alone.
//
// Task ids are searched for as they are written. What is disguised (spelled out, encoded, translated) is not found.
const (
	commonShare = 0.02
	commonTasks = 5 // and at least so many tasks, where there are few
	minWord     = 4
	minCode     = 3
	minDigits   = 5
	minPhrase   = 5
	minID       = 4
)

// leaks finds what gives tasks away. It is read only once made.
type leaks struct {
	byFirst map[string][]secret
	ids     []string // of tasks, lower case
}

type secret struct {
	words []string
	task  string // one that has it
}

// newLeaks takes in the secrets of all tasks. known are texts that are allowed: the base harness and the tools.
func newLeaks(tasks []rollout.Task, secrets func(rollout.Task) []string, known []string) *leaks {
	found := map[string]*tally{}
	l := &leaks{byFirst: map[string][]secret{}}
	for i, t := range tasks {
		if id := strings.ToLower(t.ID); len(id) >= minID && strings.IndexFunc(id, unicode.IsLetter) >= 0 {
			l.ids = append(l.ids, id)
		}
		for _, text := range secretsOf(t, secrets) {
			words := split(text)
			if !telling(words) {
				continue
			}
			key := strings.Join(words, " ")
			if found[key] == nil {
				found[key] = &tally{secret: secret{words, t.ID}, last: -1}
			}
			found[key].count(i)
		}
	}
	common := max(commonTasks, int(commonShare*float64(len(tasks))))
	for _, f := range found {
		if f.tasks < common {
			l.byFirst[f.words[0]] = append(l.byFirst[f.words[0]], f.secret)
		}
	}
	for _, list := range l.byFirst { // the map's order must not show in what is reported
		slices.SortFunc(list, func(a, b secret) int { return slices.Compare(a.words, b.words) })
	}
	for _, text := range known {
		l.allow(text)
	}
	return l
}

// tally counts in how many tasks a secret is.
type tally struct {
	secret
	tasks, last int
}

func (t *tally) count(task int) {
	if t.last != task {
		t.tasks++
		t.last = task
	}
}

// secretsOf are the texts of a task that a harness must not hold: the environment's, and the task's wording.
func secretsOf(t rollout.Task, secrets func(rollout.Task) []string) []string {
	var out []string
	for _, v := range t.Vars {
		if len(split(v)) >= minPhrase { // shorter ones are labels such as the task's kind
			out = append(out, v)
		}
	}
	if secrets != nil {
		out = append(out, secrets(t)...)
	}
	return out
}

// split cuts a text into words.
func split(text string) []string {
	return strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
}

// telling says whether a sequence of words may identify a task.
func telling(words []string) bool {
	if len(words) >= minPhrase {
		return true
	}
	return slices.ContainsFunc(words, tellingWord)
}

func tellingWord(w string) bool {
	letters, digits := 0, 0
	for _, r := range w {
		if unicode.IsDigit(r) {
			digits++
		} else {
			letters++
		}
	}
	switch {
	case letters == 0:
		return digits >= minDigits
	case digits > 0:
		return letters+digits >= minCode && !commonWord(w)
	}
	return letters >= minWord && !commonWord(w)
}

// allow takes what a text says out of the secrets.
func (l *leaks) allow(text string) {
	words := split(text)
	for i := range words {
		l.byFirst[words[i]] = slices.DeleteFunc(l.byFirst[words[i]], func(s secret) bool { return startsWith(words[i:], s.words) })
	}
}

// find names the first thing in the text that gives a task away; "" where nothing does.
func (l *leaks) find(text string) string {
	lower := strings.ToLower(text)
	for _, id := range l.ids {
		if holdsWord(lower, id) {
			return fmt.Sprintf("the id of task %s", id)
		}
	}
	words := split(text)
	for i, w := range words {
		for _, s := range l.byFirst[w] {
			if startsWith(words[i:], s.words) {
				return fmt.Sprintf("%q, which is in task %s", strings.Join(s.words, " "), s.task)
			}
		}
	}
	return ""
}

func startsWith(words, prefix []string) bool {
	return len(words) >= len(prefix) && slices.Equal(words[:len(prefix)], prefix)
}

// holdsWord says that text holds id, not as a part of a longer word or number.
func holdsWord(text, id string) bool {
	for at := 0; ; {
		i := strings.Index(text[at:], id)
		if i < 0 {
			return false
		}
		i += at
		if !wordByte(text, i-1) && !wordByte(text, i+len(id)) {
			return true
		}
		at = i + 1
	}
}

func wordByte(s string, i int) bool {
	if i < 0 || i >= len(s) {
		return false
	}
	c := s[i]
	return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c >= 0x80
}

// texts are all pieces of text in a spec, with their places.
func texts(s *harness.Spec) []place {
	out := []place{{"direction", s.Direction}, {"prompt.system", s.Prompt.System}, {"prompt.user", s.Prompt.User}}
	add := func(text, format string, args ...any) { out = append(out, place{fmt.Sprintf(format, args...), text}) }
	for i, shot := range s.Prompt.FewShot {
		add(shot.Content, "prompt.few_shot[%d].content", i)
		for j, c := range shot.Calls {
			for _, a := range c.Arguments {
				add(a.Key+" "+unquote(a.Value), "prompt.few_shot[%d].calls[%d].arguments", i, j)
			}
		}
	}
	for i, t := range s.Tools {
		add(t.Description, "tools[%d].description", i)
		for j, a := range t.Arguments {
			add(a.Description, "tools[%d].arguments[%d].description", i, j)
		}
	}
	r := s.Rules
	if r.NudgeBeforeLimit != nil {
		add(r.NudgeBeforeLimit.Text, "rules.nudge_before_limit.text")
	}
	if r.VerifyBeforeFinish != nil {
		add(r.VerifyBeforeFinish.Text, "rules.verify_before_finish.text")
	}
	for _, t := range []struct {
		name string
		rule *harness.TextRule
	}{
		{"refuse_repeat", r.RefuseRepeat}, {"schema_on_error", r.SchemaOnError}, {"format_repair", r.FormatRepair},
		{"empty_hint", r.EmptyHint}, {"truncated_hint", r.TruncatedHint},
	} {
		if t.rule != nil {
			add(t.rule.Text, "rules.%s.text", t.name)
		}
	}
	return out
}

type place struct{ at, text string }

// known are the texts that every harness may hold.
func known(base *harness.Spec, tools []chat.Tool) []string {
	var out []string
	for _, p := range texts(base) {
		out = append(out, p.text)
	}
	for _, t := range tools {
		out = append(out, t.Name, t.Description, string(t.Parameters))
	}
	return out
}
