//go:build ignore

// driver.cpp: the simulated CUDA driver: start, devices and contexts. Memory and copies are in transfer.cpp, streams
// and events in stream.cpp, modules and launches in launch.cpp.
//
// The machine is described by the environment, read by cuInit while no context is retained:
//
//	HARNESS_S_SIM_DEVICES  how many devices (1 to 16; 1)
//	HARNESS_S_SIM_MEMORY   bytes of memory each (4294967296)
//	HARNESS_S_SIM_CC       compute capability (9.0)
//	HARNESS_S_SIM_SEED     seed of the order in which queued work runs (1)
//	HARNESS_S_SIM_TIMEOUT  seconds after which work that cannot run is an error (120)
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "call.h"

namespace sim {

static constexpr int MAX_DEVICES = 16;

Machine &machine() {
    static Machine m;
    return m;
}

static thread_local Device *current = nullptr;

Device *current_device() { return current && current->active ? current : nullptr; }

Call::Call() : lock(world().mu) {
    forget_refusal();
    if (!machine().initialized) {
        code = fail(NOT_INITIALIZED, "cuInit was not called");
        return;
    }
    device = current_device();
    if (!device) code = fail(INVALID_CONTEXT, "the calling thread has no current context");
    else if (device->error) code = fail(device->error, "%s", device->error_text.c_str());
}

Stream *Call::stream(void *handle) {
    Stream *s = handle == nullptr || handle == (void *)1 ? &device->null_stream : lookup<Stream>(handle, Kind::Stream);
    if (!s) code = fail(INVALID_HANDLE, "%p is not a stream (or one that was destroyed)", handle);
    else if (s->device != device) {
        code = fail(INVALID_HANDLE, "stream %d belongs to device %d, the current context to device %d", s->id, s->device->index,
            device->index);
        s = nullptr;
    }
    return s;
}

Event *Call::event(void *handle) {
    Event *e = lookup<Event>(handle, Kind::Event);
    if (!e) code = fail(INVALID_HANDLE, "%p is not an event (or one that was destroyed)", handle);
    return e;
}

// ---------------------------------------------------------------- start

static const char *setting(const char *name) {
    const char *s = getenv(name);
    return s && *s ? s : nullptr;
}

static int shared_limit(int major, int minor) {
    if (major == 8) return minor == 0 || minor == 7 ? 166912 : 101376;
    if (major == 9 || major == 10) return 232448;
    return 101376; // 12.x
}

static int read_number(const char *name, double low, double high, double *out) {
    const char *s = setting(name);
    if (!s) return SUCCESS;
    char *end;
    double v = strtod(s, &end);
    if (*end || !(v >= low && v <= high)) {
        fprintf(stderr, "harness-sim: %s=%s: want a number from %g to %g\n", name, s, low, high);
        return fail(INVALID_VALUE, "%s=%s: want a number from %g to %g", name, s, low, high);
    }
    *out = v;
    return SUCCESS;
}

static int read_machine() {
    Machine m;
    double devices = 1, memory = 4294967296.0, seed = 1, timeout = 120;
    if (int code = read_number("HARNESS_S_SIM_DEVICES", 0, MAX_DEVICES, &devices)) return code;
    if (int code = read_number("HARNESS_S_SIM_MEMORY", 1 << 20, 1e15, &memory)) return code;
    if (int code = read_number("HARNESS_S_SIM_SEED", 0, 9e15, &seed)) return code;
    if (int code = read_number("HARNESS_S_SIM_TIMEOUT", 0.001, 1e9, &timeout)) return code;
    if (const char *cc = setting("HARNESS_S_SIM_CC")) {
        char rest;
        if (sscanf(cc, "%d.%d%c", &m.major, &m.minor, &rest) != 2 || m.major < 8 || m.major > 12)
            return fail(INVALID_VALUE, "HARNESS_S_SIM_CC=%s: want a compute capability such as 9.0", cc);
    }
    m.devices = (int)devices, m.memory = (size_t)memory, m.shared_optin = shared_limit(m.major, m.minor);
    m.initialized = true;
    machine() = m;
    world().random = (uint64_t)seed, world().timeout_s = timeout;
    return SUCCESS;
}

static void make_devices() {
    World &w = world();
    for (int i = (int)w.devices.size(); i < MAX_DEVICES; i++) {
        Device *d = new Device;
        d->index = i, d->null_stream.device = d;
        d->streams.push_back(&d->null_stream);
        w.devices.push_back(d);
    }
}

SIM_API int cuInit(unsigned flags) {
    Lock lock(world().mu);
    forget_refusal();
    if (flags) return fail(INVALID_VALUE, "cuInit: flags must be 0");
    make_devices();
    for (Device *d : world().devices)
        if (d->active) return SUCCESS;
    return read_machine();
}

SIM_API int cuDriverGetVersion(int *version) {
    *version = 12090;
    return SUCCESS;
}

// ---------------------------------------------------------------- devices

static Device *device_at(int i) { return i >= 0 && i < machine().devices ? world().devices[i] : nullptr; }

SIM_API int cuDeviceGetCount(int *n) {
    if (!machine().initialized) return fail(NOT_INITIALIZED, "cuInit was not called");
    *n = machine().devices;
    return SUCCESS;
}

SIM_API int cuDeviceGet(int *device, int ordinal) {
    if (!machine().initialized) return fail(NOT_INITIALIZED, "cuInit was not called");
    if (!device_at(ordinal)) return fail(INVALID_DEVICE, "device %d of %d", ordinal, machine().devices);
    *device = ordinal;
    return SUCCESS;
}

SIM_API int cuDeviceGetName(char *name, int bytes, int device) {
    if (!device_at(device) || bytes <= 0) return fail(INVALID_DEVICE, "device %d of %d", device, machine().devices);
    snprintf(name, bytes, "simulated device (compute %d.%d)", machine().major, machine().minor);
    return SUCCESS;
}

SIM_API int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    if (!device_at(device)) return fail(INVALID_DEVICE, "device %d of %d", device, machine().devices);
    *bytes = machine().memory;
    return SUCCESS;
}

