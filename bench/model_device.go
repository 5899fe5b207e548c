package bench

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"harness-s/cuda"
	"harness-s/internal/hsm"
)

// ModelDevice is what a prediction needs of a device, from its maker's data sheet.
type ModelDevice struct {
	cuda.DeviceInfo
	Key        string
	Arch       string  // of the images that it runs
	BF16       float64 // dense FLOP/s with fp32 sums
	Bandwidth  float64 // bytes/s
	ThreadsSM  int     // resident at most on a multiprocessor
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

const (
	registersSM   = 65536
	reservedBlock = 1024 // bytes of shared memory a block that the driver keeps
)

// modelDevice fills in what devices of a compute capability have in common.
func modelDevice(key, name, arch string, cc, sms int, memoryGB, tflops, gbs float64, l2MB int) ModelDevice {
	d := ModelDevice{Key: key, Arch: arch, BF16: tflops * 1e12, Bandwidth: gbs * 1e9, ThreadsSM: 2048, BlocksSM: 32, TensorPeak: productShare}
	d.DeviceInfo = cuda.DeviceInfo{Name: name, Memory: int64(memoryGB * 1e9), SMs: sms, Major: cc / 10, Minor: cc % 10, L2: l2MB << 20}
	switch cc {
	case 80:
		d.SharedPerSM = 164 << 10
	case 90, 100:
		d.SharedPerSM, d.TensorPeak = 228<<10, mmaSync90
	case 89, 120:
		d.SharedPerSM, d.ThreadsSM, d.BlocksSM = 100<<10, 1536, 24
	}
	d.SharedOptin = d.SharedPerSM - reservedBlock
	return d
}

var modelDevices = []ModelDevice{
	modelDevice("a100", "A100 SXM 80GB", "sm_80", 80, 108, 80, 312, 2039, 40),
	modelDevice("h100", "H100 SXM", "sm_90a", 90, 132, 80, 989, 3350, 50),
	modelDevice("h200", "H200 SXM", "sm_90a", 90, 132, 141, 989, 4800, 50),
	modelDevice("b200", "B200", "sm_100a", 100, 148, 180, 2250, 8000, 126),
	modelDevice("l40s", "L40S", "sm_80", 89, 142, 48, 362, 864, 96),
	modelDevice("rtx4090", "RTX 4090", "sm_80", 89, 128, 24, 165, 1008, 72),
	modelDevice("rtx5090", "RTX 5090", "sm_120", 120, 170, 32, 210, 1792, 96),
}

// ModelDeviceByKey finds a device by its short name, for example h200.
func ModelDeviceByKey(key string) (ModelDevice, error) {
	keys := map[string]bool{}
	for _, d := range modelDevices {
		if d.Key == key {
			return d, nil
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
	limit(d.SharedPerSM/(roundUp(k.Shared+dynamic, 128)+reservedBlock), "shared memory")
	o.Share = float64(o.BlocksSM*32*warps) / float64(d.ThreadsSM)
	return o
}

func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }
