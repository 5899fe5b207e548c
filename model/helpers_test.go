package model

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"harness-s/internal/testutil"
	"harness-s/kernels"
)

// newBackend is a CPU backend that must be empty again when the test ends.
func newBackend(t testing.TB, threads int) kernels.Backend {
	t.Helper()
	be, err := kernels.NewCPU(threads)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if u := be.Usage(); len(u) > 0 {
			t.Errorf("memory still allocated at the end: %v", u)
		}
		if err := be.Close(); err != nil {
			t.Error(err)
		}
	})
	return be
}

// closing closes the model when the test ends.
func closing(t testing.TB, m *Model, err error) *Model {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// goldenDirs are the reference folders, where they are present.
func goldenDirs(t *testing.T) []string {
	shared, ok := testutil.SharedDir(t)
	if !ok {
		t.Skip("no reference data beside the repository")
	}
	var dirs []string
	for _, name := range []string{"a", "c"} {
		dirs = append(dirs, filepath.Join(shared, "data", "golden", name))
	}
	return dirs
}

// must unwraps (value, error).
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

var npyHeader = regexp.MustCompile(`'descr': '([^']+)', 'fortran_order': False, 'shape': \((\d*),?\s*(\d*)`)

// readNPY reads a 1-d or 2-d .npy file of int32, float32 or float64 as float64 values.
func readNPY(t testing.TB, path string) []float64 {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(raw, []byte("\x93NUMPY\x01")) {
		t.Fatalf("%s: not a version 1 .npy file", path)
	}
	n := int(binary.LittleEndian.Uint16(raw[8:]))
	h := npyHeader.FindStringSubmatch(string(raw[10 : 10+n]))
	if h == nil {
		t.Fatalf("%s: header %q", path, raw[10:10+n])
	}
	count := 1
	for _, s := range h[2:] {
		if s != "" {
			count *= must(strconv.Atoi(s))
		}
	}
	data := raw[10+n:]
	out := make([]float64, count)
	for i := range out {
		switch h[1] {
		case "<i4":
			out[i] = float64(int32(binary.LittleEndian.Uint32(data[4*i:])))
		case "<f4":
			out[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:])))
		case "<f8":
			out[i] = math.Float64frombits(binary.LittleEndian.Uint64(data[8*i:]))
		default:
			t.Fatalf("%s: type %s", path, h[1])
		}
	}
	return out
}

func toIDs(v []float64) []int32 {
	out := make([]int32, len(v))
	for i, x := range v {
		out[i] = int32(x)
	}
	return out
}

// randomTokens draws n ids.
func randomTokens(rng *rand.Rand, n, vocab int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(rng.IntN(vocab))
	}
	return out
}

// sameBits says where two slices first differ in bits, or -1.
func sameBits(a, b []float32) int {
	if len(a) != len(b) {
		return 0
	}
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return i
		}
	}
	return -1
}

// allGrads downloads every gradient.
func allGrads(m *Model) [][]float32 {
	var out [][]float32
	for i := range m.params {
		g := make([]float32, m.params[i].size())
		m.GradValues(&m.params[i], g)
		out = append(out, g)
	}
	return out
}

// smallConfig is a valid mixed model.
func smallConfig() Config {
	return Config{Vocab: 61, Hidden: 24, MLP: 40, LayerTypes: []string{LinearAttention, FullAttention, LinearAttention},
		Hq: 4, Hk: 2, D: 8, RotaryFactor: 0.5, RopeTheta: 10000,
		GDNHk: 2, GDNHv: 4, Dk: 8, Dv: 12, K: 4, Eps: 1e-6, Tied: true}
}

// randomConfig draws an odd configuration.
func randomConfig(rng *rand.Rand) Config {
	c := Config{Vocab: 11 + rng.IntN(60), Hidden: 5 + rng.IntN(30), MLP: 3 + rng.IntN(40),
		Hk: 1 + rng.IntN(2), D: 2 + rng.IntN(12), RotaryFactor: 0.25 * float64(1+rng.IntN(4)), RopeTheta: 10000,
		GDNHk: 1 + rng.IntN(3), Dk: 3 + rng.IntN(18), Dv: 3 + rng.IntN(18), K: 2 + rng.IntN(3),
		Eps: 1e-6, Tied: rng.IntN(2) == 0}
	if c.RotaryFactor == 1 {
		c.D += c.D % 2 // a whole odd head cannot rotate
	} else if r := int(float64(c.D) * c.RotaryFactor); r+r%2 > c.D || r == 0 {
		c.D = 8
	}
	c.Hq, c.GDNHv = c.Hk*(1+rng.IntN(3)), c.GDNHk*(1+rng.IntN(3))
	for range 1 + rng.IntN(3) {
		c.LayerTypes = append(c.LayerTypes, []string{LinearAttention, FullAttention}[rng.IntN(2)])
	}
	return c
}
