package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// edit changes one value in the trained tokenizer's file: path is keys and indexes.
func edit(t *testing.T, change func(f map[string]any)) string {
	t.Helper()
	var f map[string]any
	if err := json.Unmarshal([]byte(file(t)), &f); err != nil {
		t.Fatal(err)
	}
	change(f)
	data, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

type obj = map[string]any

func TestBadFilesAreRefused(t *testing.T) {
	model := func(f obj) obj { return f["model"].(obj) }
	vocab := func(f obj) obj { return model(f)["vocab"].(obj) }
	added := func(f obj, i int) obj { return f["added_tokens"].([]any)[i].(obj) }
	pre := func(f obj, i int) obj { return f["pre_tokenizer"].(obj)["pretokenizers"].([]any)[i].(obj) }
	cases := []struct {
		name, want string
		change     func(f obj)
	}{
		{"unknown key", "extra", func(f obj) { f["extra"] = 1 }},
		{"truncation", "truncation", func(f obj) { f["truncation"] = obj{"max_length": 5} }},
		{"padding", "padding", func(f obj) { f["padding"] = obj{"pad_id": 0} }},
		{"normalizer", `normalizer: type "NFKC"`, func(f obj) { f["normalizer"] = obj{"type": "NFKC"} }},
		{"pre-tokenizer", "pre_tokenizer", func(f obj) { f["pre_tokenizer"] = obj{"type": "Whitespace"} }},
		{"no pre-tokenizer", "pre_tokenizer", func(f obj) { f["pre_tokenizer"] = nil }},
		{"regex", "regex", func(f obj) { pre(f, 0)["pattern"] = obj{"Regex": `\p{L}+`} }},
		{"behavior", "Isolated", func(f obj) { pre(f, 0)["behavior"] = "Removed" }},
		{"invert", "invert", func(f obj) { pre(f, 0)["invert"] = true }},
		{"prefix space", "add_prefix_space", func(f obj) { pre(f, 1)["add_prefix_space"] = true }},
		{"absent use_regex", "use_regex", func(f obj) { delete(pre(f, 1), "use_regex") }},
		{"post-processor", "post_processor", func(f obj) { f["post_processor"] = obj{"type": "TemplateProcessing"} }},
		{"decoder", "decoder", func(f obj) { f["decoder"] = obj{"type": "Metaspace"} }},
		{"model type", "Unigram", func(f obj) { model(f)["type"] = "Unigram" }},
		{"byte fallback", "byte_fallback", func(f obj) { model(f)["byte_fallback"] = true }},
		{"ignore merges", "ignore_merges", func(f obj) { model(f)["ignore_merges"] = true }},
		{"dropout", "dropout", func(f obj) { model(f)["dropout"] = 0.1 }},
		{"unknown token", "unk_token", func(f obj) { model(f)["unk_token"] = "<unk>" }},
		{"suffix", "end_of_word_suffix", func(f obj) { model(f)["end_of_word_suffix"] = "</w>" }},
		{"model key", "extra", func(f obj) { model(f)["extra"] = 1 }},
		{"missing byte", "byte 0x41", func(f obj) { delete(vocab(f), "A") }},
		{"duplicate id", "already", func(f obj) { vocab(f)["zzzz"] = 0 }},
		{"negative id", "-1", func(f obj) { vocab(f)["zzzz"] = -1 }},
		{"huge id", "outside", func(f obj) { vocab(f)["zzzz"] = 1 << 40 }},
		{"fractional id", "whole number", func(f obj) { vocab(f)["zzzz"] = 700.5 }},
		{"id that is no number", "number", func(f obj) { vocab(f)["zzzz"] = "7" }},
		{"not byte-level", "byte-level", func(f obj) { vocab(f)["中"] = 700 }},
		{"empty token", "empty", func(f obj) { vocab(f)[""] = 700 }},
		{"merge outside", "not in the vocabulary", func(f obj) { model(f)["merges"] = []any{[]string{"A", "\u0143"}} }},
		{"merge twice", "twice", func(f obj) { m := model(f)["merges"].([]any); model(f)["merges"] = append(m, m[0]) }},
		{"merge of three", "two tokens", func(f obj) { model(f)["merges"] = []any{[]string{"A", "B", "C"}} }},
		{"merge spelling", "two tokens", func(f obj) { model(f)["merges"] = []any{"A B C"} }},
		{"merges type", "two tokens", func(f obj) { model(f)["merges"] = []any{3} }},
		{"added flag", "lstrip", func(f obj) { added(f, 0)["lstrip"] = true }},
		{"added normalized", "normalized", func(f obj) { added(f, 0)["normalized"] = true }},
		{"added empty", "empty", func(f obj) { added(f, 0)["content"] = "" }},
		{"added twice", "twice", func(f obj) { added(f, 1)["content"] = added(f, 0)["content"] }},
		{"added id taken", "already", func(f obj) { added(f, 1)["id"] = added(f, 0)["id"] }},
		{"added id differs", "added_tokens", func(f obj) { vocab(f)["<think>"] = 3 }},
		{"added huge", "outside", func(f obj) { added(f, 0)["id"] = 1 << 40 }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), FileName)
			if err := os.WriteFile(path, []byte(edit(t, c.change)), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Load(path)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
				t.Fatalf("error %v, want one naming %s and %q", err, path, c.want)
			}
		})
	}
}

