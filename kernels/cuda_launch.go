package kernels

import (
	"fmt"
	"unsafe"

	"harness-s/cuda"
)

// kernelInfo is what loading needs to know of a kernel.
type kernelInfo struct {
	name  string
	typed bool   // has a variant for each storage type: name_f32, name_bf16
	args  int    // bytes of its parameter
	arch  string // the only architecture that has it; "" = all
}

// on says whether devices of an architecture have the kernel; the simulator, of none, has all.
func (k kernelInfo) on(arch string) bool { return k.arch == "" || arch == "" || k.arch == arch }

// names are the kernel's variants by DType.
func (k kernelInfo) names() []string {
	if k.typed {
		return []string{F32: k.name + "_f32", BF16: k.name + "_bf16"}
	}
	return []string{k.name}
}

// kernelList is every kernel of this package, in order of declaration.
var kernelList []kernelInfo

// kernel is one device kernel. A is the Go twin of its C parameter struct: pointers (uintptr) and 64-bit fields first.
type kernel[A any] struct{ id int }

// newKernel declares a kernel made by KERNELS: the variant of the backend's storage type is launched.
func newKernel[A any](name string) kernel[A] { return declare[A](name, true, "") }

// newPlainKernel declares a kernel made by KERNEL.
func newPlainKernel[A any](name string) kernel[A] { return declare[A](name, false, "") }

// newSM90Kernel declares a kernel made by KERNEL in a file that is compiled for compute capability 9.0 alone. Elsewhere it may
// not be launched.
func newSM90Kernel[A any](name string) kernel[A] { return declare[A](name, false, "sm_90a") }

func declare[A any](name string, typed bool, arch string) kernel[A] {
	var a A
	kernelList = append(kernelList, kernelInfo{name, typed, int(unsafe.Sizeof(a)), arch})
	return kernel[A]{len(kernelList) - 1}
}

type dim3 [3]int

// grid is a launch's number of blocks.
func grid(x, y, z int) dim3 { return dim3{x, y, z} }

// blocks is how many blocks of size n cover total.
func blocks(total, n int) int { return (total + n - 1) / n }

// launch queues the kernel on the backend's compute stream. An empty grid is nothing to do.
func (k kernel[A]) launch(b *cudaBackend, g dim3, threads, shared int, a A) {
	k.launchOn(b, b.stream, g, threads, shared, a)
}

func (k kernel[A]) launchOn(b *cudaBackend, s *cuda.Stream, g dim3, threads, shared int, a A) {
	if g[0] == 0 || g[1] == 0 || g[2] == 0 {
		return
	}
	f := b.functions[k.id]
	if f == nil {
		panic(fmt.Sprintf("kernels: %s is for %s alone", kernelList[k.id].name, kernelList[k.id].arch))
	}
	f.Launch(s, g, threads, shared, unsafe.Pointer(&a), int(unsafe.Sizeof(a)))
}

// loadKernels finds the variant of every kernel that an architecture has in the modules and checks the sizes of the
// parameters. Others are nil.
func loadKernels(modules []*cuda.Module, dtype DType, arch string) ([]*cuda.Function, error) {
	out := make([]*cuda.Function, len(kernelList))
	for i, k := range kernelList {
		if !k.on(arch) {
			continue
		}
		name := k.names()[0]
		if k.typed {
			name = k.names()[dtype]
		}
		f, err := findFunction(modules, name)
		if err != nil {
			return nil, err
		}
		if n, known := f.ParamSize(); known && n != k.args {
			return nil, fmt.Errorf("kernel %s: the module takes %d bytes of parameters, this binary passes %d; run make modules", name, n, k.args)
		}
		out[i] = f
	}
	return out, nil
}

func findFunction(modules []*cuda.Module, name string) (*cuda.Function, error) {
	for _, m := range modules {
		if f, err := m.Function(name); err == nil {
			return f, nil
		}
	}
	return nil, fmt.Errorf("kernel %s is in no module; run make modules", name)
}
