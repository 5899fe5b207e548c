//go:build ignore

// transfer.cpp: memory, copies and fills of the simulated driver.
//
// Asynchronous copies take pinned host memory only. A real driver also takes pageable memory and then waits in some cases
// and not in others; this project relies on neither.
#include <cstdio>
#include <cstring>

#include "call.h"

namespace sim {

SIM_API int cuMemAlloc_v2(uint64_t *p, size_t bytes) {
    Call c;
    *p = 0;
    if (c.code) return c.code;
    if (!bytes) return fail(INVALID_VALUE, "cuMemAlloc: 0 bytes");
    Device *d = c.device;
    if (bytes > d->memory - d->used)
        return fail(OUT_OF_MEMORY, "device %d: %zu bytes wanted, %zu of %zu in use", d->index, bytes, d->used, d->memory);
    Block *b = allocate(d, bytes);
    if (!b) return fail(OUT_OF_MEMORY, "device %d: the simulator's machine has no memory for %zu bytes", d->index, bytes);
    d->used += bytes;
    *p = b->base;
    return SUCCESS;
}

// A free waits for the device, as the real one does: work queued before it may use the block.
SIM_API int cuMemFree_v2(uint64_t p) {
    Call c;
    if (c.code || !p) return c.code;
    Block *b = find(p);
    if (!b || b->base != p || !b->device)
        return fail(INVALID_VALUE, "cuMemFree: 0x%llx is not the start of a block", (unsigned long long)p);
    if (!b->live) return fail(INVALID_VALUE, "cuMemFree: block %llu is free already", (unsigned long long)b->number);
    if (b->device != c.device)
        return fail(INVALID_VALUE, "cuMemFree: block %llu belongs to device %d", (unsigned long long)b->number, b->device->index);
    if (int code = wait_device(c.lock, c.device)) return code;
    b = find(p); // the lock was released
    if (!b || !b->live) return fail(INVALID_VALUE, "cuMemFree: two threads freed 0x%llx", (unsigned long long)p);
    c.device->used -= b->bytes;
    std::string overrun = release(b);
    if (!overrun.empty()) make_device_fail(c.device, ILLEGAL_ADDRESS, "out of bounds: " + overrun);
    return c.device->error ? fail(c.device->error, "%s", c.device->error_text.c_str()) : SUCCESS;
}

SIM_API int cuMemGetInfo_v2(size_t *free, size_t *total) {
    Call c;
    if (c.code) return c.code;
    *total = c.device->memory, *free = c.device->memory - c.device->used;
    return SUCCESS;
}

SIM_API int cuMemHostAlloc(void **p, size_t bytes, unsigned) {
    Call c;
    *p = nullptr;
    if (c.code) return c.code;
    if (!bytes) return fail(INVALID_VALUE, "cuMemHostAlloc: 0 bytes");
    Block *b = allocate(nullptr, bytes);
    if (!b) return fail(OUT_OF_MEMORY, "no memory for %zu pinned bytes", bytes);
    *p = (void *)b->base;
    return SUCCESS;
}

SIM_API int cuMemAllocHost_v2(void **p, size_t bytes) { return cuMemHostAlloc(p, bytes, 0); }

SIM_API int cuMemFreeHost(void *p) {
    Call c;
    if (c.code || !p) return c.code;
    Block *b = find((uintptr_t)p);
    if (!b || b->base != (uintptr_t)p || b->device || !b->live) return fail(INVALID_VALUE, "cuMemFreeHost: %p is not pinned memory", p);
    if (int code = wait_device(c.lock, c.device)) return code;
    b = find((uintptr_t)p); // the lock was released
    if (!b || !b->live) return fail(INVALID_VALUE, "cuMemFreeHost: two threads freed %p", p);
    std::string overrun = release(b);
    return overrun.empty() ? SUCCESS : fail(ILLEGAL_ADDRESS, "out of bounds: %s", overrun.c_str());
}

// ---------------------------------------------------------------- copies

enum Side { DEVICE, PINNED, ANY_HOST };

static std::string reachable(Device *d, Side side, uintptr_t p, size_t n) {
    return side == ANY_HOST ? "" : holds(d, p, n, side == PINNED);
}

// transfer makes the work of a copy; ranges are checked when it is queued and again when it runs, for blocks that were
// freed between.
static int transfer(Call &c, Stream *s, const char *what, uintptr_t dst, Side to, uintptr_t src, Side from, size_t n, Ref *op) {
    Device *d = c.device;
    std::string bad = reachable(d, to, dst, n);
    if (bad.empty()) bad = reachable(d, from, src, n);
    if (!bad.empty()) return fail(INVALID_VALUE, "%s of %zu bytes: %s", what, n, bad.c_str());
    Work w;
    w.what = std::string(what) + " of " + std::to_string(n) + " bytes";
    w.body = [=]() -> Outcome {
        std::string bad;
        {
            Lock lock(world().mu);
            bad = reachable(d, to, dst, n);
            if (bad.empty()) bad = reachable(d, from, src, n);
        }
        if (!bad.empty()) return {ILLEGAL_ADDRESS, bad};
        if (n) memmove((void *)dst, (const void *)src, n);
        return {};
    };
    return enqueue(s, std::move(w), op);
}

static int copy_async(const char *what, uintptr_t dst, Side to, uintptr_t src, Side from, size_t n, void *stream) {
    Call c;
    if (c.code) return c.code;
    Stream *s = c.stream(stream);
    return s ? transfer(c, s, what, dst, to, src, from, n, nullptr) : c.code;
}

// A copy that waits goes through the null stream: it is not ordered with the work of non-blocking streams.
static int copy_now(const char *what, uintptr_t dst, Side to, uintptr_t src, Side from, size_t n) {
    Call c;
    if (c.code) return c.code;
    Ref op;
    if (int code = transfer(c, &c.device->null_stream, what, dst, to, src, from, n, &op)) return code;
    return wait_for(c.lock, c.device, {op});
}

SIM_API int cuMemcpyHtoDAsync_v2(uint64_t dst, const void *src, size_t n, void *stream) {
    return copy_async("copy to the device", dst, DEVICE, (uintptr_t)src, PINNED, n, stream);
}
SIM_API int cuMemcpyDtoHAsync_v2(void *dst, uint64_t src, size_t n, void *stream) {
    return copy_async("copy to the host", (uintptr_t)dst, PINNED, src, DEVICE, n, stream);
}
SIM_API int cuMemcpyDtoDAsync_v2(uint64_t dst, uint64_t src, size_t n, void *stream) {
    return copy_async("copy on the device", dst, DEVICE, src, DEVICE, n, stream);
}
SIM_API int cuMemcpyHtoD_v2(uint64_t dst, const void *src, size_t n) {
    return copy_now("waiting copy to the device", dst, DEVICE, (uintptr_t)src, ANY_HOST, n);
}
SIM_API int cuMemcpyDtoH_v2(void *dst, uint64_t src, size_t n) {
    return copy_now("waiting copy to the host", (uintptr_t)dst, ANY_HOST, src, DEVICE, n);
}
SIM_API int cuMemcpyDtoD_v2(uint64_t dst, uint64_t src, size_t n) {
    return copy_now("waiting copy on the device", dst, DEVICE, src, DEVICE, n);
}

// ---------------------------------------------------------------- fills

template <class T> static int fill(uint64_t p, T value, size_t n, void *stream) {
    Call c;
    if (c.code) return c.code;
    Stream *s = c.stream(stream);
    if (!s) return c.code;
    if (p % sizeof(T)) return fail(INVALID_VALUE, "fill: 0x%llx is not aligned to %zu bytes", (unsigned long long)p, sizeof(T));
    if (n > SIZE_MAX / sizeof(T)) return fail(INVALID_VALUE, "fill: %zu values", n);
    Device *d = c.device;
    std::string bad = holds(d, p, n * sizeof(T));
    if (!bad.empty()) return fail(INVALID_VALUE, "fill: %s", bad.c_str());
    Work w;
    w.what = "fill of " + std::to_string(n * sizeof(T)) + " bytes";
    w.body = [=]() -> Outcome {
        std::string bad;
        {
            Lock lock(world().mu);
            bad = holds(d, p, n * sizeof(T));
        }
        if (!bad.empty()) return {ILLEGAL_ADDRESS, bad};
        T *q = (T *)p;
        for (size_t i = 0; i < n; i++) q[i] = value;
        return {};
    };
    return enqueue(s, std::move(w));
}

SIM_API int cuMemsetD8Async(uint64_t p, unsigned char value, size_t n, void *stream) { return fill(p, value, n, stream); }
SIM_API int cuMemsetD32Async(uint64_t p, unsigned value, size_t n, void *stream) { return fill(p, value, n, stream); }

} // namespace sim
