package warmstart

import (
	"bytes"
	"context"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"harness-s/internal/testutil"
	"harness-s/kernels"
	"harness-s/model"
	"harness-s/model/tokenizer"
	"harness-s/rollout/env/sqlenv/taskgen"
	"harness-s/rollout/harness"
	"harness-s/trainer/config"
)

// tiny is a config that takes a second.
func tiny(t *testing.T) Config {
	t.Helper()
	c := Default()
	c.Pool = filepath.Join(testutil.Root(t), "recipes", "pools", "sql")
	c.Vocab, c.Probe = 512, 2
	c.Model = ModelShape{Hidden: 64, MLP: 96, Layers: 2, EveryAttention: 2, GDNHeads: 1, Heads: 2, KVHeads: 1}
	c.Demo.Corpus = 60
	c.Optim = Optim{RecallSteps: 4, Steps: 24, Batch: 4, LR: 3e-3, Warmup: 4, WeightDecay: 0.01, GradNorm: 1, Tokens: 1024}
	return c
}

func demonstratorOf(t *testing.T, c Config) *demonstrator {
	t.Helper()
	pool, err := harness.LoadPool(c.Pool)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := trainTokenizer(context.Background(), c, pool)
	if err != nil {
		t.Fatal(err)
	}
	d, err := newDemonstrator(c, pool, tok)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func newModel(t *testing.T, d *demonstrator, threads int) *model.Model {
	t.Helper()
	be, err := kernels.NewCPU(threads)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(d.cfg.shape(d.tok.VocabSize()), be, 1, model.Options{Train: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(); be.Close() })
	return m
}

// An invented word is the same tokens wherever it stands, also one that no demonstration has.
func TestInventedWordsAreTheSamePieces(t *testing.T) {
	c := tiny(t)
	c.Vocab = Default().Vocab
	d := demonstratorOf(t, c)
	tasks, err := taskgen.New(taskgen.Options{Seed: 5})
	if err != nil {
		t.Fatal(err)
	}
	pieces := func(w string) string {
		var p []string
		for _, id := range d.tok.Encode(w, false) {
			p = append(p, string(d.tok.TokenBytes(id)))
		}
		return strings.Join(p, "|")
	}
	for i := range 50 {
		task := tasks.Make(taskgen.Test, i)
		for _, row := range task.Tables()[0].Rows {
			name := strings.ToLower(strings.TrimSpace(row[0].(string)))
			if invented.FindString(name) != name {
				continue // with an apostrophe
			}
			want := name[:2] + "|" + name[2:]
			for _, around := range [][2]string{{"", ""}, {" of ", " in"}, {" = '", "'"}, {"[('", "',)]"}, {`["`, `"]`}, {" `", "`"}, {"\n", ","}} {
				got := pieces(around[0] + name + around[1])
				if !strings.Contains("|"+got+"|", "|"+want+"|") {
					t.Errorf("%q in %q: %q", name, around, got)
				}
			}
		}
	}
	for _, word := range []string{"SELECT", " FROM", " name", " price", "DESCRIBE"} {
		if got := pieces(word); got != word {
			t.Errorf("%q is %q, want one token", word, got)
		}
	}
}

// Demonstration tables are in no split: the policy has seen no task it is trained or judged on.
func TestDemonstrationsAreInNoSplit(t *testing.T) {
	d := demonstratorOf(t, tiny(t))
	seen := map[string]bool{}
	for i := range 2000 {
		for _, table := range d.tasks.Make(taskgen.Demo, i).Tables() {
			seen[table.Name] = true
		}
	}
	for _, seed := range []uint64{uint64(d.cfg.Demo.TaskSeed), 1, 2} {
		tasks, err := taskgen.New(taskgen.Options{Seed: seed, Val: 500, Test: 500})
		if err != nil {
			t.Fatal(err)
		}
		for _, split := range []string{taskgen.Train, taskgen.Val, taskgen.Test} {
			for i := range 500 {
				for _, table := range tasks.Make(split, i).Tables() {
					if seen[table.Name] {
						t.Fatalf("table %s of %s task %d, seed %d, is in a demonstration", table.Name, split, i, seed)
					}
				}
			}
		}
	}
}

func TestRowsDoNotDependOnWorkers(t *testing.T) {
	d := demonstratorOf(t, tiny(t))
	d.cfg.Optim.Steps, d.cfg.Optim.RecallSteps = 3, 1
	all := func(workers int) (rows []row) {
		batches, wait := d.batches(context.Background(), workers, d.cfg.recallShare)
		for b := range batches {
			rows = append(rows, b...)
		}
		if err := wait(); err != nil {
			t.Fatal(err)
		}
		return rows
	}
	one := all(1)
	if !reflect.DeepEqual(one, all(3)) {
		t.Error("three workers make other rows than one")
	}
	if len(one) != 3*d.cfg.Optim.Batch || !one[0].recall {
		t.Fatalf("%d rows, the first recall: %v", len(one), one[0].recall)
	}
	recalls := 0
	for _, r := range one {
		if len(r.weight) != len(r.tokens) || r.policy == 0 {
			t.Errorf("%d tokens, %d weights, %d of the policy", len(r.tokens), len(r.weight), r.policy)
		}
		if r.recall {
			recalls++
		}
	}
	if recalls < d.cfg.Optim.Batch || recalls == len(one) {
		t.Errorf("%d of %d rows are recall text", recalls, len(one))
	}
}

// What a recall query asks for stands in the pairs above it.
func TestRecallText(t *testing.T) {
	d := demonstratorOf(t, tiny(t))
	for i := range 50 {
		parts := recallText(d.rng(i))
		pairs, _, _ := strings.Cut(parts[0], "\n")
		for k := 1; k < len(parts); k += 2 {
			given := strings.Fields(strings.TrimSuffix(parts[k-1], " is"))
			pair := given[len(given)-1] + parts[k]
			if !strings.Contains(", "+pairs+",", ", "+pair+",") {
				t.Fatalf("%q is not among %q", pair, pairs)
			}
		}
	}
}

func TestGradientDoesNotDependOnMicrobatches(t *testing.T) {
	d := demonstratorOf(t, tiny(t))
	m := newModel(t, d, 1)
	var rows []row
	for i := range 6 {
		r, err := d.row(context.Background(), i, 0)
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, r)
	}
	var norms [2]float64
	for k, most := range []int{1, 1 << 20} {
		s, err := gradient(m, rows, most)
		if err != nil {
			t.Fatal(err)
		}
		if s.count[0] == 0 || !(s.mean(false) > 1) {
			t.Errorf("a fresh model's loss is %.3f over %d tokens", s.mean(false), s.count[0])
		}
		if norms[k], _, err = m.GradStats(); err != nil {
			t.Fatal(err)
		}
	}
	if math.Abs(norms[0]-norms[1]) > 1e-4*norms[1] {
		t.Errorf("gradient norms %v: one row at a time, all at once", norms)
	}
	if _, err := gradient(m, []row{{tokens: []int32{1, 2}, weight: []float32{0, 0}}}, 1); err == nil {
		t.Error("rows without a policy token were taken")
	}
}

