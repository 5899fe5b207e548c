package trainer

import (
	"context"
	"path/filepath"
	"testing"

	"harness-s/kernels"
	"harness-s/model"
	"harness-s/rollout"
)

// modelWorld is the rollout side over a real model: attempts of a few sampled tokens in row.
type modelWorld struct {
	seed    int64
	be      kernels.Backend
	m       *model.Model
	version int
}

const answerTokens = 4

func tinyModel() model.Config {
	return model.Config{
		Vocab: vocab, Hidden: 32, MLP: 48, LayerTypes: []string{model.LinearAttention, model.FullAttention},
		Hq: 2, Hk: 1, D: 16, RotaryFactor: 0.5, RopeTheta: 1e4, GDNHk: 2, GDNHv: 2, Dk: 16, Dv: 16, K: 4, Eps: 1e-6, Tied: true,
	}
}

func (w *modelWorld) Sync(_ context.Context, dir string, version int) error {
	m, err := model.Load(dir, w.be, model.Options{})
	if err != nil {
		return err
	}
	if w.m != nil {
		w.m.Close()
	}
	w.m, w.version = m, version
	return nil
}

func (w *modelWorld) Score(_ context.Context, tokens []int32) ([]float32, error) {
	var b model.Batch
	b.Add(tokens, nil)
	s, err := w.m.Forward(b, model.ForwardOptions{})
	return s.Logp, err
}

func (w *modelWorld) Collect(ctx context.Context, jobs []rollout.Job, _ func(int)) ([]*rollout.Record, error) {
	d, err := model.NewDecoder(w.m, model.DecoderOptions{MaxTokens: 4096, MaxSeqs: 4})
	if err != nil {
		return nil, err
	}
	defer d.Free()
	out := make([]*rollout.Record, len(jobs))
	for i, j := range jobs {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if out[i], err = w.attempt(d, j); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// attempt samples a few tokens; it succeeds when the second is the task's answer, which siblings ask for no better
// than H0: only the mechanics are under test here.
func (w *modelWorld) attempt(d *model.Decoder, j rollout.Job) (*rollout.Record, error) {
	phase := j.Phase
	if phase == "rescue" {
		phase = "train"
	}
	seed := rollout.Seed(w.seed, phase, j.Step, j.Task.ID, j.Attempt, 0)
	prompt := []int32{harnessToken(j.Spec), j.Task.Data.(int32)}
	row := rollout.Row{Tokens: prompt, Mask: []uint8{0, 0}, Logprobs: []float32{0, 0}, TurnBounds: [][2]int{{2, 2 + answerTokens}}}
	seq, cached, err := d.Open(prompt)
	if err != nil {
		return nil, err
	}
	next := prompt[cached:]
	for n := range answerTokens {
		p := kernels.SampleParams{Temperature: 1, TopP: 1, Seed: uint64(seed), Counter: uint64(n)}
		res, err := d.Step([]model.Work{{Seq: seq, Tokens: next, Sample: &p}})
		if err != nil {
			return nil, err
		}
		next = []int32{res[0].Sample.ID}
		row.Tokens = append(row.Tokens, next...)
		row.Mask = append(row.Mask, 1)
		row.Logprobs = append(row.Logprobs, res[0].Sample.Logprob)
	}
	d.Close(seq)
	ok := row.Tokens[3] == answerOf(prompt[1])
	return &rollout.Record{
		ID: rollout.ID(j.Phase, j.Step, j.Task.ID, j.Spec.ID, j.Attempt), Step: j.Step, Group: rollout.GroupID(j.Step, j.Task.ID),
		Task: j.Task.ID, TaskKind: j.Task.Kind, Env: "fake", Harness: j.Spec.ID, Phase: j.Phase, Attempt: j.Attempt, Seed: seed,
		PolicyVersion: w.version, Status: rollout.Completed, Rows: []rollout.Row{row}, Success: ok, Reward: toFloat(ok),
		Usage: rollout.Usage{PromptTokens: 2, PolicyTokens: answerTokens},
	}, nil
}

// modelParts wires a tiny real model, trained on one backend and sampled on another.
func modelParts(c Config, from string, train bool) (Parts, error) {
	p, _, _, err := fakeParts(c, from)
	if err != nil {
		return Parts{}, err
	}
	be, err := kernels.NewCPU(2)
	if err != nil {
		return Parts{}, err
	}
	sampler, err := kernels.NewCPU(2)
	if err != nil {
		return Parts{}, err
	}
	var m *model.Model
	if filepath.Base(filepath.Dir(from)) == "checkpoints" {
		m, err = model.Load(from, be, model.Options{Train: true})
	} else {
		m, err = model.New(tinyModel(), be, 7, model.Options{Train: true})
	}
	if err != nil {
		return Parts{}, err
	}
	w := &modelWorld{seed: c.Seed, be: sampler}
	p.Learner, p.Actor, p.Server = modelLearner{model.NewGroup(m)}, w, w
	p.Close = func() error {
		m.Close()
		if w.m != nil {
			w.m.Close()
		}
		if err := be.Close(); err != nil {
			return err
		}
		return sampler.Close()
	}
	return p, nil
}

func modelBuilder(_ context.Context, c Config, from Sources) (Parts, error) {
	return modelParts(c, from.Model, from.Train)
}

// modelConfig holds the trainer to the numbers the embedded sampler must meet.
func modelConfig() Config {
	c := fakeConfig()
	c.Rollout.Tasks, c.Budget.Rollouts, c.Optim.LR, c.Router.Attempts = 4, 240, 3e-3, 1
	c.Mismatch.MaxAbs, c.Mismatch.Probe = 5e-5, 5e-5
	c.Eval.Ends = []string{"h0", "routed"}
	return c
}

func TestRealModelAgreesWithItsSampler(t *testing.T) {
	g := newRig(t)
	g.cfg, g.build = modelConfig(), modelBuilder
	g.cfg.Optim.Minibatches = 1
	g.must(t)
	trained := 0
	for _, m := range g.lines(t)[1:] {
		if m["policy/ppo_kl"] != 0 {
			t.Errorf("step %v: ppo_kl %g in the first update", m["step"], m["policy/ppo_kl"])
		}
		if m["mismatch/max_abs"] > 5e-5 {
			t.Errorf("step %v: mismatch %g", m["step"], m["mismatch/max_abs"])
		}
		if m["policy/grad_norm"] > 0 {
			trained++
		}
	}
	if trained == 0 {
		t.Error("no step had an update")
	}
	// the checkpoint loads as a Hugging Face folder
	steps, _ := filepath.Glob(filepath.Join(g.dir, "checkpoints", "step_*"))
	if _, err := model.ReadConfig(steps[len(steps)-1]); err != nil {
		t.Error(err)
	}
}

func TestRealModelMicrobatches(t *testing.T) {
	var norms [2]float64
	for i, budget := range []int{8192, 13} {
		g := newRig(t)
		g.cfg, g.build = modelConfig(), modelBuilder
		g.cfg.Optim.MicrobatchTok, g.cfg.Budget.Steps, g.cfg.Eval.Before, g.cfg.Eval.After = budget, 1, false, false
		g.must(t)
		norms[i] = g.lines(t)[1]["policy/grad_norm"]
	}
	if d := (norms[0] - norms[1]) / norms[0]; !(d < 1e-5 && d > -1e-5) { // fp32 order noise
		t.Errorf("gradient norms %g and %g differ by the micro-batch size", norms[0], norms[1])
	}
}

func TestKillAndResumeRealModel(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	testKill(t, "model", 1)
}
