package rollout

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// errTorn is a zstd frame that the file ends inside of.
var errTorn = errors.New("torn frame")

const (
	maxFrameBytes = 256 << 20 // compressed; a frame written here is far smaller
	maxFrameText  = 1 << 30   // decompressed
)

// readFrame reads one zstd frame from r as it stands, by walking its blocks (RFC 8878, 3.1.1). io.EOF: no more frames.
func readFrame(r io.Reader) ([]byte, error) {
	frame := make([]byte, 0, 1<<16)
	take := func(n int) error {
		if len(frame)+n > maxFrameBytes {
			return fmt.Errorf("zstd frame larger than %d bytes", maxFrameBytes)
		}
		at := len(frame)
		frame = append(frame, make([]byte, n)...)
		got, err := io.ReadFull(r, frame[at:])
		if err != nil {
			if at+got == 0 && errors.Is(err, io.EOF) {
				return io.EOF
			}
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return errTorn
			}
		}
		return err
	}
	if err := take(5); err != nil { // magic number and frame header descriptor
		return nil, err
	}
	if binary.LittleEndian.Uint32(frame) != 0xFD2FB528 {
		return nil, fmt.Errorf("no zstd frame: begins with % x", frame[:4])
	}
	descriptor := frame[4]
	if err := take(headerRest(descriptor)); err != nil {
		return nil, err
	}
	for last := false; !last; {
		if err := take(3); err != nil {
			return nil, err
		}
		h := frame[len(frame)-3:]
		block := int(h[0]) | int(h[1])<<8 | int(h[2])<<16
		last = block&1 != 0
		size := block >> 3
		if block>>1&3 == 1 { // one byte, repeated
			size = 1
		}
		if err := take(size); err != nil {
			return nil, err
		}
	}
	if descriptor&4 != 0 { // content checksum
		if err := take(4); err != nil {
			return nil, err
		}
	}
	return frame, nil
}

// headerRest is the length of a frame header after its descriptor byte.
func headerRest(descriptor byte) int {
	single := descriptor >> 5 & 1
	n := []int{0, 1, 2, 4}[descriptor&3] // dictionary id
	n += []int{int(single), 2, 4, 8}[descriptor>>6]
	return n + 1 - int(single) // window descriptor
}

func newDecoder() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxFrameText))
	if err != nil {
		panic("rollout: zstd: " + err.Error()) // constant options
	}
	return d
}

func newEncoder() *zstd.Encoder {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(true))
	if err != nil {
		panic("rollout: zstd: " + err.Error()) // constant options
	}
	return e
}
