package loss

import (
	"math"
	"slices"
	"strings"
	"testing"
)

// config returns the default config with the named loss, and a constant length of 10 tokens.
func config(name string) Config {
	c := DefaultConfig()
	c.Name, c.Length = name, 10
	return c
}

func TestBuiltinsPassTheirCheck(t *testing.T) {
	for _, l := range builtins {
		for _, cap := range []float64{0, 0.99} {
			c := config(l.Name)
			c.SamplerCap = cap
			if err := Check(l, c); err != nil {
				t.Errorf("%s, sampler_cap %g: %v", l.Name, cap, err)
			}
		}
		for _, n := range []Normaliser{PerRollout, PerToken, PerLive, Constant} {
			c := config(l.Name)
			c.Normalise = n
			if err := Check(l, c); err != nil {
				t.Errorf("%s, normalise %s: %v", l.Name, n, err)
			}
		}
	}
}

// two is a hand-made batch: rollout 0 (advantage +1) of 2 policy tokens, rollout 1 (advantage -1) of 1, with
// one masked token in front of each. Ratios: 1.5 and 1.1 for rollout 0, 0.5 for rollout 1.
func two() Batch {
	ln := math.Log
	b := Batch{
		Logp: []float64{math.NaN(), -1 + ln(1.5), -2 + ln(1.1), math.Inf(-1), -1 + ln(0.5)},
		Old:  []float64{0, -1, -2, 0, -1},
		Mask: []uint8{0, 1, 1, 0, 1},
		Rows: []Row{{0, 3, 0}, {3, 5, 1}},
		Rollouts: []Rollout{
			{Advantage: 1, Tokens: 2},
			{Advantage: -1, Tokens: 1},
		},
		Norm: Norm{Rollouts: 2, Tokens: 3, Live: 2, LiveTok: 3},
	}
	b.Detached, b.Sampler = b.Logp, b.Old
	return b
}

// The numbers are worked in docs/losses.md.
func TestWorkedExamples(t *testing.T) {
	s := math.Sqrt(1.5 * 1.1) // gspo's ratio of rollout 0
	for _, tc := range []struct {
		name string
		loss float64
		coef []float64
	}{
		// tokens weigh 1/4, 1/4, 1/2. Token 1: min(1.5, 1.28) clipped. Token 2: 1.1. Token 4: min(-0.5, -0.8) = -0.8 clipped.
		{"grpo", -(1.28/4 + 1.1/4 - 0.8/2), []float64{0, 0, -1.1 / 4, 0, 0}},
		{"dr_grpo", -(1.28 + 1.1 - 0.8) / 20, []float64{0, 0, -1.1 / 20, 0, 0}},
		{"dapo", -(1.28 + 1.1 - 0.8) / 3, []float64{0, 0, -1.1 / 3, 0, 0}},
		// rollout 0: s = 1.2845 > 1.28, clipped. Rollout 1: 0.5 clipped to 0.8.
		{"gspo", -(min(s, 1.28)/2 - 0.8/2), []float64{0, 0, 0, 0, 0}},
		// weights 1/3; ratios 1.28 (capped), 1.1, 0.5 (no lower cap)
		{"cispo", -(1.28*(-1+math.Log(1.5)) + 1.1*(-2+math.Log(1.1)) - 0.5*(-1+math.Log(0.5))) / 3,
			[]float64{0, -1.28 / 3, -1.1 / 3, 0, 0.5 / 3}},
	} {
		l, err := New(config(tc.name))
		if err != nil {
			t.Fatal(err)
		}
		res := l.Eval(config(tc.name), two())
		if math.Abs(res.Loss-tc.loss) > 1e-15*8 {
			t.Errorf("%s: loss %.17g, by hand %.17g", tc.name, res.Loss, tc.loss)
		}
		for i, want := range tc.coef {
			if math.Abs(res.Coef[i]-want) > 1e-15*8 {
				t.Errorf("%s: coef[%d] = %.17g, by hand %.17g", tc.name, i, res.Coef[i], want)
			}
		}
	}
}

func TestClipStatistics(t *testing.T) {
	l, _ := New(config("grpo"))
	s := l.Eval(config("grpo"), two()).Stats
	if s.Tokens != 3 || s.ClipLow != 1 || s.ClipHigh != 1 || math.Abs(s.RatioMax-1.5) > 1e-12 {
		t.Errorf("stats %+v: want 3 tokens, one clipped at each side, greatest ratio 1.5", s)
	}
	if want := -math.Log(1.5) - math.Log(1.1) - math.Log(0.5); math.Abs(s.KL-want) > 1e-12 {
		t.Errorf("KL sum %g, want %g", s.KL, want)
	}
}

