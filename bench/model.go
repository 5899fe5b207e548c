package bench

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"harness-s/cuda"
	"harness-s/internal/hsm"
	"harness-s/kernels"
)

// Prediction says what can be known of a case on a device without one: what it costs, what would be launched, and the time
// that the device's rates allow at best. It is no measurement: no kernel has run.
type Prediction struct {
	Bench       string   `json:"bench"`
	Prediction  bool     `json:"prediction"` // always true
	Device      string   `json:"device"`
	Model       string   `json:"model"`
	Shape       string   `json:"shape"`
	FLOP        float64  `json:"flop"`
	Bytes       float64  `json:"bytes"`
	Launches    int      `json:"launches"` // of our kernels
	Products    int      `json:"products"` // of cuBLASLt
	Others      int      `json:"others"`   // fills and copies
	Kernels     []Launch `json:"kernels"`
	RooflineMs  float64  `json:"roofline_ms"` // FLOP and bytes at the data sheet's rates
	Bound       string   `json:"bound"`       // compute or memory
	PredictedMs float64  `json:"predicted_ms"`
	TFLOPS      float64  `json:"predicted_tflops"`
	GBs         float64  `json:"predicted_gb_per_s"`
	Peak        float64  `json:"share_of_roofline"` // roofline / predicted
	Bars        []string `json:"bars,omitempty"`
	BarMs       float64  `json:"bar_ms,omitempty"` // the first bar as a time
}

// Launch is one kernel of a case as it would be launched.
type Launch struct {
	Kernel    string `json:"kernel"`
	Times     int    `json:"times"`
	Blocks    int    `json:"blocks"`
	Threads   int    `json:"threads"`
	Registers int    `json:"registers"`
	Shared    int    `json:"shared"` // static and dynamic, bytes a block
	Occupancy
	Waves float64 `json:"waves"` // blocks over what is resident at once
}

// launchSeconds is what a launch costs when the next one waits for it: the gap between two kernels of a stream.
const launchSeconds = 1e-6

// PredictKernels predicts every case of a model on a device. A case that the device refuses (memory, shared memory) is an
// error.
func PredictKernels(d ModelDevice, size string, T int) ([]Prediction, error) {
	cfg, err := Size(size)
	if err != nil {
		return nil, err
	}
	if T < 64 || T%8 != 0 {
		return nil, fmt.Errorf("bench: %d tokens: want a multiple of 8 from 64 on", T)
	}
	table, err := kernels.ModuleTable()
	if err != nil {
		return nil, err
	}
	be, rec, err := kernels.OpenRecording(d.DeviceInfo, kernels.BF16, 1)
	if err != nil {
		return nil, err
	}
	defer rec.Close()
	defer be.Close()
	p := &predictor{device: d, table: table, be: be, rec: rec}
	var list []Prediction
	for _, c := range Cases(cfg, T) {
		r, err := p.predict(c)
		if err != nil {
			return nil, fmt.Errorf("bench: %s (%s, %s) on %s: %w", c.Name, size, c.Shape, d.Name, err)
		}
		r.Model = size
		list = append(list, r)
	}
	return list, nil
}

type predictor struct {
	device ModelDevice
	table  hsm.Table
	be     kernels.Flat
	rec    *cuda.Recording
}

func (p *predictor) predict(c Case) (Prediction, error) {
	work, err := p.record(c)
	if err != nil {
		return Prediction{}, err
	}
	r := Prediction{Bench: "kernel/" + c.Name, Prediction: true, Device: p.device.Key, Shape: c.Shape, FLOP: c.Cost.FLOP, Bytes: c.Cost.Bytes}
	if err := p.count(&r, work); err != nil {
		return Prediction{}, err
	}
	p.times(&r, c)
	return r, nil
}

// record runs the case's host code: once to take scratch memory, once to be written down.
func (p *predictor) record(c Case) ([]cuda.Recorded, error) {
	arena := &deviceArena{be: p.be}
	defer arena.free()
	run := c.setup(arena)
	if arena.err != nil {
		return nil, arena.err
	}
	run()
	if err := p.be.Sync(); err != nil {
		return nil, err
	}
	p.rec.Take()
	run()
	return p.rec.Take(), p.be.Sync()
}

// count adds up what was queued, a kernel and shape at a time.
func (p *predictor) count(r *Prediction, work []cuda.Recorded) error {
	for _, w := range work {
		switch w.Op {
		case cuda.OpLaunch:
			r.Launches++
			l, err := p.launch(w)
			if err != nil {
				return err
			}
			r.Kernels = mergeLaunch(r.Kernels, l)
		case cuda.OpMatmul:
			r.Products++
		default:
			r.Others++
		}
	}
	return nil
}

