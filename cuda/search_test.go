package cuda

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFindOrder(t *testing.T) {
	env, cuda := t.TempDir(), t.TempDir()
	for _, v := range []string{libNCCL.env, "CONDA_PREFIX", "CUDA_PATH"} {
		t.Setenv(v, "")
	}
	t.Setenv("VIRTUAL_ENV", env)
	t.Setenv("CUDA_HOME", cuda)
	wheel := touch(t, env, "lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2")
	folder := touch(t, cuda, "lib64/libnccl.so.2")
	list := find(libNCCL, "")
	if list[0] != (candidate{"libnccl.so.2", "loader"}) {
		t.Errorf("first %v", list[0])
	}
	at := map[string]int{}
	for i, c := range list {
		at[c.path] = i
	}
	if !(0 < at[folder] && at[folder] < at[wheel]) {
		t.Errorf("want %s, then %s, got %v", folder, wheel, list)
	}
	t.Setenv(libNCCL.env, wheel)
	if got := find(libNCCL, ""); len(got) != 1 || got[0] != (candidate{wheel, libNCCL.env}) {
		t.Errorf("with the variable: %v", got)
	}
	if got := find(libNCCL, "mine.so"); len(got) != 1 || got[0].path != "mine.so" {
		t.Errorf("with an option: %v", got)
	}
}

func touch(t *testing.T, dir, name string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestNoDriver(t *testing.T) {
	absent := filepath.Join(t.TempDir(), "libcuda.so.1")
	text := touch(t, t.TempDir(), "libcuda.so.1")
	for _, o := range []Options{{Driver: absent}, {Driver: text}} {
		_, err := Open(o)
		if !errors.Is(err, ErrNoDriver) {
			t.Fatalf("got %v", err)
		}
		for _, want := range []string{o.Driver, "install NVIDIA's driver"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q lacks %q", err, want)
			}
		}
	}
	t.Setenv(libDriver.env, absent)
	if _, err := Open(Options{}); !errors.Is(err, ErrNoDriver) || !strings.Contains(err.Error(), absent) {
		t.Errorf("by the variable: %v", err)
	}
}

// A library that is there but is not the one: the message names what it lacks.
func TestWrongLibrary(t *testing.T) {
	const libc = "libc.so.6"
	if _, err := Open(Options{Driver: libc}); !errors.Is(err, ErrNoDriver) || !strings.Contains(err.Error(), "function cuInit missing") {
		t.Errorf("driver: %v", err)
	}
	if _, _, err := openBLAS(libc, 13000); err == nil || !strings.Contains(err.Error(), "cublasLtCreate missing") || !strings.Contains(err.Error(), "pip install") {
		t.Errorf("cuBLASLt: %v", err)
	}
	if _, _, err := openNCCL(libc); err == nil || !strings.Contains(err.Error(), "ncclGetVersion missing") || !strings.Contains(err.Error(), "pip install") {
		t.Errorf("NCCL: %v", err)
	}
}

func TestMissingBLASAndNCCLShowWhenNeeded(t *testing.T) {
	lib := simulator(t)
	absent := filepath.Join(t.TempDir(), "absent.so")
	r, err := Open(Options{Driver: lib, BLAS: absent, NCCL: absent})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	d, err := r.Device(0)
	if err != nil {
		t.Fatal(err)
	}
	x := alloc(t, d, 64)
	d.Stream().Matmul(Matmul{M: 2, N: 2, K: 2, A: x, B: x, C: x + 32, LDA: 2, LDB: 2, LDC: 2, Alpha: 1})
	if err := d.Stream().Sync(); err == nil || !strings.Contains(err.Error(), "matmul A B, f32 to f32 (M 2, N 2, K 2): device 0: cuBLASLt not found") {
		t.Errorf("matmul: %v", err)
	}
	if _, err := r.NewCommID(); err == nil || !strings.Contains(err.Error(), "NCCL not found") {
		t.Errorf("communicator: %v", err)
	}
	info := r.Info()
	if info.BLAS.Problem == "" || info.NCCL.Problem == "" || info.Driver.Problem != "" {
		t.Errorf("info %+v", info)
	}
}

func TestInfo(t *testing.T) {
	r := machineOf{devices: 3}.open(t)
	info := r.Info()
	if info.Driver.Path == "" || !strings.HasPrefix(info.Driver.Version, "CUDA 1") || len(info.Devices) != 3 || len(info.Peers) != 3 {
		t.Fatalf("%+v", info)
	}
	for i, d := range info.Devices {
		if d.Index != i || d.Name == "" || d.Memory != 1<<30 || d.Major != 9 || d.SMs == 0 || d.SharedOptin == 0 || d.BusBits == 0 {
			t.Errorf("device %d: %+v", i, d)
		}
		if !info.Peers[i][i] {
			t.Errorf("device %d does not reach itself", i)
		}
	}
	if len(info.Collect) != 2 || info.Collect[0] != [2]string{"NCCL_ALGO", "Ring"} {
		t.Errorf("NCCL settings %v", info.Collect)
	}
}

func TestInspectWithoutDriver(t *testing.T) {
	info := Inspect(Options{Driver: filepath.Join(t.TempDir(), "absent.so")})
	if info.Driver.Problem == "" || len(info.Devices) != 0 {
		t.Errorf("%+v", info)
	}
}

// The real libraries, where a Python environment or a CUDA folder has them, take this package's descriptors: they need no
// device for that.
func TestRealLibrariesWhereInstalled(t *testing.T) {
	lib, found, err := openBLAS("", 1<<30)
	if err != nil {
		t.Skip(err)
	}
	b := &blas{lib: lib, d: &Device{rt: &Runtime{}}, workspace: 32 << 20}
	for trans := range 4 {
		for _, ty := range [][2]DType{{F32, F32}, {BF16, BF16}, {BF16, F32}} {
			m := Matmul{M: 64, N: 48, K: 32, A: 16, B: 16, C: 16, LDA: 64, LDB: 48, LDC: 48, TransA: trans&1 != 0, TransB: trans&2 != 0, In: ty[0], Out: ty[1]}
			if _, err := b.describe(&m); err != nil {
				t.Errorf("%s %s: %s: %v", found.Path, found.Version, m.kind(), err)
			}
		}
	}
	if _, found, err := openNCCL(""); err == nil && found.Version == "" {
		t.Errorf("%s has no version", found.Path)
	}
}
