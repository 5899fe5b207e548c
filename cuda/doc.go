// Package cuda is the device runtime: what finds and talks to NVIDIA's libraries at run time. Nothing of CUDA is needed
// to build, and a machine without a driver only loses the devices.
//
// A Runtime is one driver library with its devices; a Device owns a primary context, its memory by purpose, one compute
// Stream and more on request. Work is queued and errors are sticky: the first one stays with its device, work queued
// after it is skipped, and Stream.Sync returns and clears it. A fault inside a kernel shows at a later call only: the
// error then names what was queued since the last Sync that went well.
//
// cuBLASLt and NCCL are loaded when a product or a communicator first needs them; see find for where. The same calls run
// on the simulator (package cuda/sim), which is a library with the same functions.
//
// All C code is in shim.c: it keeps the tables of functions (api.h) and makes a device's context current on whatever
// thread a goroutine calls from. Of Go's memory C sees names, module images and packed kernel arguments, for the time of
// a call; copies go through pinned memory that Go fills itself.
package cuda
