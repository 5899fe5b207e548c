package kernels

import (
	"bytes"
	"errors"
	"io/fs"
	"slices"
	"testing"

	"harness-s/internal/hsm"
)

const remedy = "run make modules"

func readTable(t *testing.T) hsm.Table {
	t.Helper()
	table, err := moduleTable()
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func readModule(t *testing.T, file string) []hsm.Image {
	t.Helper()
	data, err := modules.ReadFile("modules/" + hsm.ModuleName(file))
	if err != nil {
		t.Fatalf("%v: %s", err, remedy)
	}
	images, err := hsm.Decode(data)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return images
}

// A source that is newer than its module would be tested on the simulator and not be what devices run.
func TestModulesAreMadeFromTheSources(t *testing.T) {
	table := readTable(t)
	if table.NVRTC != hsm.NVRTC || !slices.Equal(table.Options, hsm.Options()) {
		t.Errorf("modules made by NVRTC %s with %q: %s", table.NVRTC, table.Options, remedy)
	}
	dir, err := fs.Sub(sources, "cu")
	if err != nil {
		t.Fatal(err)
	}
	names, err := fs.Glob(dir, "*.cu")
	if err != nil || len(names) == 0 {
		t.Fatalf("%d sources, %v", len(names), err)
	}
	for _, name := range names {
		text, headers, err := hsm.Sources(dir, name)
		if err != nil {
			t.Fatal(err)
		}
		if f, ok := table.File(name); !ok {
			t.Errorf("%s has no module: %s", name, remedy)
		} else if f.Sources != hsm.SourceHash(name, text, headers) {
			t.Errorf("%s, or a file it includes, is newer than its module: %s", name, remedy)
		}
	}
	for _, f := range table.Files {
		if !slices.Contains(names, f.Name) {
			t.Errorf("a module of %s, which is gone: %s", f.Name, remedy)
		}
	}
	if files := moduleFiles(); len(files) != len(table.Files) {
		t.Errorf("%d modules, %d in the table: %s", len(files), len(table.Files), remedy)
	}
}

// What the table says of a kernel is what its image says, nothing keeps values in local memory, and every architecture has
// the same kernels.
func TestModuleTable(t *testing.T) {
	for _, f := range readTable(t).Files {
		var first map[string]hsm.Entry
		rows := 0
		for i, image := range readModule(t, f.Name) {
			if archs := hsm.ArchsOf(f.Name); i >= len(archs) || image.Arch != archs[i] {
				t.Fatalf("%s: image %d is for %s, want %s", f.Name, i, image.Arch, archs)
			}
			entries, err := hsm.Inspect(image)
			if err != nil {
				t.Fatalf("%s: %v", f.Name, err)
			}
			if first == nil {
				first = entries
			}
			for name, e := range entries {
				if first[name].Params != e.Params {
					t.Errorf("%s: %s takes %d bytes on %s, %d on %s", f.Name, name, e.Params, image.Arch, first[name].Params, hsm.Archs()[0])
				}
			}
			if len(entries) != len(first) {
				t.Errorf("%s: %d kernels for %s, %d for %s", f.Name, len(entries), image.Arch, len(first), hsm.Archs()[0])
			}
			if image.Arch != hsm.PTXArch {
				rows += len(entries)
				checkRows(t, f, image.Arch, entries)
			}
		}
		if rows != len(f.Kernels) {
			t.Errorf("%s: %d rows in the table, %d kernels in the images: %s", f.Name, len(f.Kernels), rows, remedy)
		}
	}
}

func checkRows(t *testing.T, f hsm.File, arch string, entries map[string]hsm.Entry) {
	t.Helper()
	for _, k := range f.Kernels {
		if k.Arch != arch {
			continue
		}
		e, ok := entries[k.Name]
		if !ok || (hsm.Entry{Params: k.Params, MaxThreads: k.MaxThreads, Registers: k.Registers, Constant: k.Constant}) != e {
			t.Errorf("%s: %s for %s: table %+v, image %+v: %s", f.Name, k.Name, arch, k, e, remedy)
		}
		if k.Spills() {
			t.Errorf("%s: %s for %s spills: %+v", f.Name, k.Name, arch, k)
		}
		if limit := 65536 / max(1, k.MaxThreads); k.MaxThreads == 0 || k.Registers > min(255, limit) {
			t.Errorf("%s: %s for %s: %d registers a thread, %d threads a block cannot be launched", f.Name, k.Name, arch, k.Registers, k.MaxThreads)
		}
	}
}

// Every kernel that Go launches is in every image, with the parameter that Go passes; and no image has a kernel that
// nothing launches.
func TestModulesHaveTheKernels(t *testing.T) {
	for _, arch := range hsm.Archs() {
		entries := map[string]hsm.Entry{}
		for _, f := range readTable(t).Files {
			found := inspectFor(t, f.Name, arch)
			for name, e := range found {
				if _, twice := entries[name]; twice {
					t.Errorf("%s: two kernels called %s", arch, name)
				}
				entries[name] = e
			}
		}
		for _, k := range kernelList {
			for _, name := range k.names() {
				e, ok := entries[name]
				if ok != k.on(arch) {
					t.Errorf("%s: kernel %s is there: %v, want %v: %s", arch, name, ok, k.on(arch), remedy)
				} else if ok && e.Params != k.args {
					t.Errorf("%s: %s takes %d bytes of parameters, Go passes %d", arch, name, e.Params, k.args)
				}
				delete(entries, name)
			}
		}
		for name := range entries {
			t.Errorf("%s: nothing launches %s", arch, name)
		}
	}
}

// inspectFor lists the kernels of a file's image for an architecture, none where it is not made for it.
func inspectFor(t *testing.T, file, arch string) map[string]hsm.Entry {
	t.Helper()
	for _, image := range readModule(t, file) {
		if image.Arch != arch {
			continue
		}
		entries, err := hsm.Inspect(image)
		if err != nil {
			t.Fatal(err)
		}
		return entries
	}
	if slices.Contains(hsm.ArchsOf(file), arch) {
		t.Errorf("%s has no image for %s: %s", file, arch, remedy)
	}
	return nil
}

func TestModuleForADevice(t *testing.T) {
	for cc, want := range map[int]string{80: "sm_80", 86: "sm_80", 89: "sm_80", 90: "sm_90a", 100: "sm_100a", 120: "sm_120", 121: "sm_120",
		103: hsm.PTXArch, 110: hsm.PTXArch, 130: hsm.PTXArch} {
		if got, err := moduleArch(cc); err != nil || got != want {
			t.Errorf("compute capability %d: %s, %v, want %s", cc, got, err, want)
		}
	}
	file := moduleFiles()[0]
	if _, err := moduleImage(file, 75); !errors.Is(err, errOldDevice) || !bytes.Contains([]byte(err.Error()), []byte("7.5")) {
		t.Errorf("compute capability 7.5: %v", err)
	}
	if cubin, err := moduleImage(file, 86); err != nil || !bytes.HasPrefix(cubin, []byte("\x7fELF")) {
		t.Errorf("8.6: %v, starts with %.4q", err, cubin)
	}
	if ptx, err := moduleImage(file, 130); err != nil || bytes.IndexByte(ptx, 0) != len(ptx)-1 {
		t.Errorf("13.0: %v, want text and one NUL behind it", err)
	}
	if _, err := moduleImage("none.cu", 90); err == nil {
		t.Error("a module that is not there")
	}
}

// The whole of a device's modules must be cheap to unpack: it happens at every start.
func BenchmarkModuleImages(b *testing.B) {
	bytes := 0
	for b.Loop() {
		for _, file := range moduleFiles() {
			image, err := moduleImage(file, 90)
			if err != nil {
				b.Fatal(err)
			}
			bytes += len(image)
		}
	}
	b.ReportMetric(float64(bytes)/float64(b.N), "bytes/op")
}
