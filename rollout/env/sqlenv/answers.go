package sqlenv

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"regexp"
	"sort"
	"strings"

	"harness-s/rollout/env/sqlenv/pylit"
)

// Bounds of a committed answer.
const (
	maxAnswerBytes = 1 << 16
	maxAnswers     = 2000
)

// ParseAnswers reads a committed argument into texts. The schema asks for a list of texts; tolerated are a single
// text or number, numbers, null (as "none") and other JSON (as its text) inside the list, and a text that is itself a JSON list or the Python
// list of one-column rows that execute_sql shows. Nothing is evaluated.
func ParseAnswers(raw json.RawMessage) ([]string, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, fmt.Errorf("the answers are not JSON")
	}
	var out []string
	switch v := v.(type) {
	case []any:
		for _, it := range v {
			s, ok := answerText(it)
			if !ok {
				text, err := json.Marshal(it)
				if err != nil {
					return nil, fmt.Errorf("the answers are not JSON")
				}
				s = string(text)
			}
			out = append(out, s)
		}
	case string:
		out = splitAnswer(v)
	default:
		s, ok := answerText(v)
		if !ok {
			return nil, fmt.Errorf("answers must be a list of texts")
		}
		out = []string{s}
	}
	if len(out) > maxAnswers {
		return nil, fmt.Errorf("%d answers are more than %d", len(out), maxAnswers)
	}
	return out, nil
}

func answerText(v any) (string, bool) {
	switch v := v.(type) {
	case nil:
		return "none", true
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	case bool:
		return fmt.Sprint(v), true
	}
	return "", false
}

// splitAnswer takes one text apart if it is a list, else keeps it whole.
func splitAnswer(s string) []string {
	t := strings.TrimSpace(s)
	if !strings.HasPrefix(t, "[") {
		return []string{s}
	}
	var items []any
	dec := json.NewDecoder(strings.NewReader(t))
	dec.UseNumber()
	if dec.Decode(&items) != nil || dec.More() {
		v, err := pylit.Parse(t)
		l, ok := v.(pylit.List)
		if err != nil || !ok {
			return []string{s}
		}
		items = l
	}
	out := make([]string, 0, len(items))
	for _, it := range items {
		if tup, ok := it.(pylit.Tuple); ok && len(tup) == 1 {
			it = tup[0]
		}
		switch it := it.(type) {
		case *big.Int, float64:
			out = append(out, pylit.Str(it))
		default:
			text, ok := answerText(it)
			if !ok {
				return []string{s}
			}
			out = append(out, text)
		}
	}
	return out
}

// MatchAnswers is the strict comparison, in any order:
//
//   - blanks around a value do not count, everything else does (case, quotes, percent signs);
//   - duplicates count: the two lists must have the same length;
//   - two plain decimal numbers (a sign, thousands commas, a fraction and an exponent allowed) match within 1e-2;
//     nan, inf, hexadecimal and underscores are text;
//   - "none" and "null" in any case stand for each other, never for 0, an empty text or an empty list;
//   - an empty list matches nothing, since a task always asks for something.
func MatchAnswers(got, gold []string) bool {
	if len(got) != len(gold) || len(gold) == 0 {
		return false
	}
	gn, gt := partition(got)
	wn, wt := partition(gold)
	if len(gn) != len(wn) {
		return false
	}
	for i := range gt {
		if gt[i] != wt[i] {
			return false
		}
	}
	// For intervals of one width on a line, pairing in sorted order finds a perfect matching when there is one.
	for i := range gn {
		d := new(big.Rat).Sub(gn[i], wn[i])
		if d.Abs(d).Cmp(tolerance) > 0 {
			return false
		}
	}
	return true
}

var (
	tolerance = big.NewRat(1, 100)
	decimal   = regexp.MustCompile(`^[+-]?([0-9]{1,3}(,[0-9]{3})+|[0-9]{1,60})?(\.[0-9]{0,60})?([eE][+-]?[0-9]{1,3})?$`)
)

// Number reads a plain decimal number exactly; ok is false for everything else.
func Number(s string) (r *big.Rat, ok bool) {
	if len(s) > 120 || !decimal.MatchString(s) || !strings.ContainsAny(s, "0123456789") {
		return nil, false
	}
	s = strings.ReplaceAll(s, ",", "")
	if i := strings.IndexAny(s, "eE"); i >= 0 && !strings.ContainsAny(s[:i], "0123456789") {
		return nil, false
	}
	return new(big.Rat).SetString(s)
}

// partition sorts values into numbers and texts, each in order.
func partition(vals []string) (nums []*big.Rat, texts []string) {
	for _, v := range vals {
		v = strings.TrimSpace(v)
		if r, ok := Number(v); ok {
			nums = append(nums, r)
			continue
		}
		if strings.EqualFold(v, "null") || strings.EqualFold(v, "none") {
			v = "none"
		}
		texts = append(texts, v)
	}
	sort.Slice(nums, func(i, j int) bool { return nums[i].Cmp(nums[j]) < 0 })
	sort.Strings(texts)
	return nums, texts
}
