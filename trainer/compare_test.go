package trainer

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each mode and seed is trained once, in turn; what is done is not done again; what was stopped is resumed.
func TestCompareGoesOnWhereItStopped(t *testing.T) {
	dir := t.TempDir()
	var trained []string
	stop := errors.New("stopped")
	o := CompareOptions{
		Dir: dir, Modes: []string{ModeRouted, ModeOff}, Seeds: []int64{1, 2}, Out: &strings.Builder{},
		Config: func(mode string, seed int64) (Config, error) {
			c := Default()
			c.Rescue.Mode, c.Seed = mode, seed
			return c, nil
		},
	}
	o.Train = func(_ context.Context, cfg Config, opts Options) (Summary, error) {
		name := filepath.Base(opts.RunDir)
		if opts.Resume {
			name += " resumed"
		}
		trained = append(trained, name)
		if err := os.MkdirAll(opts.RunDir, 0o755); err != nil {
			return Summary{}, err
		}
		if err := os.WriteFile(filepath.Join(opts.RunDir, "config.yaml"), nil, 0o644); err != nil {
			return Summary{}, err
		}
		if len(trained) == 3 {
			return Summary{}, stop
		}
		avg := 0.5
		if cfg.Rescue.Mode == ModeRouted {
			avg = 0.9
		}
		sum := Summary{Seed: cfg.Seed, Before: map[string]Score{"h0": {K: 3, Avg: 0.5}}, After: map[string]Score{"h0": {K: 3, Avg: avg + 0.01*float64(cfg.Seed)}}}
		raw, err := json.Marshal(sum)
		if err != nil {
			return sum, err
		}
		return sum, os.WriteFile(filepath.Join(opts.RunDir, "summary.json"), raw, 0o644)
	}
	if _, err := Compare(context.Background(), o); !errors.Is(err, stop) {
		t.Fatalf("got %v", err)
	}
	c, err := Compare(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	want := "routed-seed-1,off-seed-1,routed-seed-2,routed-seed-2 resumed,off-seed-2"
	if got := strings.Join(trained, ","); got != want {
		t.Errorf("trained %s, want %s", got, want)
	}
	var b strings.Builder
	c.Table(&b)
	lines := strings.Split(b.String(), "\n")
	// Two seeds, values 0.91 and 0.92: mean 0.915, half width 12.71 * 0.00707 / sqrt 2.
	if !strings.HasPrefix(lines[2], "| `routed` |") || !strings.Contains(lines[2], "0.915 ± 0.064") {
		t.Errorf("table:\n%s", b.String())
	}
	if _, err := Compare(context.Background(), CompareOptions{Dir: dir, Modes: []string{"best"}}); err == nil {
		t.Error("an unknown mode was taken")
	}
}
