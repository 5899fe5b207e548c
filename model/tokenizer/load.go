package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"harness-s/internal/strictjson"
)

// FileName is the tokenizer's file in a Hugging Face folder.
const FileName = "tokenizer.json"

const (
	maxFileBytes = 512 << 20
	maxID        = 1 << 24 // ids above are taken for damage: no vocabulary comes near
)

// Load reads a tokenizer.json, or the one in a folder. The error names the file and the key that is wrong or that
// asks for something this package does not do.
func Load(path string) (*Tokenizer, error) {
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		path = filepath.Join(path, FileName)
	}
	data, err := readBounded(path)
	if err != nil {
		return nil, fmt.Errorf("load tokenizer: %w", err)
	}
	t, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("load tokenizer %s: %w", path, err)
	}
	return t, nil
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFileBytes {
		return nil, fmt.Errorf("%s: over %d MiB", path, maxFileBytes>>20)
	}
	return data, nil
}

// fileJSON is tokenizer.json. Unknown keys are errors: they may change the tokens.
type fileJSON struct {
	Version       string          `json:"version"`
	Truncation    json.RawMessage `json:"truncation"`
	Padding       json.RawMessage `json:"padding"`
	AddedTokens   []addedJSON     `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Decoder       json.RawMessage `json:"decoder"`
	Model         json.RawMessage `json:"model"`
}

type addedJSON struct {
	ID         int64  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	Lstrip     bool   `json:"lstrip"`
	Rstrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

type byteLevelJSON struct {
	Type           string `json:"type"`
	AddPrefixSpace bool   `json:"add_prefix_space"`
	TrimOffsets    bool   `json:"trim_offsets"` // offsets only, not ids
	UseRegex       bool   `json:"use_regex"`
}

type splitJSON struct {
	Type    string `json:"type"`
	Pattern struct {
		Regex string `json:"Regex"`
	} `json:"pattern"`
	Behavior string `json:"behavior"`
	Invert   bool   `json:"invert"`
}

type sequenceJSON struct {
	Type          string            `json:"type"`
	Pretokenizers []json.RawMessage `json:"pretokenizers"`
}

type modelJSON struct {
	Type                    string            `json:"type"`
	Dropout                 *float64          `json:"dropout"`
	UnkToken                *string           `json:"unk_token"`
	ContinuingSubwordPrefix *string           `json:"continuing_subword_prefix"`
	EndOfWordSuffix         *string           `json:"end_of_word_suffix"`
	FuseUnk                 bool              `json:"fuse_unk"`
	ByteFallback            bool              `json:"byte_fallback"`
	IgnoreMerges            bool              `json:"ignore_merges"`
	Vocab                   vocabJSON         `json:"vocab"`
	Merges                  []json.RawMessage `json:"merges"`
}

func parse(data []byte) (*Tokenizer, error) {
	var f fileJSON
	if err := strict(data, &f); err != nil {
		return nil, err
	}
	t := &Tokenizer{merges: map[uint64]merge{}, addedIDs: map[string]int32{}}
	for _, step := range []struct {
		key string
		do  func() error
	}{
		{"truncation", func() error { return wantNull(f.Truncation) }},
		{"padding", func() error { return wantNull(f.Padding) }},
		{"normalizer", func() error { return t.readNormalizer(f.Normalizer) }},
		{"pre_tokenizer", func() error { return t.readPreTokenizer(f.PreTokenizer) }},
		{"post_processor", func() error { return wantByteLevel(f.PostProcessor, true) }},
		{"decoder", func() error { return wantByteLevel(f.Decoder, false) }},
		{"added_tokens", func() error { return t.readAdded(f.AddedTokens) }},
		{"model", func() error { return t.readModel(f.Model) }},
	} {
		if err := step.do(); err != nil {
			return nil, fmt.Errorf("key %s: %w", step.key, err)
		}
	}
	return t, nil
}

// strict decodes one JSON value and refuses unknown keys and anything behind it.
func strict(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return errors.New("the JSON ends too early (a truncated file?)")
		}
		return fmt.Errorf("at byte %d: %w", d.InputOffset(), strictjson.Explain(err))
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("more text after the JSON value, at byte %d", d.InputOffset())
	}
	return nil
}

func isNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

func wantNull(raw json.RawMessage) error {
	if !isNull(raw) {
		return errors.New("must be null: it would change the ids")
	}
	return nil
}

func typeOf(raw json.RawMessage) string {
	var head struct {
		Type string `json:"type"`
	}
	_ = json.Unmarshal(raw, &head) // a value that is no object has no type, and is refused by its reader
	return head.Type
}

func (t *Tokenizer) readNormalizer(raw json.RawMessage) error {
	if isNull(raw) {
		return nil
	}
	var n struct {
		Type string `json:"type"`
	}
	if typ := typeOf(raw); typ != "NFC" {
		return fmt.Errorf("type %q is not supported, only NFC or null", typ)
	}
	if err := strict(raw, &n); err != nil {
		return err
	}
	t.nfc = true
	return nil
}

func (t *Tokenizer) readPreTokenizer(raw json.RawMessage) error {
	if typ := typeOf(raw); typ != "Sequence" {
		return fmt.Errorf("type %q is not supported, only a Sequence of Split and ByteLevel", typ)
	}
	var seq sequenceJSON
	if err := strict(raw, &seq); err != nil {
		return err
	}
	if len(seq.Pretokenizers) != 2 || typeOf(seq.Pretokenizers[0]) != "Split" || typeOf(seq.Pretokenizers[1]) != "ByteLevel" {
		return errors.New("must be a Split followed by a ByteLevel")
	}
	var s splitJSON
	if err := strict(seq.Pretokenizers[0], &s); err != nil {
		return fmt.Errorf("the Split: %w", err)
	}
	if s.Behavior != "Isolated" || s.Invert {
		return fmt.Errorf("the Split: behavior %q with invert %t is not supported, only Isolated without", s.Behavior, s.Invert)
	}
	switch s.Pattern.Regex {
	case splitQwen3:
		t.split = splitter{word: letter}
	case splitQwen35:
		t.split = splitter{word: letter | mark}
	default:
		return fmt.Errorf("the Split: the regex %.200q is neither Qwen3's nor Qwen3.5's", s.Pattern.Regex)
	}
	var b byteLevelJSON
	b.AddPrefixSpace, b.UseRegex = true, true // the defaults of absent keys
	if err := strict(seq.Pretokenizers[1], &b); err != nil {
		return fmt.Errorf("ByteLevel: %w", err)
	}
	if b.AddPrefixSpace || b.UseRegex {
		return errors.New("ByteLevel: add_prefix_space and use_regex must be false")
	}
	return nil
}

// wantByteLevel accepts what adds no ids (a post-processor) and decodes bytes (a decoder).
func wantByteLevel(raw json.RawMessage, nullToo bool) error {
	if nullToo && isNull(raw) {
		return nil
	}
	if typ := typeOf(raw); typ != "ByteLevel" {
		return fmt.Errorf("type %q is not supported, only ByteLevel", typ)
	}
	return strict(raw, new(byteLevelJSON))
}

func (t *Tokenizer) readAdded(added []addedJSON) error {
	for _, a := range added {
		switch {
		case a.Content == "":
			return fmt.Errorf("token %d is empty", a.ID)
		case a.SingleWord || a.Lstrip || a.Rstrip || a.Normalized:
			return fmt.Errorf("token %q: single_word, lstrip, rstrip and normalized must be false", a.Content)
		}
		if _, twice := t.addedIDs[a.Content]; twice {
			return fmt.Errorf("token %q is there twice", a.Content)
		}
		if err := t.place(a.ID, a.Content, decodeAdded(a.Content)); err != nil {
			return err
		}
		t.special[a.ID] = a.Special
		t.addedIDs[a.Content] = int32(a.ID)
		t.byFirst[a.Content[0]] = append(t.byFirst[a.Content[0]], a.Content)
	}
	sortLongestFirst(&t.byFirst)
	return nil
}

// place puts a token at a free id.
func (t *Tokenizer) place(id int64, content string, bytes []byte) error {
	if id < 0 || id >= maxID {
		return fmt.Errorf("token %q: id %d is outside 0 to %d", content, id, maxID-1)
	}
	if grow := int(id) + 1 - len(t.tokens); grow > 0 {
		t.tokens = append(t.tokens, make([][]byte, grow)...)
		t.special = append(t.special, make([]bool, grow)...)
	}
	if t.tokens[id] != nil {
		return fmt.Errorf("token %q: id %d is already that of %q", content, id, t.tokens[id])
	}
	t.tokens[id] = bytes
	return nil
}

func (t *Tokenizer) readModel(raw json.RawMessage) error {
	if typ := typeOf(raw); typ != "BPE" {
		return fmt.Errorf("type %q is not supported, only BPE", typ)
	}
	var m modelJSON
	if err := strict(raw, &m); err != nil {
		return err
	}
	filled := func(s *string) bool { return s != nil && *s != "" }
	switch {
	case m.Dropout != nil && *m.Dropout != 0:
		return errors.New("dropout is not supported")
	case filled(m.UnkToken), m.FuseUnk:
		return errors.New("unk_token and fuse_unk are not supported: a byte-level vocabulary has no unknown bytes")
	case filled(m.ContinuingSubwordPrefix), filled(m.EndOfWordSuffix):
		return errors.New("continuing_subword_prefix and end_of_word_suffix are not supported")
	case m.ByteFallback:
		return errors.New("byte_fallback is not supported")
	case m.IgnoreMerges:
		return errors.New("ignore_merges is not supported")
	}
	ids, err := t.readVocab(m.Vocab)
	if err != nil {
		return fmt.Errorf("vocab: %w", err)
	}
	if err := t.readMerges(m.Merges, ids); err != nil {
		return fmt.Errorf("merges: %w", err)
	}
	return nil
}

type vocabEntry struct {
	token string
	id    int64
}

// vocabJSON keeps every entry, so that a key written twice is seen.
type vocabJSON []vocabEntry

func (v *vocabJSON) UnmarshalJSON(data []byte) error {
	d := json.NewDecoder(bytes.NewReader(data))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return errors.New("vocab must be an object of token to id")
	}
	d.UseNumber()
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		value, err := d.Token()
		if err != nil {
			return err
		}
		number, ok := value.(json.Number)
		if !ok {
			return fmt.Errorf("vocab: the id of %q must be a number", key)
		}
		id, err := number.Int64()
		if err != nil {
			return fmt.Errorf("vocab: the id %s of %q must be a whole number", number, key)
		}
		*v = append(*v, vocabEntry{key.(string), id})
	}
	return nil
}

func (t *Tokenizer) readVocab(vocab vocabJSON) (map[string]int32, error) {
	ids := make(map[string]int32, len(vocab))
	seen := [256]bool{}
	for _, e := range vocab {
		if _, twice := ids[e.token]; twice {
			return nil, fmt.Errorf("token %q is there twice", e.token)
		}
		if id, ok := t.addedIDs[e.token]; ok {
			if int64(id) != e.id {
				return nil, fmt.Errorf("token %q has id %d here and %d in added_tokens", e.token, e.id, id)
			}
			ids[e.token] = id
			if b, err := fromByteLevel(e.token); err == nil && len(b) == 1 {
				return nil, fmt.Errorf("token %q is both a byte and an added token", e.token)
			}
			continue
		}
		b, err := fromByteLevel(e.token)
		if err != nil {
			return nil, err
		}
		if err := t.place(e.id, e.token, b); err != nil {
			return nil, err
		}
		ids[e.token] = int32(e.id)
		if len(b) == 1 {
			t.byteID[b[0]], seen[b[0]] = int32(e.id), true
		}
	}
	if b := slices.Index(seen[:], false); b >= 0 {
		return nil, fmt.Errorf("no token for byte 0x%02x: every byte needs one", b)
	}
	return ids, nil
}

func (t *Tokenizer) readMerges(merges []json.RawMessage, ids map[string]int32) error {
	t.merges = make(map[uint64]merge, len(merges))
	for rank, raw := range merges {
		left, right, err := mergePair(raw)
		if err != nil {
			return fmt.Errorf("entry %d: %w", rank, err)
		}
		a, okA := ids[left]
		b, okB := ids[right]
		id, ok := ids[left+right]
		if !okA || !okB || !ok {
			return fmt.Errorf("entry %d: %q + %q names a token that is not in the vocabulary", rank, left, right)
		}
		if _, twice := t.merges[pairKey(a, b)]; twice {
			return fmt.Errorf("entry %d: %q + %q is there twice", rank, left, right)
		}
		t.merges[pairKey(a, b)] = merge{int32(rank), id}
	}
	return nil
}

// mergePair reads both spellings: ["a", "b"] and "a b".
func mergePair(raw json.RawMessage) (left, right string, err error) {
	if len(raw) > 0 && raw[0] == '"' {
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return "", "", err
		}
		left, right, ok := strings.Cut(s, " ")
		if !ok || strings.Contains(right, " ") {
			return "", "", fmt.Errorf("%q is not two tokens", s)
		}
		return left, right, nil
	}
	var pair []string
	if err := json.Unmarshal(raw, &pair); err != nil || len(pair) != 2 {
		return "", "", fmt.Errorf("%.80s is not two tokens", raw)
	}
	return pair[0], pair[1], nil
}

// byteRunes is the GPT-2 spelling of bytes: printable ones stand for themselves, the rest for runes from U+0100 on.
var byteRunes, runeBytes = func() (spell [256]rune, back map[rune]byte) {
	back = make(map[rune]byte, 256)
	next := rune(256)
	for b := range 256 {
		if b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae {
			spell[b] = rune(b)
		} else {
			spell[b] = next
			next++
		}
		back[spell[b]] = byte(b)
	}
	return spell, back
}()

func fromByteLevel(token string) ([]byte, error) {
	if token == "" {
		return nil, errors.New("an empty token")
	}
	b := make([]byte, 0, len(token))
	for _, r := range token {
		x, ok := runeBytes[r]
		if !ok {
			return nil, fmt.Errorf("token %q is not spelled byte-level (%q)", token, r)
		}
		b = append(b, x)
	}
	return b, nil
}

func toByteLevel(token []byte) string {
	b := make([]byte, 0, 2*len(token))
	for _, x := range token {
		b = utf8.AppendRune(b, byteRunes[x])
	}
	return string(b)
}

// decodeAdded is what an added token decodes to. The ByteLevel decoder reads it as byte-level spelling too where it
// can, which for plain ASCII is the text itself.
func decodeAdded(content string) []byte {
	if b, err := fromByteLevel(content); err == nil {
		return b
	}
	return []byte(content)
}
