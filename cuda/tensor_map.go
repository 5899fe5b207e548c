package cuda

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// TensorMap is what a kernel's tensor copies read of a matrix (CUtensorMap). It goes into the kernel's arguments, at a
// multiple of 64 bytes.
type TensorMap [16]uint64

// TensorMap describes a bf16 matrix [rows, columns] at base (16-byte aligned), rows one after another, whose copies take
// boxes of boxRows x boxColumns (up to 256 x 64), swizzled over 128 bytes; what lies outside the matrix is 0. Devices from
// compute capability 9.0 have such copies. An error is sticky, as of queued work.
func (d *Device) TensorMap(base Ptr, rows, columns, boxRows, boxColumns int) (m TensorMap) {
	code := C.hs_tensor_map(d.c, unsafe.Pointer(&m), C.uint64_t(base), C.uint64_t(rows), C.uint64_t(columns), C.uint32_t(boxRows), C.uint32_t(boxColumns))
	if err := d.rt.fail(code, d.info.Index, "cuTensorMapEncodeTiled"); err != nil {
		d.Fail(fmt.Sprintf("tensor map of [%d, %d] with boxes of [%d, %d]", rows, columns, boxRows, boxColumns), err)
	}
	return m
}
