package bench

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"harness-s/cuda"
	"harness-s/internal/hsm"
)

// ModelDevice is what a prediction needs of a device.
type ModelDevice struct {
	cuda.DataSheet
	ThreadsSM  int // resident at most on a multiprocessor
	BlocksSM   int
	TensorPeak float64 // share of BF16 that mma.sync can reach
}

// Shares of a data sheet's rates that are reached at best, measured by others:
//   - a bf16 product of random numbers: 783 of 989 TFLOP/s on an H200 (zeros run faster and mean nothing);
//   - a copy: 4.3 of 4.8 TB/s there;
//   - mma.sync on compute capability 9.0: 62.9 % (arXiv 2402.13499); only wgmma reaches the rest. Assumed for 10.0 too.
const (
	productShare = 0.79
	copyShare    = 0.90
	mmaSync90    = 0.629
)

const registersSM = 65536

// modelDevice adds what devices of a compute capability have in common.
func modelDevice(sheet cuda.DataSheet) ModelDevice {
	d := ModelDevice{DataSheet: sheet, ThreadsSM: 2048, BlocksSM: 32, TensorPeak: productShare}
	switch sheet.Major*10 + sheet.Minor {
	case 90, 100:
		d.TensorPeak = mmaSync90
	case 89, 120:
		d.ThreadsSM, d.BlocksSM = 1536, 24
	}
	return d
}

// ModelDeviceByKey finds a device by its short name, for example h200.
func ModelDeviceByKey(key string) (ModelDevice, error) {
	keys := map[string]bool{}
	for _, d := range cuda.DataSheets() {
		if d.Key == key {
			return modelDevice(d), nil
		}
		keys[d.Key] = true
	}
	return ModelDevice{}, fmt.Errorf("bench: no device %q: want one of %s", key, strings.Join(slices.Sorted(maps.Keys(keys)), ", "))
}

// roofline is the time in ms at the data sheet's rates, and which of them bounds it.
func (d *ModelDevice) roofline(c Cost) (ms float64, bound string) {
	compute, memory := c.FLOP/d.BF16, c.Bytes/d.Bandwidth
	if memory > compute {
		return 1e3 * memory, "memory"
	}
	return 1e3 * compute, "compute"
}

// Occupancy is how a kernel's blocks fit onto a multiprocessor.
type Occupancy struct {
	BlocksSM int     `json:"blocks_per_sm"`
	Share    float64 `json:"occupancy"` // of the threads that could be resident
	Limit    string  `json:"limit"`     // threads, registers, shared memory or blocks
}

// occupancy follows the rules of the CUDA programming guide: registers are given to a warp in units of 256, shared memory
// to a block in units of 128 bytes.
func (d *ModelDevice) occupancy(k hsm.Kernel, threads, dynamic int) Occupancy {
	warps := (threads + 31) / 32
	o := Occupancy{BlocksSM: d.BlocksSM, Limit: "blocks"}
	limit := func(n int, why string) {
		if n < o.BlocksSM {
			o.BlocksSM, o.Limit = n, why
		}
	}
	limit(d.ThreadsSM/(32*warps), "threads")
	limit(registersSM/(roundUp(k.Registers*32, 256)*warps), "registers")
	limit(d.SharedPerSM/(roundUp(k.Shared+dynamic, 128)+d.SharedPerSM-d.SharedOptin), "shared memory") // the driver keeps the difference
	o.Share = float64(o.BlocksSM*32*warps) / float64(d.ThreadsSM)
	return o
}

func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }
