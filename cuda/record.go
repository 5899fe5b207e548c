package cuda

/*
#include "record.h"
*/
import "C"

import (
	"fmt"
	"sync"
	"unsafe"
)

// Op is a kind of recorded work.
type Op int

// Kinds of recorded work.
const (
	OpLaunch     Op = iota // a kernel
	OpMatmul               // a cuBLASLt product
	OpFill                 // a memset
	OpCopy                 // within the device
	OpTransfer             // between host and device
	OpCollective           // a NCCL call
)

// Recorded is one piece of work that was queued on a recorded device.
type Recorded struct {
	Op             Op
	Name           string // kernel, or the collective: reduce_scatter, all_gather, all_reduce, broadcast
	Grid           [3]int // OpLaunch
	Threads        int    // a block
	Shared         int    // dynamic, bytes a block
	M, N, K        int    // OpMatmul, row-major as Matmul has it: C[M,N] = A[M,K] B[K,N]
	TransA, TransB bool
	In, Out        DType
	Add            bool  // beta is not 0
	Bytes          int64 // OpFill, OpCopy, OpTransfer; OpCollective: a rank's share
}

// Recording is a device that computes nothing and writes down what it is asked to do: what a program would run on such a
// device, which launches it would refuse and how much memory it would take. Other ranks join at once and bring nothing.
type Recording struct {
	*Runtime
	once sync.Once
}

// recordings holds the process's one recording.
var recordings sync.Mutex

// Record opens a recording of a device with the sizes that info states. It waits for an earlier one's Close.
func Record(info DeviceInfo) (*Recording, error) {
	recordings.Lock()
	d := C.hs_record_device{memory: C.size_t(info.Memory), sms: C.int(info.SMs), major: C.int(info.Major), minor: C.int(info.Minor),
		shared_block: C.int(info.SharedOptin), shared_sm: C.int(info.SharedPerSM), l2: C.int(info.L2), clock_khz: C.int(info.ClockKHz),
		memory_clock_khz: C.int(info.MemoryClockKHz), bus_bits: C.int(info.BusBits)}
	for i := range min(len(info.Name), len(d.name)-1) {
		d.name[i] = C.char(info.Name[i])
	}
	C.hs_record_start(&d)
	r, err := Open(Options{Driver: C.HS_RECORDER, BLAS: C.HS_RECORDER, NCCL: C.HS_RECORDER})
	if err != nil {
		recordings.Unlock()
		return nil, fmt.Errorf("record: %w", err)
	}
	return &Recording{Runtime: r}, nil
}

// Take gives what was queued since the last Take, in order.
func (r *Recording) Take() []Recorded {
	var out []Recorded
	entries := make([]C.hs_record_entry, 256)
	for {
		n := int(C.hs_record_take(&entries[0], C.int(len(entries))))
		for i := range entries[:n] {
			out = append(out, recorded(&entries[i]))
		}
		if n < len(entries) {
			return out
		}
	}
}

func recorded(e *C.hs_record_entry) Recorded {
	dtype := func(t C.int) DType {
		if t == C.HS_CUDA_R_16BF {
			return BF16
		}
		return F32
	}
	// The library is asked for the transposed product, column-major: m and n, and the operands, change places.
	return Recorded{Op: Op(e.kind), Name: C.GoString((*C.char)(unsafe.Pointer(&e.name))),
		Grid: [3]int{int(e.gx), int(e.gy), int(e.gz)}, Threads: int(e.threads), Shared: int(e.shared),
		M: int(e.n), N: int(e.m), K: int(e.k), TransA: e.transb != 0, TransB: e.transa != 0, In: dtype(e.in), Out: dtype(e.out), Add: e.add != 0,
		Bytes: int64(e.bytes)}
}

// Peak is the most device memory that was allocated at one time, in bytes.
func (r *Recording) Peak() int64 { return int64(C.hs_record_peak()) }

// Close ends the recording. A second Close does nothing.
func (r *Recording) Close() (err error) {
	r.once.Do(func() {
		err = r.Runtime.Close()
		recordings.Unlock()
	})
	return err
}
