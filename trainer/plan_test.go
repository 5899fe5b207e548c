package trainer

import (
	"path/filepath"
	"strings"
	"testing"

	"harness-s/kernels"
	"harness-s/model"
)

// planPolicy writes a small random policy folder.
func planPolicy(t *testing.T) string {
	t.Helper()
	be, err := kernels.NewCPU(1)
	if err != nil {
		t.Fatal(err)
	}
	defer be.Close()
	cfg := model.Config{Vocab: 300, Hidden: 32, MLP: 64, LayerTypes: []string{model.LinearAttention, model.FullAttention},
		Hq: 2, Hk: 1, D: 16, RotaryFactor: 0.25, RopeTheta: 1e4, GDNHk: 1, GDNHv: 2, Dk: 16, Dv: 16, K: 4, Eps: 1e-6, Tied: true}
	m, err := model.New(cfg, be, 1, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	dir := filepath.Join(t.TempDir(), "policy")
	if err := m.Save(dir, model.SaveOptions{}); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestPlanFitsOrSaysWhatWould(t *testing.T) {
	cfg := Default()
	cfg.Model.Path = planPolicy(t)
	shape, err := ReadShape(cfg)
	if err != nil {
		t.Fatal(err)
	}
	big, err := NewPlan(cfg, shape, Device{Name: "big", Memory: 1 << 40, Rate: 1e12}, 400)
	if err != nil {
		t.Fatal(err)
	}
	if !big.Fits || len(big.Mend) != 0 || big.Total == 0 || big.StepS <= 0 || big.Steps != 32 {
		t.Errorf("a terabyte: %+v", big)
	}
	small, err := NewPlan(cfg, shape, Device{Name: "small", Memory: big.Total - 1, Rate: 1e12}, 400)
	if err != nil {
		t.Fatal(err)
	}
	if small.Fits || !strings.Contains(strings.Join(small.Mend, " "), "model.recompute=true") {
		t.Errorf("one byte short: %+v", small)
	}
	// What it advises must fit.
	cfg.Model.Recompute = true
	if again, err := NewPlan(cfg, shape, Device{Name: "small", Memory: big.Total - 1, Rate: 1e12}, 400); err != nil || !again.Fits {
		t.Errorf("with the advice taken: %+v, %v", again, err)
	}
}

func TestPlanOfAMissingPolicyNamesTheKey(t *testing.T) {
	cfg := Default()
	cfg.Model.Path = filepath.Join(t.TempDir(), "none")
	if _, err := ReadShape(cfg); err == nil || !strings.Contains(err.Error(), "model.path") {
		t.Errorf("got %v", err)
	}
}
