package bench

import (
	"fmt"
	"sort"
	"strings"

	"harness-s/cuda"
	"harness-s/kernels"
	"harness-s/model"
)

// StepPrediction is what a training step queues on a device, and the time that its rates allow at best. No kernel has run.
type StepPrediction struct {
	Bench       string         `json:"bench"`
	Prediction  bool           `json:"prediction"` // always true
	Device      string         `json:"device"`
	Model       string         `json:"model"`
	Shape       string         `json:"shape"`
	FLOP        float64        `json:"flop"` // forward and backward once
	Launches    int            `json:"launches"`
	Products    int            `json:"products"`
	Others      int            `json:"others"`
	Collectives map[string]int `json:"collective_bytes,omitempty"` // this rank's share, by name
	PeakBytes   int64          `json:"peak_bytes"`                 // of device memory
	ProductsMs  float64        `json:"products_ms"`                // cuBLASLt's share of PredictedMs
	PredictedMs float64        `json:"predicted_ms"`
	TokensPerS  float64        `json:"tokens_per_s"`
	Share       float64        `json:"share_of_peak"` // FLOP at the data sheet's rate / predicted
}

// PredictStep predicts a step of o.Tokens tokens on one of o.Ranks devices. Its products are those that were queued; every
// other operation takes what PredictKernels says of it. Collectives are taken to be hidden behind the rest.
func PredictStep(d ModelDevice, o DeviceOptions) (StepPrediction, error) {
	cfg, err := Size(o.Size)
	if err == nil {
		err = o.check()
	}
	if err != nil {
		return StepPrediction{}, err
	}
	o.DType = kernels.BF16
	r := StepPrediction{Bench: "step", Prediction: true, Device: d.Key, Model: o.Size, Collectives: map[string]int{}}
	recompute, err := r.record(d, o, cfg)
	if err != nil {
		return r, fmt.Errorf("bench: step of %s on %s: %w", o.Size, d.Name, err)
	}
	return r, r.time(d, o, cfg, recompute)
}

// record runs a step's host code and counts what it queues.
func (r *StepPrediction) record(d ModelDevice, o DeviceOptions, cfg model.Config) (recompute bool, err error) {
	be, rec, err := kernels.OpenRecording(d.DeviceInfo, o.DType, max(1, o.Ranks))
	if err != nil {
		return false, err
	}
	defer rec.Close()
	defer be.Close()
	s, err := openStep(cfg, be, o.Tokens, nil)
	if err != nil {
		return false, err
	}
	defer s.m.Close()
	rec.Take()
	if err := s.run(); err != nil {
		return false, err
	}
	r.Shape, r.FLOP, r.PeakBytes = s.shape(o), stepFLOP(cfg, s.batch), rec.Peak()
	r.count(d, rec.Take())
	return s.recompute, nil
}

func (r *StepPrediction) count(d ModelDevice, work []cuda.Recorded) {
	for _, w := range work {
		switch w.Op {
		case cuda.OpLaunch:
			r.Launches++
		case cuda.OpMatmul:
			r.Products++
			c := matmul(w.M, w.K, w.N)
			r.ProductsMs += 1e3 * max(c.FLOP/(d.BF16*productShare), c.Bytes/(d.Bandwidth*copyShare))
		case cuda.OpCollective:
			r.Collectives[w.Name] += int(w.Bytes)
		default:
			r.Others++
		}
	}
}

// time adds up products, the other operations and what launching takes.
func (r *StepPrediction) time(d ModelDevice, o DeviceOptions, cfg model.Config, recompute bool) error {
	cases, err := PredictKernels(d, o.Size, o.Tokens)
	if err != nil {
		return err
	}
	times := stepOperations(cfg, recompute)
	r.PredictedMs = r.ProductsMs + 1e3*launchSeconds*f(r.Launches+r.Products+r.Others)
	for _, c := range cases {
		name, rows := strings.TrimPrefix(c.Bench, "kernel/"), strings.HasPrefix(c.Shape, "1x")
		if n := times[name]; n > 0 && !rows { // of mixers the packed rows
			r.PredictedMs += f(n) * c.PredictedMs
			delete(times, name)
		}
	}
	if len(times) > 0 {
		return fmt.Errorf("bench: operations of a step without a case: %v", times)
	}
	r.PredictedMs += 1e3 * adamW(cfg.NumParams()/max(1, o.Ranks)).Bytes / (d.Bandwidth * copyShare)
	r.TokensPerS = f(o.Tokens) / r.PredictedMs * 1e3
	r.Share = r.FLOP / d.BF16 * 1e3 / r.PredictedMs
	return nil
}

// stepOperations is how often each case, products apart, is part of a step.
func stepOperations(cfg model.Config, recompute bool) map[string]int {
	layers, full := len(cfg.LayerTypes), 0
	for _, t := range cfg.LayerTypes {
		if t == model.FullAttention {
			full++
		}
	}
	gdn, forward := layers-full, 1
	if recompute {
		forward = 2
	}
	return map[string]int{
		"gdn forward": gdn * forward, "gdn backward": gdn, "conv+silu forward": gdn * forward, "conv+silu backward": gdn,
		"gdn gates forward": gdn * forward, "gdn gates backward": gdn, "gated rmsnorm forward": gdn * forward, "gated rmsnorm backward": gdn,
		"attention forward": full * forward, "attention backward": full, "qk norm+rope forward": full * forward, "qk norm+rope backward": full,
		"output gate forward": full * forward, "output gate backward": full,
		"add+rmsnorm forward": 2 * layers * forward, "rmsnorm backward": 2 * layers,
		"swiglu forward": layers * forward, "swiglu backward": layers,
		"embedding forward": 1, "embedding backward": 1,
	}
}

// String is some lines for people.
func (r StepPrediction) String() string {
	s := fmt.Sprintf("PREDICTION step %s on %s: %s\n  at best %.0f ms, %.0f tokens/s, %.0f%% of peak; of it products %.0f ms\n  %d launches, %d products, %d fills and copies; %.1f GiB of memory at most",
		r.Model, r.Device, r.Shape, r.PredictedMs, r.TokensPerS, 100*r.Share, r.ProductsMs, r.Launches, r.Products, r.Others, float64(r.PeakBytes)/(1<<30))
	var names []string
	for name := range r.Collectives {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		s += fmt.Sprintf("; %s %.2f GiB", name, float64(r.Collectives[name])/(1<<30))
	}
	return s
}
