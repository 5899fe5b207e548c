package trainer

import (
	"math"
	"testing"

	"harness-s/cuda"
	"harness-s/kernels"
	"harness-s/model"
	"harness-s/trainer/loss"
)

// TestModelFLOPUtilisation: what is counted as the model's arithmetic is what the products of a pass on a recorded H200 come to,
// attention and the gated delta rule added by their formulas; the share is of its data sheet's rate.
func TestModelFLOPUtilisation(t *testing.T) {
	h200, known := cuda.DataSheetOf(cuda.DeviceInfo{Name: "NVIDIA H200", Major: 9})
	if !known {
		t.Fatal("no data sheet of an H200")
	}
	const ranks = 1
	shape := model.Config{ // as the 0.8B model, with four layers
		Vocab: 248320, Hidden: 1024, MLP: 3584, Hq: 8, Hk: 2, D: 256, RotaryFactor: 0.25, RopeTheta: 1e7,
		GDNHk: 16, GDNHv: 16, Dk: 128, Dv: 128, K: 4, Eps: 1e-6, Tied: true, MaxPosition: 262144,
		LayerTypes: []string{model.LinearAttention, model.LinearAttention, model.LinearAttention, model.FullAttention},
	}
	l, rec, m := recordedLearner(t, shape, h200.DeviceInfo, ranks)
	batches := someRollouts(loss.Loss{}, 1)
	batch := batches[0].forModel()[0]
	coef := make([]float32, len(batch.Tokens))
	wanted, pairs := 0, 0.0
	for i, w := range batch.Want {
		if w {
			coef[i] = 1
			wanted++
		}
	}
	for r := range batch.Rows() {
		n := float64(batch.Cu[r+1] - batch.Cu[r])
		pairs += n * n / 2
	}
	rec.Take()
	if _, err := m.Forward(batch, model.ForwardOptions{Grad: true}); err != nil {
		t.Fatal(err)
	}
	forward := productFLOP(rec.Take())
	if err := m.Backward(coef); err != nil {
		t.Fatal(err)
	}
	head := 2 * float64(shape.Vocab) * float64(shape.Hidden) * float64(wanted)
	if backward := productFLOP(rec.Take()) - head; backward != 2*forward { // the head's logits are formed again
		t.Errorf("backward multiplies %g, forward %g", backward, forward)
	}
	attention := 4 * pairs * float64(shape.Hq*shape.D)
	rule := 3 * float64(len(batch.Tokens)*shape.GDNHv) * float64(6*shape.Dk*shape.Dv+2*kernels.ChunkLen*(shape.Dk+shape.Dv))
	if got, want := l.FLOP(batch), forward+attention+rule; math.Abs(got/want-1) > 1e-9 {
		t.Errorf("a forward pass counts as %g, its products and formulas come to %g", got, want)
	}

	c := objectiveConfig("grpo")
	want := 0.0
	for i := range batches {
		passes := 3 * float64(c.Optim.Epochs)
		if i > 0 {
			passes++ // old log-probs
		}
		for _, b := range batches[i].forModel() {
			want += passes * l.FLOP(b)
		}
	}
	builtin, err := loss.New(c.Loss)
	if err != nil {
		t.Fatal(err)
	}
	u := updater{cfg: c, loss: builtin, learner: l, out: metrics{}, lr: func(int) float64 { return 0 }}
	if err := u.run(batches); err != nil {
		t.Fatal(err)
	}
	share := want / (u.out["time/logprob"] + u.out["time/update"]) / (ranks * 989e12)
	if got := u.out["perf/mfu"]; math.Abs(got/share-1) > 1e-9 {
		t.Errorf("perf/mfu is %g, want %g", got, share)
	}
}

// TestNoPeakNoUtilisation: a device that no data sheet is known of, and fp32, have no share.
func TestNoPeakNoUtilisation(t *testing.T) {
	u := updater{learner: newTable(), out: metrics{"time/update": 1}}
	if u.reportUse(); !math.IsNaN(u.out["perf/mfu"]) {
		t.Errorf("a learner that is not metered: %g", u.out["perf/mfu"])
	}
	if got := peakFLOPS(cuda.DeviceInfo{Name: "Unheard of 9000", Major: 9}, kernels.BF16); got != 0 {
		t.Errorf("an unknown device: %g", got)
	}
	if got := peakFLOPS(cuda.DeviceInfo{Name: "NVIDIA H200", Major: 9}, kernels.F32); got != 0 {
		t.Errorf("fp32: %g", got)
	}
}

// recordedLearner is a model on a device that computes nothing and writes down what it is asked for.
func recordedLearner(t *testing.T, shape model.Config, info cuda.DeviceInfo, ranks int) (modelLearner, *cuda.Recording, *model.Model) {
	t.Helper()
	be, rec, err := kernels.OpenRecording(info, kernels.BF16, ranks)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rec.Close() })
	t.Cleanup(func() { be.Close() })
	m, err := model.NewWith(shape, be, model.Options{Train: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return modelLearner{model.NewGroup(m)}, rec, m
}

func productFLOP(work []cuda.Recorded) (n float64) {
	for _, r := range work {
		if r.Op == cuda.OpMatmul {
			n += 2 * float64(r.M) * float64(r.N) * float64(r.K)
		}
	}
	return n
}
