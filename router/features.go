package router

import (
	"slices"
	"strings"

	"harness-s/model/chat"
	"harness-s/rollout"
)

// maxWords bounds the words of a task that are looked at.
const maxWords = 256

// taskWords are the different words of what a policy sees of a task, in order. The task's id, its kind and its data are not
// among them.
func taskWords(t rollout.Task) []string {
	var text strings.Builder
	for _, name := range []string{"question", "instruction", "description", "request"} {
		text.WriteString(t.Vars[name])
		text.WriteByte(' ')
	}
	words := strings.FieldsFunc(strings.ToLower(text.String()), func(r rune) bool {
		return !(r == '_' || r >= 'a' && r <= 'z' || r > 127)
	})
	words = words[:min(len(words), maxWords)]
	slices.Sort(words)
	return slices.Compact(words)
}

// longTask is how many different words make a task a long one.
const longTask = 24

// taskFeatures say in a few names what a task looks like: what a profile's condition is made of.
func taskFeatures(t rollout.Task) []string {
	words := taskWords(t)
	has := func(any ...string) bool {
		return slices.ContainsFunc(any, func(w string) bool { _, ok := slices.BinarySearch(words, w); return ok })
	}
	question := t.Vars["question"]
	var out []string
	for _, f := range []struct {
		name string
		is   bool
	}{ // in the order of their names
		{"asks how many", has("many", "number", "count", "total")},
		{"long", len(words) >= longTask},
		{"names a value", strings.ContainsAny(question, "'\"`0123456789")},
		{"negation", has("not", "no", "without", "never", "except")},
		{"superlative", has("most", "least", "highest", "lowest", "largest", "smallest", "maximum", "minimum", "best", "first", "last")},
	} {
		if f.is {
			out = append(out, f.name)
		}
	}
	return out
}

// overlap is the share of words in common: |a & b| / |a | b| (Jaccard), 0 of nothing. Both are sorted.
func overlap(a, b []string) float64 {
	common := 0
	for _, w := range a {
		if _, ok := slices.BinarySearch(b, w); ok {
			common++
		}
	}
	if all := len(a) + len(b) - common; all > 0 {
		return float64(common) / float64(all)
	}
	return 0
}

// Behaviours that a trace shows, by name.
const (
	looksAtSchema = "looks at the schema first"
	meetsErrors   = "meets errors"
	retries       = "tries again after an error"
	pages         = "reads page by page"
	verifies      = "verifies a change"
	repeats       = "repeats a call"
	isRefused     = "has calls refused"
	badFormat     = "makes format errors"
	doesNotEnd    = "does not come to an end"
	asksOften     = "makes many calls"
)

// manyCalls is how many calls of one attempt are many.
const manyCalls = 4

// call is one tool call and what came of it.
type call struct {
	text   string // name and arguments, lower case
	failed bool
}

// behaviour are the names of what an attempt's trace shows, sorted. It reads what the policy wrote and what it was told, as text:
// a policy may write anything, and the worst that comes of it is a wrong name.
func behaviour(rec *rollout.Record) []string {
	calls, refused := readCalls(rec)
	shown := map[string]bool{
		isRefused:  refused,
		badFormat:  rec.Usage.ParseErrors > 0,
		doesNotEnd: rec.Status != rollout.Completed,
		asksOften:  len(calls) >= manyCalls,
	}
	seen := map[string]bool{}
	changed, errored := false, false
	for i, c := range calls {
		reads := containsAny(c.text, "select ", "sqlite_master", "pragma ")
		shown[looksAtSchema] = shown[looksAtSchema] || i == 0 && containsAny(c.text, "sqlite_master", "pragma ", "describe ", "show ", "information_schema")
		shown[pages] = shown[pages] || strings.Contains(c.text, " offset ")
		shown[verifies] = shown[verifies] || changed && reads
		shown[repeats] = shown[repeats] || seen[c.text]
		shown[retries] = shown[retries] || errored && !seen[c.text]
		shown[meetsErrors] = shown[meetsErrors] || c.failed
		seen[c.text] = true
		errored = c.failed
		changed = changed || containsAny(c.text, "insert ", "update ", "delete ")
	}
	var out []string
	for name, is := range shown {
		if is {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// readCalls pairs calls with the results that follow them.
func readCalls(rec *rollout.Record) (calls []call, refused bool) {
	for i, turn := range rec.Turns {
		if turn.Role != "assistant" {
			continue
		}
		for k, c := range turn.Calls {
			at := i + 1 + k
			if at >= len(rec.Turns) || rec.Turns[at].Role != "tool" {
				break
			}
			result := rec.Turns[at]
			refused = refused || result.Refused != ""
			calls = append(calls, call{callText(c), strings.HasPrefix(result.Observation, "Error")})
		}
	}
	return calls, refused
}

func callText(c chat.ToolCall) string {
	var b strings.Builder
	b.WriteString(c.Name)
	for _, a := range c.Args {
		b.WriteByte(' ')
		b.WriteString(a.Key)
		b.WriteByte('=')
		b.Write(a.Value)
	}
	return strings.ToLower(b.String())
}

func containsAny(s string, any ...string) bool {
	return slices.ContainsFunc(any, func(part string) bool { return strings.Contains(s, part) })
}
