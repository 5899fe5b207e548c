package warmstart

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"harness-s/internal/testutil"
	"harness-s/kernels"
	"harness-s/model"
	"harness-s/model/tokenizer"
	"harness-s/rollout/env/sqlenv/taskgen"
	"harness-s/rollout/harness"
)

// shipped opens recipes/policies/sql.
func shipped(t *testing.T) (dir string, m *model.Model, d *demonstrator) {
	t.Helper()
	root := testutil.Root(t)
	dir = filepath.Join(root, "recipes", "policies", "sql")
	c := Default()
	c.Pool = filepath.Join(root, c.Pool)
	pool, err := harness.LoadPool(c.Pool)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if d, err = newDemonstrator(c, pool, tok); err != nil {
		t.Fatal(err)
	}
	be, err := kernels.NewCPU(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { be.Close() })
	if m, err = model.Load(dir, be, model.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return dir, m, d
}

func TestShippedFolder(t *testing.T) {
	dir, m, d := shipped(t)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var size int64
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	if size > 8<<20 {
		t.Errorf("%d bytes, want at most 8 MiB", size)
	}
	if n := m.Config.NumParams(); n < 1e6 || n > 3e6 {
		t.Errorf("%d parameters, want 1 to 3 million", n)
	}
	want := d.cfg.shape(d.tok.VocabSize())
	got := m.Config
	if !reflect.DeepEqual(got, want) {
		t.Errorf("shape %+v, the config says %+v", got, want)
	}
	raw, err := os.ReadFile(filepath.Join(dir, FiguresFile))
	if err != nil {
		t.Fatal(err)
	}
	var made struct{ Config Config }
	if err := json.Unmarshal(raw, &made); err != nil {
		t.Fatal(err)
	}
	made.Config.Demo.Kinds = nil
	if !reflect.DeepEqual(made.Config, Default()) {
		t.Errorf("made from %+v, the config is now %+v: run make policy", made.Config, Default())
	}
}

// The situation that rescue needs, in exact probabilities: h0 almost never does what helps, a sibling that asks for it
// gets it often and not always.
func TestShippedPolicyIsUnsaturated(t *testing.T) {
	_, m, d := shipped(t)
	source, err := taskgen.New(taskgen.Options{Seed: 11})
	if err != nil {
		t.Fatal(err)
	}
	figures := map[string]Harness{}
	for _, id := range []string{harness.BaseID, "look", "count", "clean"} {
		spec, _ := d.pool.Get(id)
		h := Harness{}
		if err := h.probe(m, d, spec, source, 40); err != nil {
			t.Fatal(err)
		}
		figures[id] = h
	}
	base := figures[harness.BaseID]
	for what, p := range map[string][2]float64{
		"look":  {base.Look, figures["look"].Look},
		"count": {base.Count, figures["count"].Count},
		"clean": {base.Clean, figures["clean"].Clean},
	} {
		if p[0] > 0.01 {
			t.Errorf("%s: h0 does it unasked with probability %.3g", what, p[0])
		}
		if p[1] < 0.4 || p[1] > 0.98 {
			t.Errorf("%s: asked for, it is done with probability %.3g, want 0.4 to 0.98", what, p[1])
		}
	}
}
