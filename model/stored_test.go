package model

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write testdata anew from the float64 oracle")

// stored is what the float64 oracle computed for one configuration with weights and tokens given by formulas. It anchors
// forward and backward where no other reference data is present, against a change of model and oracle alike.
type stored struct {
	Config  json.RawMessage    `json:"config"`
	Logp    [][]float64        `json:"logp"`
	Entropy [][]float64        `json:"entropy"`
	Slopes  map[string]float64 `json:"slopes"` // of sum coef*logp along a direction given by a formula, a tensor at a time
}

// wave is the formula behind weights, directions, tokens and coefficients.
func wave(i, salt int) float64 {
	return math.Sin(float64(i)*1.37+float64(salt)*2.11) + 0.3*math.Sin(float64(i)*0.113)
}

// waveModel has weights of a size that keeps every path alive.
func waveModel(t *testing.T, cfg Config) *Model {
	m := newModelFor(t, cfg, 2, Options{Train: true})
	for i := range m.params {
		p := &m.params[i]
		scale, offset := 0.3, 0.0
		switch {
		case strings.HasSuffix(p.Name, "A_log"):
			scale, offset = 1.5, 0
		case strings.HasSuffix(p.Name, "dt_bias"):
			scale, offset = 1, -2
		case strings.HasSuffix(p.Name, "linear_attn.norm.weight"):
			offset = 1
		}
		v := make([]float32, p.size())
		for j := range v {
			v[j] = float32(offset + scale*wave(j, i))
		}
		m.be.Upload(p.W, v)
	}
	m.Repack()
	return m
}

func waveBatch(cfg Config) (b Batch, coef []float32) {
	for row, n := range []int{1, 2, 67} {
		tokens := make([]int32, n)
		for i := range tokens {
			tokens[i] = int32(math.Abs(wave(i, row+5)) * 1e4)
			tokens[i] %= int32(cfg.Vocab)
			coef = append(coef, float32(wave(len(coef), 3)))
		}
		b.Add(tokens, nil)
	}
	return b, coef
}

func storedConfigs() map[string]Config {
	other := smallConfig()
	other.LayerTypes = []string{FullAttention, LinearAttention}
	other.GDNHk, other.GDNHv, other.Dk, other.Dv, other.K = 1, 3, 10, 7, 2
	other.Hq, other.Hk, other.D, other.RotaryFactor, other.Tied = 3, 1, 12, 0.25, false // 3 dims rotate: odd
	return map[string]Config{"tied": smallConfig(), "untied": other}
}

func TestStoredReference(t *testing.T) {
	for name, cfg := range storedConfigs() {
		t.Run(name, func(t *testing.T) {
			m := waveModel(t, cfg)
			b, coef := waveBatch(cfg)
			path := filepath.Join("testdata", name+".json")
			if *update {
				writeStored(t, path, m, b, coef)
			}
			raw, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var want stored
			if err := json.Unmarshal(raw, &want); err != nil {
				t.Fatal(err)
			}
			if got, err := ParseConfig(want.Config); err != nil || fmt.Sprint(got) != fmt.Sprint(cfg) {
				t.Fatalf("the file is for another configuration: %v, %v", got, err)
			}
			stats, grads := run(t, m, b, coef)
			for row := range b.Rows() {
				for i, logp := range want.Logp[row] {
					at := int(b.Cu[row]) + 1 + i
					if e := max(math.Abs(float64(stats.Logp[at])-logp), math.Abs(float64(stats.Entropy[at])-want.Entropy[row][i])); !(e < 5e-5) {
						t.Errorf("row %d, token %d: off by %g", row, i+1, e)
					}
				}
			}
			for i, g := range grads {
				slope, norm := 0.0, 0.0
				for j, v := range g {
					slope += float64(v) * wave(j, i+100)
					norm += float64(v) * float64(v)
				}
				if d := math.Abs(slope - want.Slopes[m.params[i].Name]); !(d <= 2e-4*math.Sqrt(norm)) {
					t.Errorf("%s: slope %g, want %g, gradient norm %g", m.params[i].Name, slope, want.Slopes[m.params[i].Name], math.Sqrt(norm))
				}
			}
		})
	}
}

func writeStored(t *testing.T, path string, m *Model, b Batch, coef []float32) {
	ref := newReference(m)
	out := stored{Config: must(json.Marshal(m.Config)), Slopes: map[string]float64{}}
	loss := func() (sum float64) {
		out.Logp, out.Entropy = nil, nil
		for row := range b.Rows() {
			logp, entropy := ref.logp(b.Tokens[b.Cu[row]:b.Cu[row+1]], 1)
			out.Logp, out.Entropy = append(out.Logp, logp), append(out.Entropy, entropy)
			for i, l := range logp {
				sum += float64(coef[int(b.Cu[row])+1+i]) * l
			}
		}
		return sum
	}
	const h = 1e-5
	for i := range m.params {
		w := ref.w[strings.TrimPrefix(m.params[i].Name, m.Config.textPrefix())]
		shifted := func(by float64) float64 {
			keep := append([]float64{}, w...)
			defer copy(w, keep)
			for j := range w {
				w[j] += by * wave(j, i+100)
			}
			return loss()
		}
		// Fourth order, so that the stored slopes are good to about 1e-9.
		out.Slopes[m.params[i].Name] = (8*(shifted(h)-shifted(-h)) - (shifted(2*h) - shifted(-2*h))) / (12 * h)
	}
	loss()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(must(json.MarshalIndent(out, "", " ")), '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}
