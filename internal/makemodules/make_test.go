package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"harness-s/internal/testutil"
)

// TestMain lets the test binary be its own worker process.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-worker" {
		main()
		return
	}
	os.Exit(m.Run())
}

// needNVRTC skips where neither HARNESS_S_NVRTC nor an earlier `make modules` gives a compiler: tests fetch nothing.
func needNVRTC(t *testing.T) {
	t.Helper()
	if os.Getenv("HARNESS_S_NVRTC") != "" {
		return
	}
	library := filepath.Join(testutil.Root(t), ".cache", "nvrtc", "lib", "libnvrtc.so.12")
	if _, err := os.Stat(library); err != nil {
		t.Skip("no NVRTC: make modules fetches it, or set HARNESS_S_NVRTC")
	}
	t.Setenv("HARNESS_S_NVRTC", library)
}

type folder struct {
	t *testing.T
	options
}

func newFolder(t *testing.T) folder {
	dir := t.TempDir()
	f := folder{t, options{sources: filepath.Join(dir, "cu"), modules: filepath.Join(dir, "modules"), cache: filepath.Join(dir, "cache"), processes: 2}}
	for _, d := range []string{f.sources, f.modules} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func (f folder) write(name, text string) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.sources, name), []byte(text), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

func (f folder) read(name string) []byte {
	f.t.Helper()
	data, err := os.ReadFile(filepath.Join(f.modules, name))
	if err != nil {
		f.t.Fatal(err)
	}
	return data
}

// stale are the files that the next run would compile.
func (f folder) stale() string {
	f.t.Helper()
	b, err := plan(f.options)
	if err != nil {
		f.t.Fatal(err)
	}
	var names []string
	for _, s := range b.stale {
		names = append(names, s.Name)
	}
	return strings.Join(names, " ")
}

const (
	fill  = "#include \"one.cuh\"\nextern \"C\" __global__ void __launch_bounds__(64) fill(float *x) { x[threadIdx.x] = ONE; }\n"
	copy1 = "extern \"C\" __global__ void __launch_bounds__(64) copy1(float *y, const float *x) { y[threadIdx.x] = x[threadIdx.x]; }\n"
	// an array that another function indexes is in local memory
	deep = "static __device__ __noinline__ float pick(const float *y, int n) { float t[64]; for (int i = 0; i < 64; i++) t[i] = y[i]; return t[n]; }\n" +
		"extern \"C\" __global__ void __launch_bounds__(64) deep(float *x, int n) { x[0] = pick(x, n); }\n"
)

func TestOnlyChangedSourcesAreCompiled(t *testing.T) {
	needNVRTC(t)
	f := newFolder(t)
	f.write("fill.cu", fill)
	f.write("copy1.cu", copy1)
	f.write("one.cuh", "#define ONE 1.0f\n")
	if err := run(f.options, ""); err != nil {
		t.Fatal(err)
	}
	if s := f.stale(); s != "" {
		t.Errorf("stale after a run: %s", s)
	}
	table, module := f.read("table.json"), f.read("fill.hsm")
	f.write("one.cuh", "#define ONE 2.0f\n")
	if s := f.stale(); s != "fill.cu" {
		t.Errorf("stale after a header changed: %q", s)
	}
	f.write("one.cuh", "#define ONE 1.0f\n")
	if err := os.Truncate(filepath.Join(f.modules, "fill.hsm"), 10); err != nil {
		t.Fatal(err)
	}
	if s := f.stale(); s != "fill.cu" {
		t.Errorf("stale after a module was damaged: %q", s)
	}
	if err := run(f.options, ""); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(f.read("table.json"), table) || !bytes.Equal(f.read("fill.hsm"), module) {
		t.Error("made again from the same source, a module has other bytes")
	}
	if err := os.Remove(filepath.Join(f.sources, "copy1.cu")); err != nil {
		t.Fatal(err)
	}
	if err := run(f.options, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(f.modules, "copy1.hsm")); !os.IsNotExist(err) || bytes.Contains(f.read("table.json"), []byte("copy1")) {
		t.Error("the module of a source that is gone stays")
	}
}

// A kernel that spills, or does not compile, is refused by name and takes nothing else with it.
func TestBadSourcesAreRefused(t *testing.T) {
	needNVRTC(t)
	f := newFolder(t)
	f.write("bad.cu", "extern \"C\" __global__ void bad(float *x) { x[0] = missing; }\n")
	f.write("copy1.cu", copy1)
	f.write("deep.cu", deep)
	err := run(f.options, "")
	if err == nil || !strings.Contains(err.Error(), "missing") || !strings.Contains(err.Error(), "deep for sm_90a") || strings.Contains(err.Error(), "copy1.cu") {
		t.Errorf("got %v", err)
	}
	f.read("copy1.hsm")
	if s := f.stale(); s != "bad.cu deep.cu" {
		t.Errorf("stale: %q", s)
	}
}

func TestPlanNeedsSources(t *testing.T) {
	if _, err := plan(newFolder(t).options); err == nil {
		t.Error("no source and no error")
	}
}
