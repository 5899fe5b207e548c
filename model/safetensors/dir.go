package safetensors

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
)

// Names of a Hugging Face folder's weight files.
const (
	SingleName = "model.safetensors"
	IndexName  = "model.safetensors.index.json"
)

// Set is all tensors of a folder, over one file or several shards.
type Set struct {
	Files  []*File // by name
	byName map[string]*Tensor
}

// OpenDir opens model.safetensors, or else the shards that model.safetensors.index.json lists. The index and the
// shards must agree on every tensor.
func OpenDir(dir string) (*Set, error) {
	single := filepath.Join(dir, SingleName)
	if _, err := os.Stat(single); err == nil {
		return openFiles(dir, []string{SingleName}, nil)
	} else if !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("open weights: %w", err)
	}
	path := filepath.Join(dir, IndexName)
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("folder %s has neither %s nor %s", dir, SingleName, IndexName)
	}
	if err != nil {
		return nil, fmt.Errorf("open weights: %w", err)
	}
	if err := checkJSON(raw); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(raw, &index); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(index.WeightMap) == 0 {
		return nil, fmt.Errorf("%s: key \"weight_map\" is missing or empty", path)
	}
	shards := map[string]bool{}
	for tensor, shard := range index.WeightMap {
		if shard != filepath.Base(shard) || shard == "." || shard == ".." {
			return nil, fmt.Errorf("%s: tensor %q: shard %q must be a file name inside the folder", path, tensor, shard)
		}
		shards[shard] = true
	}
	names := make([]string, 0, len(shards))
	for shard := range shards {
		names = append(names, shard)
	}
	sort.Strings(names)
	return openFiles(dir, names, index.WeightMap)
}

func openFiles(dir string, names []string, weightMap map[string]string) (*Set, error) {
	s := &Set{byName: map[string]*Tensor{}}
	for _, name := range names {
		f, err := Open(filepath.Join(dir, name))
		if err == nil {
			s.Files = append(s.Files, f)
			err = s.add(f, name, weightMap)
		}
		if err != nil {
			s.Close()
			return nil, err
		}
	}
	for tensor, shard := range weightMap {
		if s.byName[tensor] == nil {
			s.Close()
			return nil, fmt.Errorf("%s: tensor %q is not in its shard %q", filepath.Join(dir, IndexName), tensor, shard)
		}
	}
	return s, nil
}

func (s *Set) add(f *File, shard string, weightMap map[string]string) error {
	for _, t := range f.tensors {
		if weightMap != nil && weightMap[t.Name] != shard {
			return t.errorf("%s places it in %q", IndexName, weightMap[t.Name])
		}
		s.byName[t.Name] = t
	}
	return nil
}

// Tensor is the tensor called name, or nil.
func (s *Set) Tensor(name string) *Tensor { return s.byName[name] }

// Names are all tensor names, sorted.
func (s *Set) Names() []string {
	names := make([]string, 0, len(s.byName))
	for name := range s.byName {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// Close closes every file.
func (s *Set) Close() error {
	var first error
	for _, f := range s.Files {
		if err := f.Close(); err != nil && first == nil {
			first = err
		}
	}
	return first
}
