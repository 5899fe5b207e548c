package sim

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"harness-s/internal/testutil"
)

// testSources are the kernels of testdata with the headers of the kernel language.
func testSources(t testing.TB) fs.FS {
	t.Helper()
	out := fstest.MapFS{}
	for _, pattern := range []string{"testdata/cu/*", filepath.Join(testutil.Root(t), "kernels", "cu", "*.cuh")} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			out["cu/"+filepath.Base(name)] = &fstest.MapFile{Data: text}
		}
	}
	return out
}

// engineSources are the engine's own files, without the driver and the libraries around it.
func engineSources(t testing.TB) fs.FS {
	t.Helper()
	out := fstest.MapFS{}
	for _, name := range []string{"device.h", "fiber.h", "engine.h", "hs_sim.h", "checks.h", "checks.cpp", "block.cpp", "warp.cpp", "fault.cpp", "engine.cpp",
		"async.h", "hopper_sim.h", "hopper.cpp", "wgmma.cpp", "tensor_map.h", "tensor_map.cpp"} {
		text, err := own.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = &fstest.MapFile{Data: text}
	}
	return out
}

var built struct {
	sync.Mutex
	runner  string
	library map[Options]string
}

// TestMain keeps the program that the tests run in a folder of its own; libraries go where they are kept between builds.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "sim-test-")
	if err != nil {
		panic(err)
	}
	built.library = map[Options]string{}
	built.runner = filepath.Join(dir, "run")
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// library builds the test kernels and the program that launches them, once a variant.
func library(t testing.TB, o Options) string {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip("no g++")
	}
	if _, err := os.Stat(built.runner); err != nil {
		if out, err := exec.Command("g++", "-O1", "-o", built.runner, "testdata/run.cpp", "-ldl").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	if built.library[o] == "" {
		path, err := build(testSources(t), engineSources(t), o)
		if err != nil {
			t.Fatal(err)
		}
		built.library[o] = path
	}
	return built.library[o]
}

// launch is one run of a test kernel.
type launch struct {
	kernel  string
	blocks  int // 0: 1
	threads int // 0: 32
	dynamic int
	seed    uint64
	repeat  int // seeds; 0: 1
	out     int // words
	p       [4]int
	in      []uint32
	mapping string // MAP of run.cpp
	options Options
}

type counters struct{ blocks, reads, ways, maxWays, static, dynamic int }

