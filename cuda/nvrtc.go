package cuda

/*
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "nvrtc_shim.h"
*/
import "C"

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"unsafe"
)

// ErrNoCompiler says that NVRTC was not found: not a fault, the kernels of this project are compiled when it is built.
var ErrNoCompiler = errors.New("no compiler")

var libNVRTC = library{"NVRTC", "HARNESS_S_NVRTC", []string{"libnvrtc.so.12", "libnvrtc.so.13"},
	"pip install nvidia-cuda-nvrtc-cu12==12.9.86, or name the file in HARNESS_S_NVRTC"}

// Compiler is NVRTC, NVIDIA's run-time compiler. The library compiles one program at a time, whatever the number of
// goroutines: only processes run beside each other.
type Compiler struct {
	mu           sync.Mutex
	lib          *C.hs_nvrtc
	path         string
	major, minor int
}

// Source is one translation unit. Headers are found by the name that an #include gives, before any folder.
type Source struct {
	Name    string // appears in messages and in line information
	Text    string
	Headers map[string]string
}

// Image is compiled code: a CUBIN (ELF) for a real architecture (-arch=sm_80), PTX text for a virtual one
// (-arch=compute_80).
type Image struct {
	Data []byte
	PTX  bool
}

// CompileError is a program that NVRTC refused.
type CompileError struct {
	Name, Reason string
	Log          string // the compiler's messages
}

func (e *CompileError) Error() string {
	return fmt.Sprintf("compile %s: %s\n%s", e.Name, e.Reason, strings.TrimSpace(e.Log))
}

// OpenCompiler loads NVRTC from path; "" searches (see find). errors.Is(err, ErrNoCompiler) where there is none. The
// library of the same version's built-in functions (libnvrtc-builtins) must lie beside it.
func OpenCompiler(path string) (*Compiler, error) {
	var tried []string
	for _, candidate := range find(libNVRTC, path) {
		c, err := openCompiler(candidate.path)
		if err == nil {
			return c, nil
		}
		tried = append(tried, err.Error())
	}
	return nil, fmt.Errorf("%w: %w", ErrNoCompiler, &notFound{libNVRTC, tried})
}

func openCompiler(path string) (*Compiler, error) {
	lib, file, err := openLibrary(path, func(path *C.char, file, why **C.char) unsafe.Pointer {
		return unsafe.Pointer(C.hs_nvrtc_open(path, file, why))
	})
	if err != nil {
		return nil, err
	}
	c := &Compiler{lib: (*C.hs_nvrtc)(lib), path: file}
	var major, minor C.int
	if code := C.hs_nvrtc_version(c.lib, &major, &minor); code != 0 {
		c.Close()
		return nil, fmt.Errorf("%s: nvrtcVersion: code %d", file, int(code))
	}
	c.major, c.minor = int(major), int(minor)
	return c, nil
}

// Path is the library's file.
func (c *Compiler) Path() string { return c.path }

// Version is NVRTC's, for example 12, 9.
func (c *Compiler) Version() (major, minor int) { return c.major, c.minor }

// Close unloads the library.
func (c *Compiler) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lib != nil {
		C.hs_nvrtc_close(c.lib)
		c.lib = nil
	}
}

// Compile turns src into an image. log has warnings and, with --ptxas-options=-v, registers and spills. PTX comes without
// the NUL that NVRTC puts behind it. The error of a refused program is a *CompileError.
func (c *Compiler) Compile(src Source, options ...string) (image Image, log string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lib == nil {
		return Image{}, "", fmt.Errorf("nvrtc: compile %s: the compiler is closed", src.Name)
	}
	names := slices.Sorted(maps.Keys(src.Headers))
	texts := make([]string, len(names))
	for i, name := range names {
		texts[i] = src.Headers[name]
	}
	for _, s := range slices.Concat([]string{src.Name, src.Text}, names, texts, options) {
		if strings.ContainsRune(s, 0) {
			return Image{}, "", fmt.Errorf("nvrtc: compile %s: a NUL in a name, source or option", src.Name)
		}
	}
	text, name := C.CString(src.Text), C.CString(src.Name)
	headerTexts, headerNames, opts := packed(texts), packed(names), packed(options)
	defer func() {
		for _, p := range []*C.char{text, name, headerTexts, headerNames, opts} {
			C.free(unsafe.Pointer(p))
		}
	}()
	r := C.hs_nvrtc_compile(c.lib, text, name, C.int(len(names)), headerTexts, headerNames, C.int(len(options)), opts)
	defer C.free(unsafe.Pointer(r.image))
	defer C.free(unsafe.Pointer(r.log))
	if r.log != nil {
		log = C.GoString(r.log)
	}
	if r.code != 0 {
		return Image{}, log, &CompileError{Name: src.Name, Reason: C.GoString(C.hs_nvrtc_error(c.lib, r.code)), Log: log}
	}
	image = Image{Data: C.GoBytes(unsafe.Pointer(r.image), C.int(r.image_bytes)), PTX: r.is_ptx != 0}
	if image.PTX {
		image.Data = bytes.TrimRight(image.Data, "\x00")
	}
	return image, log, nil
}

// packed is a C copy of strings, one after another with its NUL, and one NUL more.
func packed(list []string) *C.char {
	var b strings.Builder
	for _, s := range list {
		b.WriteString(s)
		b.WriteByte(0)
	}
	return (*C.char)(C.CBytes([]byte(b.String() + "\x00")))
}
