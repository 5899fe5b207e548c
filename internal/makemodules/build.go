package main

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"harness-s/internal/atomicfile"
	"harness-s/internal/hsm"
)

// builder is one run: what is stale, what was made of it, what failed.
type builder struct {
	options
	table  hsm.Table
	stale  []hsm.File // Name, Sources and Includes are set
	files  []string   // every .cu
	failed []error
}

// plan reads the table and finds the sources that are newer than their modules.
func plan(o options) (*builder, error) {
	b := &builder{options: o}
	data, err := os.ReadFile(filepath.Join(o.modules, "table.json"))
	if err == nil {
		b.table, err = hsm.ParseTable(data)
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return nil, err
	}
	b.table.NVRTC, b.table.Options = hsm.NVRTC, hsm.Options()
	if b.files, err = sourceFiles(o.sources); err != nil {
		return nil, err
	}
	if len(b.files) == 0 {
		return nil, fmt.Errorf("no .cu file in %s", o.sources)
	}
	for _, name := range b.files {
		text, headers, err := hsm.Sources(os.DirFS(o.sources), name)
		if err != nil {
			return nil, err
		}
		f := hsm.File{Name: name, Sources: hsm.SourceHash(name, text, headers), Includes: slices.Sorted(maps.Keys(headers))}
		if old, ok := b.table.File(name); !ok || old.Sources != f.Sources || !b.intact(old) {
			b.stale = append(b.stale, f)
		}
	}
	return b, nil
}

// intact says whether a file's module is the one that the table describes.
func (b *builder) intact(f hsm.File) bool {
	data, err := os.ReadFile(b.modulePath(f.Name))
	return err == nil && fmt.Sprintf("%x", sha256.Sum256(data)) == f.Module
}

func (b *builder) modulePath(source string) string {
	return filepath.Join(b.modules, hsm.ModuleName(source))
}

// compile makes every stale file's module, each as soon as all of its images are there. A file that does not compile or
// spills keeps its old module, which its source is then newer than.
func (b *builder) compile() error {
	library, err := findNVRTC(b.cache)
	if err != nil {
		return err
	}
	var jobs []job
	for _, f := range b.stale {
		for _, arch := range hsm.ArchsOf(f.Name) {
			jobs = append(jobs, job{File: f.Name, Arch: arch})
		}
	}
	start := time.Now()
	results, err := runJobs(library, b.sources, jobs, b.processes)
	if err != nil {
		return err
	}
	for _, f := range b.stale {
		if err := b.assemble(f, results); err != nil {
			b.failed = append(b.failed, err)
		}
	}
	fmt.Fprintf(os.Stderr, "%d images of %d files in %.1f s\n", len(jobs), len(b.stale), time.Since(start).Seconds())
	return nil
}

// assemble makes one file's module and table entry out of its images.
func (b *builder) assemble(f hsm.File, results map[job]result) error {
	var images []hsm.Image
	for _, arch := range hsm.ArchsOf(f.Name) {
		r := results[job{File: f.Name, Arch: arch}]
		if r.Error != "" {
			return errors.New(r.Error)
		}
		if r.Sources != f.Sources {
			return fmt.Errorf("%s was changed while it was compiled: run make modules again", f.Name)
		}
		image := hsm.Image{Arch: arch, Data: r.Image}
		rows, rest, err := describe(image, r.Log)
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		if rest != "" {
			fmt.Fprintf(os.Stderr, "%s for %s: the compiler says:\n%s\n", f.Name, arch, rest)
		}
		images = append(images, image)
		f.Kernels = append(f.Kernels, rows...)
	}
	slices.SortStableFunc(f.Kernels, func(x, y hsm.Kernel) int { return cmp.Compare(x.Name, y.Name) })
	if err := refuseSpills(f); err != nil {
		return err
	}
	data, err := hsm.Encode(images)
	if err != nil {
		return fmt.Errorf("%s: %w", f.Name, err)
	}
	f.Module = fmt.Sprintf("%x", sha256.Sum256(data))
	b.table.Set(f)
	if b.check {
		return nil
	}
	return atomicfile.Write(b.modulePath(f.Name), data)
}

