// Package safetensors reads and writes the safetensors format: an 8-byte little-endian header length, a JSON
// header naming each tensor's type, shape and byte range, then the bytes. Reading is strict, since a checkpoint
// is only as good as the check made on it: every byte of the file must belong to exactly one tensor.
//
// Start at Open (one file), OpenDir (a Hugging Face folder, sharded or not) and WriteFile.
package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/bits"
	"os"
	"slices"
	"sort"
	"unicode/utf8"
)

// maxHeader is the largest header accepted, the reference implementation's own limit.
const maxHeader = 100_000_000

// metadataKey is the one header key that is not a tensor.
const metadataKey = "__metadata__"

// File is an open safetensors file. Its methods may be used by several goroutines.
type File struct {
	Path     string
	Metadata map[string]string // free text the writer left; nil when absent
	r        io.ReaderAt
	closer   io.Closer
	tensors  []*Tensor // in order of their bytes
	byName   map[string]*Tensor
}

// Tensor is one tensor of a File.
type Tensor struct {
	Name  string
	DType DType
	Shape []int
	file  *File
	off   int64 // in the file
	size  int64 // bytes
}

// Open opens and validates the file at path.
func Open(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open weights: %w", err)
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open weights %s: %w", path, err)
	}
	out, err := New(f, st.Size(), path)
	if err != nil {
		f.Close()
		return nil, err
	}
	out.closer = f
	return out, nil
}

// New validates the size bytes of r. The path appears in errors.
func New(r io.ReaderAt, size int64, path string) (*File, error) {
	f := &File{Path: path, r: r, byName: map[string]*Tensor{}}
	if err := f.parse(size); err != nil {
		return nil, fmt.Errorf("safetensors %s: %w", path, err)
	}
	return f, nil
}

// Close closes the file; tensors can no longer be read.
func (f *File) Close() error {
	if f.closer == nil {
		return nil
	}
	return f.closer.Close()
}

// Tensors are all tensors in the order of their bytes.
func (f *File) Tensors() []*Tensor { return f.tensors }

// Tensor is the tensor called name, or nil.
func (f *File) Tensor(name string) *Tensor { return f.byName[name] }

func (f *File) parse(size int64) error {
	header, err := readHeader(f.r, size)
	if err != nil {
		return err
	}
	if err := checkJSON(header); err != nil {
		return fmt.Errorf("header: %w", err)
	}
	var entries map[string]json.RawMessage
	if err := json.Unmarshal(header, &entries); err != nil {
		return fmt.Errorf("header: %w", err)
	}
	dataStart := 8 + int64(len(header))
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		raw := entries[name]
		if name == metadataKey {
			if err := json.Unmarshal(raw, &f.Metadata); err != nil {
				return fmt.Errorf("header: %s must map text to text: %w", metadataKey, err)
			}
			continue
		}
		t, err := parseTensor(name, raw, size-dataStart)
		if err != nil {
			return fmt.Errorf("tensor %q: %w", name, err)
		}
		t.file, t.off = f, t.off+dataStart
		f.tensors, f.byName[name] = append(f.tensors, t), t
	}
	return f.checkLayout(dataStart, size)
}

func readHeader(r io.ReaderAt, size int64) ([]byte, error) {
	var length [8]byte
	if size < 8 {
		return nil, fmt.Errorf("truncated: %d bytes, the header length alone takes 8", size)
	}
	if _, err := r.ReadAt(length[:], 0); err != nil {
		return nil, fmt.Errorf("read header length: %w", err)
	}
	n := binary.LittleEndian.Uint64(length[:])
	switch {
	case n < 2:
		return nil, fmt.Errorf("header of %d bytes: not a safetensors file", n)
	case n > maxHeader:
		return nil, fmt.Errorf("header of %d bytes exceeds the format's limit of %d: not a safetensors file", n, maxHeader)
	case int64(n) > size-8:
		return nil, fmt.Errorf("truncated: the header takes %d bytes, the file has %d after its length", n, size-8)
	}
	header := make([]byte, n)
	if _, err := r.ReadAt(header, 8); err != nil {
		return nil, fmt.Errorf("read header: %w", err)
	}
	if header[0] != '{' {
		return nil, errors.New("header does not start with '{': not a safetensors file")
	}
	if !utf8.Valid(header) {
		return nil, errors.New("header is not valid UTF-8")
	}
	return header, nil
}

