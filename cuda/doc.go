// Package cuda is the device runtime: what finds and talks to NVIDIA's libraries at run time. Nothing of CUDA is
// needed to build. For now it reports devices (NVML); the CUDA backend builds on it.
package cuda
