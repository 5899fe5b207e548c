package dbbench

import (
	"encoding/json"
	"math"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"harness-s/rollout/env/sqlenv/pylit"
)

// compatAnswer is the official comparator of SELECT rows (AgentBench, result_processor.py), loopholes included, for
// an answer and a label as JSON. Where the original evaluates text as Python, text that is a plain literal is read
// as one and all else takes the original's path for text that fails to evaluate. So the two differ only for text
// that is an expression ("[1+1]") or holds a set; nothing is ever run.
func compatAnswer(answer, label json.RawMessage) bool {
	a, err := fromJSON(answer)
	if err != nil {
		return false
	}
	switch a := a.(type) {
	case string, pylit.List:
	default:
		// The original slices the answer for its log, and fails on what cannot be sliced, unless it is falsy.
		if truthy(a) {
			return false
		}
	}
	g, err := fromJSON(label)
	if err != nil {
		return false
	}
	return compatMatch(cleanAnswer(a), cleanAnswer(g))
}

func truthy(v any) bool {
	switch s := pylit.Str(v); s {
	case "None", "False", "0", "0.0", "-0.0", "{}":
		return false
	}
	return true
}

// compatMatch compares two cleaned lists.
func compatMatch(got, gold []string) bool {
	if len(got) == 1 && len(gold) == 1 {
		a, okA := pyFloat(got[0])
		b, okB := pyFloat(gold[0])
		if okA && okB {
			return math.Abs(a-b) <= 1e-2
		}
		return got[0] == gold[0]
	}
	a, okA := floats(got)
	b, okB := floats(gold)
	if okA && okB {
		return pairFloats(a, b)
	}
	return sameSet(got, gold)
}

func floats(vals []string) ([]float64, bool) {
	out := make([]float64, len(vals))
	for i, v := range vals {
		f, ok := pyFloat(v)
		if !ok {
			return nil, false
		}
		out[i] = f
	}
	return out, true
}

// pairFloats matches greedily in order, as the original does.
func pairFloats(a, b []float64) bool {
	if len(a) != len(b) {
		return false
	}
	used := make([]bool, len(b))
next:
	for _, x := range a {
		for i, y := range b {
			if !used[i] && math.Abs(x-y) <= 1e-2 {
				used[i] = true
				continue next
			}
		}
		return false
	}
	return true
}

func sameSet(a, b []string) bool {
	as, bs := map[string]bool{}, map[string]bool{}
	for _, x := range a {
		as[x] = true
	}
	for _, x := range b {
		if !as[x] {
			return false
		}
		bs[x] = true
	}
	return len(as) == len(bs)
}

// cleanAnswer turns an answer or label into the list of texts that are compared.
func cleanAnswer(v any) []string {
	switch v := v.(type) {
	case nil:
		return []string{"0"}
	case string:
		return cleanText(v)
	case pylit.List:
		return cleanItems(v)
	}
	return []string{normalize(stripQuotes(pyStrip(pylit.Str(v))))}
}

func cleanItems(items []any) []string {
	out := make([]string, 0, len(items))
	for _, it := range items {
		if t, ok := it.(pylit.Tuple); ok && len(t) == 1 {
			it = t[0]
		}
		out = append(out, normalize(stripQuotes(pyStrip(pylit.Str(it)))))
	}
	return out
}

func cleanText(s string) []string {
	if rows, ok := cleanResult(s); ok {
		for i := range rows {
			rows[i] = normalize(rows[i])
		}
		return rows
	}
	s = pyStrip(s)
	if !strings.HasPrefix(s, "[") || !strings.HasSuffix(s, "]") {
		return []string{normalize(stripQuotes(s))}
	}
	v, err := pylit.Parse(s)
	if err != nil {
		return splitByHand(s[1:max(1, len(s)-1)])
	}
	if l, ok := v.(pylit.List); ok {
		return cleanItems(l)
	}
	// Evaluated, but no list (say "[1][0]"): the original falls off its end and returns None, whose length fails.
	// A literal in brackets is always a list, so this line is out of reach; an answer that matches nothing is its meaning.
	return []string{"\x00"}
}

