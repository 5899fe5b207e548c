package hsm

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// NVRTC is the compiler's version that modules are made with: it covers every architecture of Archs, and its PTX and ELF
// still load with a 12.x driver.
const NVRTC = "12.9"

// Options of every compilation, beside -arch.
func Options() []string { return []string{"--std=c++17", "-default-device", "--ptxas-options=-v"} }

// Table is modules/table.json: what was compiled from what, and what came of it.
type Table struct {
	NVRTC   string
	Options []string
	Files   []File // by name
}

// File is one .cu and its module.
type File struct {
	Name     string   // rmsnorm.cu
	Sources  string   // SourceHash when it was compiled
	Includes []string // .cuh files, transitively
	Module   string   // SHA-256 of the .hsm
	Kernels  []Kernel // by name, then in the order of Archs
}

// Kernel is what compiler and image say about a kernel on an architecture. PTX has no row: its registers are chosen when
// a driver compiles it.
type Kernel struct {
	Name        string `json:"kernel"`
	Arch        string `json:"arch"`
	Registers   int    `json:"registers"`
	Shared      int    `json:"shared"` // static, bytes a block
	Stack       int    `json:"stack"`
	SpillStores int    `json:"spill_stores"`
	SpillLoads  int    `json:"spill_loads"`
	Constant    int    `json:"constant"`    // bytes of its constant banks, parameters included
	Params      int    `json:"params"`      // bytes of the one struct parameter
	MaxThreads  int    `json:"max_threads"` // a block, from its launch bounds
}

// Spills says that a kernel keeps values in local memory: it is not shipped.
func (k Kernel) Spills() bool { return k.Stack > 0 || k.SpillStores > 0 || k.SpillLoads > 0 }

// File is the entry called name.
func (t *Table) File(name string) (File, bool) {
	i, ok := slices.BinarySearchFunc(t.Files, name, func(f File, name string) int { return cmp.Compare(f.Name, name) })
	if !ok {
		return File{}, false
	}
	return t.Files[i], true
}

// Set puts a file's entry in place.
func (t *Table) Set(f File) {
	i, ok := slices.BinarySearchFunc(t.Files, f.Name, func(f File, name string) int { return cmp.Compare(f.Name, name) })
	if ok {
		t.Files[i] = f
	} else {
		t.Files = slices.Insert(t.Files, i, f)
	}
}

// Kernel is the row of a kernel on an architecture.
func (t *Table) Kernel(name, arch string) (Kernel, bool) {
	for _, f := range t.Files {
		for _, k := range f.Kernels {
			if k.Name == name && k.Arch == arch {
				return k, true
			}
		}
	}
	return Kernel{}, false
}

// tableJSON is the file's form: a line a kernel, so that a change shows as such.
type tableJSON struct {
	NVRTC   string              `json:"nvrtc"`
	Options []string            `json:"options"`
	Files   map[string]fileJSON `json:"files"`
}

type fileJSON struct {
	Sources  string   `json:"sources"`
	Includes []string `json:"includes"`
	Module   string   `json:"module"`
	Kernels  []Kernel `json:"kernels"`
}

// ParseTable reads table.json.
func ParseTable(data []byte) (Table, error) {
	var j tableJSON
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&j); err != nil {
		return Table{}, fmt.Errorf("hsm: table.json: %w", err)
	}
	t := Table{NVRTC: j.NVRTC, Options: j.Options}
	for _, name := range slices.Sorted(maps.Keys(j.Files)) {
		f := j.Files[name]
		t.Files = append(t.Files, File{name, f.Sources, f.Includes, f.Module, f.Kernels})
	}
	return t, nil
}

// Format writes table.json.
func (t *Table) Format() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "{\"nvrtc\": %s, \"options\": %s,\n\"files\": {", compact(t.NVRTC), compact(t.Options))
	for i, f := range t.Files {
		fmt.Fprintf(&b, "%s\n%s: {\n \"sources\": %s,\n \"includes\": %s,\n \"module\": %s,\n \"kernels\": [", comma(i),
			compact(f.Name), compact(f.Sources), compact(f.Includes), compact(f.Module))
		for j, k := range f.Kernels {
			fmt.Fprintf(&b, "%s\n  %s", comma(j), compact(k))
		}
		b.WriteString("]}")
	}
	b.WriteString("}}\n")
	return b.Bytes()
}

func comma(i int) string {
	if i == 0 {
		return ""
	}
	return ","
}

func compact(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings, numbers and lists of them
	}
	return string(data)
}

var includeLine = regexp.MustCompile(`(?m)^\s*#\s*include\s+"([^"]+\.cuh)"`)

// Sources reads a .cu file and the .cuh files it includes, transitively. Other includes are the simulator's alone.
func Sources(dir fs.FS, name string) (text string, headers map[string]string, err error) {
	data, err := fs.ReadFile(dir, name)
	if err != nil {
		return "", nil, fmt.Errorf("hsm: %w", err)
	}
	headers = map[string]string{}
	var visit func(from, text string) error
	visit = func(from, text string) error {
		for _, m := range includeLine.FindAllStringSubmatch(text, -1) {
			if _, ok := headers[m[1]]; ok {
				continue
			}
			data, err := fs.ReadFile(dir, m[1])
			if err != nil {
				return fmt.Errorf("hsm: %s includes %s: %w", from, m[1], err)
			}
			headers[m[1]] = string(data)
			if err := visit(m[1], string(data)); err != nil {
				return err
			}
		}
		return nil
	}
	return string(data), headers, visit(name, string(data))
}

// SourceHash is SHA-256 over everything a module is made from: compiler version, options, architectures, the .cu file and
// the .cuh files it includes.
func SourceHash(name, text string, headers map[string]string) string {
	h := sha256.New()
	part := func(s string) { fmt.Fprintf(h, "%d:%s", len(s), s) }
	for _, s := range slices.Concat([]string{NVRTC}, Options(), Archs()) {
		part(s)
	}
	part(name)
	part(text)
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		part(name)
		part(headers[name])
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// ModuleName is the container's file name of a source: rmsnorm.hsm of rmsnorm.cu.
func ModuleName(source string) string { return strings.TrimSuffix(path.Base(source), ".cu") + ".hsm" }
