package rollout

import (
	"strings"

	"harness-s/model/chat"
	"harness-s/rollout/harness"
)

// Renderer turns conversations into tokens and a policy's text into calls. Token sequences only grow: what each
// method returns is appended to what is there. *chat.Renderer is one.
type Renderer interface {
	// Start is the prompt up to where the policy's first turn begins.
	Start(msgs []chat.Message, tools []chat.Tool) ([]int32, error)
	// CloseTurn is what must follow a turn as sampled before anything else may: nothing or little when it ended
	// with a stop token, the end of turn when it was cut.
	CloseTurn(sampled []int32) []int32
	// ToolResults is the answer to the calls of a turn, up to where the next turn begins.
	ToolResults(results []string) []int32
	// User is a user message, up to where the next turn begins.
	User(text string) []int32
	// Stop lists the tokens that end a turn.
	Stop() []int32
	// Text is what the policy sampled, decoded, without the token that ended it.
	Text(sampled []int32) string
	// Parse reads the calls of a turn.
	Parse(text string, tools []chat.Tool) chat.Parsed
}

var _ Renderer = (*chat.Renderer)(nil)

const (
	omittedText = "[omitted]"
	notesHead   = "\n\nNotes:\n"
	noteMark    = "note:"
	maxNotes    = 32
	maxNoteLen  = 200
)

// reply answers one policy turn: the results of its calls, or a user message when it made none.
type reply struct {
	results []string
	user    string
}

// addText puts a line under the last thing said.
func (r *reply) addText(text string) {
	last := &r.user
	if n := len(r.results); n > 0 {
		last = &r.results[n-1]
	}
	if *last != "" {
		*last += "\n"
	}
	*last += text
}

// exchange is one policy turn and its answer.
type exchange struct {
	sampled []int32
	text    string // the same, decoded
	reply   reply
	short   bool // its results are already left out of the context
}

// conversation builds the rows of one rollout. While memory keeps everything there is one row, which only grows.
// When memory changes the past, a new row begins: turns sampled before are its context, token for token, and are not
// trained on a second time.
type conversation struct {
	format Renderer
	memory harness.Memory
	msgs   []chat.Message
	tools  []chat.Tool
	past   []exchange
	notes  []string
	rows   []Row // the last is the one that grows
}

func newConversation(format Renderer, memory harness.Memory, msgs []chat.Message, tools []chat.Tool) (*conversation, error) {
	c := &conversation{format: format, memory: memory, msgs: msgs, tools: tools}
	return c, c.begin(msgs)
}

// begin opens a row with a prompt.
func (c *conversation) begin(msgs []chat.Message) error {
	head, err := c.format.Start(msgs, c.tools)
	if err != nil {
		return err
	}
	c.rows = append(c.rows, Row{})
	c.row().appendContext(head)
	return nil
}

func (c *conversation) row() *Row { return &c.rows[len(c.rows)-1] }

// prompt is the context of the next turn.
func (c *conversation) prompt() []int32 { return c.row().Tokens }

// sampled adds a policy turn; text is what its tokens say.
func (c *conversation) sampled(tokens []int32, logprobs []float32, text string) {
	c.row().appendPolicy(tokens, logprobs)
	c.past = append(c.past, exchange{sampled: tokens, text: text})
}

// answer adds the answer to the last turn.
func (c *conversation) answer(r reply) error {
	last := &c.past[len(c.past)-1]
	last.reply = r
	if c.forget() {
		return c.rewrite()
	}
	c.row().appendContext(c.format.CloseTurn(last.sampled))
	c.row().appendContext(c.answerTokens(last.reply))
	return nil
}

func (c *conversation) answerTokens(r reply) []int32 {
	if len(r.results) > 0 {
		return c.format.ToolResults(r.results)
	}
	return c.format.User(r.user)
}

// forget applies the memory rule and says whether the context before the last turn changed.
func (c *conversation) forget() bool {
	old := len(c.past) - c.memory.Keep // turns before this index are old
	if old <= 0 {
		return false
	}
	switch c.memory.Mode {
	case harness.MemoryNotes:
		for _, x := range c.past[:old] {
			c.takeNotes(x.text)
		}
		c.past = c.past[old:]
		return true
	case harness.MemoryLastK:
		changed := false
		for i := range c.past[:old] {
			changed = c.past[i].shorten() || changed
		}
		return changed
	}
	return false
}

// shorten leaves out the results of an old exchange; false when that would gain nothing.
func (x *exchange) shorten() bool {
	if x.short {
		return false
	}
	x.short = true
	changed := false
	results := make([]string, len(x.reply.results))
	for i, r := range x.reply.results {
		results[i] = r
		if len(r) > len(omittedText) {
			results[i], changed = omittedText, true
		}
	}
	x.reply.results = results
	return changed
}

// rewrite begins a row with the past as memory has it now.
func (c *conversation) rewrite() error {
	if err := c.begin(c.withNotes()); err != nil {
		return err
	}
	for _, x := range c.past {
		c.row().appendContext(x.sampled)
		c.row().appendContext(c.format.CloseTurn(x.sampled))
		c.row().appendContext(c.answerTokens(x.reply))
	}
	return nil
}

// takeNotes keeps the lines of a turn that begin with "note:", the newest maxNotes of them.
func (c *conversation) takeNotes(text string) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if len(line) <= len(noteMark) || !strings.EqualFold(line[:len(noteMark)], noteMark) {
			continue
		}
		c.notes = append(c.notes, cut(strings.TrimSpace(line[len(noteMark):]), maxNoteLen))
	}
	if n := len(c.notes); n > maxNotes {
		c.notes = c.notes[n-maxNotes:]
	}
}

// withNotes is the prompt with the notes under the task.
func (c *conversation) withNotes() []chat.Message {
	if len(c.notes) == 0 {
		return c.msgs
	}
	msgs := append([]chat.Message(nil), c.msgs...)
	msgs[len(msgs)-1].Content += notesHead + strings.Join(c.notes, "\n")
	return msgs
}

// finish trims the rows and drops one in which the policy never spoke.
func (c *conversation) finish() []Row {
	for i := range c.rows {
		c.rows[i].trim()
	}
	if n := len(c.rows); n > 0 && len(c.rows[n-1].TurnBounds) == 0 {
		c.rows = c.rows[:n-1]
	}
	return c.rows
}

// cut shortens s to at most n bytes at a rune's edge.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n]
}
