package trainer

import (
	"harness-s/model"
)

// modelLearner is a model, on however many devices, as a Learner.
type modelLearner struct {
	*model.Group
}

var _ ObjectiveLearner = modelLearner{}

// WriteWeights writes the masters in fp32, from which a run resumes bit for bit.
func (l modelLearner) WriteWeights(dir string) error { return l.WriteInto(dir, model.SaveOptions{}) }
