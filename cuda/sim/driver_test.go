package sim

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// driverTests builds the program of testdata/driver against a simulator with the test kernels.
func driverTests(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip("no g++")
	}
	lib, err := Build(testSources(t), Options{})
	if err != nil {
		t.Fatal(err)
	}
	sources, err := filepath.Glob("testdata/driver/*.cpp")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "driver")
	args := append([]string{"-O1", "-std=c++17", "-Wall", "-pthread", "-o", program}, sources...)
	args = append(args, "-L", filepath.Dir(lib), "-l:"+libraryName, "-Wl,-rpath,"+filepath.Dir(lib))
	if out, err := exec.Command("g++", args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// TestDriver runs each test of the program in a process of its own: the simulated machine is one a process.
func TestDriver(t *testing.T) {
	program := driverTests(t)
	names, err := exec.Command(program).Output()
	if err != nil {
		t.Fatal(err)
	}
	list := strings.Fields(string(names))
	if len(list) < 40 {
		t.Fatalf("only %d tests: %q", len(list), list)
	}
	for _, name := range list {
		if strings.HasPrefix(name, "image_") { // TestShippedImages
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if out, err := exec.Command(program, name).CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
