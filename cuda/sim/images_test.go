package sim

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"harness-s/internal/hsm"
	"harness-s/internal/testutil"
)

// A shipped module loads on the devices it was compiled for and on no others, and what the simulator reads in it is what
// package hsm reads.
func TestShippedImages(t *testing.T) {
	const name = "gnorm" // small, with static shared memory
	dir := filepath.Join(testutil.Root(t), "kernels")
	data, err := os.ReadFile(filepath.Join(dir, "modules", name+".hsm"))
	if err != nil {
		t.Fatal(err)
	}
	images, err := hsm.Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	program := driverTests(t)
	lib := libraryOf(t, dir, name+".cu")
	for _, i := range images {
		file := filepath.Join(t.TempDir(), i.Arch)
		if err := os.WriteFile(file, i.Data, 0o600); err != nil {
			t.Fatal(err)
		}
		entries, err := hsm.Inspect(i)
		if err != nil {
			t.Fatal(err)
		}
		for _, cc := range []string{"8.0", "8.6", "9.0", "10.0", "12.0"} {
			test := "image_is_for_another_device"
			if fits(i.Arch, cc) {
				test = "image_fits"
			}
			cmd := exec.Command(program, test)
			cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Dir(lib), "HARNESS_S_SIM_CC="+cc, "FILE="+file,
				"KERNELS="+strings.Join(slices.Collect(maps.Keys(entries)), " "))
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%s on %s: %v\n%s", i.Arch, cc, err, out)
			} else if test == "image_fits" {
				compareEntries(t, i.Arch, string(out), entries)
			}
		}
	}
}

func fits(arch, cc string) bool {
	switch arch {
	case "sm_80":
		return cc[0] == '8'
	case hsm.PTXArch:
		return true
	}
	return "sm_"+strings.ReplaceAll(cc, ".", "") == strings.TrimSuffix(arch, "a")
}

func compareEntries(t *testing.T, arch, printed string, want map[string]hsm.Entry) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(printed), "\n")
	if len(lines) != len(want) {
		t.Fatalf("%s: %d kernels, want %d", arch, len(lines), len(want))
	}
	for _, line := range lines {
		var name string
		var registers, shared, threads, params int
		if _, err := fmt.Sscan(line, &name, &registers, &shared, &threads, &params); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		w := want[name]
		if registers != w.Registers || threads != w.MaxThreads || params != w.Params {
			t.Errorf("%s: %s has %d registers, %d threads, %d bytes of parameters, want %+v", arch, name, registers, threads, params, w)
		}
	}
}

// libraryOf builds a simulator with one file of the kernels.
func libraryOf(t *testing.T, dir, file string) string {
	t.Helper()
	sources := fstest.MapFS{}
	headers, err := filepath.Glob(filepath.Join(dir, "cu", "*.cuh"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(headers, filepath.Join(dir, "cu", file)) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		sources["cu/"+filepath.Base(name)] = &fstest.MapFile{Data: text}
	}
	lib, err := Build(sources, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return lib
}
