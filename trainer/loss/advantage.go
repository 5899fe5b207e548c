package loss

import (
	"fmt"
	"math"
)

// AdvantageFunc turns the rewards of one group into advantages, in order. A constant group gives exactly 0.
type AdvantageFunc func(rewards []float64, eps float64) []float64

// Estimator is the advantage estimator of that name.
func Estimator(name string) (AdvantageFunc, error) {
	switch name {
	case "grpo":
		return groupNormalised, nil
	case "dr_grpo":
		return meanCentred, nil
	case "rloo":
		return leaveOneOut, nil
	}
	return nil, fmt.Errorf("loss.advantage: %q: want grpo, dr_grpo or rloo", name)
}

// groupNormalised is (R - mean) / max(sigma, eps), sigma the population standard deviation
// (arXiv 2402.03300, section 4.1.2).
func groupNormalised(rewards []float64, eps float64) []float64 {
	adv := meanCentred(rewards, eps)
	var sq float64
	for _, a := range adv {
		sq += a * a
	}
	sigma := math.Max(math.Sqrt(sq/float64(max(len(adv), 1))), eps)
	for i := range adv {
		adv[i] /= sigma
	}
	return adv
}

// meanCentred is R - mean (Dr. GRPO, arXiv 2503.20783).
func meanCentred(rewards []float64, _ float64) []float64 {
	adv := make([]float64, len(rewards))
	if constant(rewards) {
		return adv // rounding of the mean must not become a signal
	}
	mean := 0.0
	for _, r := range rewards {
		mean += r / float64(len(rewards))
	}
	for i, r := range rewards {
		adv[i] = r - mean
	}
	return adv
}

// leaveOneOut is R minus the mean of the others (RLOO, arXiv 2402.14740) = n/(n-1) (R - mean).
func leaveOneOut(rewards []float64, _ float64) []float64 {
	adv := meanCentred(rewards, 0)
	n := float64(len(rewards))
	for i := range adv {
		if adv[i] != 0 {
			adv[i] *= n / (n - 1)
		}
	}
	return adv
}

func constant(xs []float64) bool {
	for _, x := range xs {
		if x != xs[0] {
			return false
		}
	}
	return true
}