func mergeLaunch(list []Launch, l Launch) []Launch {
	for i := range list {
		if list[i].Kernel == l.Kernel && list[i].Blocks == l.Blocks && list[i].Shared == l.Shared {
			list[i].Times++
			return list
		}
	}
	return append(list, l)
}

// launch looks a launch up in the table of compiled kernels and refuses what the device would.
func (p *predictor) launch(w cuda.Recorded) (Launch, error) {
	k, ok := p.table.Kernel(w.Name, p.device.Arch)
	if !ok {
		return Launch{}, fmt.Errorf("kernel %s has no image for %s: run make modules", w.Name, p.device.Arch)
	}
	l := Launch{Kernel: w.Name, Times: 1, Blocks: w.Grid[0] * w.Grid[1] * w.Grid[2], Threads: w.Threads, Registers: k.Registers, Shared: k.Shared + w.Shared}
	if w.Threads > k.MaxThreads {
		return l, fmt.Errorf("kernel %s launched with %d threads a block, made for %d", w.Name, w.Threads, k.MaxThreads)
	}
	if l.Shared > p.device.SharedOptin {
		return l, fmt.Errorf("kernel %s takes %d bytes of shared memory a block, the device has %d", w.Name, l.Shared, p.device.SharedOptin)
	}
	l.Occupancy = p.device.occupancy(k, w.Threads, w.Shared)
	l.Waves = f(l.Blocks) / f(l.BlocksSM*p.device.SMs)
	return l, nil
}

// times forms the roofline and the prediction. Products, and kernels whose products are wgmma's, reach productShare of the
// tensor rate; other kernels use mma.sync, which reaches TensorPeak of it; memory reaches copyShare. A last wave that is not
// full costs as much as a full one.
func (p *predictor) times(r *Prediction, c Case) {
	d := &p.device
	r.RooflineMs, r.Bound = d.roofline(c.Cost)
	share := d.TensorPeak
	if r.Products > 0 || slices.ContainsFunc(r.Kernels, Launch.wgmma) {
		share = productShare
	}
	seconds := max(c.Cost.work()/(d.BF16*share), c.Cost.Bytes/(d.Bandwidth*copyShare))
	if r.Products == 0 {
		seconds /= r.filled()
	}
	seconds += launchSeconds * f(r.Launches+r.Products+r.Others)
	r.PredictedMs = 1e3 * seconds
	r.TFLOPS, r.GBs = c.Cost.FLOP/seconds/1e12, c.Cost.Bytes/seconds/1e9
	r.Peak = r.RooflineMs / r.PredictedMs
	for i, b := range c.Bars {
		r.Bars = append(r.Bars, b.String())
		if i == 0 {
			r.BarMs = b.milliseconds(c.Cost, d)
		}
	}
}

// filled is the share of the main kernel's waves that has blocks to run.
func (r Prediction) filled() float64 {
	l, ok := r.main()
	if !ok {
		return 1
	}
	return l.Waves / math.Ceil(l.Waves)
}

// wgmma says that a kernel multiplies with wgmma: those that are made for compute capability 9.0 alone do, and have it in
// their names.
func (l Launch) wgmma() bool { return strings.Contains(l.Kernel, "_sm90_") }

// main is the kernel with the most threads.
func (r Prediction) main() (Launch, bool) {
	best, found := Launch{}, false
	for _, l := range r.Kernels {
		if !found || l.Times*l.Blocks*l.Threads > best.Times*best.Blocks*best.Threads {
			best, found = l, true
		}
	}
	return best, found
}

// PredictionHeader names the columns of a Prediction's first line; a line for each of its kernels follows.
const PredictionHeader = "operation                          shape                                          work     memory launches+products+others  roofline          predicted"

// String is some lines for people.
func (r Prediction) String() string {
	s := fmt.Sprintf("%-34s %-40s %8.3f TF %8.3f GB %4d+%d+%d %8.3f ms %-7s ", r.Bench[len("kernel/"):], r.Shape, r.FLOP/1e12, r.Bytes/1e9,
		r.Launches, r.Products, r.Others, r.RooflineMs, r.Bound)
	if r.Bound == "compute" {
		s += fmt.Sprintf("%8.3f ms %5.0f TFLOP/s", r.PredictedMs, r.TFLOPS)
	} else {
		s += fmt.Sprintf("%8.3f ms %5.0f GB/s   ", r.PredictedMs, r.GBs)
	}
	if len(r.Bars) > 0 {
		s += "  " + strings.Join(r.Bars, "; ")
	}
	for _, l := range r.Kernels {
		s += fmt.Sprintf("\n    %3d x %-34s %7d blocks x %4d threads, %3d registers, %3.0f KB; %2d a multiprocessor (%.0f%%, by %s), %.1f waves", l.Times,
			l.Kernel, l.Blocks, l.Threads, l.Registers, f(l.Shared)/1024, l.BlocksSM, 100*l.Share, l.Limit, l.Waves)
	}
	return s
}
