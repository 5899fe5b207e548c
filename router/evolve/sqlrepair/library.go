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

// edit is one way to repair a cause: the operators that make a candidate child.
type edit []operator

// repairs lists the edits for each cause, most to the point first. They differ in kind (a sentence alone, a sentence with a
// rule, a rule alone) so that measuring has something to choose from.
var repairs = map[string][]edit{
	"guesses-names": {
		{instruct("look")},
		{instruct("repair")},
		{instruct("retry"), schemaOnError},
		{schemaOnError},
	},
	"misreads-schema": {
		{instruct("retry"), schemaOnError},
		{instruct("repair")},
		{schemaOnError},
		{instruct("look")},
	},
	"wrong-quoting": {
		{instruct("quote")},
		{instruct("quote"), schemaOnError},
		{instruct("repair")},
		{schemaOnError},
	},
	"repeats-call": {
		{instruct("steady"), refuseRepeat, nudge, formatRepair},
		{instruct("steady")},
		{refuseRepeat},
	},
	"no-call": {
		{formatRepair},
		{instruct("call"), formatRepair},
		{showCall},
	},
	"compares-exactly": {
		{instruct("clean")},
		{instruct("values"), emptyHint},
		{instruct("clean"), instruct("values"), emptyHint},
		{emptyHint},
	},
	"changes-nothing": {
		{instruct("recount")},
		{instruct("clean")},
		{instruct("recount"), verifyBeforeFinish},
	},
	"counts-shown-rows": {
		{instruct("count")},
		{instruct("verify"), verifyBeforeFinish},
		{instruct("count"), truncatedHint},
		{truncatedHint},
	},
	"copies-cut-result": {
		{showMore},
		{instruct("page"), truncatedHint},
		{truncatedHint},
		{instruct("page")},
	},
	"takes-empty-result": {
		{instruct("values"), emptyHint},
		{emptyHint},
		{instruct("verify"), verifyBeforeFinish},
	},
	"gives-up-after-error": {
		{instruct("repair")},
		{instruct("retry"), schemaOnError},
		{instruct("steady"), refuseRepeat, nudge, formatRepair},
	},
	"wrong-form": {
		{describeAnswers},
		{instruct("form")},
		{instruct("verify"), verifyBeforeFinish},
	},
	"unverified-change": {
		{instruct("recount")},
		{instruct("recount"), verifyBeforeFinish},
		{instruct("verify"), verifyBeforeFinish},
	},
	"runs-out-of-turns": {
		{moreTurns},
		{shortMemory},
		{nudge},
		{instruct("steady"), refuseRepeat, nudge, formatRepair},
	},
	"commits-unchecked": {
		{instruct("verify"), verifyBeforeFinish},
		{instruct("verify")},
		{verifyBeforeFinish},
	},
}