SIM_API int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    if (!device_at(device)) return fail(INVALID_DEVICE, "device %d of %d", device, machine().devices);
    memset(uuid, 0, 16);
    memcpy(uuid, "harness-sim", 11);
    uuid[15] = (unsigned char)device;
    return SUCCESS;
}

// The rest of an H200 where no setting says otherwise, except that a kernel's blocks are few: what the simulator runs is
// small, and code that sizes a grid by the multiprocessors should see several waves.
static int attribute(int a, int device) {
    const Machine &m = machine();
    switch (a) {
    case 1: case 2: case 3: return 1024; // threads a block; block x, y
    case 4: return 64;                   // block z
    case 5: return 2147483647;           // grid x
    case 6: case 7: return 65535;        // grid y, z
    case 8: return 49152;                // shared memory a block without opting in
    case 9: return 65536;                // constant memory
    case 10: return 32;                  // warp
    case 12: case 82: return 65536;      // registers a block, a multiprocessor
    case 13: return 1980000;             // clock, kHz
    case 16: return 8;                   // multiprocessors
    case 17: case 18: case 20: return 0; // time limit, integrated, compute mode
    case 19: case 31: case 41: return 1; // mapped host memory, concurrent kernels, unified addresses
    case 78: case 96: return 1;          // stream priorities, cooperative launches
    case 33: return device + 1;          // PCI bus
    case 34: case 50: return 0;          // PCI device, domain
    case 35: return 1;                   // ECC
    case 36: return 3201000;             // memory clock, kHz
    case 37: return 6144;                // bus, bits
    case 38: return 60 << 20;            // L2
    case 39: return 2048;                // threads a multiprocessor
    case 40: return 3;                   // copy engines
    case 75: return m.major;
    case 76: return m.minor;
    case 81: return m.shared_optin + 1024; // shared memory a multiprocessor
    case 97: return m.shared_optin;
    case 106: return 32;   // blocks a multiprocessor
    case 111: return 1024; // shared memory the system keeps of each block
    case 120: return m.major >= 9;
    default: return -1;
    }
}

SIM_API int cuDeviceGetAttribute(int *value, int a, int device) {
    if (!device_at(device)) return fail(INVALID_DEVICE, "device %d of %d", device, machine().devices);
    int v = attribute(a, device);
    if (v < 0) return fail(INVALID_VALUE, "the simulator does not know device attribute %d", a);
    *value = v;
    return SUCCESS;
}

SIM_API int cuDeviceCanAccessPeer(int *yes, int device, int peer) {
    if (!device_at(device) || !device_at(peer)) return fail(INVALID_DEVICE, "device %d, %d of %d", device, peer, machine().devices);
    *yes = device != peer;
    return SUCCESS;
}

// ---------------------------------------------------------------- contexts

SIM_API int cuDevicePrimaryCtxRetain(void **context, int device) {
    Lock lock(world().mu);
    forget_refusal();
    Device *d = device_at(device);
    if (!d) return fail(INVALID_DEVICE, "device %d of %d", device, machine().devices);
    d->refs++, d->active = true, d->memory = machine().memory;
    *context = d;
    return SUCCESS;
}

