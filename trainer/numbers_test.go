package trainer

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"harness-s/kernels"
	"harness-s/model"
	"harness-s/model/safetensors"
	"harness-s/rollout"
	"harness-s/trainer/loss"
)

// The numbers of a training step that hold through packing, micro-batches, loss and update together, on a real
// model. docs/numbers.md lists them all.

// everyLoss is a config for each objective, and for an expression, of which no row is ever dead.
func everyLoss() map[string]loss.Config {
	out := map[string]loss.Config{}
	for _, name := range []string{"grpo", "dr_grpo", "dapo", "gspo", "cispo"} {
		c := loss.DefaultConfig()
		c.Name = name
		out[name] = c
		c.Old, c.SamplerCap = "sampler", 0.99
		out[name+" on the sampler's log-probs"] = c
	}
	c := loss.DefaultConfig()
	c.Name, c.Expression = "expression", "-min(exp(logp-old_logp)*advantage, clip(exp(logp-old_logp), 0.8, 1.28)*advantage)"
	out["expression"] = c
	return out
}

func attempts(id string, reward float64, masks ...[]uint8) []*rollout.Record {
	return []*rollout.Record{rec(id, reward, masks...)}
}

// numberGroups are two groups with something to learn, one of equal rewards, and one whose only row without a
// policy token belongs to the better attempt.
func numberGroups(c loss.Config) []group {
	long := []uint8{0, 0, 1, 1, 0, 1, 0, 0, 1, 0}
	groups := testGroups()
	groups[0].records[0].Rows[0] = rec("", 0, long).Rows[0]
	groups = append(groups, group{records: append(attempts("d0", 1, long, []uint8{0, 0, 0}), attempts("d1", 0, []uint8{0, 1, 1, 1})...)})
	for i, g := range groups {
		for j, r := range g.records {
			for k, row := range r.Rows {
				for t := range row.Tokens {
					row.Tokens[t] = int32((3*t + 5*i + 7*j + k) % vocab)
					if row.Mask[t] != 0 {
						row.Logprobs[t] = -2.5
					}
				}
			}
		}
	}
	l, err := loss.New(c)
	if err != nil {
		panic(err)
	}
	setAdvantages(groups, c.Advantages(l), c.Eps)
	return groups
}

// train updates a fresh tiny model with the groups; it returns the files of its weights and moments, and its last
// gradients.
func train(t *testing.T, c Config, groups []group) (files string, grads []float64) {
	t.Helper()
	be, err := kernels.NewCPU(2)
	if err != nil {
		t.Fatal(err)
	}
	defer be.Close()
	m, err := model.New(tinyModel(), be, 7, model.Options{Train: true})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	l, err := loss.New(c.Loss)
	if err != nil {
		t.Fatal(err)
	}
	u := updater{cfg: c, loss: l, learner: modelLearner{model.NewGroup(m)}, out: metrics{}, lr: func(int) float64 { return 1e-2 },
		dump: func(d dump) error { return fmt.Errorf("loss %s, gradient norm %s", d.Loss, d.GradNorm) }}
	if err := u.run(pack(groups, l, c.Optim.Minibatches, c.Optim.MicrobatchTok, 1)); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := u.learner.WriteWeights(dir); err != nil {
		t.Fatal(err)
	}
	if err := u.learner.WriteOptimizer(filepath.Join(dir, optimizerName)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "grads.safetensors")
	if err := m.WriteGrads(path); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"model.safetensors", optimizerName} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		files += string(data)
	}
	return files, floats(t, path)
}

// floats is every number of a safetensors file.
func floats(t *testing.T, path string) (out []float64) {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, tensor := range f.Tensors() {
		v := make([]float32, tensor.NumElements())
		if err := tensor.Float32s(v); err != nil {
			t.Fatal(err)
		}
		out = append(out, widen(v)...)
	}
	return out
}

func numberConfig(c loss.Config, budget int) Config {
	cfg := fakeConfig()
	cfg.Loss, cfg.Optim.MicrobatchTok, cfg.Optim.Epochs, cfg.Mismatch = c, budget, 2, MismatchConfig{}
	return cfg
}

// NaN and infinities at masked places, other tokens in rows that are masked as a whole, and anything at all in a
// group of advantage 0 change no bit of the weights or the moments, at any micro-batch size.
func TestMaskedPlacesChangeNoBit(t *testing.T) {
	for name, c := range everyLoss() {
		for _, budget := range []int{7, 8192} {
			cfg := numberConfig(c, budget)
			want, _ := train(t, cfg, numberGroups(c))
			if untrained, _ := train(t, cfg, nil); want == untrained {
				t.Fatalf("%s: nothing was learned: the test shows nothing", name)
			}
			for _, x := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
				groups := numberGroups(c)
				spoil(groups, x, c.Name != "expression")
				if got, _ := train(t, cfg, groups); got != want {
					t.Errorf("%s, micro-batches of %d tokens: %g in masked places changes the weights", name, budget, x)
				}
			}
		}
	}
}

// spoil puts x wherever nothing may be read. Rows of a group without advantage are not even run when the loss
// declares them dead; otherwise only their coefficients are 0, and their log-probs must be numbers.
func spoil(groups []group, x float32, dead bool) {
	for _, g := range groups {
		for j, r := range g.records {
			zero := g.advantage[j] == 0
			for _, row := range r.Rows {
				for t, bit := range row.Mask {
					if bit == 0 || zero && dead {
						row.Logprobs[t] = x
					}
					if zero || lastPolicy(row.Mask) < t {
						row.Tokens[t] = (row.Tokens[t] + 1) % vocab
					}
				}
			}
		}
	}
}

