package model

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"harness-s/kernels"
	"harness-s/model/safetensors"
)

// slack is how far beyond the reference library's own float32 error (meta.json) we may be.
const slack = 4

type goldenMeta struct {
	Figures struct {
		Logp    float64 `json:"logp_max_abs"`
		Entropy float64 `json:"entropy_max_abs"`
		GradMax float64 `json:"grad_max_rel_per_tensor"`
		GradL2  float64 `json:"grad_rel_l2_all"`
		Greedy  float64 `json:"greedy_logp_max_abs"`
	} `json:"f32_vs_f64"`
}

type golden struct {
	dir  string
	meta goldenMeta
}

func openGolden(t *testing.T, dir string) golden {
	g := golden{dir: dir}
	raw, err := os.ReadFile(filepath.Join(dir, "meta.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &g.meta); err != nil {
		t.Fatal(err)
	}
	return g
}

func (g golden) npy(t *testing.T, format string, args ...any) []float64 {
	return readNPY(t, filepath.Join(g.dir, fmt.Sprintf(format, args...)+".npy"))
}

// batch packs the three sequences; coef are the weights of the golden loss.
func (g golden) batch(t *testing.T) (b Batch, coef []float32) {
	for k := range 3 {
		b.Add(toIDs(g.npy(t, "seq%d_input_ids", k)), nil)
		coef = append(coef, 0)
		for _, w := range g.npy(t, "seq%d_w", k) {
			coef = append(coef, float32(w))
		}
	}
	return b, coef
}

func TestGoldenScoresAndGradients(t *testing.T) {
	for _, dir := range goldenDirs(t) {
		for _, recompute := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/recompute=%t", filepath.Base(dir), recompute), func(t *testing.T) {
				g := openGolden(t, dir)
				loaded, err := Load(dir, newBackend(t, 2), Options{Train: true, Recompute: recompute})
				m := closing(t, loaded, err)
				b, coef := g.batch(t)
				stats, err := m.Forward(b, ForwardOptions{Grad: true})
				if err != nil {
					t.Fatal(err)
				}
				if err := m.Backward(coef); err != nil {
					t.Fatal(err)
				}
				checkGoldenScores(t, g, b, stats)
				checkGoldenGrads(t, g, m)
			})
		}
	}
}

func checkGoldenScores(t *testing.T, g golden, b Batch, stats Stats) {
	var logpErr, entropyErr float64
	for k := range b.Rows() {
		logp, entropy := g.npy(t, "seq%d_logp_f64", k), g.npy(t, "seq%d_entropy_f64", k)
		for i := range logp {
			at := int(b.Cu[k]) + i + 1
			if stats.Logp[at] > 0 {
				t.Errorf("sequence %d, token %d: log-prob %g above 0", k, i+1, stats.Logp[at])
			}
			logpErr = max(logpErr, math.Abs(float64(stats.Logp[at])-logp[i]))
			entropyErr = max(entropyErr, math.Abs(float64(stats.Entropy[at])-entropy[i]))
		}
	}
	f := g.meta.Figures
	t.Logf("log-prob off by %.3g (the library: %.3g), entropy by %.3g (%.3g)", logpErr, f.Logp, entropyErr, f.Entropy)
	if !(logpErr <= slack*f.Logp) || !(entropyErr <= slack*f.Entropy) {
		t.Errorf("beyond %d times the library's error", slack)
	}
}

func checkGoldenGrads(t *testing.T, g golden, m *Model) {
	ref, err := safetensors.Open(filepath.Join(g.dir, "grads_f64.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer ref.Close()
	var worst, num, den float64
	var worstName string
	for i, got := range allGrads(m) {
		p := &m.params[i]
		tensor := ref.Tensor(p.Name)
		if tensor == nil {
			t.Fatalf("no reference gradient for %s", p.Name)
		}
		want := must(tensor.Float64s())
		var diff, size float64
		for j := range want {
			d := float64(got[j]) - want[j]
			diff, size = max(diff, math.Abs(d)), max(size, math.Abs(want[j]))
			num, den = num+d*d, den+want[j]*want[j]
			if math.IsNaN(d) {
				t.Fatalf("%s: gradient %d is NaN", p.Name, j)
			}
		}
		if rel := diff / size; rel > worst {
			worst, worstName = rel, p.Name
		}
	}
	if len(ref.Tensors()) != len(m.params) {
		t.Errorf("%d gradients, the reference has %d", len(m.params), len(ref.Tensors()))
	}
	f, l2 := g.meta.Figures, math.Sqrt(num/den)
	t.Logf("worst gradient %s off by %.3g (the library: %.3g), all by %.3g in L2 (%.3g)", worstName, worst, f.GradMax, l2, f.GradL2)
	if worst > slack*f.GradMax || l2 > slack*f.GradL2 {
		t.Errorf("beyond %d times the library's error", slack)
	}
}

func TestGoldenGreedy(t *testing.T) {
	for _, dir := range goldenDirs(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			g := openGolden(t, dir)
			loaded, err := Load(dir, newBackend(t, 2), Options{})
			m := closing(t, loaded, err)
			d, err := NewDecoder(m, DecoderOptions{MaxTokens: 256, MaxSeqs: 1})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Free()
			feed := toIDs(g.npy(t, "greedy_prompt"))
			want, logp := toIDs(g.npy(t, "greedy_tokens")), g.npy(t, "greedy_logp_f64")
			seq, _, err := d.Open(feed)
			if err != nil {
				t.Fatal(err)
			}
			for i := range want {
				r, err := d.Step([]Work{{Seq: seq, Tokens: feed, Sample: &kernels.SampleParams{TopP: 1}}})
				if err != nil {
					t.Fatal(err)
				}
				if r[0].Sample.ID != want[i] {
					t.Fatalf("token %d is %d, want %d", i, r[0].Sample.ID, want[i])
				}
				if e := math.Abs(float64(r[0].Sample.Logprob) - logp[i]); !(e <= slack*g.meta.Figures.Greedy) {
					t.Errorf("token %d: log-prob off by %g", i, e)
				}
				feed = []int32{want[i]}
			}
			d.Close(seq)
		})
	}
}
