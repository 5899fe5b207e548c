// hs_sim.h: the names of hs.cuh and ptx.cuh on the simulator. hs.cuh includes it.
#pragma once
#include "device.h"
#include <math.h>

#define HD static inline
#define HS_MEMBER inline
#define KERNEL(name, Args, THREADS)                                                                                          \
    static void name(const Args &a);                                                                                         \
    static_assert(std::is_trivially_copyable<Args>::value, #Args " is copied byte by byte");                                 \
    static hs_sim::Kernel name##_kernel = {#name, [](const void *p) { name(*static_cast<const Args *>(p)); }, sizeof(Args), \
                                           THREADS, nullptr, {}};                                                            \
    static hs_sim::Register name##_register(&name##_kernel);                                                                 \
    static void name(const Args &a)
#define KERNELS(name, Args, THREADS) \
    KERNEL(name##_f32, Args, THREADS) { name<float>(a); } \
    KERNEL(name##_bf16, Args, THREADS) { name<bf16>(a); }

#define HS_SHARED(T, x, N)                  \
    static const char hs_declaration_##x = 0; \
    void *hs_memory_##x = hs_sim::shared(&hs_declaration_##x, sizeof(T) * (N), alignof(T), #x)
#define SHARED(T, x)    \
    HS_SHARED(T, x, 1); \
    T &x = *static_cast<T *>(hs_memory_##x)
#define SHARED_ARRAY(T, x, N) \
    HS_SHARED(T, x, N);       \
    T(&x)[N] = *static_cast<T(*)[N]>(hs_memory_##x)
#define DYNAMIC(T, x) T &x = *static_cast<T *>(hs_sim::dynamic(sizeof(T)))

#define threadIdx (hs_sim::self->thread)
#define blockIdx (hs_sim::self->block)
#define blockDim (hs_sim::self->threads)
#define gridDim (hs_sim::self->grid)

HD void hs_aligned(const void *p, unsigned bytes, HS_SITE) {
    if (reinterpret_cast<uintptr_t>(p) % bytes) hs_sim::aligned(p, bytes, site);
}
HD u32 shared_addr(const void *p) { return hs_sim::shared_address(p); }

HD void __syncthreads(HS_SITE) { hs_sim::block_barrier(site); }
HD void __syncwarp(u32 mask = 0xffffffffu, HS_SITE) { hs_sim::warp_barrier(mask, site); }

template <class T> HD T __shfl_sync(u32 mask, T v, int lane, HS_SITE) {
    return hs_sim::shuffle_as(hs_sim::SHUFFLE_INDEX, mask, v, lane, site);
}
template <class T> HD T __shfl_xor_sync(u32 mask, T v, int lanes, HS_SITE) {
    return hs_sim::shuffle_as(hs_sim::SHUFFLE_XOR, mask, v, lanes, site);
}
template <class T> HD T __shfl_up_sync(u32 mask, T v, u32 delta, HS_SITE) {
    return hs_sim::shuffle_as(hs_sim::SHUFFLE_UP, mask, v, (int)delta, site);
}
template <class T> HD T __shfl_down_sync(u32 mask, T v, u32 delta, HS_SITE) {
    return hs_sim::shuffle_as(hs_sim::SHUFFLE_DOWN, mask, v, (int)delta, site);
}

HD float bits_to_float(u32 b) { float f; memcpy(&f, &b, 4); return f; }
HD u32 float_to_bits(float f) { u32 b; memcpy(&b, &f, 4); return b; }

// cvt.rn.bf16.f32: to nearest, ties to even; any NaN becomes 0x7fff.
HD bf16 to_bf16(float f) {
    u32 b = float_to_bits(f);
    if (f != f) return {0x7fff};
    return {(u16)((b + 0x7fff + (b >> 16 & 1)) >> 16)};
}

// ex2.approx.ftz.f32 without its error of up to 2 ulp: subnormal arguments and results are 0.
HD float exp2_fast(float x) {
    float y = exp2f(x);
    return y < 1.17549435e-38f ? 0 : y;
}

HD void cp_async16(void *dst, const void *src, bool valid = true, HS_SITE) { hs_sim::async_copy(dst, src, valid, site); }
HD void cp_async_commit() { hs_sim::async_commit(); }
template <int N> HD void cp_async_wait() { hs_sim::async_wait(N); }

HD void ldmatrix_x4(u32 (&r)[4], const void *row, HS_SITE) { hs_sim::ldmatrix(r, row, false, site); }
HD void ldmatrix_x4_trans(u32 (&r)[4], const void *row, HS_SITE) { hs_sim::ldmatrix(r, row, true, site); }
HD void mma_bf16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2], HS_SITE) { hs_sim::mma(d, a, b, site); }

HD int min(int a, int b) { return a < b ? a : b; }
HD int max(int a, int b) { return a > b ? a : b; }
HD i64 min(i64 a, i64 b) { return a < b ? a : b; }
HD i64 max(i64 a, i64 b) { return a > b ? a : b; }
HD u32 min(u32 a, u32 b) { return a < b ? a : b; }
HD u32 max(u32 a, u32 b) { return a > b ? a : b; }
HD float min(float a, float b) { return fminf(a, b); }
HD float max(float a, float b) { return fmaxf(a, b); }
