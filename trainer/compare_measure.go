package trainer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"

	"harness-s/rollout/harness"
)

// Stages is how many parts of equal rollouts a training is cut into.
const Stages = 3

// Result is one run of a comparison: the run's summary, measured under compareNames before and after training, and how the
// rollouts were used. Both measurements calibrate the router anew on the policy as it is then.
type Result struct {
	Summary
	BeforeChoice Choice        `json:"before_choice"`
	AfterChoice  Choice        `json:"after_choice"`
	Rescue       [Stages]Share `json:"rescue_by_stage"` // rescued groups with a success, by thirds of the rollouts
	Contrast     Share         `json:"contrast"`        // retained groups whose rewards differ
	Tokens       Share         `json:"gradient_tokens"` // policy tokens that carry gradient, of all sampled in training
	Curve        []Point       `json:"curve"`           // H0 on held-out tasks during training

	RouterRollouts  int `json:"router_rollouts"`  // validation attempts that the training's router asked for
	MeasureRollouts int `json:"measure_rollouts"` // validation attempts for the measurement after training
	EvalRollouts    int `json:"eval_rollouts"`    // attempts at held-out tasks
}

// Choice is what the router chooses after calibration.
type Choice struct {
	Best    string  `json:"best"`     // the sibling that does best over all validation tasks
	H0Share float64 `json:"h0_share"` // of held-out tasks: H0 is ranked first
}

// Share is a part of a count.
type Share struct {
	Of    float64 `json:"of"`
	Count float64 `json:"count"` // the part
}

// Value is the fraction; NaN of nothing.
func (s Share) Value() float64 {
	if s.Of == 0 {
		return math.NaN()
	}
	return s.Count / s.Of
}

func (s *Share) add(share, of float64) {
	s.Count += share * of
	s.Of += of
}

// Point is a place on a curve.
type Point struct {
	Rollouts int     `json:"rollouts"` // training attempts so far
	Avg      float64 `json:"avg"`      // H0's Avg@K
}

// startingAt puts the measurement of the policy before training in, and the curve's two ends.
func (r Result) startingAt(frozen Result) Result {
	r.Before, r.BeforeChoice = frozen.After, frozen.AfterChoice
	if r.Steps == 0 {
		return r
	}
	curve := []Point{{0, r.Before[harness.BaseID].Avg}}
	for _, p := range r.Curve {
		if p.Rollouts < r.Rollouts {
			curve = append(curve, p)
		}
	}
	r.Curve = append(curve, Point{r.Rollouts, r.After[harness.BaseID].Avg})
	return r
}

// usedAs is the policy before training as a result of its own, under H0 and the name that it is used under.
func (r Result) usedAs(name string) Result {
	r.After = map[string]Score{harness.BaseID: r.After[harness.BaseID], name: r.After[name]}
	r.Before, r.BeforeChoice = r.After, r.AfterChoice
	return r
}

// readMetrics sums up the steps of a run's metrics.jsonl.
func (r *Result) readMetrics(path string) error {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is gone: the run has no metrics; remove its folder to make it again", path)
	}
	if err != nil {
		return err
	}
	var lines []map[string]float64
	for i, text := range bytes.Split(bytes.TrimSpace(data), []byte("\n")) {
		line := map[string]float64{}
		if err := json.Unmarshal(text, &line); err != nil { // null leaves 0
			return fmt.Errorf("%s:%d: %w", path, i+1, err)
		}
		lines = append(lines, line)
	}
	total := 0.0
	for _, m := range lines {
		total += m["rollouts/train"]
	}
	done := 0.0
	for _, m := range lines {
		stage := min(Stages-1, int(Stages*done/math.Max(1, total)))
		done += m["rollouts/train"]
		r.Rescue[stage].add(m["rescue/success"], m["rescue/groups"])
		r.Contrast.add(m["group/contrast"], m["group/base"])
		r.Tokens.Count += m["tokens/effective"]
		r.Tokens.Of += m["tokens/policy"]
		r.RouterRollouts += int(m["rollouts/router"])
		r.EvalRollouts += int(m["rollouts/eval"])
		if avg, ok := evalOfH0(m); ok && m["step"] > 0 {
			r.Curve = append(r.Curve, Point{int(done), avg})
		}
	}
	return nil
}

// evalOfH0 finds H0's average in a line, whatever number of attempts it was taken with.
func evalOfH0(m map[string]float64) (float64, bool) {
	for k := 1; k <= 1024; k++ {
		if v, ok := m[fmt.Sprintf("eval/avg@%d/%s", k, harness.BaseID)]; ok {
			return v, true
		}
	}
	return 0, false
}
