package tokenizer

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
)

// Added is a token outside the merges: a control token or a marker of the chat format. Special ones are left out of
// text shown to people (DecodeSkipSpecial).
type Added struct {
	Content string
	Special bool
}

// minPairCount is how often a pair must occur to become a token.
const minPairCount = 2

// word is one distinct piece of the corpus while it is being merged.
type word struct {
	ids   []int32
	count int64
}

// trainer counts neighbouring pairs over distinct words.
type trainer struct {
	words  []word
	counts map[uint64]int64            // by pairKey
	where  map[uint64]map[int]struct{} // words that held the pair at some time
	tokens []string                    // id -> byte-level spelling
	ids    map[string]int32
	merges [][2]string // as the file spells them
}

// Train learns a byte-level BPE vocabulary of at most vocabSize tokens, added ones included: the 256 bytes first, then
// a merge of the most frequent pair at a time (ties go to the lowest ids), the added tokens last, in the order given.
// It stops early when no pair occurs twice. Text is split as Qwen3.5 splits it; added tokens in it are left out. The
// same corpus, in any order, gives the same tokenizer.
func Train(corpus iter.Seq[string], vocabSize int, added []Added) (*Tokenizer, error) {
	if least := 256 + len(added); vocabSize < least {
		return nil, fmt.Errorf("train tokenizer: vocabulary of %d is below the %d that bytes and added tokens take", vocabSize, least)
	}
	if vocabSize > maxID {
		return nil, fmt.Errorf("train tokenizer: vocabulary of %d is above %d", vocabSize, maxID)
	}
	pieces, err := countPieces(corpus, added)
	if err != nil {
		return nil, fmt.Errorf("train tokenizer: %w", err)
	}
	tr := newTrainer(pieces)
	for len(tr.tokens) < vocabSize-len(added) {
		a, b, ok := tr.best()
		if !ok {
			break
		}
		tr.merge(a, b)
	}
	data, err := marshalFile(tr.tokens, tr.merges, added, splitQwen35, true)
	if err != nil {
		return nil, fmt.Errorf("train tokenizer: %w", err)
	}
	t, err := parse(data) // read back, so that a trained tokenizer is the one its file gives
	if err != nil {
		return nil, fmt.Errorf("train tokenizer: %w", err)
	}
	return t, nil
}

// countPieces splits the corpus and counts distinct pieces.
func countPieces(corpus iter.Seq[string], added []Added) (map[string]int64, error) {
	t := &Tokenizer{split: splitter{word: letter | mark}}
	for _, a := range added {
		if a.Content == "" {
			return nil, errors.New("an added token is empty")
		}
		t.byFirst[a.Content[0]] = append(t.byFirst[a.Content[0]], a.Content)
	}
	sortLongestFirst(&t.byFirst)
	pieces := map[string]int64{}
	count := func(plain string) {
		for plain = nfc(plain); len(plain) > 0; {
			n := t.split.next(plain)
			pieces[plain[:n]]++
			plain = plain[n:]
		}
	}
	for text := range corpus {
		text = validUTF8(text)
		for {
			at, token := t.findAdded(text)
			if token == "" {
				break
			}
			count(text[:at])
			text = text[at+len(token):]
		}
		count(text)
	}
	return pieces, nil
}

func newTrainer(pieces map[string]int64) *trainer {
	tr := &trainer{counts: map[uint64]int64{}, where: map[uint64]map[int]struct{}{}, ids: map[string]int32{}}
	// Byte ids follow the order of their spelling, as in the files of Hugging Face's trainer.
	spelling := slices.Clone(byteRunes[:])
	slices.Sort(spelling)
	for _, r := range spelling {
		tr.add(string(r))
	}
	texts := make([]string, 0, len(pieces))
	for p := range pieces {
		texts = append(texts, p)
	}
	slices.Sort(texts)
	for i, p := range texts {
		w := word{count: pieces[p]}
		for j := range len(p) {
			w.ids = append(w.ids, tr.ids[string(byteRunes[p[j]])])
		}
		tr.words = append(tr.words, w)
		tr.countWord(i, 1)
	}
	return tr
}

func (tr *trainer) add(token string) int32 {
	if id, ok := tr.ids[token]; ok {
		return id // two merges can spell the same token
	}
	id := int32(len(tr.tokens))
	tr.tokens = append(tr.tokens, token)
	tr.ids[token] = id
	return id
}

// countWord adds (sign 1) or takes away (-1) the pairs of a word.
func (tr *trainer) countWord(i int, sign int64) {
	w := tr.words[i]
	for j := 0; j+1 < len(w.ids); j++ {
		key := pairKey(w.ids[j], w.ids[j+1])
		tr.counts[key] += sign * w.count
		if tr.counts[key] == 0 {
			delete(tr.counts, key)
		}
		if sign > 0 {
			if tr.where[key] == nil {
				tr.where[key] = map[int]struct{}{}
			}
			tr.where[key][i] = struct{}{}
		}
	}
}

// best is the most frequent pair, the one of the lowest ids among equals.
func (tr *trainer) best() (a, b int32, ok bool) {
	var top int64 = minPairCount - 1
	var key uint64
	for k, n := range tr.counts {
		if n > top || n == top && ok && k < key {
			top, key, ok = n, k, true
		}
	}
	return int32(key >> 32), int32(uint32(key)), ok
}

// merge makes a token of a pair and applies it to every word that holds it.
func (tr *trainer) merge(a, b int32) {
	left, right := tr.tokens[a], tr.tokens[b]
	id := tr.add(left + right)
	tr.merges = append(tr.merges, [2]string{left, right})
	key := pairKey(a, b)
	for i := range tr.where[key] {
		tr.countWord(i, -1)
		ids := tr.words[i].ids
		kept := ids[:0]
		for j := 0; j < len(ids); j++ {
			if j+1 < len(ids) && ids[j] == a && ids[j+1] == b {
				kept = append(kept, id)
				j++
				continue
			}
			kept = append(kept, ids[j])
		}
		tr.words[i].ids = kept
		tr.countWord(i, 1)
	}
	delete(tr.where, key)
}

func sortLongestFirst(byFirst *[256][]string) {
	for i := range byFirst {
		slices.SortFunc(byFirst[i], func(a, b string) int {
			if len(a) != len(b) {
				return len(b) - len(a)
			}
			return strings.Compare(a, b)
		})
	}
}
