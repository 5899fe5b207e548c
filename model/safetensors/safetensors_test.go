package safetensors

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// raw builds a file from a header and data, right or wrong.
func raw(header string, data []byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), data...)
}

func parse(b []byte) (*File, error) { return New(bytes.NewReader(b), int64(len(b)), "test") }

func TestRefusesBadFiles(t *testing.T) {
	const ok = `{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`
	if _, err := parse(raw(ok, make([]byte, 8))); err != nil {
		t.Fatal(err)
	}
	entry := func(dtype, shape, offsets string) string {
		return fmt.Sprintf(`{"a":{"dtype":%s,"shape":%s,"data_offsets":%s}}`, dtype, shape, offsets)
	}
	cases := []struct {
		name string
		file []byte
		want string // part of the error
	}{
		{"empty", nil, "truncated"},
		{"short length", []byte{1, 2, 3}, "truncated"},
		{"no header", raw("", nil), "not a safetensors file"},
		{"header beyond the file", raw(ok, nil)[:30], "truncated"},
		{"huge header", binary.LittleEndian.AppendUint64(nil, 1<<60), "not a safetensors file"},
		{"html", raw("<html><body></body></html>", nil), "not a safetensors file"},
		{"bad JSON", raw(`{"a":`, nil), "bad JSON"},
		{"not UTF-8", raw("{\"\xff\":1}", nil), "UTF-8"},
		{"text after", raw(ok+"x", make([]byte, 8)), "header"},
		{"duplicate tensor", raw(ok[:len(ok)-1]+","+ok[1:], make([]byte, 8)), `"a" appears twice`},
		{"duplicate field", raw(`{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, make([]byte, 8)), `"dtype" appears twice`},
		{"missing field", raw(`{"a":{"dtype":"F32","shape":[2]}}`, nil), `"data_offsets" is missing`},
		{"unknown field", raw(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}}`, make([]byte, 8)), `unknown key "x"`},
		{"null", raw(`{"a":null}`, nil), "not an object"},
		{"unknown dtype", raw(entry(`"F31"`, `[2]`, `[0,8]`), make([]byte, 8)), `unknown dtype "F31"`},
		{"fraction", raw(entry(`"F32"`, `[1.5]`, `[0,8]`), make([]byte, 8)), "shape"},
		{"negative", raw(entry(`"F32"`, `[-2]`, `[0,8]`), make([]byte, 8)), "negative"},
		{"overflow", raw(entry(`"F32"`, `[4294967296,4294967296,16]`, `[0,8]`), make([]byte, 8)), "overflows"},
		{"size mismatch", raw(entry(`"F32"`, `[3]`, `[0,8]`), make([]byte, 8)), "takes 12 bytes"},
		{"reversed range", raw(entry(`"F32"`, `[0]`, `[8,0]`), make([]byte, 8)), "not a range"},
		{"three offsets", raw(entry(`"F32"`, `[2]`, `[0,8,8]`), make([]byte, 8)), "not a range"},
		{"truncated data", raw(ok, make([]byte, 7)), "truncated"},
		{"trailing bytes", raw(ok, make([]byte, 9)), "1 bytes follow"},
		{"gap", raw(entry(`"F32"`, `[1]`, `[4,8]`), make([]byte, 8)), "gap of 4"},
		{"overlap", raw(`{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}`, make([]byte, 6)), "overlaps"},
		{"metadata", raw(`{"__metadata__":{"a":1}}`, nil), "map text to text"},
		{"half byte", raw(entry(`"F4"`, `[3]`, `[0,2]`), make([]byte, 2)), "whole number"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := parse(c.file)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "test") {
				t.Errorf("error %v, want the file's name and %q", err, c.want)
			}
		})
	}
}

