package trainer

import "math"

// learningRate is the rate of one update: linear warm-up over the first updates, times the schedule at the
// share of the rollout budget spent when the step began.
func learningRate(o OptimConfig, update int, progress float64) float64 {
	lr := o.LR
	if o.Schedule == "cosine" {
		p := math.Min(math.Max(progress, 0), 1)
		lr *= o.MinLR + (1-o.MinLR)*(1+math.Cos(math.Pi*p))/2
	}
	if update < o.Warmup {
		lr *= float64(update+1) / float64(o.Warmup+1)
	}
	return lr
}
