package model

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"

	"harness-s/internal/atomicfile"
	"harness-s/model/safetensors"
)

// SaveOptions says how Save writes.
type SaveOptions struct {
	// KeepDType writes each tensor in the type its file had (F32 for a model that was not loaded). Otherwise the
	// masters are written in fp32, from which a run resumes bit for bit.
	KeepDType bool
	// ShardBytes bounds one weight file; 0 = 5 GB.
	ShardBytes int64
}

// Save writes a Hugging Face folder at dir, which must not exist: all parameters under their own names, the tensors
// that pass through byte for byte, config.json and the tokenizer's files. The folder is written beside dir, fsynced
// and renamed, so that dir is whole or absent.
func (m *Model) Save(dir string, opt SaveOptions) error {
	if _, err := os.Lstat(dir); err == nil {
		return fmt.Errorf("save model: %s exists already", dir)
	}
	dir = filepath.Clean(dir)
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "."+filepath.Base(dir)+".tmp*")
	if err != nil {
		return fmt.Errorf("save model: %w", err)
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		return fmt.Errorf("save model: %w", err)
	}
	if err := m.WriteInto(tmp, opt); err != nil {
		return err
	}
	if err := os.Rename(tmp, dir); err != nil {
		return fmt.Errorf("save model: %w", err)
	}
	return atomicfile.SyncDir(filepath.Dir(dir))
}

// WriteInto writes and fsyncs Save's files into an existing folder, for callers that add files of their own before
// they rename it.
func (m *Model) WriteInto(dir string, opt SaveOptions) error {
	if err := m.writeInto(dir, opt); err != nil {
		return fmt.Errorf("save model into %s: %w", dir, err)
	}
	return nil
}

func (m *Model) writeInto(dir string, opt SaveOptions) error {
	if opt.ShardBytes <= 0 {
		opt.ShardBytes = 5_000_000_000
	}
	files := maps.Clone(m.source.files)
	if files == nil {
		files = map[string][]byte{}
	}
	if files[configName] == nil {
		raw, err := json.Marshal(m.Config)
		if err != nil {
			return fmt.Errorf("%s: %w", configName, err)
		}
		files[configName] = raw
	}
	shards, index, err := safetensors.SplitShards(m.entries(opt), opt.ShardBytes)
	if err != nil {
		return err
	}
	if index != nil {
		files[safetensors.IndexName] = index
	}
	metadata := maps.Clone(m.source.metadata)
	if metadata == nil {
		metadata = map[string]string{}
	}
	metadata["format"] = "pt" // transformers refuses files that do not say so
	for _, s := range shards {
		if err := safetensors.WriteFile(filepath.Join(dir, s.Name), metadata, s.Entries); err != nil {
			return err
		}
	}
	for name, raw := range files {
		if err := atomicfile.Write(filepath.Join(dir, name), raw); err != nil {
			return err
		}
	}
	return atomicfile.SyncDir(dir)
}

// entries are the tensors to write, by name.
func (m *Model) entries(opt SaveOptions) []safetensors.Entry {
	var out []safetensors.Entry
	for i := range m.params {
		p := &m.params[i]
		dtype := safetensors.F32
		if d, ok := m.source.dtypes[p.Name]; ok && opt.KeepDType {
			dtype = d
		}
		out = append(out, m.entry(p.Name, p, &m.w, dtype))
	}
	for _, t := range m.source.extra {
		out = append(out, safetensors.Entry{Name: t.Name, DType: t.DType, Shape: t.Shape, Data: func(w io.Writer) error {
			_, err := io.Copy(w, t.Raw())
			return err
		}})
	}
	safetensors.SortEntries(out)
	return out
}

// entry is a parameter's values in an arena, as a tensor to write.
func (m *Model) entry(name string, p *Param, a *arena, dtype safetensors.DType) safetensors.Entry {
	return safetensors.Entry{Name: name, DType: dtype, Shape: p.Shape, Data: func(w io.Writer) error {
		values, err := m.read(a, p)
		if err != nil {
			return err
		}
		return safetensors.Floats(values, dtype)(w)
	}}
}

// read is a parameter's values in an arena; see fetch.
func (m *Model) read(a *arena, p *Param) ([]float32, error) {
	be, buf, err := m.fetch(a, p)
	if err != nil {
		return nil, err
	}
	values := make([]float32, p.size())
	be.Download(values, buf)
	return values, be.Sync()
}
