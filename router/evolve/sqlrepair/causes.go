package sqlrepair

import (
	"slices"
	"strconv"
	"strings"

	"harness-s/rollout"
)

// cause is one entry of the closed list: what an attempt did wrong first, and a test for it.
type cause struct {
	name string
	what string // what goes wrong, one sentence; becomes the direction of a harness
	// test says in which turn the decision was made, with facts for an edit; ok is false where it was not this.
	test func(t *trace) (turn int, facts map[string]string, ok bool)
}

// causes are the list, by precedence: of two wrong decisions in one turn the first listed is the cause. Otherwise the
// earliest turn decides. A decision that was made good later (an error followed by a statement that ran, an empty
// result by one with rows) is none of them.
var causes = []cause{
	{"guesses-names", "guesses names of columns or tables instead of looking them up", guessesNames},
	{"misreads-schema", "has seen the schema and still names a column or table that is not there", misreadsSchema},
	{"wrong-quoting", "leaves names that need quotes unquoted", wrongQuoting},
	{"repeats-call", "repeats a call that has already answered", repeatsCall},
	{"no-call", "says something without a tool call that can be read", noCall},
	{"compares-exactly", "compares text exactly, and finds nothing", comparesExactly},
	{"changes-nothing", "does not see that a change touched no row", changesNothing},
	{"counts-shown-rows", "counts the rows shown, although a result may be cut", countsShownRows},
	{"copies-cut-result", "takes the first rows of a long result for the whole", copiesCutResult},
	{"takes-empty-result", "takes an empty result for the answer", takesEmptyResult},
	{"gives-up-after-error", "gives up after an error instead of finding its cause", givesUpAfterError},
	{"wrong-form", "has the values asked for in its result and commits something else", wrongForm},
	{"unverified-change", "commits a change without looking at what it did", unverifiedChange},
	{"runs-out-of-turns", "runs out of turns before it commits an answer", runsOutOfTurns},
	{"commits-unchecked", "commits the first result without checking it", commitsUnchecked},
}

// diagnose finds the earliest wrong decision; nil when no test fits.
func diagnose(t *trace) (found *cause, turn int, facts map[string]string) {
	for i := range causes {
		at, f, ok := causes[i].test(t)
		if ok && (found == nil || at < turn) {
			found, turn, facts = &causes[i], at, f
		}
	}
	return found, turn, facts
}

// unsolved is the first statement of the run of failed ones that the attempt ended with, if the last failed in a way that fits.
func (t *trace) unsolved(fits func(*step) bool) *step {
	all := t.statements()
	if len(all) == 0 || !fits(all[len(all)-1]) {
		return nil
	}
	i := len(all) - 1
	for i > 0 && all[i-1].problem != fine {
		i--
	}
	for ; !fits(all[i]); i++ {
	}
	return all[i]
}

func guessesNames(t *trace) (int, map[string]string, bool) {
	s := t.unsolved(func(s *step) bool { return s.problem == unknownName })
	if s == nil || t.schemaShown() {
		return 0, nil, false
	}
	return s.turn, nil, true
}

func misreadsSchema(t *trace) (int, map[string]string, bool) {
	s := t.unsolved(func(s *step) bool { return s.problem == unknownName && t.schemaBefore(s) })
	if s == nil {
		return 0, nil, false
	}
	return s.turn, nil, true
}

func wrongQuoting(t *trace) (int, map[string]string, bool) {
	s := t.unsolved(func(s *step) bool { return s.problem == badQuoting })
	if s == nil {
		return 0, nil, false
	}
	return s.turn, nil, true
}

// givesUpAfterError is an error that the attempt did not try to get over, and that no other cause explains.
func givesUpAfterError(t *trace) (int, map[string]string, bool) {
	last := t.last()
	if last == nil || last.problem == fine || t.commit < 0 {
		return 0, nil, false
	}
	return t.steps[t.commit].turn, nil, true
}

// repeatsCall is a call made before, with no change in between, in an attempt that got no further. Of a look-up too.
func repeatsCall(t *trace) (int, map[string]string, bool) {
	last := t.last()
	stuck := t.commit < 0 || last != nil && (last.problem != fine || last.empty())
	seen := map[string]bool{}
	for i := range t.steps {
		s := &t.steps[i]
		if stuck && (seen[s.key] && s.isSQL || s.refused == "refuse_repeat") {
			return s.turn, nil, true
		}
		if s.isSQL && s.sql.change() && s.problem == fine {
			clear(seen)
		}
		seen[s.key] = true
	}
	return 0, nil, false
}

// noCall is a turn without a call in an attempt that committed no answer.
func noCall(t *trace) (int, map[string]string, bool) {
	if len(t.silent) == 0 || t.commit >= 0 {
		return 0, nil, false
	}
	return t.silent[0], nil, true
}

