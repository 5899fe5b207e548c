package bench

import (
	"fmt"
	"time"

	"harness-s/cuda"
	"harness-s/kernels"
)

// DeviceOptions of the benchmarks that run on a device.
type DeviceOptions struct {
	Backend string        // cuda, or sim for a rehearsal
	Size    string        // of the model: 0.8b, 4b, 9b, tiny
	Tokens  int           // a multiple of 8
	Ranks   int           // step: the model is divided as over so many devices, of which this one works; 0 = 1
	Repeat  int           // timed runs; 0 = 5
	Limit   time.Duration // what has not begun by then is left out; 0 = no limit
	DType   kernels.DType
}

func (o DeviceOptions) check() error {
	if o.Tokens < 64 || o.Tokens%8 != 0 {
		return fmt.Errorf("bench: %d tokens: want a multiple of 8 from 64 on", o.Tokens)
	}
	return nil
}

func (o DeviceOptions) repeat() int { return Options{Repeat: o.Repeat}.repeat() }

// Measurement is one case or step as timed on a device.
type Measurement struct {
	Bench      string    `json:"bench"`
	Device     string    `json:"device"`
	Model      string    `json:"model"`
	Shape      string    `json:"shape"`
	Ms         float64   `json:"ms"`   // median of Runs
	Runs       []float64 `json:"runs"` // ms
	FLOP       float64   `json:"flop"`
	Bytes      float64   `json:"bytes"`
	TFLOPS     float64   `json:"tflops"`
	GBs        float64   `json:"gb_per_s"`
	Bound      string    `json:"bound,omitempty"`         // of the roofline, where the device's rates are known
	Peak       float64   `json:"share_of_peak,omitempty"` // roofline / measured
	TokensPerS float64   `json:"tokens_per_s,omitempty"`  // steps
	Bars       []string  `json:"bars,omitempty"`
	BarMs      float64   `json:"bar_ms,omitempty"` // the first bar as a time
	Skipped    string    `json:"skipped,omitempty"`
}

// MeasureKernels times every case of a model on a device and hands each result to emit as it comes.
func MeasureKernels(o DeviceOptions, emit func(Measurement) error) error {
	cfg, err := Size(o.Size)
	if err == nil {
		err = o.check()
	}
	if err != nil {
		return err
	}
	be, info, err := kernels.OpenAlone(o.Backend, o.DType, 1)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer be.Close()
	begin := time.Now()
	for _, c := range Cases(cfg, o.Tokens) {
		m := Measurement{Bench: "kernel/" + c.Name, Device: info.Name, Model: o.Size, Shape: c.Shape, FLOP: c.Cost.FLOP, Bytes: c.Cost.Bytes}
		if o.Limit > 0 && time.Since(begin) > o.Limit {
			m.Skipped = "out of time"
		} else if m.Runs, err = timeCase(be, c, o.repeat()); err != nil {
			return fmt.Errorf("bench: %s (%s): %w", c.Name, c.Shape, err)
		} else {
			m.rate(c, info)
		}
		if err := emit(m); err != nil {
			return err
		}
	}
	return nil
}

// shortest is what a timed run takes at least, so that the clock and the wait at its end do not count.
const shortest = 20 * time.Millisecond

// timeCase gives the milliseconds of each run, after one to warm up that also says how often to repeat within a run.
func timeCase(be kernels.Flat, c Case, repeat int) ([]float64, error) {
	arena := &deviceArena{be: be}
	defer arena.free()
	run := c.setup(arena)
	if arena.err != nil {
		return nil, arena.err
	}
	loop := func(n int) (time.Duration, error) {
		start := time.Now()
		for range n {
			run()
		}
		err := be.Sync()
		return time.Since(start), err
	}
	if err := be.Sync(); err != nil { // the operands are there
		return nil, err
	}
	if _, err := loop(1); err != nil {
		return nil, err
	}
	once, err := loop(1)
	if err != nil {
		return nil, err
	}
	n := max(1, int(shortest/max(once, 1)))
	runs := make([]float64, repeat)
	for i := range runs {
		d, err := loop(n)
		if err != nil {
			return nil, err
		}
		runs[i] = d.Seconds() * 1e3 / float64(n)
	}
	return runs, nil
}

// rate fills in what follows from the runs.
func (m *Measurement) rate(c Case, info cuda.DeviceInfo) {
	m.Ms = median(m.Runs)
	m.TFLOPS, m.GBs = c.Cost.FLOP/m.Ms/1e9, c.Cost.Bytes/m.Ms/1e6
	d, known := DataSheet(info)
	if known {
		roofline, bound := d.roofline(c.Cost)
		m.Bound, m.Peak = bound, roofline/m.Ms
	}
	for i, b := range c.Bars {
		m.Bars = append(m.Bars, b.String())
		if i == 0 && (known || b.Memory == 0) {
			m.BarMs = b.milliseconds(c.Cost, &d)
		}
	}
}

// DataSheet finds what a prediction needs of a device by the name that its driver gives.
func DataSheet(info cuda.DeviceInfo) (ModelDevice, bool) {
	d, ok := cuda.DataSheetOf(info)
	return modelDevice(d), ok
}

// String is one line for people.
func (m Measurement) String() string {
	s := fmt.Sprintf("%-36s %-5s %-42s ", m.Bench, m.Model, m.Shape)
	if m.Skipped != "" {
		return s + "left out: " + m.Skipped
	}
	s += fmt.Sprintf("%10.3f ms", m.Ms)
	switch {
	case m.TokensPerS > 0:
		s += fmt.Sprintf(" %8.0f tokens/s %6.1f TFLOP/s", m.TokensPerS, m.TFLOPS)
	case m.FLOP > 0 && m.Bound != "memory":
		s += fmt.Sprintf(" %8.1f TFLOP/s", m.TFLOPS)
	default:
		s += fmt.Sprintf(" %8.1f GB/s   ", m.GBs)
	}
	if m.Peak > 0 {
		s += fmt.Sprintf(" %5.1f%% of peak", 100*m.Peak)
	}
	for _, b := range m.Bars {
		s += "; " + b
	}
	return s
}
