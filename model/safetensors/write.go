package safetensors

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"sort"

	"harness-s/internal/atomicfile"
)

// Entry is one tensor to write. Data writes exactly the bytes that DType and Shape say.
type Entry struct {
	Name  string
	DType DType
	Shape []int
	Data  func(w io.Writer) error
}

// Size is the entry's bytes.
func (e Entry) Size() (int64, error) {
	n, err := byteSize(e.DType, e.Shape)
	if err != nil {
		return 0, fmt.Errorf("tensor %q: %w", e.Name, err)
	}
	return n, nil
}

// Floats is the Data of an entry of values converted to d (F32, F16 or BF16).
func Floats(values []float32, d DType) func(io.Writer) error {
	return func(w io.Writer) error {
		var buf []byte
		for rest := values; len(rest) > 0; {
			n := min(len(rest), chunkElements)
			buf = EncodeFloats(buf[:0], rest[:n], d)
			if _, err := w.Write(buf); err != nil {
				return err
			}
			rest = rest[n:]
		}
		return nil
	}
}

// Write writes the tensors in the order given, preceded by the header (keys in that order too, padded with blanks
// so that the data starts at a multiple of 8).
func Write(w io.Writer, metadata map[string]string, entries []Entry) error {
	header, err := buildHeader(metadata, entries)
	if err != nil {
		return err
	}
	if err := binary.Write(w, binary.LittleEndian, uint64(len(header))); err != nil {
		return fmt.Errorf("write header: %w", err)
	}
	if _, err := w.Write(header); err != nil {
		return fmt.Errorf("write header: %w", err)
	}
	for _, e := range entries {
		want, _ := e.Size() // checked by buildHeader
		c := &countingWriter{w: w}
		if err := e.Data(c); err != nil {
			return fmt.Errorf("write tensor %q: %w", e.Name, err)
		}
		if c.n != want {
			return fmt.Errorf("write tensor %q: %d bytes given, %s %v takes %d", e.Name, c.n, e.DType, e.Shape, want)
		}
	}
	return nil
}

func buildHeader(metadata map[string]string, entries []Entry) ([]byte, error) {
	header := []byte{'{'}
	field := func(key string, value any) error {
		k, err := json.Marshal(key)
		if err != nil {
			return err
		}
		v, err := json.Marshal(value)
		if err != nil {
			return err
		}
		if len(header) > 1 {
			header = append(header, ',')
		}
		header = append(append(append(header, k...), ':'), v...)
		return nil
	}
	if len(metadata) > 0 {
		if err := field(metadataKey, metadata); err != nil {
			return nil, err
		}
	}
	seen := map[string]bool{metadataKey: true}
	var at int64
	for _, e := range entries {
		if seen[e.Name] {
			return nil, fmt.Errorf("tensor %q: name used twice or reserved", e.Name)
		}
		seen[e.Name] = true
		size, err := e.Size()
		if err != nil {
			return nil, err
		}
		shape := e.Shape
		if shape == nil {
			shape = []int{}
		}
		err = field(e.Name, struct {
			DType   DType    `json:"dtype"`
			Shape   []int    `json:"shape"`
			Offsets [2]int64 `json:"data_offsets"`
		}{e.DType, shape, [2]int64{at, at + size}})
		if err != nil {
			return nil, err
		}
		at += size
	}
	header = append(header, '}')
	for len(header)%8 != 0 {
		header = append(header, ' ')
	}
	if len(header) > maxHeader {
		return nil, fmt.Errorf("header of %d bytes exceeds the format's limit of %d", len(header), maxHeader)
	}
	return header, nil
}

type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

// WriteFile is Write into a file that appears whole or not at all.
func WriteFile(path string, metadata map[string]string, entries []Entry) error {
	return atomicfile.WriteFunc(path, func(w io.Writer) error {
		buf := bufio.NewWriterSize(w, 1<<20)
		if err := Write(buf, metadata, entries); err != nil {
			return err
		}
		return buf.Flush()
	})
}

// Shard is one file of a sharded checkpoint.
type Shard struct {
	Name    string
	Entries []Entry
}

// SplitShards places the entries, in order, in as few files as hold at most limit bytes each (a larger tensor gets
// a file of its own), named as Hugging Face names them. The index is nil when one file suffices.
func SplitShards(entries []Entry, limit int64) (shards []Shard, index []byte, err error) {
	var sizes []int64
	var total int64
	for _, e := range entries {
		n, err := e.Size()
		if err != nil {
			return nil, nil, err
		}
		if len(shards) == 0 || sizes[len(sizes)-1]+n > limit && sizes[len(sizes)-1] > 0 {
			shards, sizes = append(shards, Shard{}), append(sizes, 0)
		}
		last := len(shards) - 1
		shards[last].Entries = append(shards[last].Entries, e)
		sizes[last] += n
		total += n
	}
	if len(shards) <= 1 {
		return []Shard{{Name: SingleName, Entries: entries}}, nil, nil
	}
	weightMap := map[string]string{}
	for i := range shards {
		shards[i].Name = fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(shards))
		for _, e := range shards[i].Entries {
			weightMap[e.Name] = shards[i].Name
		}
	}
	index, err = json.MarshalIndent(map[string]any{
		"metadata": map[string]int64{"total_size": total}, "weight_map": weightMap,
	}, "", "  ")
	return shards, index, err
}

// SortEntries orders entries by name, so that equal weights give equal bytes.
func SortEntries(entries []Entry) {
	sort.Slice(entries, func(i, j int) bool { return entries[i].Name < entries[j].Name })
}
