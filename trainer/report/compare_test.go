package report

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"harness-s/trainer"
)

func comparedResult(end float64) trainer.Result {
	var r trainer.Result
	r.Steps, r.Rollouts = 4, 100
	r.Before = map[string]trainer.Score{"h0": {K: 3, Avg: 0.5}, "routed": {K: 3, Avg: 0.7}, "rank2": {K: 3, Avg: 0.6}, "rank3": {K: 3, Avg: 0.5}}
	r.After = map[string]trainer.Score{"h0": {K: 3, Avg: end}, "best": {K: 3, Avg: 0.8}, "routed": {K: 3, Avg: 0.9}}
	r.Curve = []trainer.Point{{Rollouts: 0, Avg: 0.5}, {Rollouts: 100, Avg: end}}
	r.Rescue = [trainer.Stages]trainer.Share{{Of: 4, Count: 1}, {Of: 4, Count: 2}, {}}
	return r
}

func writeComparison(t *testing.T, c trainer.Comparison) (string, error) {
	t.Helper()
	dir := t.TempDir()
	raw, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "summary.json"), raw, 0o644); err != nil {
		t.Fatal(err)
	}
	path, err := WriteComparison(dir)
	if err != nil {
		return "", err
	}
	page, err := os.ReadFile(path)
	return string(page), err
}

func TestComparisonReport(t *testing.T) {
	c := trainer.Comparison{Runs: 4, Done: 3, Plan: trainer.ComparePlan{File: "recipes/c.yaml", Seeds: []int64{1, 2}, Arms: []trainer.Arm{
		{Name: "grpo", Label: "GRPO <plain>"}, {Name: "routed"}, {Name: "frozen", Frozen: "best"}}},
		Arms: map[string]map[string]trainer.Result{
			"grpo": {"1": comparedResult(0.5), "2": comparedResult(0.6)}, "routed": {"1": comparedResult(0.9)}}}
	page, err := writeComparison(t, c)
	if err != nil {
		t.Fatal(err)
	}
	for _, must := range []string{"GRPO &lt;plain&gt;", "3 of 4", "From harness-s compare recipes/c.yaml.", "before training", "first third",
		"GRPO &lt;plain&gt; 0.55", "H0: 0.550 ± 0.635", "prefers-color-scheme"} {
		if !strings.Contains(page, must) {
			t.Errorf("the page lacks %q", must)
		}
	}
	for _, mustNot := range []string{"<plain>", "<script", "http://", "https://", "NaN", "Inf"} {
		if strings.Contains(page, mustNot) {
			t.Errorf("the page has %q", mustNot)
		}
	}
	if n := strings.Count(page, `class="seed c0"`); n != 3 { // two seeds and the line to the name
		t.Errorf("%d thin lines of the first arm, want 3", n)
	}
}

func TestComparisonReportWithoutRuns(t *testing.T) {
	page, err := writeComparison(t, trainer.Comparison{Runs: 3, Plan: trainer.ComparePlan{Seeds: []int64{1}, Arms: []trainer.Arm{{Name: "a"}}}})
	if err != nil || strings.Count(page, "no data yet") != 4 {
		t.Errorf("error %v, %d figures without data, want 4", err, strings.Count(page, "no data yet"))
	}
}

// Seeds are measured at different rollouts: the mean takes each by the line between its points.
func TestMeanCurve(t *testing.T) {
	got := meanCurve([][]trainer.Point{{{Rollouts: 0, Avg: 0}, {Rollouts: 100, Avg: 1}}, {{Rollouts: 0, Avg: 0}, {Rollouts: 50, Avg: 1}, {Rollouts: 90, Avg: 1}}})
	want := []trainer.Point{{Rollouts: 0, Avg: 0}, {Rollouts: 50, Avg: 0.75}, {Rollouts: 90, Avg: 0.95}, {Rollouts: 100, Avg: 1}}
	for i := range want {
		if i >= len(got) || got[i] != want[i] {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
}