// empty is a result without rows.
func (s *step) empty() bool {
	return s.problem == fine && s.isRows && len(s.rows) == 0 && !s.sql.change()
}

func comparesExactly(t *trace) (int, map[string]string, bool) {
	s := t.last()
	if s == nil || !s.empty() || !s.sql.comparesExactly() {
		return 0, nil, false
	}
	return s.turn, nil, true
}

func takesEmptyResult(t *trace) (int, map[string]string, bool) {
	s := t.last()
	if s == nil || !s.empty() {
		return 0, nil, false
	}
	return s.turn, nil, true
}

// changesNothing needs an environment that says how many rows a change touched.
func changesNothing(t *trace) (int, map[string]string, bool) {
	for _, s := range slices.Backward(t.statements()) {
		if s.sql.change() {
			return s.turn, map[string]string{"exact": strconv.FormatBool(s.sql.comparesExactly())}, s.problem == fine && s.changed == 0
		}
	}
	return 0, nil, false
}

// countsShownRows is a number in answer to rows that the database did not count.
func countsShownRows(t *trace) (int, map[string]string, bool) {
	s := t.last()
	if s == nil || t.commit < 0 || s.problem != fine || !s.isRows || len(s.rows) == 0 || s.sql.aggregates() || s.sql.change() {
		return 0, nil, false
	}
	answers := t.steps[t.commit].answers
	if len(answers) != 1 || slices.Contains(s.rows, answers[0]) {
		return 0, nil, false
	}
	n, err := strconv.Atoi(strings.TrimSpace(answers[0]))
	if err != nil || !s.cut && (n == len(s.rows) || len(s.rows) == 1) {
		return 0, nil, false // a count that agrees with a whole result is none of this; of one row it is no count
	}
	return s.turn, t.cutFacts(s), true
}

func copiesCutResult(t *trace) (int, map[string]string, bool) {
	s := t.last()
	if s == nil || t.commit < 0 || !s.cut || s.sql.change() {
		return 0, nil, false
	}
	return s.turn, t.cutFacts(s), true
}

// cutFacts tells how much was shown, and whether the harness's own limit cut it.
func (t *trace) cutFacts(s *step) map[string]string {
	facts := map[string]string{"rows": strconv.Itoa(len(s.rows)), "cut_by": "environment"}
	limit := t.parent.Memory.MaxObservationChars
	if limit > 0 && len([]rune(s.told)) >= limit+len(truncatedMark) {
		facts["cut_by"] = "harness"
	}
	return facts
}

// wrongForm is an answer whose values are those asked for once blanks, case, brackets and repeats are put aside; or another
// answer than the one that a whole result showed.
func wrongForm(t *trace) (int, map[string]string, bool) {
	gold := plainValues(t.grader.gold())
	if t.commit < 0 || len(gold) == 0 {
		return 0, nil, false
	}
	turn := t.steps[t.commit].turn
	if slices.Equal(plainValues(t.grader.Answers), gold) {
		return turn, map[string]string{"had": "answer"}, true
	}
	s := t.last()
	if s != nil && s.problem == fine && !s.cut && slices.Equal(plainValues(s.rows), gold) {
		return turn, map[string]string{"had": "result"}, true
	}
	return 0, nil, false
}

// plainValues are values without what only form adds, sorted, each once.
func plainValues(values []string) []string {
	var out []string
	for _, v := range values {
		for part := range strings.SplitSeq(v, ",") {
			if part = strings.ToLower(strings.Trim(part, " \t[]()'\"`.")); part != "" {
				out = append(out, part)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// unverifiedChange is a change that ran, was wrong by the grader's word or by the outcome, and that no selection looked at.
func unverifiedChange(t *trace) (int, map[string]string, bool) {
	all := t.statements()
	for i, s := range slices.Backward(all) {
		if !s.sql.change() {
			continue
		}
		looked := slices.ContainsFunc(all[i+1:], func(o *step) bool { return o.problem == fine })
		return s.turn, nil, t.commit >= 0 && s.problem == fine && !looked
	}
	return 0, nil, false
}

func runsOutOfTurns(t *trace) (int, map[string]string, bool) {
	if t.commit >= 0 || t.lastOut < 0 {
		return 0, nil, false
	}
	facts := map[string]string{"limit": "turns"}
	if t.rec.Status == rollout.TokenLimit {
		facts["limit"] = "tokens"
	}
	return t.lastOut, facts, true
}

// commitsUnchecked is an answer that nothing else explains.
func commitsUnchecked(t *trace) (int, map[string]string, bool) {
	if t.commit < 0 {
		return 0, nil, false
	}
	return t.steps[t.commit].turn, nil, true
}
