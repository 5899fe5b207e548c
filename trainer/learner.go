package trainer

import (
	"harness-s/model"
)

// modelLearner is a model as a Learner.
type modelLearner struct {
	*model.Model
}

var _ Learner = modelLearner{}

// WriteWeights writes the masters in fp32, from which a run resumes bit for bit.
func (l modelLearner) WriteWeights(dir string) error { return l.WriteInto(dir, model.SaveOptions{}) }

// DeviceBytes is what the backend holds, 0 where the device is the host itself.
func (l modelLearner) DeviceBytes() int64 {
	if l.Backend().Name() == "cpu" {
		return 0
	}
	var sum int64
	for _, n := range l.Backend().Usage() {
		sum += n
	}
	return sum
}
