package kernels

import (
	"embed"
	"errors"
	"fmt"
	"strings"
	"sync"

	"harness-s/internal/hsm"
)

// modules are the compiled device kernels, made by `make modules`.
//
//go:embed modules
var modules embed.FS

// errOldDevice says that a device cannot run the kernels.
var errOldDevice = errors.New("the kernels need compute capability 8.0 or newer (A100, RTX 30, ...)")

// moduleTable is modules/table.json.
var moduleTable = sync.OnceValues(func() (hsm.Table, error) {
	data, err := modules.ReadFile("modules/table.json")
	if err != nil {
		return hsm.Table{}, fmt.Errorf("kernels: %w: run make modules", err)
	}
	return hsm.ParseTable(data)
})

// moduleFiles are the .cu files that have modules, by name.
func moduleFiles() []string {
	entries, err := modules.ReadDir("modules")
	if err != nil {
		panic(err) // of memory that the compiler filled
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".hsm"); ok {
			names = append(names, name+".cu")
		}
	}
	return names
}

// moduleImage is what cuModuleLoadData takes for a file's kernels (file "rmsnorm.cu") on a device of compute capability
// cc = 10·major + minor: the CUBIN made for it, or PTX with the NUL that a driver expects behind it.
func moduleImage(file string, cc int) ([]byte, error) {
	arch, err := moduleArch(cc)
	if err != nil {
		return nil, err
	}
	data, err := modules.ReadFile("modules/" + hsm.ModuleName(file))
	if err != nil {
		return nil, fmt.Errorf("kernels: no module of %s: run make modules: %w", file, err)
	}
	images, err := hsm.Decode(data)
	if err != nil {
		return nil, fmt.Errorf("kernels: module of %s: %w", file, err)
	}
	for _, i := range images {
		if i.Arch != arch {
			continue
		}
		if arch == hsm.PTXArch {
			return append(i.Data, 0), nil
		}
		return i.Data, nil
	}
	return nil, fmt.Errorf("kernels: module of %s has no image for %s: run make modules", file, arch)
}

// moduleArch picks the image for a device. Code for a plain architecture also runs on later minor versions of its major;
// code for an "a" architecture runs on that one alone. Whatever has no image of its own compiles the PTX when it loads.
func moduleArch(cc int) (string, error) {
	switch major, minor := cc/10, cc%10; {
	case major < 8:
		return "", fmt.Errorf("kernels: a device of compute capability %d.%d: %w", major, minor, errOldDevice)
	case major == 8:
		return "sm_80", nil
	case cc == 90:
		return "sm_90a", nil
	case cc == 100:
		return "sm_100a", nil
	case major == 12:
		return "sm_120", nil
	}
	return hsm.PTXArch, nil
}
