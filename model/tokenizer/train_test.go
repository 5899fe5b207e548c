package tokenizer

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestTrainMergesByCountThenByID(t *testing.T) {
	// "ab" 3 times, "cd" 3 times, "ef" twice: ab before cd (lower ids), ef last.
	tok, err := Train(slices.Values([]string{"cd ab ef", "ab-cd ef", "cd", "ab"}), 259+1, []Added{{"<x>", true}})
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[int32]string{256: "ab", 257: "cd", 258: "ef"} {
		if got := string(tok.TokenBytes(id)); got != want {
			t.Errorf("token %d is %q, want %q", id, got, want)
		}
	}
	if id, _ := tok.ID("<x>"); id != 259 || tok.VocabSize() != 260 {
		t.Errorf("<x> is %d of %d", id, tok.VocabSize())
	}
}

func TestTrainDoesNotSeeTheOrder(t *testing.T) {
	data, err := os.ReadFile("testdata/corpus.txt")
	if err != nil {
		t.Fatal(err)
	}
	lines := slices.Collect(strings.Lines(string(data)))
	slices.Reverse(lines)
	tok, err := Train(slices.Values(lines), 640, testAdded())
	if err != nil {
		t.Fatal(err)
	}
	got, err := tok.marshal()
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != file(t) {
		t.Fatal("another order of the corpus gave another tokenizer")
	}
}

func TestTrainStopsWhenNothingRepeats(t *testing.T) {
	tok, err := Train(slices.Values([]string{"abcdefg"}), 1000, nil)
	if err != nil || tok.VocabSize() != 256 {
		t.Fatalf("%v", err)
	}
	if _, err := Train(slices.Values([]string{"x"}), 256, testAdded()); err == nil {
		t.Fatal("no error for a vocabulary smaller than the bytes")
	}
	if _, err := Train(slices.Values([]string{"x"}), 300, []Added{{"", true}}); err == nil {
		t.Fatal("no error for an empty added token")
	}
}

func TestTrainLeavesAddedTokensOut(t *testing.T) {
	tok, err := Train(slices.Values([]string{strings.Repeat("<think>", 50)}), 300, testAdded())
	if err != nil || tok.VocabSize() != 256+len(testAdded()) {
		t.Fatalf("learned from added tokens: %v", err)
	}
}

func TestWriteFilesLoadsBack(t *testing.T) {
	dir := t.TempDir()
	c := Config{EOS: "<|im_end|>", Pad: "<|endoftext|>", ChatTemplate: "{{ '<x>' }}", MaxLength: 4096}
	if err := trained().WriteFiles(dir, c); err != nil {
		t.Fatal(err)
	}
	tok, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	again, err := tok.marshal()
	if err != nil || string(again) != file(t) {
		t.Fatalf("read back differs: %v", err)
	}
	data, err := os.ReadFile(filepath.Join(dir, ConfigName))
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		EOS      string `json:"eos_token"`
		Pad      string `json:"pad_token"`
		Template string `json:"chat_template"`
		Max      int    `json:"model_max_length"`
	}
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if got.EOS != c.EOS || got.Pad != c.Pad || got.Template != c.ChatTemplate || got.Max != 4096 {
		t.Fatalf("config %+v", got)
	}
	if err := trained().WriteFiles(dir, Config{EOS: "nothing", Pad: "<|endoftext|>"}); err == nil {
		t.Fatal("an unknown eos token was written")
	}
}

func TestRunTokenize(t *testing.T) {
	var out bytes.Buffer
	in := `{"text":"a<|im_end|>","special":true}` + "\n\n" + `{"text":"a<|im_end|>"}` + "\n" + `{"ids":[0,437]}` + "\n" + `{"text":""}`
	end, _ := trained().ID("<|im_end|>")
	in = strings.ReplaceAll(in, "437", itoa(end))
	if err := RunTokenize(trained(), strings.NewReader(in), &out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	want := []string{`{"ids":[64,` + itoa(end) + `],"text":"a<|im_end|>"}`, "", `{"ids":[0,` + itoa(end) + `],"text":"!<|im_end|>"}`, `{"ids":[],"text":""}`}
	if len(lines) != len(want) {
		t.Fatalf("%d lines: %q", len(lines), lines)
	}
	for i := range want {
		if want[i] != "" && lines[i] != want[i] {
			t.Errorf("line %d: %s, want %s", i, lines[i], want[i])
		}
	}
	if !strings.Contains(lines[1], `"text":"a<|im_end|>"`) || strings.Contains(lines[1], itoa(end)) {
		t.Errorf("plain text became a token: %s", lines[1])
	}
}

// Readers differ in what ends a line: one line of the answer is one line to all of them.
func TestRunTokenizeAnswersInOneLine(t *testing.T) {
	const text = "a\u0085b\u2028c\u2029d\v\f\x1c\x1d\x1ee"
	in, _ := json.Marshal(map[string]string{"text": text})
	var out bytes.Buffer
	if err := RunTokenize(trained(), bytes.NewReader(in), &out); err != nil {
		t.Fatal(err)
	}
	if line := strings.TrimSuffix(out.String(), "\n"); strings.ContainsAny(line, "\n\r\v\f\x1c\x1d\x1e\u0085\u2028\u2029") {
		t.Errorf("a separator of lines is in %q", line)
	}
	var got struct{ Text string }
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || got.Text != text {
		t.Errorf("text %q (%v), want %q", got.Text, err, text)
	}
}

func itoa(n int32) string { b, _ := json.Marshal(n); return string(b) }

func TestRunTokenizeNamesTheBadLine(t *testing.T) {
	for _, bad := range []string{`{`, `{}`, `{"text":"a","ids":[1]}`, `{"text":"a","x":1}`, `{"ids":[1,100000]}`, `{"ids":[-1]}`, `{"ids":[1.5]}`, `[]`, `{"text":"a"} x`, `{"ids":[99999999999999]}`} {
		var out bytes.Buffer
		err := RunTokenize(trained(), strings.NewReader(`{"text":"a"}`+"\n"+bad+"\n"), &out)
		if err == nil || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%s: error %v", bad, err)
		}
		if strings.Count(out.String(), "\n") != 1 {
			t.Errorf("%s: the good line before was not answered", bad)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	data, err := os.ReadFile("testdata/corpus.txt")
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(data)))
	var dst []int32
	for b.Loop() {
		dst = trained().EncodeAppend(dst[:0], string(data), true)
	}
}
