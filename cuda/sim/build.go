// Package sim builds the simulator of the CUDA backend: a shared object that stands where the driver, cuBLASLt and NCCL
// would, and runs the kernel sources themselves on the CPU, a fiber for each CUDA thread. See engine.h and fiber.h for
// how, and docs for what it cannot show.
package sim

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/cpu"
)

// The C++ files carry an `ignore` build line: the go command refuses C++ in a package without cgo, even where no file of
// the package is compiled by it.
//
//go:embed *.cpp *.h
var own embed.FS

const libraryName = "libharness-sim.so"

// Options change what is built.
type Options struct {
	// Checked instruments every access of a kernel: what no barrier orders, shared memory that was never written,
	// misaligned addresses, indices outside an array and overflows of signed integers end the launch with an error that
	// names the places. Several times slower.
	Checked bool
}

// Library returns the path of the simulator with the kernels of sources, which holds cu/*.cu and what they include.
// It is taken from sim/<hash> beside the executable if one was shipped, else from the user's cache
// (HARNESS_S_SIM_DIR, by default harness-s/sim in os.UserCacheDir), where it is built on first use with g++.
// The hash is of every source and flag. Processes may call it at once: one builds. With HARNESS_S_SIM_CHECKED=1 in the
// environment it is the checked build.
func Library(sources fs.FS) (string, error) {
	return Build(sources, Options{Checked: os.Getenv("HARNESS_S_SIM_CHECKED") == "1"})
}

// Build is Library with options.
func Build(sources fs.FS, o Options) (string, error) { return build(sources, own, o) }

func build(sources, own fs.FS, o Options) (string, error) {
	files, err := collect(sources, own)
	if err != nil {
		return "", err
	}
	flags := flagsOf(o)
	key := hash(files, flags.all())
	if exe, err := os.Executable(); err == nil {
		shipped := filepath.Join(filepath.Dir(exe), "sim", key, libraryName)
		if _, err := os.Stat(shipped); err == nil {
			return shipped, nil
		}
	}
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	lib := filepath.Join(cache, key, libraryName)
	if _, err := os.Stat(lib); err == nil {
		touch(filepath.Dir(lib))
		return lib, nil
	}
	unlock, err := lock(filepath.Join(cache, key+".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(lib); err == nil { // another process built it meanwhile
		return lib, nil
	}
	if err := compileTo(files, flags, lib); err != nil {
		return "", err
	}
	prune(cache)
	return lib, nil
}

// collect reads the kernel sources to cu/ and the simulator's own to sim/, by slash-separated path.
func collect(sources, own fs.FS) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, part := range []struct {
		fsys      fs.FS
		from, to  string
		extension []string
	}{{sources, "cu", "cu", []string{".cu", ".cuh"}}, {own, ".", "sim", []string{".cpp", ".h"}}} {
		entries, err := fs.ReadDir(part.fsys, part.from)
		if err != nil {
			return nil, fmt.Errorf("kernel sources: %w", err)
		}
		for _, e := range entries {
			if !slices.Contains(part.extension, path.Ext(e.Name())) {
				continue
			}
			text, err := fs.ReadFile(part.fsys, path.Join(part.from, e.Name()))
			if err != nil {
				return nil, fmt.Errorf("kernel sources: %w", err)
			}
			files[path.Join(part.to, e.Name())] = text
		}
	}
	return files, nil
}

// flags are those of the compiler.
type flags struct{ common, kernels []string }

func (f flags) all() []string { return slices.Concat(f.common, f.kernels) }

// of gives the flags for a file.
func (f flags) of(name string) []string {
	if path.Ext(name) == ".cu" {
		return f.all()
	}
	return f.common
}

// flagsOf: aliasing is as loose as on the device compiler, and products and sums may be fused as there. -iquote: headers of
// this folder have names that system headers have too. The thread sanitizer's calls are answered by checks.cpp, not by
// its own library.
func flagsOf(o Options) flags {
	f := flags{common: []string{"-std=c++17", "-O2", "-g1", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing", "-ffp-contract=fast",
		"-w", "-DHS_SIM", "-iquote", "sim", "-iquote", "cu"}}
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA && cpu.X86.HasBMI2 {
		f.common = append(f.common, "-mavx2", "-mfma", "-mbmi2")
	}
	if o.Checked {
		f.common = append(f.common, "-DHS_SIM_CHECKED")
		f.kernels = []string{"-O1", "--param=tsan-instrument-func-entry-exit=0", "-fsanitize=thread,alignment,bounds,shift-exponent,signed-integer-overflow"}
	}
	return f
}

var linkFlags = []string{"-shared", "-pthread", "-static-libstdc++", "-static-libgcc", "-Wl,-z,defs", "-lm"}

func hash(files map[string][]byte, flags []string) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s %q %q\n", runtime.GOARCH, flags, linkFlags)
	for _, name := range sortedNames(files) {
		fmt.Fprintf(h, "%s %d\n", name, len(files[name]))
		h.Write(files[name])
	}
	return hex.EncodeToString(h.Sum(nil))[:24]
}

func sortedNames(files map[string][]byte) []string { return slices.Sorted(maps.Keys(files)) }