func TestDamagedFiles(t *testing.T) {
	whole := file(t)
	for name, data := range map[string]string{
		"empty": "", "cut": whole[:len(whole)/2], "array": "[]", "text": "hello", "two values": whole + "{}",
		"key twice": strings.Replace(whole, `"!":`, `"\u0021":3000,"!":`, 1), // the same key, spelled apart
	} {
		if _, err := parse([]byte(data)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := Load(filepath.Join(t.TempDir(), "absent")); err == nil {
		t.Error("absent file: no error")
	}
}

func TestOtherSpellingsLoad(t *testing.T) {
	for name, change := range map[string]func(f obj){
		"merges as text": func(f obj) {
			m := f["model"].(obj)
			var out []any
			for _, p := range m["merges"].([]any) {
				out = append(out, p.([]any)[0].(string)+" "+p.([]any)[1].(string))
			}
			m["merges"] = out
		},
		"null options":           func(f obj) { m := f["model"].(obj); m["end_of_word_suffix"] = nil; delete(m, "ignore_merges") },
		"no post-processor":      func(f obj) { f["post_processor"] = nil },
		"added in vocab as well": func(f obj) { f["model"].(obj)["vocab"].(obj)["<think>"] = float64(trained().addedIDs["<think>"]) },
	} {
		tok, err := parse([]byte(edit(t, change)))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		text := "SELECT quantity <think> don't"
		if got, want := tok.Encode(text, true), trained().Encode(text, true); len(got) != len(want) || tok.Decode(got) != text {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

func TestHolesAreNoTokens(t *testing.T) {
	tok, err := parse([]byte(edit(t, func(f obj) { f["model"].(obj)["vocab"].(obj)["zzzz"] = 2000 })))
	if err != nil {
		t.Fatal(err)
	}
	if tok.VocabSize() != 2001 || tok.Has(1999) || !tok.Has(2000) {
		t.Fatalf("size %d, %t, %t", tok.VocabSize(), tok.Has(1999), tok.Has(2000))
	}
	if got := tok.Decode([]int32{1999, 2000, 5000, -1}); got != "zzzz" {
		t.Fatalf("decoded %q", got)
	}
	if err := tok.WriteFiles(t.TempDir(), Config{EOS: "<|im_end|>", Pad: "<|endoftext|>"}); err == nil {
		t.Fatal("a vocabulary with holes was written")
	}
}

func FuzzLoad(f *testing.F) {
	f.Add([]byte(`{"version":"1.0","added_tokens":[],"model":{"type":"BPE","vocab":{"a":0},"merges":[]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		tok, err := parse(data)
		if err == nil {
			tok.Decode(tok.Encode(string(data), true))
		}
	})
}
