package cuda

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// compiler is NVRTC where the machine has it, or what make modules fetched.
func compiler(t *testing.T) *Compiler {
	t.Helper()
	if fetched, _ := filepath.Abs("../.cache/nvrtc/lib/libnvrtc.so.12"); os.Getenv("HARNESS_S_NVRTC") == "" {
		if _, err := os.Stat(fetched); err == nil {
			t.Setenv("HARNESS_S_NVRTC", fetched)
		}
	}
	c, err := OpenCompiler("")
	if errors.Is(err, ErrNoCompiler) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestCompileBothKindsOfImage(t *testing.T) {
	c := compiler(t)
	if major, _ := c.Version(); major < 11 {
		t.Errorf("version %d", major)
	}
	src := Source{Name: "fill.cu", Text: "#include \"one.cuh\"\nextern \"C\" __global__ void fill(float *x) { x[threadIdx.x] = ONE; }\n",
		Headers: map[string]string{"one.cuh": "#define ONE 1.0f\n", "unused.cuh": "#error read without need\n"}}
	cubin, log, err := c.Compile(src, "-arch=sm_80", "--ptxas-options=-v")
	if err != nil {
		t.Fatal(err)
	}
	if cubin.PTX || !bytes.HasPrefix(cubin.Data, []byte("\x7fELF")) || !strings.Contains(log, "registers") {
		t.Errorf("no CUBIN with its registers: starts %.8q, log %q", cubin.Data, log)
	}
	ptx, _, err := c.Compile(src, "-arch=compute_80")
	if err != nil {
		t.Fatal(err)
	}
	if !ptx.PTX || !bytes.Contains(ptx.Data, []byte(".visible .entry fill(")) || bytes.HasSuffix(ptx.Data, []byte{0}) {
		t.Errorf("no PTX: %.200q", ptx.Data)
	}
}

func TestCompileErrors(t *testing.T) {
	c := compiler(t)
	_, _, err := c.Compile(Source{Name: "bad.cu", Text: "int f() { return missing; }"}, "-arch=sm_80")
	var refused *CompileError
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "bad.cu(1)") || !strings.Contains(err.Error(), "missing") {
		t.Errorf("a wrong program: %v", err)
	}
	if _, _, err = c.Compile(Source{Name: "x.cu", Text: "a\x00b"}); err == nil || errors.As(err, &refused) {
		t.Errorf("a NUL in the source: %v", err)
	}
	c.Close()
	if _, _, err = c.Compile(Source{Name: "x.cu"}); err == nil {
		t.Error("compiled after Close")
	}
}

func TestOpenCompilerNamesTheFile(t *testing.T) {
	if _, err := OpenCompiler("/nowhere/libnvrtc.so"); !errors.Is(err, ErrNoCompiler) || !strings.Contains(err.Error(), "/nowhere/libnvrtc.so") {
		t.Errorf("got %v", err)
	}
}