// cacheDir is the folder of built simulators; it exists.
func cacheDir() (string, error) {
	dir := os.Getenv("HARNESS_S_SIM_DIR")
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("no folder for the built library (set HARNESS_S_SIM_DIR): %w", err)
		}
		dir = filepath.Join(cache, "harness-s", "sim")
	}
	return dir, os.MkdirAll(dir, 0o755)
}

// lock waits until this process alone holds the file. unlock removes it: whoever waited for it then finds the library, or
// builds it once more after a failure.
func lock(name string) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return func() {
		os.Remove(name)
		f.Close()
	}, nil
}

// compileTo compiles in a temporary folder of the cache and renames the result to its place.
func compileTo(files map[string][]byte, flags flags, lib string) error {
	gxx, err := exec.LookPath(cmp.Or(os.Getenv("CXX"), "g++"))
	if err != nil {
		return fmt.Errorf("a C++ compiler is needed to build it: apt-get install g++ (or set CXX): %w", err)
	}
	cache := filepath.Dir(filepath.Dir(lib))
	work, err := os.MkdirTemp(cache, "building-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := write(files, work); err != nil {
		return err
	}
	objects, err := compileAll(compiler{gxx, work, filepath.Join(cache, "objects")}, files, flags)
	if err != nil {
		return err
	}
	done := filepath.Join(work, "done")
	if err := os.Mkdir(done, 0o755); err != nil {
		return err
	}
	args := append([]string{"-o", filepath.Join(done, libraryName)}, objects...)
	if err := run(gxx, work, append(args, linkFlags...)); err != nil {
		return err
	}
	err = os.Rename(done, filepath.Dir(lib))
	if _, there := os.Stat(lib); there == nil { // another process may have been first
		return nil
	}
	return err
}

func write(files map[string][]byte, dir string) error {
	for name, text := range files {
		to := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(to, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// compiler is g++ run in a folder of sources, with a folder of objects kept for the next build.
type compiler struct{ gxx, dir, objects string }

// compileAll compiles each .cu and .cpp, as many at once as there are processors.
func compileAll(c compiler, files map[string][]byte, flags flags) (objects []string, err error) {
	if err := os.MkdirAll(c.objects, 0o755); err != nil {
		return nil, err
	}
	var group errgroup.Group
	group.SetLimit(runtime.NumCPU())
	for _, name := range sortedNames(files) {
		if ext := path.Ext(name); ext != ".cu" && ext != ".cpp" {
			continue
		}
		object := filepath.Join(c.objects, hash(included(files, name), flags.of(name))+".o")
		objects = append(objects, object)
		group.Go(func() error { return c.compile(name, object, flags.of(name)) })
	}
	return objects, group.Wait()
}

var includeLine = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*include[ \t]+"([^"]+)"`)

// included is a source with the files that it includes, and those that they include.
func included(files map[string][]byte, name string) map[string][]byte {
	all := map[string][]byte{}
	var add func(name string)
	add = func(name string) {
		text, ok := files[name]
		if _, seen := all[name]; seen || !ok {
			return
		}
		all[name] = text
		for _, m := range includeLine.FindAllSubmatch(text, -1) {
			add("sim/" + string(m[1]))
			add("cu/" + string(m[1]))
		}
	}
	add(name)
	return all
}

func (c compiler) compile(name, object string, flags []string) error {
	if _, err := os.Stat(object); err == nil {
		touch(object)
		return nil
	}
	if err := run(c.gxx, c.dir, append(slices.Clone(flags), "-x", "c++", "-c", name, "-o", name+".o")); err != nil {
		return err
	}
	return os.Rename(filepath.Join(c.dir, name+".o"), object)
}

// run is one call of the compiler in dir, so that the paths in messages and __FILE__ are cu/... and sim/...
func run(gxx, dir string, args []string) error {
	cmd := exec.Command(gxx, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", gxx, strings.Join(args, " "), err, firstLines(out, 40))
	}
	return nil
}

func firstLines(text []byte, n int) []byte {
	lines := bytes.SplitN(text, []byte("\n"), n+1)
	return bytes.Join(lines[:min(n, len(lines))], []byte("\n"))
}

func touch(dir string) {
	now := time.Now()
	_ = os.Chtimes(dir, now, now) // only makes prune keep it longer
}

const keepLibraries, keepObjects, abandoned = 6, 200, time.Hour

// prune deletes all but what was used last, and what builds that were killed left. A process that has a library open
// keeps it.
func prune(cache string) {
	pruneFolder(cache, keepLibraries)
	pruneFolder(filepath.Join(cache, "objects"), keepObjects)
}

func pruneFolder(dir string, keep int) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	used := map[string]time.Time{}
	for _, e := range entries {
		info, err := e.Info()
		switch {
		case err != nil || e.Name() == "objects":
		case strings.HasPrefix(e.Name(), "building-") || strings.HasSuffix(e.Name(), ".lock"):
			if time.Since(info.ModTime()) > abandoned {
				os.RemoveAll(filepath.Join(dir, e.Name()))
			}
		default:
			used[e.Name()] = info.ModTime()
		}
	}
	names := slices.SortedFunc(maps.Keys(used), func(a, b string) int { return used[b].Compare(used[a]) })
	for _, name := range names[min(keep, len(names)):] {
		os.RemoveAll(filepath.Join(dir, name))
	}
}
