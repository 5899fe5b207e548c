// hs.cuh: the language that the kernels of this folder are written in. No CUDA header is needed: NVRTC compiles it for
// devices; with HS_SIM defined a C++ compiler does, and hs_sim.h (cuda/sim) gives the same names on the simulator.
//
//   KERNEL(name, Args, THREADS)      defines kernel `name`, its one parameter is the struct `const Args &a`; blocks have at
//                                    most THREADS threads. Fields of Args: pointers and i64 first, then i32 and float, so
//                                    that the Go struct of the same order has the same layout.
//   KERNELS(name, Args, THREADS)     defines name_f32 and name_bf16, which call the function template `name<T>(a)`
//   SHARED(T, x); SHARED_ARRAY(T, x, N)   static shared memory
//   DYNAMIC(T, x)                    dynamic shared memory, as a reference to T (size given at launch, 128-byte aligned)
//   threadIdx, blockIdx, blockDim, gridDim, __syncthreads(), __syncwarp(), __shfl_xor_sync(mask, v, o), __shfl_sync(mask, v, lane)
//
// Rules: no floating-point atomics (results must not depend on the order of blocks); 64-bit offsets (i64) into global
// memory; every thread of a block reaches every barrier; exponents are masked before exp.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;

struct bf16 { u16 bits; }; // round to nearest even, NaN stays NaN

#ifdef HS_SIM
#include "hs_sim.h"
HD u32 pack_bf16(float lo, float hi) { return (u32)to_bf16(lo).bits | (u32)to_bf16(hi).bits << 16; }
#else

#define HD static __device__ __forceinline__
#define HS_MEMBER __device__ __forceinline__ // of a struct's function
#define KERNEL(name, Args, THREADS) extern "C" __global__ void __launch_bounds__(THREADS) name(const __grid_constant__ Args a)
#define KERNELS(name, Args, THREADS) \
    KERNEL(name##_f32, Args, THREADS) { name<float>(a); } \
    KERNEL(name##_bf16, Args, THREADS) { name<bf16>(a); }
#define SHARED(T, x) __shared__ T x
#define SHARED_ARRAY(T, x, N) __shared__ T x[N]
#define DYNAMIC(T, x) extern __shared__ __align__(128) u8 hs_dynamic[]; T &x = *reinterpret_cast<T *>(hs_dynamic)

HD float bits_to_float(u32 b) { return __uint_as_float(b); }
HD u32 float_to_bits(float f) { return __float_as_uint(f); }
HD bf16 to_bf16(float f) { bf16 r; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(f)); return r; }
HD u32 pack_bf16(float lo, float hi) { u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo)); return r; }
// exp2_fast is ex2.approx: 2 ulp, denormals are 0. For bf16 storage only.
HD float exp2_fast(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

#endif // HS_SIM

constexpr u32 ALL_LANES = 0xffffffffu;

HD float to_float(float x) { return x; }
HD float to_float(bf16 x) { return bits_to_float((u32)x.bits << 16); }
HD void put(float &dst, float x) { dst = x; }
HD void put(bf16 &dst, float x) { dst = to_bf16(x); }

// Accurate in both storage types (libdevice on a device, libm on the simulator).
HD float exp_(float x) { return expf(x); }
HD float log_(float x) { return logf(x); }
HD float rsqrt_(float x) { return 1.0f / sqrtf(x); }
HD float sigmoid_(float x) { return 1.0f / (1.0f + expf(-x)); }
HD float silu_(float x) { return x / (1.0f + expf(-x)); }
HD float softplus_(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

HD int lane_id() { return threadIdx.x & 31; }
HD int warp_id() { return threadIdx.x >> 5; }

// Sums and maxima in a fixed order: butterflies in a warp, then warps in ascending order.
HD float warp_sum(float v) {
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(ALL_LANES, v, o);
    return v;
}
HD float warp_max(float v) {
    for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, o));
    return v;
}
// block_sum gives every thread the sum over the block; red has a float a warp and may be used again at once.
HD float block_sum(float v, float *red) {
    v = warp_sum(v);
    __syncthreads();
    if (lane_id() == 0) red[warp_id()] = v;
    __syncthreads();
    float sum = 0;
    for (int w = 0; w < (int)((blockDim.x + 31) >> 5); w++) sum += red[w];
    return sum;
}
HD float block_max(float v, float *red) {
    v = warp_max(v);
    __syncthreads();
    if (lane_id() == 0) red[warp_id()] = v;
    __syncthreads();
    float m = red[0];
    for (int w = 1; w < (int)((blockDim.x + 31) >> 5); w++) m = fmaxf(m, red[w]);
    return m;
}

// 16 bytes at a time; p is 16-byte aligned (the simulator checks).
struct alignas(16) Vec16 { u32 w[4]; };
HD Vec16 ld16(const void *p) {
#ifdef HS_SIM
    hs_aligned(p, 16);
#endif
    return *reinterpret_cast<const Vec16 *>(p);
}
HD void st16(void *p, const Vec16 &v) {
#ifdef HS_SIM
    hs_aligned(p, 16);
#endif
    *reinterpret_cast<Vec16 *>(p) = v;
}

// ld8 and st8 move 8 values between memory of either storage type and fp32 registers.
HD void ld8(float (&x)[8], const float *p) {
    Vec16 a = ld16(p), b = ld16(p + 4);
    for (int i = 0; i < 4; i++) x[i] = bits_to_float(a.w[i]), x[i + 4] = bits_to_float(b.w[i]);
}
HD void ld8(float (&x)[8], const bf16 *p) {
    Vec16 a = ld16(p);
    for (int i = 0; i < 4; i++) x[2 * i] = bits_to_float(a.w[i] << 16), x[2 * i + 1] = bits_to_float(a.w[i] & 0xffff0000u);
}
HD void st8(float *p, const float (&x)[8]) {
    Vec16 a, b;
    for (int i = 0; i < 4; i++) a.w[i] = float_to_bits(x[i]), b.w[i] = float_to_bits(x[i + 4]);
    st16(p, a), st16(p + 4, b);
}
HD void st8(bf16 *p, const float (&x)[8]) {
    Vec16 a;
    for (int i = 0; i < 4; i++) a.w[i] = pack_bf16(x[2 * i], x[2 * i + 1]);
    st16(p, a);
}
