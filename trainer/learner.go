package trainer

import (
	"harness-s/cuda"
	"harness-s/kernels"
	"harness-s/model"
)

// modelLearner is a model, on however many devices, as a Learner.
type modelLearner struct {
	*model.Group
}

var (
	_ ObjectiveLearner = modelLearner{}
	_ MeteredLearner   = modelLearner{}
)

// WriteWeights writes the masters in fp32, from which a run resumes bit for bit.
func (l modelLearner) WriteWeights(dir string) error { return l.WriteInto(dir, model.SaveOptions{}) }

// FLOP is that of a forward pass.
func (l modelLearner) FLOP(b model.Batch) float64 { return l.Lead().Config.BatchFLOPs(b) }

// PeakFLOPS is that of one device times their number.
func (l modelLearner) PeakFLOPS() float64 {
	info, dtype, ok := kernels.InfoOf(l.Lead().Backend())
	if !ok {
		return 0
	}
	return peakFLOPS(info, dtype) * float64(l.Ranks())
}

// peakFLOPS is a device's rate of dense bf16 products; with fp32 storage, which multiplies in fp32, none is told.
func peakFLOPS(info cuda.DeviceInfo, dtype kernels.DType) float64 {
	if dtype != kernels.BF16 {
		return 0
	}
	sheet, _ := cuda.DataSheetOf(info)
	return sheet.BF16
}
