package kernels

import (
	"fmt"

	"harness-s/cuda"
	"harness-s/internal/hsm"
)

// OpenRecording opens a device that computes nothing and writes down what it is asked for (cuda.Record), as rank 0 of
// world: what training would launch on a device with the sizes that info states, and the memory it would take. The caller
// closes the backend, then the recording.
func OpenRecording(info cuda.DeviceInfo, dtype DType, world int) (Flat, *cuda.Recording, error) {
	rec, err := cuda.Record(info)
	if err != nil {
		return nil, nil, fmt.Errorf("kernels: %w", err)
	}
	set := &deviceSet{name: "cuda", runtime: rec.Runtime, open: 1}
	list, err := openAll(set, DeviceOptions{DType: dtype, Devices: 1})
	if err == nil && world > 1 {
		err = JoinRanks(list, CommID{}, 0, world)
	}
	if err != nil {
		rec.Close()
		return nil, nil, fmt.Errorf("kernels: recording of %s: %w", info.Name, err)
	}
	return list[0], rec, set.release()
}

// OpenAlone opens one device as rank 0 of world whose other ranks are not there: collectives exchange nothing. For
// measuring what one rank of a large model does; never for training.
func OpenAlone(name string, dtype DType, world int) (Flat, cuda.DeviceInfo, error) {
	list, err := OpenDevices(DeviceOptions{Name: name, DType: dtype})
	if err != nil {
		return nil, cuda.DeviceInfo{}, err
	}
	b := list[0].(*cudaBackend)
	b.ranks.world = world
	return b, b.dev.Info(), nil
}

// ModuleTable is what the compiler said about every device kernel: registers, shared memory and so on, an architecture.
func ModuleTable() (hsm.Table, error) { return moduleTable() }
