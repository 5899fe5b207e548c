package safetensors

import (
	"encoding/binary"
	"math"
)

// DType is an element type as the header spells it.
type DType string

// The types this project computes with; others pass through as bytes.
const (
	F64  DType = "F64"
	F32  DType = "F32"
	F16  DType = "F16"
	BF16 DType = "BF16"
	I32  DType = "I32"
	I64  DType = "I64"
	U8   DType = "U8"
)

// widths are bits an element.
var widths = map[DType]int{
	"BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E5M2FNUZ": 8, "F8_E4M3FNUZ": 8,
	"U16": 16, "I16": 16, "F16": 16, "BF16": 16,
	"U32": 32, "I32": 32, "F32": 32,
	"U64": 64, "I64": 64, "F64": 64, "C64": 64,
	"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}

// Bits is the width of one element, 0 for an unknown type.
func (d DType) Bits() int { return widths[d] }

// IsFloat says whether Float32s can read the type.
func (d DType) IsFloat() bool { return d == F32 || d == F16 || d == BF16 }

// decodeFloats converts little-endian elements of a float type; src may be misaligned.
func decodeFloats(dst []float32, src []byte, d DType) {
	switch d {
	case F32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	case BF16:
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
		}
	case F16:
		for i := range dst {
			dst[i] = halfToFloat(binary.LittleEndian.Uint16(src[2*i:]))
		}
	}
}

// EncodeFloats appends src as elements of d (F32, F16 or BF16), rounded to nearest, ties to even.
func EncodeFloats(dst []byte, src []float32, d DType) []byte {
	for _, x := range src {
		switch d {
		case F32:
			dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(x))
		case BF16:
			dst = binary.LittleEndian.AppendUint16(dst, floatToBF16(x))
		case F16:
			dst = binary.LittleEndian.AppendUint16(dst, floatToHalf(x))
		default:
			panic("safetensors: cannot encode floats as " + string(d))
		}
	}
	return dst
}

func floatToBF16(x float32) uint16 {
	b := math.Float32bits(x)
	if b&0x7fffffff > 0x7f800000 { // NaN: keep the sign, stay quiet
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

func halfToFloat(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp, frac := uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch exp {
	case 0: // zero or subnormal: frac * 2^-24 is exact in float32
		v := math.Float32bits(float32(frac) * (1.0 / (1 << 24)))
		return math.Float32frombits(sign | v)
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

func floatToHalf(x float32) uint16 {
	b := math.Float32bits(x)
	sign := uint16(b >> 16 & 0x8000)
	abs := b & 0x7fffffff
	switch {
	case abs > 0x7f800000:
		return sign | 0x7e00 | uint16(abs>>13&0x3ff)
	case abs >= 0x47800000: // 65536 and above, infinity included
		return sign | 0x7c00
	case abs < 0x38800000: // below 2^-14: subnormal, RoundToEven on the 2^-24 grid
		return sign | uint16(math.RoundToEven(float64(math.Float32frombits(abs))*(1<<24)))
	}
	abs += 0xfff + abs>>13&1
	return sign | uint16((abs-0x38000000)>>13) // a carry out of the fraction rounds up to the next exponent, or infinity
}