// describe joins what the image and the assembler's log say about each kernel.
func describe(image hsm.Image, log string) (rows []hsm.Kernel, rest string, err error) {
	entries, err := hsm.Inspect(image)
	if err != nil {
		return nil, "", err
	}
	if len(entries) == 0 {
		return nil, "", fmt.Errorf("no kernel for %s", image.Arch)
	}
	reports, rest, err := hsm.ParseReport(log)
	if err != nil || image.Arch == hsm.PTXArch {
		return nil, rest, err
	}
	if len(reports) != len(entries) {
		return nil, "", fmt.Errorf("%s: %d kernels in the image, %d in the log", image.Arch, len(entries), len(reports))
	}
	for _, r := range reports {
		e, ok := entries[r.Name]
		if !ok || e.Registers != r.Registers {
			return nil, "", fmt.Errorf("%s: kernel %s: image and log differ: %+v, %+v", image.Arch, r.Name, e, r)
		}
		rows = append(rows, hsm.Kernel{Name: r.Name, Arch: image.Arch, Registers: r.Registers, Shared: r.Shared, Stack: r.Stack,
			SpillStores: r.SpillStores, SpillLoads: r.SpillLoads, Constant: e.Constant, Params: e.Params, MaxThreads: e.MaxThreads})
	}
	return rows, rest, nil
}

func refuseSpills(f hsm.File) error {
	var bad []string
	for _, k := range f.Kernels {
		if k.Spills() {
			bad = append(bad, fmt.Sprintf("  %s for %s: %d registers, stack frame of %d bytes, %d bytes of spill stores, %d of loads",
				k.Name, k.Arch, k.Registers, k.Stack, k.SpillStores, k.SpillLoads))
		}
	}
	if len(bad) > 0 {
		return fmt.Errorf("%s: values in local memory; fewer of them alive at once, smaller tiles, or no index that only the run knows:\n%s",
			f.Name, strings.Join(bad, "\n"))
	}
	return nil
}

// finish writes the table, drops modules whose source is gone and reports.
func (b *builder) finish() error {
	b.table.Files = slices.DeleteFunc(b.table.Files, func(f hsm.File) bool { return !slices.Contains(b.files, f.Name) })
	total := 0
	if !b.check {
		if err := atomicfile.Write(filepath.Join(b.modules, "table.json"), b.table.Format()); err != nil {
			return err
		}
		var err error
		if total, err = b.sweep(); err != nil {
			return err
		}
	}
	kernels := map[string]bool{}
	for _, f := range b.table.Files {
		for _, k := range f.Kernels {
			kernels[k.Name] = true
		}
	}
	fmt.Fprintf(os.Stderr, "%d files, %d kernels, %d changed, %.1f KiB of modules\n", len(b.files), len(kernels), len(b.stale), float64(total)/1024)
	if len(b.failed) > 0 {
		return fmt.Errorf("%d of %d files failed:\n%w", len(b.failed), len(b.stale), errors.Join(b.failed...))
	}
	return nil
}

// sweep removes modules that no entry describes and returns the bytes of the others.
func (b *builder) sweep() (total int, err error) {
	paths, err := filepath.Glob(filepath.Join(b.modules, "*.hsm"))
	if err != nil {
		return 0, err
	}
	for _, p := range paths {
		source := strings.TrimSuffix(filepath.Base(p), ".hsm") + ".cu"
		if _, ok := b.table.File(source); !ok {
			if err := os.Remove(p); err != nil {
				return 0, err
			}
			continue
		}
		info, err := os.Stat(p)
		if err != nil {
			return 0, err
		}
		total += int(info.Size())
	}
	return total, nil
}