func TestRoundTrip(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, SingleName)
	values := []float32{0, 1, -2.5, 3e-8, 65504, float32(math.Inf(1)), -0.1}
	bytesOf := func(b []byte) func(io.Writer) error {
		return func(w io.Writer) error { _, err := w.Write(b); return err }
	}
	entries := []Entry{
		{"odd", U8, []int{3}, bytesOf([]byte{1, 2, 3})}, // misaligns what follows
		{"f32", F32, []int{7}, Floats(values, F32)},
		{"bf16", BF16, []int{7, 1}, Floats(values, BF16)},
		{"f16", F16, []int{1, 7}, Floats(values, F16)},
		{"empty", F32, []int{0, 4}, bytesOf(nil)},
		{"scalar", I64, nil, bytesOf(make([]byte, 8))},
	}
	if err := WriteFile(path, map[string]string{"format": "pt", "\u00e9\"": "x"}, entries); err != nil {
		t.Fatal(err)
	}
	s, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got := s.Files[0].Metadata["\u00e9\""]; got != "x" {
		t.Errorf("metadata %q", got)
	}
	for name, tolerance := range map[string]float64{"f32": 0, "bf16": 1. / 256, "f16": 1. / 1024} {
		got := make([]float32, 7)
		if err := s.Tensor(name).Float32s(got); err != nil {
			t.Fatal(err)
		}
		for i, v := range values {
			d := math.Abs(float64(got[i] - v))
			if math.IsInf(float64(v), 0) {
				d = 0
				if got[i] != v {
					t.Errorf("%s: infinity became %g", name, got[i])
				}
			}
			if d > tolerance*math.Abs(float64(v))+tolerance*1e-4 {
				t.Errorf("%s[%d] = %g, want %g", name, i, got[i], v)
			}
		}
	}
	if n := len(s.Names()); n != len(entries) {
		t.Errorf("%d tensors", n)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestWriteChecksSizes(t *testing.T) {
	short := Entry{"a", F32, []int{2}, func(w io.Writer) error { _, err := w.Write([]byte{1}); return err }}
	path := filepath.Join(t.TempDir(), "x")
	if err := WriteFile(path, nil, []Entry{short}); err == nil || !strings.Contains(err.Error(), `tensor "a"`) {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("half a file was left")
	}
	if err := Write(io.Discard, nil, []Entry{{Name: "a", DType: U8, Shape: []int{0}}, {Name: "a", DType: U8, Shape: []int{0}}}); err == nil {
		t.Error("a name used twice was accepted")
	}
}

// TestHalves checks every float16 both ways against its meaning.
func TestHalves(t *testing.T) {
	for h := range 1 << 16 {
		f := halfToFloat(uint16(h))
		exp, frac := h>>10&31, float64(h&1023)
		want := math.Ldexp(1+frac/1024, exp-15)
		if exp == 0 {
			want = math.Ldexp(frac/1024, -14)
		}
		if h>>15 == 1 {
			want = -want
		}
		if exp < 31 && float64(f) != want {
			t.Fatalf("%04x is %g, want %g", h, f, want)
		}
		if back := floatToHalf(f); back != uint16(h) && !math.IsNaN(float64(f)) {
			t.Fatalf("%04x became %04x", h, back)
		}
		if math.IsNaN(float64(f)) != (exp == 31 && frac != 0) {
			t.Fatalf("%04x is %g", h, f)
		}
		if bf := floatToBF16(math.Float32frombits(uint32(h) << 16)); bf != uint16(h) && bf != uint16(h)|0x40 {
			t.Fatalf("bf16 %04x became %04x", h, bf)
		}
	}
	for x, want := range map[float32]uint16{65519.99: 0x7bff, 65520: 0x7c00, 1e30: 0x7c00, 2.9802322e-08: 0, 2.98024e-08: 1, 1.00048828125: 0x3c00} {
		if got := floatToHalf(x); got != want {
			t.Errorf("%g became %04x, want %04x", x, got, want)
		}
	}
	if got := floatToBF16(1.00390625); got != 0x3f80 { // half way: to even
		t.Errorf("1+2^-8 became %04x", got)
	}
}

func TestShards(t *testing.T) {
	var entries []Entry
	for i := range 5 {
		entries = append(entries, Entry{fmt.Sprintf("t%d", i), F32, []int{10}, Floats(make([]float32, 10), F32)})
	}
	shards, index, err := SplitShards(entries, 80)
	if err != nil || len(shards) != 3 || index == nil {
		t.Fatalf("%d shards, %v", len(shards), err)
	}
	write := func(t *testing.T, index string) string {
		dir := t.TempDir()
		for _, s := range shards {
			if err := WriteFile(filepath.Join(dir, s.Name), nil, s.Entries); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, IndexName), []byte(index), 0o644); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	s, err := OpenDir(write(t, string(index)))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Names()) != 5 {
		t.Errorf("names %v", s.Names())
	}
	s.Close()
	for name, edit := range map[string][2]string{
		"outside the folder":    {shards[0].Name, "../" + shards[0].Name},
		"not in its shard":      {`"t4"`, `"t5"`},
		"wrong shard":           {`"t0": "` + shards[0].Name, `"t0": "` + shards[2].Name},
		"missing shard":         {shards[2].Name, "model-9.safetensors"},
		"weight_map missing":    {"weight_map", "weights"},
		"same tensor twice":     {`"t1"`, `"t0"`},
		"not JSON at all":       {"{", ""},
		"shard is not a string": {`"` + shards[0].Name + `"`, "1"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := write(t, strings.ReplaceAll(string(index), edit[0], edit[1]))
			if s, err := OpenDir(dir); err == nil {
				s.Close()
				t.Error("accepted")
			} else if !strings.Contains(err.Error(), dir) {
				t.Errorf("error does not name the file: %v", err)
			}
		})
	}
	if _, err := OpenDir(t.TempDir()); err == nil {
		t.Error("an empty folder was accepted")
	}
}

// FuzzNew: any bytes give an error or tensors that can be read whole.
func FuzzNew(f *testing.F) {
	f.Add(raw(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, make([]byte, 8)))
	f.Add(raw(`{"__metadata__":{"a":"b"},"a":{"dtype":"BF16","shape":[],"data_offsets":[0,2]}}`, make([]byte, 2)))
	f.Add(raw(`{}  `, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := parse(b)
		if err != nil {
			return
		}
		total := int64(0)
		for _, x := range file.Tensors() {
			n, err := io.Copy(io.Discard, x.Raw())
			if err != nil || n != x.Size() {
				t.Fatalf("tensor %q: read %d of %d bytes: %v", x.Name, n, x.Size(), err)
			}
			total += n
			if x.DType.IsFloat() {
				if err := x.Float32s(make([]float32, x.NumElements())); err != nil {
					t.Fatal(err)
				}
			}
		}
		if header := int64(binary.LittleEndian.Uint64(b)) + 8; header+total != int64(len(b)) {
			t.Fatalf("tensors take %d bytes and the header %d of %d", total, header, len(b))
		}
	})
}
