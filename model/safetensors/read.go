package safetensors

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

// NumElements is the product of the shape.
func (t *Tensor) NumElements() int { return int(t.size * 8 / int64(t.DType.Bits())) }

// Size is the tensor's bytes.
func (t *Tensor) Size() int64 { return t.size }

// Path is the file the tensor lies in.
func (t *Tensor) Path() string { return t.file.Path }

// Raw reads the tensor's bytes as they are.
func (t *Tensor) Raw() io.Reader { return io.NewSectionReader(t.file.r, t.off, t.size) }

// chunkElements bounds the scratch memory of a conversion.
const chunkElements = 1 << 18

// Float32s converts the whole tensor (F32, F16 or BF16) into dst, whose length must be NumElements.
func (t *Tensor) Float32s(dst []float32) error {
	if !t.DType.IsFloat() {
		return t.errorf("dtype %s, want F32, F16 or BF16", t.DType)
	}
	if len(dst) != t.NumElements() {
		return t.errorf("%d elements, want %d", t.NumElements(), len(dst))
	}
	width := t.DType.Bits() / 8
	buf := make([]byte, min(len(dst), chunkElements)*width)
	r := t.Raw()
	for len(dst) > 0 {
		n := min(len(dst), chunkElements)
		if _, err := io.ReadFull(r, buf[:n*width]); err != nil {
			return t.errorf("read: %w", err)
		}
		decodeFloats(dst[:n], buf, t.DType)
		dst = dst[n:]
	}
	return nil
}

// Float64s reads a whole F64 tensor.
func (t *Tensor) Float64s() ([]float64, error) {
	if t.DType != F64 {
		return nil, t.errorf("dtype %s, want F64", t.DType)
	}
	b, err := io.ReadAll(t.Raw())
	if err == nil && int64(len(b)) != t.size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, t.errorf("read: %w", err)
	}
	out := make([]float64, t.NumElements())
	for i := range out {
		out[i] = math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:]))
	}
	return out, nil
}

func (t *Tensor) errorf(format string, args ...any) error {
	return fmt.Errorf("safetensors %s: tensor %q: %w", t.file.Path, t.Name, fmt.Errorf(format, args...))
}