// run returns the output of the last seed. The error is what the engine says.
func (l launch) run(t testing.TB) ([]uint32, counters, error) {
	t.Helper()
	args := []string{library(t, l.options), l.kernel, fmt.Sprint(max(l.blocks, 1)), fmt.Sprint(orElse(l.threads, 32)), fmt.Sprint(l.dynamic),
		fmt.Sprint(l.seed), fmt.Sprint(max(l.repeat, 1)), fmt.Sprint(l.out)}
	for _, p := range l.p {
		args = append(args, fmt.Sprint(p))
	}
	var in, out, report bytes.Buffer
	if err := binary.Write(&in, binary.LittleEndian, l.in); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(built.runner, args...)
	if l.mapping != "" {
		cmd.Env = append(os.Environ(), "MAP="+l.mapping)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = &in, &out, &report
	err := cmd.Run()
	if exit, ok := err.(*exec.ExitError); ok && exit.ExitCode() == 3 {
		return nil, counters{}, fmt.Errorf("%s", report.String())
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", l.kernel, err, report.String())
	}
	words := make([]uint32, out.Len()/4)
	if err := binary.Read(&out, binary.LittleEndian, words); err != nil {
		t.Fatal(err)
	}
	var c counters
	if _, err := fmt.Sscan(report.String(), &c.blocks, &c.reads, &c.ways, &c.maxWays, &c.static, &c.dynamic); err != nil {
		t.Fatalf("counters %q: %v", report.String(), err)
	}
	return words, c, nil
}

// must is run for a launch that has to succeed.
func (l launch) must(t testing.TB) ([]uint32, counters) {
	t.Helper()
	out, c, err := l.run(t)
	if err != nil {
		t.Fatalf("seed %d: %v", l.seed, err)
	}
	return out, c
}

func orElse(n, other int) int {
	if n == 0 {
		return other
	}
	return n
}

func count(n int) []uint32 {
	x := make([]uint32, n)
	for i := range x {
		x[i] = uint32(i)
	}
	return x
}

func floats(x []float32) []uint32 {
	out := make([]uint32, len(x))
	for i, v := range x {
		out[i] = math.Float32bits(v)
	}
	return out
}

func TestLibraryIsBuiltOnceAndKept(t *testing.T) {
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip("no g++")
	}
	t.Setenv("HARNESS_S_SIM_DIR", t.TempDir())
	own := fstest.MapFS{"engine.cpp": {Data: []byte("int engine;\n")}}
	source := fstest.MapFS{"cu/k.cu": {Data: []byte("#include \"k.cuh\"\nstatic int unused = ONE;\n")}, "cu/k.cuh": {Data: []byte("#define ONE 1\n")}}
	var wait sync.WaitGroup
	paths := make([]string, 3)
	for i := range paths {
		wait.Go(func() {
			path, err := build(source, own, Options{})
			if err != nil {
				t.Error(err)
			}
			paths[i] = path
		})
	}
	wait.Wait()
	if paths[0] != paths[1] || paths[0] != paths[2] {
		t.Errorf("one library for the same sources, got %v", paths)
	}
	t.Setenv("PATH", "")
	if again, err := build(source, own, Options{}); err != nil || again != paths[0] {
		t.Errorf("a built library needs no compiler: %q, %v", again, err)
	}
	source["cu/k.cuh"] = &fstest.MapFile{Data: []byte("#define ONE 2\n")}
	if _, err := build(source, own, Options{}); err == nil || !strings.Contains(err.Error(), "apt-get install g++") {
		t.Errorf("another header is another library, and without g++ the error says what to install: %v", err)
	}
}

func TestCompileErrorNamesTheLine(t *testing.T) {
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip("no g++")
	}
	t.Setenv("HARNESS_S_SIM_DIR", t.TempDir())
	_, err := build(fstest.MapFS{"cu/bad.cu": {Data: []byte("\nint x = y;\n")}}, fstest.MapFS{}, Options{})
	if err == nil || !strings.Contains(err.Error(), "cu/bad.cu:2") {
		t.Errorf("want the place of the error, got %v", err)
	}
	entries, _ := os.ReadDir(os.Getenv("HARNESS_S_SIM_DIR"))
	for _, e := range entries {
		if e.Name() != "objects" {
			t.Errorf("a failed build leaves %s", e.Name())
		}
	}
}

func TestPruneKeepsTheNewest(t *testing.T) {
	dir := t.TempDir()
	for i := range 10 {
		if err := os.Mkdir(filepath.Join(dir, fmt.Sprint("lib", i)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	touch(filepath.Join(dir, "lib3"))
	for name, age := range map[string]time.Duration{"building-1": 2 * abandoned, "building-2": 0} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		then := time.Now().Add(-age)
		if err := os.Chtimes(filepath.Join(dir, name), then, then); err != nil {
			t.Fatal(err)
		}
	}
	prune(dir)
	left, _ := filepath.Glob(filepath.Join(dir, "*"))
	if _, err := os.Stat(filepath.Join(dir, "lib3")); err != nil || len(left) != keepLibraries+1 {
		t.Errorf("left %v", left)
	}
}

func TestObjectsFollowTheirHeaders(t *testing.T) {
	files := map[string][]byte{"cu/a.cu": []byte("#include \"a.cuh\"\n"), "cu/a.cuh": []byte("  # include \"b.h\"\n"), "sim/b.h": nil, "cu/other.cuh": nil,
		"sim/hidden.cpp": []byte("// #include \"b.h\"\n")}
	if got := sortedNames(included(files, "cu/a.cu")); !slices.Equal(got, []string{"cu/a.cu", "cu/a.cuh", "sim/b.h"}) {
		t.Errorf("cu/a.cu is made of %v", got)
	}
	if got := sortedNames(included(files, "sim/hidden.cpp")); len(got) != 1 {
		t.Errorf("sim/hidden.cpp is made of %v", got)
	}
}