// cleanResult reads the text of a list of tuples. Tuples of other lengths than one are dropped, as in the original.
func cleanResult(s string) ([]string, bool) {
	if !strings.HasPrefix(s, "[") || !strings.HasSuffix(s, "]") {
		return nil, false
	}
	if v, err := pylit.Parse(s); err == nil {
		if rows, ok := tupleValues(v); ok {
			return rows, true
		}
	}
	in := strings.Trim(s, "[]")
	if strings.Count(in, "(") == 1 && strings.HasPrefix(in, "(") && strings.HasSuffix(in, ",)") {
		return []string{stripQuotes(pyStrip(in[1 : len(in)-2]))}, true
	}
	return nil, false
}

func tupleValues(v any) ([]string, bool) {
	l, ok := v.(pylit.List)
	if !ok {
		return nil, false
	}
	out := []string{}
	for _, it := range l {
		t, ok := it.(pylit.Tuple)
		if !ok {
			return nil, false
		}
		if len(t) == 1 {
			out = append(out, stripQuotes(pyStrip(pylit.Str(t[0]))))
		}
	}
	return out, true
}

// splitByHand is the original's own splitting at commas outside quotes.
func splitByHand(s string) []string {
	items := []string{}
	var cur strings.Builder
	flush := func() {
		if cur.Len() > 0 {
			items = append(items, normalize(stripQuotes(pyStrip(cur.String()))))
		}
		cur.Reset()
	}
	inQuotes := false
	for _, r := range s {
		switch {
		case r == '"' || r == '\'':
			inQuotes = !inQuotes
		case r == ',' && !inQuotes:
			flush()
		default:
			cur.WriteRune(r)
		}
	}
	flush()
	return items
}

// normalize maps what counts as nothing to "0", drops a percent sign at the end and commas within.
func normalize(s string) string {
	s = pyStrip(s)
	if strings.HasSuffix(s, "%") {
		return pyStrip(s[:len(s)-1])
	}
	if !strings.HasPrefix(s, "[") && !strings.HasSuffix(s, "]") {
		s = strings.ReplaceAll(s, ",", "")
	}
	switch strings.ToLower(s) {
	case "none", "null", "undefined", "nan", "inf", "infinity", "-inf", "-infinity", "":
		return "0"
	}
	return s
}

func stripQuotes(s string) string { return strings.Trim(s, `'"`) }

// pyStrip is Python's str.strip: Go's blanks and the four separators 0x1c to 0x1f.
func pyStrip(s string) string { return strings.TrimFunc(s, pySpace) }

func pySpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

var floatText = regexp.MustCompile(`^[+-]?([0-9]+(_[0-9]+)*\.?([0-9]+(_[0-9]+)*)?|\.[0-9]+(_[0-9]+)*)([eE][+-]?[0-9]+(_[0-9]+)*)?$`)

// pyFloat is Python's float(text): blanks around, underscores between digits, any Unicode digits, nan, inf.
func pyFloat(s string) (float64, bool) {
	s = asciiDigits(pyStrip(s))
	body, sign := s, 1
	if s != "" && (s[0] == '+' || s[0] == '-') {
		body = s[1:]
		sign = int(',') - int(s[0]) // '+' is one before the comma, '-' one after
	}
	switch strings.ToLower(body) {
	case "nan":
		return math.NaN(), true
	case "inf", "infinity":
		return math.Inf(sign), true
	}
	if !floatText.MatchString(s) {
		return 0, false
	}
	f, _ := strconv.ParseFloat(strings.ReplaceAll(s, "_", ""), 64) // out of range is inf, as in Python
	return f, true
}

// asciiDigits replaces other scripts' decimal digits, which come in runs of ten from a zero.
func asciiDigits(s string) string {
	if utf8.RuneCountInString(s) == len(s) {
		return s
	}
	return strings.Map(func(r rune) rune {
		if r < utf8.RuneSelf || !unicode.Is(unicode.Nd, r) {
			return r
		}
		for _, rg := range unicode.Nd.R16 {
			if uint16(r) >= rg.Lo && uint16(r) <= rg.Hi && r < 1<<16 {
				return '0' + (r-rune(rg.Lo))%10
			}
		}
		for _, rg := range unicode.Nd.R32 {
			if uint32(r) >= rg.Lo && uint32(r) <= rg.Hi {
				return '0' + (r-rune(rg.Lo))%10
			}
		}
		return r
	}, s)
}
