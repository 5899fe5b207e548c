package warmstart

import (
	"context"
	"fmt"
	"iter"
	"regexp"
	"strings"

	"harness-s/model/chat"
	"harness-s/model/tokenizer"
	"harness-s/rollout/env/sqlenv"
	"harness-s/rollout/env/sqlenv/taskgen"
	"harness-s/rollout/harness"
)

// addedTokens are the markers of the chat format, and the fixed lines around a call's one argument: as single tokens
// they make a turn a third shorter. The text is Qwen3.5's all the same.
func addedTokens() []tokenizer.Added {
	added := chat.AddedTokens()
	for _, tool := range [][2]string{{sqlenv.ToolSQL, "query"}, {sqlenv.ToolCommit, "answers"}} {
		added = append(added, tokenizer.Added{Content: "\n<function=" + tool[0] + ">\n<parameter=" + tool[1] + ">\n"})
	}
	return append(added, tokenizer.Added{Content: "\n</parameter>\n</function>\n"})
}

// bytesOnly is the tokenizer before there is one: demonstrations are played with it to be read as text.
func bytesOnly() (*tokenizer.Tokenizer, error) {
	added := addedTokens()
	return tokenizer.Train(func(func(string) bool) {}, 256+len(added), added)
}

// trainTokenizer learns a vocabulary from demonstrations.
//
// Words that the tasks invent are cut out of the text, and the syllables they are made of are counted above all else:
// so an invented word is the same pieces wherever it stands, held-out words included, and to copy one is to copy its
// tokens. The other words are counted bare as well, so that they are whole before they take on a space or a quote.
func trainTokenizer(ctx context.Context, cfg Config, pool *harness.Pool) (*tokenizer.Tokenizer, error) {
	raw, err := bytesOnly()
	if err != nil {
		return nil, err
	}
	d, err := newDemonstrator(cfg, pool, raw)
	if err != nil {
		return nil, err
	}
	var texts []string
	for i := range cfg.Demo.Corpus {
		rec, err := d.record(ctx, i, d.rng(i))
		if err != nil {
			return nil, fmt.Errorf("tokenizer corpus: %w", err)
		}
		task := d.tasks.Make(taskgen.Demo, i)
		texts = append(texts, cutOut(raw.Decode(rec.Rows[0].Tokens), inventedWords(task))...)
	}
	return tokenizer.Train(pieces(texts), cfg.Vocab, addedTokens())
}

var (
	syllable    = "(?:" + strings.Join(taskgen.Syllables(), "|") + ")"
	invented    = regexp.MustCompile("(?i)" + syllable + "(?:" + syllable + "s?|[0-9])")
	wordRun     = regexp.MustCompile(`[A-Za-z]+[0-9]?`)
	oneSyllable = regexp.MustCompile("^" + syllable + "$")
	letters     = regexp.MustCompile(`[A-Za-z]+`)
)

// inventedWords are the words of a task that mean nothing outside it.
func inventedWords(t *taskgen.Task) map[string]bool {
	out := map[string]bool{t.Entity: true}
	add := func(text string) {
		for _, w := range wordRun.FindAllString(text, -1) {
			if w := strings.ToLower(w); invented.FindString(w) == w {
				out[w] = true
			}
		}
	}
	for _, table := range t.Tables() {
		add(table.Name)
		for _, c := range table.Columns[1:] { // the first is name, an ordinary word
			add(c.Name)
		}
		for _, r := range table.Rows {
			for _, cell := range r {
				if s, ok := cell.(string); ok {
					add(s)
				}
			}
		}
	}
	return out
}

// cutOut is the text between the words given, and between ordinary words that are a syllable ("to", "no"): they too must
// not take on what stands before them.
func cutOut(text string, words map[string]bool) (parts []string) {
	from := 0
	for _, at := range wordRun.FindAllStringIndex(text, -1) {
		if w := strings.ToLower(text[at[0]:at[1]]); words[w] || oneSyllable.MatchString(w) {
			parts = append(parts, text[from:at[0]])
			from = at[1]
		}
	}
	return append(parts, text[from:])
}

// pieces is what the vocabulary is learned from.
func pieces(texts []string) iter.Seq[string] {
	return func(yield func(string) bool) {
		most := 0
		for _, text := range texts {
			most += len(text)
			if !yield(text) {
				return
			}
			for _, w := range letters.FindAllString(text, -1) {
				if !yield(w) {
					return
				}
			}
		}
		for _, s := range taskgen.Syllables() {
			for range most/4 + 1 { // above any pair of the text
				if !yield(s) {
					return
				}
			}
		}
	}
}
