package sqlrepair

// sentence is an instruction. The embedded policy was shown what the sentences of recipes/pools/sql mean; the rest is for
// policies that can read.
type sentence struct {
	name string
	slot string // two sentences of a slot say the same thing in two ways: only one stands in a prompt
	text string
}

// sentences stand in the order in which a policy acts on them.
var sentences = []sentence{
	{"look", "look", "Look up the schema first."},
	{"clean", "clean", "Compare text with lower(trim())."},
	{"count", "count", "Count with COUNT(*)."},
	{"quote", "quote", "Put names in backquotes."},
	{"page", "page", "Read long results page by page with LIMIT and OFFSET."},
	{"recount", "recount", "Count rows before and after a change."},
	{"repair", "error", "After an error, look up the schema and try again."},
	{"retry", "error", "After an error, try again."},
	{"steady", "steady", "Never repeat a failed statement."},
	{"values", "empty", "After an empty result, look at the stored values."},
	{"verify", "verify", "Check the result before you commit."},
	{"form", "form", "Commit only the values asked for, each as a text of its own."},
	{"call", "call", "Answer every turn with one tool call."},
}

// edit is one way to repair a cause: a candidate child.
type edit struct {
	name string // what the child is called, after its parent
	ops  []operator
}

func do(name string, ops ...operator) edit { return edit{name, ops} }

// repairs lists the edits for each cause, most to the point first. They differ in kind (a sentence alone, a sentence with a
// rule, a rule alone) so that measuring has something to choose from.
var repairs = map[string][]edit{
	"guesses-names": {
		do("look", instruct("look")),
		do("repair", instruct("repair")),
		do("retry", instruct("retry"), schemaOnError),
		do("schema", schemaOnError),
	},
	"misreads-schema": {
		do("retry", instruct("retry"), schemaOnError),
		do("repair", instruct("repair")),
		do("schema", schemaOnError),
		do("look", instruct("look")),
	},
	"wrong-quoting": {
		do("quote", instruct("quote")),
		do("repair", instruct("repair")),
		do("quote-schema", instruct("quote"), schemaOnError),
		do("schema", schemaOnError),
	},
	"repeats-call": {
		do("steady", instruct("steady"), refuseRepeat, nudge, formatRepair),
		do("once", instruct("steady")),
		do("refuse", refuseRepeat),
	},
	"no-call": {
		do("format", formatRepair),
		do("call", instruct("call"), formatRepair),
		do("example", showCall),
	},
	"compares-exactly": {
		do("clean", instruct("clean")),
		do("values", instruct("values"), emptyHint),
		do("clean-values", instruct("clean"), instruct("values"), emptyHint),
		do("empty", emptyHint),
	},
	"changes-nothing": {
		do("recount", instruct("recount")),
		do("clean", instruct("clean")),
		do("verify-change", instruct("recount"), verifyBeforeFinish),
	},
	"counts-shown-rows": {
		do("count", instruct("count")),
		do("count-hint", instruct("count"), truncatedHint),
		do("verify", instruct("verify"), verifyBeforeFinish),
		do("hint", truncatedHint),
	},
	"copies-cut-result": {
		do("wide", showMore),
		do("page", instruct("page"), truncatedHint),
		do("pages", instruct("page")),
		do("hint", truncatedHint),
	},
	"takes-empty-result": {
		do("values", instruct("values"), emptyHint),
		do("empty", emptyHint),
		do("verify", instruct("verify"), verifyBeforeFinish),
	},
	"gives-up-after-error": {
		do("repair", instruct("repair")),
		do("retry", instruct("retry"), schemaOnError),
		do("steady", instruct("steady"), refuseRepeat, nudge, formatRepair),
	},
	"wrong-form": {
		do("answers", describeAnswers),
		do("form", instruct("form")),
		do("verify", instruct("verify"), verifyBeforeFinish),
	},
	"unverified-change": {
		do("recount", instruct("recount")),
		do("verify-change", instruct("recount"), verifyBeforeFinish),
		do("verify", instruct("verify"), verifyBeforeFinish),
	},
	"runs-out-of-turns": {
		do("turns", moreTurns),
		do("short", shortMemory),
		do("nudge", nudge),
		do("steady", instruct("steady"), refuseRepeat, nudge, formatRepair),
	},
	"commits-unchecked": {
		do("verify", instruct("verify"), verifyBeforeFinish),
		do("check", instruct("verify")),
		do("refuse-first", verifyBeforeFinish),
	},
}
