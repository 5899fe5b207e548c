package bench

import (
	"testing"

	"harness-s/kernels"
	"harness-s/model"
)

// TestLaunchesCostLittle: queueing a step's work, at 4 us of CPU each, takes less than a hundredth of the time that a device
// needs for it at half of its data sheet's rate. So the CPU is never the limit, and work is not captured into graphs.
func TestLaunchesCostLittle(t *testing.T) {
	sheet, err := ModelDeviceByKey("h200")
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []string{"4b", "9b"} {
		t.Run(size, func(t *testing.T) { launchesCostLittle(t, size, sheet) })
	}
}

func launchesCostLittle(t *testing.T, size string, sheet ModelDevice) {
	const perLaunch, rows = 4e-6, 8
	cfg, err := Size(size)
	if err != nil {
		t.Fatal(err)
	}
	info := sheet.DeviceInfo
	info.Memory = 1 << 50
	be, rec, err := kernels.OpenRecording(info, kernels.BF16, 8)
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Close()
	defer be.Close()
	m, err := model.NewWith(cfg, be, model.Options{Train: true, Recompute: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	s := &stepRun{m: m}
	s.batch, s.coef = rowsOf(rows, stepRowLen, cfg.Vocab)
	rec.Take()
	if err := s.run(); err != nil {
		t.Fatal(err)
	}
	queued := len(rec.Take())
	device := stepFLOP(cfg, s.batch) / (sheet.BF16 / 2)
	if share := float64(queued) * perLaunch / device; queued < 1000 || share > 0.01 {
		t.Errorf("%s: %d pieces of work, %.2f %% of a step of %.2f s", size, queued, 100*share, device)
	} else {
		t.Logf("%s: %d pieces of work, %.2f %% of a step of %.2f s", size, queued, 100*share, device)
	}
}