// At ratio 1 every objective has REINFORCE's gradient, -w A, and a KL of exactly 0.
func TestRatioOneIsReinforce(t *testing.T) {
	expression := config("expression")
	expression.Expression = "-min(exp(logp-old_logp)*advantage, clip(exp(logp-old_logp), 1-0.2, 1+0.28)*advantage)"
	soft := config("expression") // the one docs/losses.md shows
	soft.Expression = "-advantage / (1 + exp(-4*(exp(logp - old_logp) - 1)))"
	for _, c := range []Config{config("grpo"), config("dr_grpo"), config("dapo"), config("gspo"), config("cispo"), expression, soft} {
		l, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		b := sampleBatch(7, 5)
		b.Old = append([]float64(nil), b.Logp...)
		res := l.Eval(c, b)
		for _, row := range b.Rows {
			for i := row.Start; i < row.End; i++ {
				r := b.Rollouts[row.Rollout]
				want := -c.weight(l.Normalise, b.Norm, r) * r.Advantage * float64(b.Mask[i])
				if math.Abs(res.Coef[i]-want) > 1e-15 {
					t.Errorf("%s: coef[%d] = %g, REINFORCE has %g", l.Name, i, res.Coef[i], want)
				}
			}
		}
		if res.Stats.KL != 0 {
			t.Errorf("%s: KL %g at ratio 1", l.Name, res.Stats.KL)
		}
	}
}

func TestExpressionsEqualBuiltins(t *testing.T) {
	for name, src := range map[string]string{
		"grpo":  "-min(exp(logp - old_logp)*advantage, clip(exp(logp - old_logp), 1-0.2, 1+0.28)*advantage)",
		"gspo":  "-min(exp(seq_mean(logp-old_logp))*advantage, clip(exp(seq_mean(logp-old_logp)),0.8,1.28)*advantage)",
		"cispo": "-stop_grad(min(exp(logp-old_logp), 1.28))*advantage*logp",
	} {
		c := config("expression")
		c.Expression = src
		own, err := New(c)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		built, _ := New(config(name))
		if own.Level != built.Level {
			t.Errorf("%s: level %v, want %v", name, own.Level, built.Level)
		}
		bc := config(name)
		bc.Normalise = PerRollout
		for seed := uint64(1); seed <= 5; seed++ {
			b := sampleBatch(seed, 30) // more than one bucket of tokens
			got, want := own.Eval(c, b), built.Eval(bc, b)
			if math.Abs(got.Loss-want.Loss) > 1e-13 {
				t.Errorf("%s seed %d: loss %g, built in %g", name, seed, got.Loss, want.Loss)
			}
			for i := range want.Coef {
				if math.Abs(got.Coef[i]-want.Coef[i]) > 1e-13 {
					t.Fatalf("%s seed %d: coef[%d] %g, built in %g", name, seed, i, got.Coef[i], want.Coef[i])
				}
			}
		}
	}
}

// Every operator's derivative, alone and nested: New checks each by finite differences.
func TestExpressionDerivatives(t *testing.T) {
	for _, src := range []string{
		"1/(1+exp(logp))", "advantage/(2-logp)", "exp(-4*(exp(logp)-1))", "exp(exp(logp))", "exp(logp*logp)", "sqrt(exp(logp))",
		"abs(logp)*abs(old_logp)", "log(1-logp)", "logp*logp*logp", "(1-logp)/(2-logp)", "seq_sum(logp)*seq_mean(exp(logp))",
		"max(logp, old_logp) + min(logp*2, -1)", "clip(logp, -1.5, old_logp)*logp", "stop_grad(exp(logp))*logp + sampler_logp*logp",
		"seq_sum(stop_grad(logp)*logp)/tokens - mask*logp", "-(-logp)",
	} {
		c := config("expression")
		c.Expression = src
		if _, err := New(c); err != nil {
			t.Errorf("%s: %v", src, err)
		}
	}
}

func TestExpressionErrors(t *testing.T) {
	for src, want := range map[string]string{
		"":                                "goes with",
		"logp +":                          "end of expression",
		"logp * advantag":                 `no variable "advantag"`,
		"exp(logp, 2)":                    "takes 1 arguments",
		"foo(logp)":                       `no function "foo"`,
		"logp 3":                          "column 6",
		"1..2*logp":                       "not a number",
		"advantage":                       "does not depend on logp",
		"stop_grad(logp)":                 "does not depend on logp",
		"log(logp)":                       "on finite log-probs", // logarithm of a negative number
		"logp * 0":                        "zero everywhere",
		"(logp":                           `want ")"`,
		strings.Repeat("(", 5000):         "bytes long",
		strings.Repeat("(", 200) + "logp": "nested deeper",
		strings.Repeat("-", 200) + "logp": "nested deeper",
		"é":                               "found",
	} {
		c := config("expression")
		c.Expression = src
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: error %v, want %q", src, err, want)
		}
	}
}

