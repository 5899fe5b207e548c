// Package hsm is how compiled device kernels are kept: a container with one image an architecture for each .cu file, a
// table of what the compiler said about every kernel, and what can be read back out of an image without a device.
package hsm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// PTXArch is the virtual architecture whose PTX serves devices newer than every image.
const PTXArch = "compute_80"

// Archs are the architectures that kernels are compiled for, in the order of a container's images. An "a" marks code that
// runs on exactly that device; the others also run on later minor versions of the same major.
func Archs() []string { return []string{"sm_80", "sm_90a", "sm_100a", "sm_120", PTXArch} }

// ArchsOf are the architectures that a .cu file is compiled for: all, or the one that its name ends in, for kernels whose
// instructions no other has: x_sm90.cu.
func ArchsOf(file string) []string {
	if strings.HasSuffix(file, "_sm90.cu") {
		return []string{"sm_90a"}
	}
	return Archs()
}

// Image is one architecture's code: CUBIN (an ELF file), or PTX text without a NUL behind it for PTXArch.
type Image struct {
	Arch string
	Data []byte
}

const magic = "HSM1\n"

// header describes the images that follow it.
type header struct {
	Images []headerImage `json:"images"`
}

type headerImage struct {
	Arch  string `json:"arch"`
	Bytes int    `json:"bytes"`
}

// Encode packs images: the magic, then one zstd frame of a JSON line and the images. The images of one source are alike,
// so that one frame is a third smaller than a frame each. Equal input gives equal bytes.
func Encode(images []Image) ([]byte, error) {
	var h header
	for _, i := range images {
		h.Images = append(h.Images, headerImage{i.Arch, len(i.Data)})
	}
	line, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("hsm: %w", err)
	}
	out := bytes.NewBufferString(magic)
	w, err := zstd.NewWriter(out, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1),
		zstd.WithWindowSize(8<<20))
	if err != nil {
		return nil, fmt.Errorf("hsm: %w", err)
	}
	w.Write(append(line, '\n')) // into memory; Close reports what went wrong
	for _, i := range images {
		w.Write(i.Data)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("hsm: compress: %w", err)
	}
	return out.Bytes(), nil
}

// maxBytes bounds a container's content: a damaged file must not take the machine's memory.
const maxBytes = 256 << 20

// Decode is the inverse of Encode.
func Decode(data []byte) ([]Image, error) {
	frame, ok := bytes.CutPrefix(data, []byte(magic))
	if !ok {
		return nil, fmt.Errorf("hsm: not a module: starts with %.8q", data)
	}
	r, err := zstd.NewReader(bytes.NewReader(frame), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxBytes))
	if err != nil {
		return nil, fmt.Errorf("hsm: %w", err)
	}
	defer r.Close()
	content, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("hsm: decompress: %w", err)
	}
	line, rest, _ := bytes.Cut(content, []byte("\n"))
	var h header
	if err := json.Unmarshal(line, &h); err != nil {
		return nil, fmt.Errorf("hsm: header: %w", err)
	}
	var images []Image
	for _, i := range h.Images {
		if i.Bytes < 0 || i.Bytes > len(rest) {
			return nil, fmt.Errorf("hsm: %s: %d bytes, %d are left", i.Arch, i.Bytes, len(rest))
		}
		images = append(images, Image{i.Arch, rest[:i.Bytes:i.Bytes]})
		rest = rest[i.Bytes:]
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("hsm: %d bytes behind the last image", len(rest))
	}
	return images, nil
}
