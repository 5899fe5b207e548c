package testutil

import (
	"testing"

	"harness-s/model/safetensors"
)

// Tensors is every tensor of a safetensors file, by name.
func Tensors(t testing.TB, path string) map[string][]float32 {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := map[string][]float32{}
	for _, x := range f.Tensors() {
		out[x.Name] = make([]float32, x.NumElements())
		if err := x.Float32s(out[x.Name]); err != nil {
			t.Fatal(err)
		}
	}
	return out
}
