package warmstart

import (
	"context"
	"fmt"
	"iter"
	"regexp"
	"slices"
	"strings"

	"harness-s/model/tokenizer"
	"harness-s/rollout/env/sqlenv"
	"harness-s/rollout/env/sqlenv/taskgen"
	"harness-s/rollout/harness"
)

// added are the tokens of the chat format, and the fixed lines around a call's arguments: as single tokens they make a
// turn a third shorter. The text is Qwen3.5's all the same.
func addedTokens() []tokenizer.Added {
	added := []tokenizer.Added{
		{Content: "<|endoftext|>", Special: true}, {Content: "<|im_start|>", Special: true}, {Content: "<|im_end|>", Special: true},
		{Content: "<think>"}, {Content: "</think>"}, {Content: "<tool_call>"}, {Content: "</tool_call>"},
		{Content: "<tool_response>"}, {Content: "</tool_response>"},
	}
	for tool, arg := range map[string]string{sqlenv.ToolSQL: "query", sqlenv.ToolCommit: "answers"} {
		added = append(added, tokenizer.Added{Content: "\n<function=" + tool + ">\n<parameter=" + arg + ">\n"})
	}
	slices.SortFunc(added[9:], func(a, b tokenizer.Added) int { return strings.Compare(a.Content, b.Content) })
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
// so an invented word is the same pieces wherever it stands, held-out words included, and copying one is copying
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
		texts = append(texts, raw.Decode(rec.Rows[0].Tokens))
	}
	return tokenizer.Train(pieces(texts), cfg.Vocab, addedTokens())
}

var letters = regexp.MustCompile(`[A-Za-z]+`)

// pieces is what the vocabulary is learned from.
func pieces(texts []string) iter.Seq[string] {
	invented := inventedWord()
	return func(yield func(string) bool) {
		most := 0
		for _, text := range texts {
			for _, part := range invented.Split(text, -1) {
				most += len(part)
				if !yield(part) {
					return
				}
				for _, w := range letters.FindAllString(part, -1) {
					if !yield(w) {
						return
					}
				}
			}
		}
		for _, s := range taskgen.Syllables() {
			for range most/8 + 1 { // above any pair of the text
				if !yield(s) {
					return
				}
			}
		}
	}
}

// inventedWord matches words made of two or more syllables, or of one and a digit, in small or capital letters.
func inventedWord() *regexp.Regexp {
	s := "(?:" + strings.Join(taskgen.Syllables(), "|") + ")"
	return regexp.MustCompile(`\b(?i:` + s + s + `s?|` + s + `[0-9])\b`)
}
