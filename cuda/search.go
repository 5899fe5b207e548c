package cuda

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// library is one of NVIDIA's shared objects: how it is named and how a user gets it.
type library struct {
	name  string   // in messages
	env   string   // variable that names the file
	files []string // best first
	get   string   // what to do when it is missing
}

var (
	libDriver = library{"NVIDIA driver", "HARNESS_S_CUDA_DRIVER", []string{"libcuda.so.1"},
		"install NVIDIA's driver 525 or newer; in a container, start it with GPUs (docker run --gpus all)"}
	libBLAS = library{"cuBLASLt", "HARNESS_S_CUBLASLT", []string{"libcublasLt.so.13", "libcublasLt.so.12"},
		"pip install nvidia-cublas-cu12, or install CUDA's libcublas-12 package, or name the file in HARNESS_S_CUBLASLT"}
	libNCCL = library{"NCCL", "HARNESS_S_NCCL", []string{"libnccl.so.2"},
		"pip install nvidia-nccl-cu12, or install the libnccl2 package, or name the file in HARNESS_S_NCCL"}
)

// candidate is a file to try, or a plain name that the loader looks up.
type candidate struct{ path, from string }

// find lists where lib may be, best first: option alone if given; else the file that lib's variable names alone; else
// the plain names as the loader finds them, the folders where CUDA is usually installed, and the wheels of a Python
// environment (any PyTorch or vLLM install brings cuBLASLt and NCCL).
func find(lib library, option string) []candidate {
	if option != "" {
		return []candidate{{option, "as configured"}}
	}
	if path := os.Getenv(lib.env); path != "" {
		return []candidate{{path, lib.env}}
	}
	var list []candidate
	for _, name := range lib.files {
		list = append(list, candidate{name, "loader"})
	}
	for _, place := range []struct {
		from    string
		folders []string
	}{{"CUDA folder", cudaFolders()}, {"Python wheel", wheelFolders()}} {
		for _, name := range lib.files {
			for _, path := range present(place.folders, name) {
				list = append(list, candidate{path, place.from})
			}
		}
	}
	return list
}

// present are the files called name in folders, which may hold patterns; of several versions the newest first.
func present(folders []string, name string) []string {
	var list []string
	for _, folder := range folders {
		found, _ := filepath.Glob(filepath.Join(folder, name)) // the patterns are well-formed
		slices.Reverse(found)
		for _, path := range found {
			if !slices.Contains(list, path) {
				list = append(list, path)
			}
		}
	}
	return list
}

// machine is how the distribution's and CUDA's folders call this processor.
func machine() (multiarch string, targets []string) {
	if runtime.GOARCH == "arm64" {
		return "aarch64-linux-gnu", []string{"sbsa-linux", "aarch64-linux"}
	}
	return "x86_64-linux-gnu", []string{"x86_64-linux"}
}

func cudaFolders() []string {
	multiarch, targets := machine()
	var list []string
	for _, root := range []string{os.Getenv("CUDA_HOME"), os.Getenv("CUDA_PATH"), "/usr/local/cuda", "/usr/local/cuda-*", "/opt/cuda"} {
		if root == "" {
			continue
		}
		list = append(list, filepath.Join(root, "lib64"))
		for _, t := range targets {
			list = append(list, filepath.Join(root, "targets", t, "lib"))
		}
	}
	return append(list, "/usr/lib/"+multiarch, "/usr/lib64", "/usr/lib/wsl/lib", "/usr/local/nvidia/lib64", "/run/opengl-driver/lib")
}

// wheelFolders are the library folders of NVIDIA's wheels in the Python environments at hand: the active one, the one
// beside the working folder, that of the python3 on PATH, the user's and the system's. Python itself is not started.
func wheelFolders() []string {
	roots := []string{os.Getenv("VIRTUAL_ENV"), os.Getenv("CONDA_PREFIX"), ".venv"}
	if python, err := exec.LookPath("python3"); err == nil {
		roots = append(roots, filepath.Dir(filepath.Dir(python)))
	}
	if user, err := os.UserHomeDir(); err == nil {
		roots = append(roots, filepath.Join(user, ".local"))
	}
	var list []string
	for _, root := range append(roots, "/opt/venv", "/opt/conda", "/usr/local", "/usr") {
		if root == "" {
			continue
		}
		for _, packages := range []string{"site-packages", "dist-packages"} {
			list = append(list, filepath.Join(root, "lib", "python3*", packages, "nvidia", "*", "lib"))
		}
		if root == os.Getenv("CONDA_PREFIX") {
			list = append(list, filepath.Join(root, "lib"))
		}
	}
	return list
}

// notFound is a search that ended without a usable file. tried are lines of "file: why not".
type notFound struct {
	lib   library
	tried []string
}

func (e *notFound) problem() string {
	if len(e.tried) == 0 {
		return e.lib.name + " not found"
	}
	return e.lib.name + " not found (tried " + strings.Join(e.tried, "; ") + ")"
}

func (e *notFound) Error() string { return e.problem() + "; " + e.lib.get }
