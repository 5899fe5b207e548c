//go:build cgo

package kernels

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"harness-s/cuda/sim"
)

// orders are what orders the threads of a kernel: a mutant lacks one of them.
var orders = regexp.MustCompile(`(__syncthreads|__syncwarp|cp_async_wait<[^>]*>|mbar_fence|async_proxy_fence|wgmma_fence|wgmma_wait<[^>]*>)\(\);|` +
	`\b(mbar_wait|mbar_arrive|leave|bar_sync|bar_arrive)\((&|[0-9a-z])[^;{}]*\);`)

const (
	fenceAgain = "the registers were fenced before the wait; the compiler wants a fence behind a loop, and would put one there"
	ownRows    = "on the simulator a warp's part of a wgmma reads its own 16 rows of A alone, which the manual does not promise"
)

// mutantTests are the tests that run what a file of cu/ has orders in.
var mutantTests = map[string]string{
	"attention.cu":               "^TestDeviceAttentionReference$/_(d32|d256)_",
	"attention_backward.cu":      "^TestDeviceAttentionReference$/_(d32|d256)_",
	"attention_backward_sm90.cu": "^TestDeviceAttentionReference$/_d256_sm90_",
	"attention_sm90.cu":          "^TestDeviceAttentionReference$/_d256_sm90_",
	"attention_sm90.cuh":         "^TestDeviceAttentionReference$/_d256_sm90_",
	"embed.cu":                   "^TestDeviceEmbedBackward$",
	"gates.cu":                   "^TestDeviceGDNGates$",
	"gdn.cuh":                    "^TestDeviceGDNReference$",
	"gdn_backward.cu":            "^TestDeviceGDN(Reference|Order)$",
	"gdn_prepare.cu":             "^TestDeviceGDNReference$",
	"gdn_walk.cuh":               "^TestDeviceGDN(Reference|Order)$",
	"gnorm.cu":                   "^TestDeviceGatedRMSNorm$",
	"head.cu":                    "^TestDeviceHead",
	"hs.cuh":                     "^TestDevice(Head|RMSNorm|Loss)",
	"rope.cu":                    "^TestDeviceQKNormRope$",
	"util.cu":                    "^TestDevice(Reductions|RMSNorm)$",
}

// spare are orders that nothing depends on yet, by file and the line before theirs, and why they stay.
var spare = map[string]string{
	"attention_sm90.cu: mbar_wait(&bar.values[before], (t - 1) / STAGES & 1);": fenceAgain,
	"attention_sm90.cu: bf16 *own = s.q + m0 * PANEL;":                         ownRows,
	"attention_backward_sm90.cu: mbar_wait(&bar.values, 0);":                   fenceAgain,
	"attention_backward_sm90.cu: mbar_wait(&bar.values, t & 1);":               fenceAgain,
	"attention_backward_sm90.cu: bf16 *own = s.q + m0 * PANEL;":                ownRows,
	"attention_backward_sm90.cu: bf16 *own = values ? s.k : s.v;":              ownRows,
	"gdn_prepare.cu: warp_mma<false, true>(f, low + 16, LDM, own, 36, 16);":    "the store after it goes to columns that the product did not read; one warp, no cost",
	"hs.cuh: v = warp_max(v);":                                                 "red may be used again at once, says block_max; every kernel uses it first or after block_sum's last barrier",
}

// Every barrier and every wait of the kernels is needed, and the simulator's checked build sees when one is missing.
// HARNESS_S_MUTANTS limits it to the files that contain its value.
func TestDeviceMutants(t *testing.T) {
	if os.Getenv("HARNESS_S_LONG") == "" {
		t.Skip("minutes: set HARNESS_S_LONG=1")
	}
	rig := newMutantRig(t)
	files, err := fs.Glob(sources, "cu/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if !strings.Contains(file, os.Getenv("HARNESS_S_MUTANTS")) || file == "cu/ptx.cuh" || file == "cu/hopper.cuh" {
			continue
		}
		text, err := fs.ReadFile(sources, file)
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range orders.FindAllIndex(text, -1) {
			line := 1 + strings.Count(string(text[:at[0]]), "\n")
			mutant := string(text[:at[0]]) + ";" + string(text[at[1]:])
			t.Run(fmt.Sprintf("%s:%d", filepath.Base(file), line), func(t *testing.T) {
				rig.check(t, file, mutant, strings.TrimSpace(strings.Split(string(text), "\n")[line-2]))
			})
		}
	}
}

// mutantRig runs this test binary again with another simulator in the place where a shipped one would lie.
type mutantRig struct{ exe, library string }

func newMutantRig(t *testing.T) mutantRig {
	t.Helper()
	t.Setenv("HARNESS_S_SIM_DIR", t.TempDir()) // mutants do not drive real ones out of the cache
	t.Setenv("HARNESS_S_SIM_CHECKED", "1")
	plain, err := sim.Build(sources, sim.Options{Checked: true})
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	r := mutantRig{filepath.Join(dir, "kernels.test"), filepath.Join(dir, "sim", filepath.Base(filepath.Dir(plain)), filepath.Base(plain))}
	if err := os.MkdirAll(filepath.Dir(r.library), 0o755); err != nil {
		t.Fatal(err)
	}
	copyFile(t, r.exe, self, 0o755)
	return r
}

func copyFile(t *testing.T, to, from string, mode os.FileMode) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}

// found is what the simulator says, or what comes of a result that is read before it is there: it holds NaN.
var found = regexp.MustCompile(`((race|uninitialised|divergent barrier|divergent warp|missing barrier|deadlock|wgmma): |(mbarrier|bulk copy) at |the block ends while |relative L2 error NaN)[^;\n]*`)

// check fails unless the tests of a file stop at an error that the simulator reports.
func (r mutantRig) check(t *testing.T, file, mutant, before string) {
	tests, ok := mutantTests[filepath.Base(file)]
	if !ok {
		t.Fatalf("no tests are named for %s", file)
	}
	mutated := fstest.MapFS{}
	all, err := fs.Glob(sources, "cu/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		text, err := fs.ReadFile(sources, name)
		if err != nil {
			t.Fatal(err)
		}
		mutated[name] = &fstest.MapFile{Data: text}
	}
	mutated[file] = &fstest.MapFile{Data: []byte(mutant)}
	library, err := sim.Build(mutated, sim.Options{Checked: true})
	if err != nil {
		t.Fatal(err)
	}
	copyFile(t, r.library, library, 0o644)
	out, err := exec.Command(r.exe, "-test.run", tests, "-test.failfast").CombinedOutput()
	why, isSpare := spare[filepath.Base(file)+": "+before]
	switch {
	case err != nil && found.Match(out):
		t.Logf("%s", found.Find(out))
		if isSpare {
			t.Errorf("it is needed after all: %s", why)
		}
	case err != nil:
		t.Errorf("the tests fail, but not by what the simulator checks:\n%s", out)
	case !isSpare:
		t.Errorf("nothing is found (after %q)", before)
	}
}
