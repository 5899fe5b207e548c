package trainer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDamagedCheckpointNamesTheMend: whatever file of the last checkpoint is gone, the error says how to go on, and
// doing so works.
func TestDamagedCheckpointNamesTheMend(t *testing.T) {
	for _, name := range []string{stateName, optimizerName} {
		g := newRig(t)
		g.must(t)
		steps, err := filepath.Glob(filepath.Join(g.dir, "checkpoints", "step_*"))
		if err != nil || len(steps) < 2 {
			t.Fatalf("checkpoints %v, %v: want two", steps, err)
		}
		last := steps[len(steps)-1]
		if err := os.Remove(filepath.Join(last, name)); err != nil {
			t.Fatal(err)
		}
		g.resume = true
		if _, err := g.run(); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "remove "+last) {
			t.Errorf("%s is gone: error %v", name, err)
		}
		if err := os.RemoveAll(last); err != nil {
			t.Fatal(err)
		}
		g.must(t)
	}
}
