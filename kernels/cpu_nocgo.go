//go:build !cgo

package kernels

import "errors"

// NewCPU reports that this binary was built without cgo, which the CPU backend needs.
func NewCPU(threads int) (InferenceBackend, error) {
	return nil, errors.New("cpu backend: this binary was built without cgo; install gcc and build with CGO_ENABLED=1")
}
