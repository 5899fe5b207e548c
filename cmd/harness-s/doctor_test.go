package main

import (
	"strings"
	"testing"

	"harness-s/cuda"
)

// lines is the findings as "what: found -> mend".
func lines(list []finding) string {
	var b strings.Builder
	for _, f := range list {
		mark := "ok"
		if !f.OK {
			mark = "--"
		}
		b.WriteString(mark + " " + f.What + ": " + f.Found + " -> " + f.Mend + "\n")
	}
	return b.String()
}

func TestDoctorWithoutDriver(t *testing.T) {
	info := cuda.Info{Driver: cuda.Library{Problem: "NVIDIA driver not found", Mend: "install it"}}
	list := cudaFindings(info)
	if got := lines(list); got != "-- cuda driver: NVIDIA driver not found -> install it (nothing to do for the cpu backend)\n" {
		t.Errorf("got %q", got)
	}
	if list[0].need {
		t.Error("a machine without a GPU would fail doctor")
	}
}

func TestDoctorWithDevices(t *testing.T) {
	info := cuda.Info{
		Driver:  cuda.Library{Path: "libcuda.so.1", From: "loader", Version: "CUDA 12.8"},
		NVML:    "570.1",
		BLAS:    cuda.Library{Problem: "cuBLASLt not found", Mend: "pip install x"},
		NCCL:    cuda.Library{Path: "libnccl.so.2", From: "Python wheel", Version: "2.27.3"},
		Collect: [][2]string{{"NCCL_ALGO", "Ring"}},
		Devices: []cuda.DeviceInfo{{Name: "H200", Major: 9, SMs: 132, Memory: 141 << 30}, {Index: 1, Name: "T4", Major: 7, Minor: 5}, {Index: 2, Name: "A100", Major: 8}},
		Peers:   [][]bool{{true, false, true}, {true, true, true}, {true, false, true}},
	}
	got := lines(cudaFindings(info))
	for _, want := range []string{
		"ok cuda driver: CUDA 12.8, libcuda.so.1 (loader), driver 570.1",
		"-- cublaslt: cuBLASLt not found -> pip install x",
		"ok nccl: 2.27.3, libnccl.so.2 (Python wheel), NCCL_ALGO=Ring",
		"ok cuda 0: H200, sm_90, 132 SMs, 144384 MiB",
		"-- cuda 1: T4, sm_75",
		"-- peer access: none between 0-1, 1-2 ->",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("lacks %q:\n%s", want, got)
		}
	}
}
