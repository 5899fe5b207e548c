package tokenizer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"slices"

	"harness-s/internal/atomicfile"
)

// ConfigName is the file beside tokenizer.json that names the control tokens and holds the chat template.
const ConfigName = "tokenizer_config.json"

// Config is what tokenizer_config.json adds to a tokenizer. EOS and Pad must be added tokens.
type Config struct {
	EOS, Pad     string
	ChatTemplate string // Jinja, for servers that render chats
	MaxLength    int    // tokens the model takes
}

// WriteFiles writes tokenizer.json and tokenizer_config.json into a folder that exists, so that Hugging Face
// tokenizers, transformers and vLLM load what t is.
func (t *Tokenizer) WriteFiles(dir string, c Config) error {
	config, err := t.marshalConfig(c)
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Join(dir, ConfigName), err)
	}
	data, err := t.marshal()
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Join(dir, FileName), err)
	}
	if err := atomicfile.Write(filepath.Join(dir, FileName), data); err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, ConfigName), config)
}

// marshal needs the layout that Train makes: no holes, added tokens last.
func (t *Tokenizer) marshal() ([]byte, error) {
	added := t.addedByID()
	n := len(t.tokens) - len(added)
	for i, a := range added {
		if a.ID != int64(n+i) {
			return nil, fmt.Errorf("added token %q has id %d: only a vocabulary with its added tokens last can be written", a.Content, a.ID)
		}
	}
	vocab := make([]string, n)
	for id := range vocab {
		if t.tokens[id] == nil {
			return nil, fmt.Errorf("id %d is no token: a vocabulary with holes cannot be written", id)
		}
		vocab[id] = toByteLevel(t.tokens[id])
	}
	type ranked struct {
		rank int32
		pair [2]string
	}
	rules := make([]ranked, 0, len(t.merges))
	for key, m := range t.merges {
		rules = append(rules, ranked{m.rank, [2]string{toByteLevel(t.tokens[key>>32]), toByteLevel(t.tokens[uint32(key)])}})
	}
	slices.SortFunc(rules, func(a, b ranked) int { return cmp.Compare(a.rank, b.rank) })
	merges := make([][2]string, len(rules))
	for i, r := range rules {
		merges[i] = r.pair
	}
	regex := splitQwen3
	if t.split.word&mark != 0 {
		regex = splitQwen35
	}
	list := make([]Added, len(added))
	for i, a := range added {
		list[i] = Added{a.Content, a.Special}
	}
	return marshalFile(vocab, merges, list, regex, t.nfc)
}

// addedByID lists the added tokens as the files write them.
func (t *Tokenizer) addedByID() []addedJSON {
	out := make([]addedJSON, 0, len(t.addedIDs))
	for content, id := range t.addedIDs {
		out = append(out, addedJSON{ID: int64(id), Content: content, Special: t.special[id]})
	}
	slices.SortFunc(out, func(a, b addedJSON) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// orderedVocab writes tokens as an object of token to id, in id order.
type orderedVocab []string

func (v orderedVocab) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for id, token := range v {
		if id > 0 {
			b.WriteByte(',')
		}
		key, err := json.Marshal(token)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "%s:%d", key, id)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// marshalFile writes the layout of Qwen3.5's tokenizer.json: the vocabulary from id 0, the added tokens behind it.
func marshalFile(vocab []string, merges [][2]string, added []Added, regex string, nfc bool) ([]byte, error) {
	type object = map[string]any
	byteLevel := byteLevelJSON{Type: "ByteLevel"}
	list := make([]addedJSON, len(added))
	for i, a := range added {
		list[i] = addedJSON{ID: int64(len(vocab) + i), Content: a.Content, Special: a.Special}
	}
	var normalizer any
	if nfc {
		normalizer = object{"type": "NFC"}
	}
	var split splitJSON
	split.Type, split.Pattern.Regex, split.Behavior = "Split", regex, "Isolated"
	if merges == nil {
		merges = [][2]string{}
	}
	return marshalIndent(struct {
		Version       string      `json:"version"`
		Truncation    any         `json:"truncation"`
		Padding       any         `json:"padding"`
		AddedTokens   []addedJSON `json:"added_tokens"`
		Normalizer    any         `json:"normalizer"`
		PreTokenizer  any         `json:"pre_tokenizer"`
		PostProcessor any         `json:"post_processor"`
		Decoder       any         `json:"decoder"`
		Model         any         `json:"model"`
	}{
		Version:       "1.0",
		AddedTokens:   list,
		Normalizer:    normalizer,
		PreTokenizer:  object{"type": "Sequence", "pretokenizers": []any{split, byteLevel}},
		PostProcessor: byteLevel,
		Decoder:       byteLevel,
		Model: struct {
			Type                    string       `json:"type"`
			Dropout                 any          `json:"dropout"`
			UnkToken                any          `json:"unk_token"`
			ContinuingSubwordPrefix string       `json:"continuing_subword_prefix"`
			EndOfWordSuffix         string       `json:"end_of_word_suffix"`
			FuseUnk                 bool         `json:"fuse_unk"`
			ByteFallback            bool         `json:"byte_fallback"`
			IgnoreMerges            bool         `json:"ignore_merges"`
			Vocab                   orderedVocab `json:"vocab"`
			Merges                  [][2]string  `json:"merges"`
		}{Type: "BPE", Vocab: vocab, Merges: merges},
	})
}

// marshalConfig writes tokenizer_config.json. The class is the generic one: it takes tokenizer.json as it is, where the
// family's own classes build their pre-tokenizer anew.
func (t *Tokenizer) marshalConfig(c Config) ([]byte, error) {
	for _, token := range []string{c.EOS, c.Pad} {
		if _, ok := t.addedIDs[token]; !ok {
			return nil, fmt.Errorf("%q is not an added token of this tokenizer", token)
		}
	}
	type object = map[string]any
	decoder := object{}
	additional := []string{}
	for _, a := range t.addedByID() {
		decoder[fmt.Sprint(a.ID)] = object{
			"content": a.Content, "special": a.Special,
			"lstrip": false, "normalized": false, "rstrip": false, "single_word": false,
		}
		if a.Special && a.Content != c.EOS && a.Content != c.Pad {
			additional = append(additional, a.Content)
		}
	}
	maxLength := c.MaxLength
	if maxLength == 0 {
		maxLength = math.MaxInt32
	}
	return marshalIndent(object{
		"add_bos_token":                false,
		"add_prefix_space":             false,
		"added_tokens_decoder":         decoder,
		"additional_special_tokens":    additional,
		"bos_token":                    nil,
		"chat_template":                c.ChatTemplate,
		"clean_up_tokenization_spaces": false,
		"eos_token":                    c.EOS,
		"errors":                       "replace",
		"model_max_length":             maxLength,
		"pad_token":                    c.Pad,
		"split_special_tokens":         false,
		"tokenizer_class":              "PreTrainedTokenizerFast",
		"unk_token":                    nil,
	})
}

func marshalIndent(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