// A batch without a policy token has no loss, no gradient and no update, and nothing divides by its counts.
func TestAllMaskedBatch(t *testing.T) {
	none := []uint8{0, 0, 0}
	for name, c := range everyLoss() {
		cfg := numberConfig(c, 8192)
		groups := []group{{records: append(attempts("a", 1, none), attempts("b", 0, none)...)}}
		l, _ := loss.New(c)
		setAdvantages(groups, c.Advantages(l), c.Eps)
		got, grads := train(t, cfg, groups)
		want, _ := train(t, cfg, nil)
		if got != want {
			t.Errorf("%s: an all-masked batch changed the weights or the moments", name)
		}
		for _, g := range grads {
			if g != 0 {
				t.Fatalf("%s: an all-masked batch has a gradient of %g", name, g)
			}
		}
	}
}

// Any split into micro-batches gives the same gradient, up to the order of fp32 sums: the counts that normalise it
// are the minibatch's own.
func TestGradientDoesNotDependOnTheSplit(t *testing.T) {
	for name, c := range everyLoss() {
		cfg := numberConfig(c, 8192)
		cfg.Optim.Minibatches, cfg.Optim.Epochs = 1, 1
		_, want := train(t, cfg, numberGroups(c))
		for _, budget := range []int{1, 7, 15} {
			cfg.Optim.MicrobatchTok = budget
			_, got := train(t, cfg, numberGroups(c))
			var diff, size float64
			for i := range want {
				diff, size = diff+(got[i]-want[i])*(got[i]-want[i]), size+want[i]*want[i]
			}
			if rel := math.Sqrt(diff / size); !(rel < 1e-5) {
				t.Errorf("%s: micro-batches of %d tokens give a gradient %g away", name, budget, rel)
			}
		}
	}
}

// The old log-probs of every minibatch and every epoch are those of the weights that sampled, not of weights that
// earlier updates of the step made: the fake server computes its own as the fake learner does.
func TestOldLogprobsAreTheSamplingWeights(t *testing.T) {
	g := newRig(t)
	g.cfg.Budget.Rollouts, g.cfg.Optim.Minibatches, g.cfg.Optim.Epochs = 400, 4, 2
	g.must(t)
	moved := false
	for _, m := range g.lines(t)[1:] {
		if m["mismatch/max_abs"] > 1e-6 {
			t.Errorf("step %v: an old log-prob is %g off the server's", m["step"], m["mismatch/max_abs"])
		}
		moved = moved || m["policy/ppo_kl"] != 0
	}
	if !moved {
		t.Error("no ratio ever left 1: the test shows nothing")
	}
}

// A rollout of several rows weighs as much as one of a single row with as many tokens.
func TestRowsShareOneWeight(t *testing.T) {
	c := loss.DefaultConfig()
	l, _ := loss.New(c)
	one, two := attempts("a", 1, []uint8{0, 1, 1, 1, 1}), attempts("a", 1, []uint8{0, 1}, []uint8{0, 1, 1, 1})
	var sums []string
	for _, first := range [][]*rollout.Record{one, two} {
		groups := []group{{records: append(first, attempts("b", 0, []uint8{0, 1})...)}}
		setAdvantages(groups, c.Advantages(l), c.Eps)
		m := pack(groups, l, 1, 100, 1)[0]
		var logp []float32
		for i := range m.micro[0] {
			m.micro[0][i].old = make([]float32, len(m.micro[0][i].tokens))
			logp = append(logp, m.micro[0][i].old...)
		}
		res := l.Eval(c, m.forLoss(m.micro[0], logp))
		var weights []string
		for _, x := range res.Coef {
			if x != 0 {
				weights = append(weights, fmt.Sprint(x))
			}
		}
		sums = append(sums, strings.Join(weights, " "))
	}
	if sums[0] != sums[1] || strings.Count(sums[0], " ") != 4 {
		t.Errorf("one row of 4 policy tokens: %s\ntwo rows of 1 and 3: %s", sums[0], sums[1])
	}
}

// A step's records: one policy version, base and rescue attempts in one group by (step, task), replaced attempts kept
// and marked, each attempt once with a seed of its own.
func TestRecordsOfARescuedStep(t *testing.T) {
	g := newRig(t)
	g.cfg.Budget.Rollouts = 200
	g.must(t)
	replaced, rescued := map[string]int{}, map[string]int{}
	seeds := map[int64]string{}
	for _, r := range g.records(t, "step_000002.jsonl.zst") {
		if r.PolicyVersion != 1 {
			t.Errorf("%s: sampled by version %d in step 2", r.ID, r.PolicyVersion)
		}
		if r.Phase != "train" && r.Phase != "rescue" {
			continue
		}
		if other := seeds[r.Seed]; other != "" || r.Group != rollout.GroupID(2, r.Task) {
			t.Errorf("%s: group %s, seed of %q", r.ID, r.Group, other)
		}
		seeds[r.Seed] = r.ID
		switch {
		case r.Phase == "rescue":
			rescued[r.Group]++
			if r.Harness == "h0" || r.Replaced || r.Advantage == nil {
				t.Errorf("%s: harness %s, replaced %t, advantage %v", r.ID, r.Harness, r.Replaced, r.Advantage)
			}
		case r.Replaced:
			replaced[r.Group]++
			if r.Success || r.Advantage != nil {
				t.Errorf("%s was replaced: success %t, advantage %v", r.ID, r.Success, r.Advantage)
			}
		}
	}
	if len(replaced) == 0 || len(replaced) != len(rescued) {
		t.Fatalf("%d groups replaced, %d rescued", len(replaced), len(rescued))
	}
	for id := range replaced {
		if replaced[id] != g.cfg.Rollout.N || rescued[id] != g.cfg.Rescue.K {
			t.Errorf("group %s: %d attempts replaced by %d", id, replaced[id], rescued[id])
		}
	}
}