// forget_handles makes a device's handles invalid.
static void forget_handles(Device *d) {
    std::vector<std::pair<void *, Handle>> all(world().handles.begin(), world().handles.end());
    for (auto &[p, handle] : all) {
        if (handle.device != d) continue;
        world().handles.erase(p);
        if (handle.destroy) handle.destroy(p);
    }
    for (Stream *s : d->streams)
        if (s != &d->null_stream) delete s;
    d->streams.assign(1, &d->null_stream);
    d->null_stream.last.reset();
}

// destroy ends a primary context: its work is finished, its memory freed, its handles invalid, its error forgotten.
static int destroy(Lock &lock, Device *d) {
    int code = d->error ? SUCCESS : wait_device(lock, d);
    drop_device(d);
    while (d->busy) world().changed.wait(lock);
    d->active = false, d->refs = 0, d->error = 0, d->error_text.clear(), d->peers = 0, d->used = 0;
    forget_handles(d);
    size_t leaked = release_all(d);
    if (leaked && setting("HARNESS_S_SIM_LEAKS")) fprintf(stderr, "harness-sim: device %d: %zu bytes were never freed\n", d->index, leaked);
    return code;
}

SIM_API int cuDevicePrimaryCtxRelease_v2(int device) {
    Lock lock(world().mu);
    forget_refusal();
    Device *d = device_at(device);
    if (!d) return fail(INVALID_DEVICE, "device %d of %d", device, machine().devices);
    if (d->refs == 0) return fail(INVALID_CONTEXT, "the primary context of device %d is not retained", device);
    return --d->refs ? SUCCESS : destroy(lock, d);
}

SIM_API int cuDevicePrimaryCtxReset_v2(int device) {
    Lock lock(world().mu);
    Device *d = device_at(device);
    if (!d) return fail(INVALID_DEVICE, "device %d of %d", device, machine().devices);
    int refs = d->refs;
    int code = destroy(lock, d);
    d->refs = refs, d->active = refs > 0;
    return code;
}

SIM_API int cuCtxSetCurrent(void *context) {
    Lock lock(world().mu);
    forget_refusal();
    for (Device *d : world().devices)
        if (d == context && d->active) {
            current = d;
            return SUCCESS;
        }
    current = nullptr;
    return context ? fail(INVALID_CONTEXT, "%p is not a context (or one that was released)", context) : SUCCESS;
}

SIM_API int cuCtxGetCurrent(void **context) {
    Lock lock(world().mu);
    *context = current_device();
    return SUCCESS;
}

SIM_API int cuCtxGetDevice(int *device) {
    Lock lock(world().mu);
    if (!current_device()) return fail(INVALID_CONTEXT, "the calling thread has no current context");
    *device = current->index;
    return SUCCESS;
}

SIM_API int cuCtxSynchronize(void) {
    Call c;
    if (c.code) return c.code;
    return wait_device(c.lock, c.device);
}

static Device *peer_context(Call &c, void *context) {
    for (Device *d : world().devices)
        if (d == context && d->active && d != c.device) return d;
    c.code = fail(INVALID_CONTEXT, "%p is not another device's context", context);
    return nullptr;
}

SIM_API int cuCtxEnablePeerAccess(void *context, unsigned flags) {
    Call c;
    if (c.code) return c.code;
    Device *d = peer_context(c, context);
    if (!d || flags) return d ? fail(INVALID_VALUE, "flags must be 0") : c.code;
    if (c.device->peers >> d->index & 1) return fail(PEER_ACCESS_ALREADY_ENABLED, "access to device %d is enabled already", d->index);
    c.device->peers |= 1u << d->index;
    return SUCCESS;
}

SIM_API int cuCtxDisablePeerAccess(void *context) {
    Call c;
    if (c.code) return c.code;
    Device *d = peer_context(c, context);
    if (!d) return c.code;
    if (!(c.device->peers >> d->index & 1)) return fail(PEER_ACCESS_NOT_ENABLED, "access to device %d is not enabled", d->index);
    c.device->peers &= ~(1u << d->index);
    return SUCCESS;
}

// ---------------------------------------------------------------- errors

struct ErrorText {
    int code;
    const char *name, *text;
};
static const ErrorText errors[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {LAUNCH_TIMEOUT, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {PEER_ACCESS_NOT_ENABLED, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
};

static const ErrorText *error_text(int code) {
    for (const ErrorText &e : errors)
        if (e.code == code) return &e;
    return nullptr;
}

SIM_API int cuGetErrorName(int code, const char **name) {
    const ErrorText *e = error_text(code);
    *name = e ? e->name : nullptr;
    return e ? SUCCESS : INVALID_VALUE;
}

SIM_API int cuGetErrorString(int code, const char **text) {
    const ErrorText *e = error_text(code);
    *text = e ? e->text : nullptr;
    return e ? SUCCESS : INVALID_VALUE;
}

} // namespace sim
