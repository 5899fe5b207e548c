package bench

import "harness-s/cuda"

// ProductRate is the rate in FLOP/s of bf16 products of random numbers: the share of the data sheet's that products reach.
func (d ModelDevice) ProductRate() float64 { return d.BF16 * productShare }

// GuessProductRate is the product rate of a device by its name, or, where no data sheet is known, of 1,024 multiply-adds a
// clock and multiprocessor, which is what compute capability 8.0 does.
func GuessProductRate(info cuda.DeviceInfo) float64 {
	if d, ok := DataSheet(info); ok {
		return d.ProductRate()
	}
	return 2 * 1024 * 1e3 * float64(info.ClockKHz) * float64(info.SMs) * productShare
}
