package kernels

import (
	"fmt"
	"math"
)

// DType is how a device backend stores activations and compute copies of weights. Sums are formed in fp32 in either.
type DType int

const (
	F32  DType = iota // everything in fp32
	BF16              // activations and compute copies in bfloat16
)

// ParseDType reads "fp32" or "bf16".
func ParseDType(s string) (DType, error) {
	switch s {
	case "fp32":
		return F32, nil
	case "bf16":
		return BF16, nil
	}
	return 0, fmt.Errorf("storage type %q: want fp32 or bf16", s)
}

func (d DType) String() string {
	if d == BF16 {
		return "bf16"
	}
	return "fp32"
}

// Bytes of one value.
func (d DType) Bytes() int {
	if d == BF16 {
		return 2
	}
	return 4
}

// roundBF16 is x to the nearest bfloat16, ties to even; NaN stays NaN.
func roundBF16(x float32) uint16 {
	b := math.Float32bits(x)
	if x != x {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}
