package bench

import "fmt"

// Bar is what a case is compared with: a goal of this project, or what others publish.
type Bar struct {
	Goal   bool
	Ms     float64 // for the case's very shape; 0: one of the rates
	TFLOPS float64
	Memory float64 // share of the memory's bandwidth
	Source string  // who, on what
}

// milliseconds is the time that a bar stands for.
func (b Bar) milliseconds(c Cost, d *ModelDevice) float64 {
	switch {
	case b.Ms > 0:
		return b.Ms
	case b.TFLOPS > 0:
		return c.FLOP / b.TFLOPS / 1e9
	}
	return c.Bytes / (b.Memory * d.Bandwidth) * 1e3
}

func (b Bar) String() string {
	what := "anchor"
	if b.Goal {
		what = "goal"
	}
	switch {
	case b.Ms > 0:
		return fmt.Sprintf("%s %.3g ms (%s)", what, b.Ms, b.Source)
	case b.TFLOPS > 0:
		return fmt.Sprintf("%s %.0f TFLOP/s (%s)", what, b.TFLOPS, b.Source)
	}
	return fmt.Sprintf("%s %.0f%% of memory (%s)", what, 100*b.Memory, b.Source)
}

// bars are by case; "name/1 rows" where a figure is of one packing. Goals are for an H200. Anchors are the strongest figures
// published by August 2026, on the device that they name.
var bars = map[string][]Bar{
	"head forward":          {{TFLOPS: 708, Source: "Liger FLSCE, H100, V 131072"}},
	"head backward":         {{TFLOPS: 646, Source: "Liger FLSCE, H100, V 131072"}},
	"head forward+backward": {{Goal: true, TFLOPS: 670, Source: "H200"}, {TFLOPS: 666, Source: "Liger FLSCE, H100, V 131072"}},
	"gdn forward/1 rows":    {{Goal: true, Ms: 0.9, Source: "H200"}, {Ms: 0.877, Source: "FlashQLA, H200"}},
	"gdn forward/8 rows":    {{Ms: 0.431, Source: "FlashInfer, H200"}},
	"gdn backward/1 rows":   {{Goal: true, Ms: 2.5, Source: "H200"}, {Ms: 2.515, Source: "FlashQLA, H200"}},
	"attention forward":     {{Goal: true, TFLOPS: 600, Source: "H200"}, {TFLOPS: 729, Source: "FA4, H200"}},
	"attention backward":    {{Goal: true, TFLOPS: 314, Source: "H200"}, {TFLOPS: 314, Source: "FA4, H200"}},
	"rmsnorm forward":       {{Goal: true, Memory: 0.75, Source: "H200"}, {Memory: 0.77, Source: "cuDNN, H200"}},
	"rmsnorm backward":      {{Goal: true, Memory: 0.75, Source: "H200"}, {Memory: 0.79, Source: "cuDNN, H200"}},
	"pointwise":             {{Goal: true, Memory: 0.75, Source: "H200"}},
	"product":               {{TFLOPS: 783, Source: "cuBLAS on random numbers, H200"}},
}
