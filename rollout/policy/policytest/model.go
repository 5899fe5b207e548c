// Package policytest makes small model folders for tests.
package policytest

import (
	"path/filepath"
	"strings"
	"testing"

	"harness-s/kernels"
	"harness-s/model"
	"harness-s/model/chat"
	"harness-s/model/tokenizer"
)

// MaxLen is the longest context of the folders TinyModel writes.
const MaxLen = 2048

// Shape is a model of one GDN and one attention layer over tok's vocabulary.
func Shape(vocab int) model.Config {
	return model.Config{
		Vocab: vocab, Hidden: 32, MLP: 48, LayerTypes: []string{model.LinearAttention, model.FullAttention},
		Hq: 2, Hk: 1, D: 16, RotaryFactor: 0.5, RopeTheta: 10000,
		GDNHk: 2, GDNHv: 2, Dk: 16, Dv: 16, K: 4, Eps: 1e-6, Tied: true, MaxPosition: MaxLen,
	}
}

// Tokenizer is small, with the turn tokens of the chat format.
func Tokenizer(t testing.TB) *tokenizer.Tokenizer {
	t.Helper()
	text := strings.Repeat("select the item where name = 'x' and count > 10; the number of rows is seven. ", 20)
	tok, err := tokenizer.Train(func(yield func(string) bool) { yield(text) }, 320, chat.AddedTokens())
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// TinyModel writes a Hugging Face folder with random weights, the same for a seed.
func TinyModel(t testing.TB, seed uint64) string {
	t.Helper()
	tok := Tokenizer(t)
	return Write(t, Shape(tok.VocabSize()), seed)
}

// Write writes a folder of any shape; its tokenizer is Tokenizer.
func Write(t testing.TB, cfg model.Config, seed uint64) string {
	t.Helper()
	be, err := kernels.NewCPU(1)
	if err != nil {
		t.Fatal(err)
	}
	defer be.Close()
	m, err := model.New(cfg, be, seed, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	dir := filepath.Join(t.TempDir(), "tiny")
	if err := m.Save(dir, model.SaveOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := Tokenizer(t).WriteFiles(dir, tokenizer.Config{EOS: chat.EOS, Pad: chat.Pad}); err != nil {
		t.Fatal(err)
	}
	return dir
}