func TestRegister(t *testing.T) {
	good := Loss{Name: "reinforce_test", Eval: func(c Config, b Batch) Result {
		res := Result{Coef: make([]float64, len(b.Logp))}
		b.eachToken(func(t int, r Rollout) {
			w := 1 / float64(b.Norm.Tokens)
			res.Coef[t] = -w * r.Advantage
			res.Loss -= w * r.Advantage * b.Logp[t]
		})
		return res
	}}
	if err := Register(good); err != nil {
		t.Fatal(err)
	}
	if err := Register(good); err == nil || !strings.Contains(err.Error(), "taken") {
		t.Errorf("second registration: %v", err)
	}
	if _, err := New(config("reinforce_test")); err != nil {
		t.Error(err)
	}
	if _, err := New(config("nonesuch")); err == nil || !strings.Contains(err.Error(), "reinforce_test") {
		t.Errorf("unknown name: %v", err)
	}
	wrong := map[string]func(b Batch, t int, r Rollout, res *Result){
		"finite differences": func(b Batch, t int, r Rollout, res *Result) {
			res.Coef[t], res.Loss = -r.Advantage, res.Loss+r.Advantage*b.Logp[t]
		},
		"Batch.Norm": func(b Batch, t int, r Rollout, res *Result) { // divides by the micro-batch's own size
			w := 1 / float64(len(b.Rows))
			res.Coef[t] = -w * r.Advantage
			res.Loss -= w * r.Advantage * b.Logp[t]
		},
	}
	for want, f := range wrong {
		err := Register(Loss{Name: "wrong_test", Eval: func(c Config, b Batch) Result {
			res := Result{Coef: make([]float64, len(b.Logp))}
			b.eachToken(func(t int, r Rollout) { f(b, t, r, &res) })
			return res
		}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	leaky := Loss{Name: "leaky_test", Eval: func(c Config, b Batch) Result {
		res := good.Eval(c, b)
		for t := range b.Logp {
			res.Loss += b.Logp[t] * float64(b.Mask[t]) * 0 // NaN * 0
		}
		return res
	}}
	if err := Register(leaky); err == nil || !strings.Contains(err.Error(), "masked") {
		t.Errorf("leaky loss: %v", err)
	}
}

func TestAdvantages(t *testing.T) {
	eq := func(name string, got, want []float64) {
		t.Helper()
		for i := range want {
			if math.Abs(got[i]-want[i]) > 1e-15 {
				t.Errorf("%s: %v, want %v", name, got, want)
			}
		}
	}
	r := []float64{1, 0, 0, 0} // mean 1/4, population sigma sqrt(3)/4
	eq("grpo", groupNormalised(r, 1e-6), []float64{math.Sqrt(3), -1 / math.Sqrt(3), -1 / math.Sqrt(3), -1 / math.Sqrt(3)})
	eq("dr_grpo", meanCentred(r, 0), []float64{.75, -.25, -.25, -.25})
	eq("rloo", leaveOneOut(r, 0), []float64{1, -1. / 3, -1. / 3, -1. / 3})
	for name, f := range map[string]AdvantageFunc{"grpo": groupNormalised, "dr_grpo": meanCentred, "rloo": leaveOneOut} {
		for n := range 20 { // of some sizes the mean of equal rewards rounds to another number
			for _, r := range []float64{0, 1, .1, .7, 1. / 3, -1e9, 1e-300} {
				for _, a := range f(slices.Repeat([]float64{r}, n), 1e-6) {
					if math.Float64bits(a) != 0 {
						t.Errorf("%s of %d rewards of %v: %v, want exactly 0", name, n, r, a)
					}
				}
			}
		}
	}
	// two nearly equal rewards: eps, not the tiny sigma, divides
	eq("eps", groupNormalised([]float64{0, 1e-9}, 1e-6), []float64{-5e-4, 5e-4})
}

// A batch without policy tokens has weights of 0, not 1/0.
func TestWeightOfNothing(t *testing.T) {
	c := DefaultConfig()
	for _, n := range []Normaliser{PerRollout, PerToken, PerLive, Constant} {
		if w := c.weight(n, Norm{}, Rollout{}); w != 0 {
			t.Errorf("normalise %s: %g", n, w)
		}
	}
	if w := c.weight(PerRollout, Norm{Rollouts: 3, Tokens: 7}, Rollout{}); w != 0 {
		t.Errorf("a rollout without policy tokens weighs %g", w)
	}
}

func TestConfigErrors(t *testing.T) {
	for want, edit := range map[string]func(*Config){
		"loss.eta_minus":  func(c *Config) { c.EtaMinus = 1.5 },
		"loss.eta_plus":   func(c *Config) { c.EtaPlus = math.NaN() },
		"loss.eps":        func(c *Config) { c.Eps = 0 },
		"loss.length":     func(c *Config) { c.Length = 0 },
		"loss.normalise":  func(c *Config) { c.Normalise = "mean" },
		"loss.advantage":  func(c *Config) { c.Advantage = "gae" },
		"loss.old":        func(c *Config) { c.Old = "guess" },
		"loss.expression": func(c *Config) { c.Expression = "logp" },
		"loss.name":       func(c *Config) { c.Name = "ppo" },
	} {
		c := DefaultConfig()
		edit(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want it to name %s", err, want)
		}
	}
}
