// Package gpucheck holds the script behind make gpu-check, and its rehearsal.
package gpucheck

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"harness-s/internal/testutil"
)

// The stages' limits add up to no more than the whole may take.
func TestLimitsFit(t *testing.T) {
	script, err := os.ReadFile("run.sh")
	if err != nil {
		t.Fatal(err)
	}
	limits := regexp.MustCompile(`(?m)^( *)stage \S+ (\d+) `).FindAllStringSubmatch(string(script), -1)
	if len(limits) < 7 {
		t.Fatalf("%d stages", len(limits))
	}
	sum := 0
	for _, m := range limits {
		n, _ := strconv.Atoi(m[2])
		if m[1] != "" {
			n *= 3 // in a loop over the sizes
		}
		sum += n
	}
	if sum > 720 {
		t.Errorf("limits of %d s, want at most 720", sum)
	}
}

// TestRehearsal makes the bundle and runs all of it on the simulator. HARNESS_S_LONG=1 (make test-long).
func TestRehearsal(t *testing.T) {
	if os.Getenv("HARNESS_S_LONG") == "" {
		t.Skip("takes minutes: HARNESS_S_LONG=1")
	}
	out := t.TempDir()
	cmd := exec.Command("make", "gpu-check", "GPU_CHECK_BACKEND=sim", "GPU_CHECK_OUT="+out)
	cmd.Dir = testutil.Root(t)
	text, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	data, err := os.ReadFile(filepath.Join(out, "summary.json"))
	if err != nil {
		t.Fatal(err)
	}
	var summary struct {
		Failed int
		Stages []struct {
			Stage string
			RC    int
		}
	}
	if err := json.Unmarshal(data, &summary); err != nil {
		t.Fatal(err)
	}
	if summary.Failed != 0 || len(summary.Stages) != 7 {
		t.Errorf("summary %+v", summary)
	}
	for _, name := range []string{"kernels-tiny.json", "step-tiny.json"} {
		var results []struct {
			Bench string
			Ms    float64
		}
		data, err := os.ReadFile(filepath.Join(out, name))
		if err == nil {
			err = json.Unmarshal(data, &results)
		}
		if err != nil || len(results) == 0 || !(results[0].Ms > 0) {
			t.Errorf("%s: %v, %+v", name, err, results)
		}
	}
	for _, name := range []string{"ops.log", "ops-real.log", "goldens.log"} {
		log, _ := os.ReadFile(filepath.Join(out, name))
		if !strings.Contains(string(log), "\nPASS") {
			t.Errorf("%s has no tests that passed", name)
		}
	}
}