// cloned is the loss of the first and last steps and all weights.
func cloned(t *testing.T, d *demonstrator, threads int) (losses []float64, weights []float32) {
	m := newModel(t, d, threads)
	if err := clone(context.Background(), m, d, threads, func(p Progress) { losses = append(losses, p.Loss) }); err != nil {
		t.Fatal(err)
	}
	for _, p := range m.Params() {
		n := p.W.Len()
		weights = append(weights, make([]float32, n)...)
		m.Values(&p, weights[len(weights)-n:])
	}
	return losses, weights
}

func TestCloneLearnsTheSameOnAnyThreads(t *testing.T) {
	d := demonstratorOf(t, tiny(t))
	losses, one := cloned(t, d, 1)
	if n := len(losses); n != d.cfg.Optim.Steps || !(losses[n-1] < 0.7*losses[d.cfg.Optim.RecallSteps]) {
		t.Errorf("losses %.3f", losses)
	}
	if _, two := cloned(t, d, 2); !reflect.DeepEqual(one, two) {
		t.Error("two threads give other weights than one")
	}
}

func TestMake(t *testing.T) {
	c := tiny(t)
	c.Optim.Steps, c.Optim.RecallSteps = 3, 1
	dir := filepath.Join(t.TempDir(), "policies", "p")
	var out bytes.Buffer
	if err := Make(context.Background(), c, dir, Options{Threads: 1, Out: &out}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "step 3/3: loss") || !strings.Contains(out.String(), "look-clean") {
		t.Errorf("progress:\n%s", out.String())
	}
	tok, err := tokenizer.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	be, err := kernels.NewCPU(1)
	if err != nil {
		t.Fatal(err)
	}
	defer be.Close()
	m, err := model.Load(dir, be, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if m.Config.Vocab != tok.VocabSize() || m.Config.Dk != 64 || m.Config.Dv != 64 {
		t.Errorf("config %+v, vocabulary %d", m.Config, tok.VocabSize())
	}
	for _, name := range []string{"generation_config.json", "tokenizer_config.json", FiguresFile} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	if err := Make(context.Background(), c, dir, Options{Threads: 1, Out: &out}); err == nil || !strings.Contains(err.Error(), "exists already") {
		t.Errorf("over an existing folder: %v", err)
	}
	stopped, stop := context.WithCancel(context.Background())
	stop()
	if err := Make(stopped, c, dir+"2", Options{Threads: 1, Out: &out}); err == nil {
		t.Error("a stopped warm start made a policy")
	}
	if left, _ := os.ReadDir(filepath.Dir(dir)); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

// The shipped config is the default, key by key.
func TestShippedConfig(t *testing.T) {
	c := Config{}
	if err := config.Read(filepath.Join(testutil.Root(t), "recipes", "policies", "sql.yaml"), nil, &c); err != nil {
		t.Fatal(err)
	}
	c.Demo.Kinds = nil // written as an empty list
	if !reflect.DeepEqual(c, Default()) {
		t.Errorf("recipes/policies/sql.yaml\n%+v\nDefault\n%+v", c, Default())
	}
}

func TestValidate(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Config){
		"vocab: 10":                 func(c *Config) { c.Vocab = 10 },
		"demo.obedience: 0.99":      func(c *Config) { c.Demo.Obedience = 0.99 },
		"demo.obedience: NaN":       func(c *Config) { c.Demo.Obedience = math.NaN() },
		"h0_share":                  func(c *Config) { c.Demo.H0Share = 1.5 },
		"demo.corpus: 1":            func(c *Config) { c.Demo.Corpus = 1 },
		"recall_steps within steps": func(c *Config) { c.Optim.RecallSteps = c.Optim.Steps + 1 },
		"lr within":                 func(c *Config) { c.Optim.LR = 0 },
		"probe: 0":                  func(c *Config) { c.Probe = 0 },
		"demo.kinds: there is no":   func(c *Config) { c.Demo.Kinds = []string{"dance"} },
		"hidden_size":               func(c *Config) { c.Model.Hidden = 0 },
	} {
		c := Default()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

func TestShare(t *testing.T) {
	s := Share{}.with(true).with(false).with(true)
	if s != (Share{2, 3}) || math.Abs(s.Of()-2.0/3) > 1e-12 || (Share{}).Of() != 0 {
		t.Errorf("%+v is %v", s, s.Of())
	}
}