// checkJSON walks the header once for what json.Unmarshal lets pass: duplicate keys.
func checkJSON(header []byte) error {
	dec := json.NewDecoder(bytes.NewReader(header))
	dec.UseNumber()
	if err := checkValue(dec, 0); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("text after the JSON object")
	}
	return nil
}

func checkValue(dec *json.Decoder, depth int) error {
	tok, err := dec.Token()
	if err != nil {
		return badJSON(err)
	}
	delim, ok := tok.(json.Delim)
	if !ok {
		return nil
	}
	if depth > 8 {
		return errors.New("nested too deeply")
	}
	seen := map[string]bool{}
	for dec.More() {
		if delim == '{' {
			tok, err := dec.Token()
			if err != nil {
				return badJSON(err)
			}
			key, _ := tok.(string)
			if seen[key] {
				return fmt.Errorf("key %q appears twice", key)
			}
			seen[key] = true
		}
		if err := checkValue(dec, depth+1); err != nil {
			return err
		}
	}
	if _, err = dec.Token(); err != nil {
		return badJSON(err)
	}
	return nil
}

func badJSON(err error) error {
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("bad JSON: %w", err)
}

func parseTensor(name string, raw json.RawMessage, dataSize int64) (*Tensor, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil || fields == nil {
		return nil, errors.New("entry is not an object")
	}
	t := &Tensor{Name: name}
	var offsets []int64
	for _, f := range []struct {
		key string
		dst any
	}{{"dtype", &t.DType}, {"shape", &t.Shape}, {"data_offsets", &offsets}} {
		val, ok := fields[f.key]
		if !ok {
			return nil, fmt.Errorf("key %q is missing", f.key)
		}
		if err := json.Unmarshal(val, f.dst); err != nil || string(val) == "null" {
			return nil, fmt.Errorf("key %q has an unusable value %.60s", f.key, val)
		}
		delete(fields, f.key)
	}
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		return nil, fmt.Errorf("unknown key %q", key)
	}
	want, err := byteSize(t.DType, t.Shape)
	if err != nil {
		return nil, err
	}
	if len(offsets) != 2 || offsets[0] < 0 || offsets[1] < offsets[0] {
		return nil, fmt.Errorf("data_offsets %v is not a range", offsets)
	}
	if offsets[1] > dataSize {
		return nil, fmt.Errorf("data_offsets %v end past the file's %d data bytes (truncated file?)", offsets, dataSize)
	}
	t.off, t.size = offsets[0], offsets[1]-offsets[0]
	if t.size != want {
		return nil, fmt.Errorf("%s %v takes %d bytes, its data_offsets %v hold %d", t.DType, t.Shape, want, offsets, t.size)
	}
	return t, nil
}

// byteSize is the bytes of a tensor, with every overflow refused.
func byteSize(d DType, shape []int) (int64, error) {
	width := d.Bits()
	if width == 0 {
		return 0, fmt.Errorf("unknown dtype %q", string(d))
	}
	n := uint64(width)
	for _, dim := range shape {
		if dim < 0 {
			return 0, fmt.Errorf("shape %v has a negative dimension", shape)
		}
		hi, lo := bits.Mul64(n, uint64(dim))
		if hi != 0 || lo > 1<<62 {
			return 0, fmt.Errorf("shape %v overflows", shape)
		}
		n = lo
	}
	if n%8 != 0 {
		return 0, fmt.Errorf("%s %v is not a whole number of bytes", d, shape)
	}
	return int64(n / 8), nil
}

// checkLayout sorts the tensors by offset and refuses gaps, overlaps and trailing bytes.
func (f *File) checkLayout(start, size int64) error {
	sort.Slice(f.tensors, func(i, j int) bool {
		a, b := f.tensors[i], f.tensors[j]
		if a.off != b.off {
			return a.off < b.off
		}
		if a.size != b.size {
			return a.size < b.size
		}
		return a.Name < b.Name
	})
	at := start
	for _, t := range f.tensors {
		if t.off < at {
			return fmt.Errorf("tensor %q overlaps the tensor before it by %d bytes", t.Name, at-t.off)
		}
		if t.off > at {
			return fmt.Errorf("a gap of %d bytes lies before tensor %q", t.off-at, t.Name)
		}
		at = t.off + t.size
	}
	if at != size {
		return fmt.Errorf("%d bytes follow the last tensor", size-at)
	}
	return nil
}
