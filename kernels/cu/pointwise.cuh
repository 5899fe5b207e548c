// pointwise.cuh: what the elementwise and row kernels share. A thread works on chunks of 8 values (16 bytes in bf16).
#pragma once
#include "hs.cuh"

#ifdef HS_SIM
HD float rcp_fast(float x) { return 1.0f / x; }
HD float rsqrt_fast(float x) { return 1.0f / sqrtf(x); }
#else
// rcp.approx and rsqrt.approx: 1 and 2 ulp, denormals are 0. For bf16 storage only.
HD float rcp_fast(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
HD float rsqrt_fast(float x) { float y; asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
#endif

// sigmoid_of<T> is accurate for fp32 storage. For bf16 it errs by some 1e-6 of the value, in a tenth of the instructions:
// with the accurate one these kernels would wait for arithmetic and not for memory.
template <class T> HD float sigmoid_of(float x) {
    if constexpr (sizeof(T) == sizeof(float)) return sigmoid_(x);
    else return rcp_fast(1.0f + exp2_fast(-1.44269504f * x));
}

template <class T> HD float rsqrt_of(float x) {
    if constexpr (sizeof(T) == sizeof(float)) return rsqrt_(x);
    else return rsqrt_fast(x);
}

// silu_grad is the derivative of x·sigmoid(x), s = sigmoid(x).
HD float silu_grad(float x, float s) { return s * fmaf(x, 1.0f - s, 1.0f); }

HD void zero8(float (&x)[8]) {
    for (int i = 0; i < 8; i++) x[i] = 0;
}

// group_sum adds over aligned groups of `lanes` lanes (a power of two); every lane of the warp takes part.
HD float group_sum(float v, int lanes) {
    for (int o = lanes >> 1; o; o >>= 1) v += __shfl_xor_sync(ALL_LANES, v, o);
    return v;
}

// Raw is 8 values as they lie in memory. Loads into Raw come first and arithmetic after all of them, so that they are
// under way together; a branch around each load would make every one wait for the last.
template <class T> struct Raw { Vec16 v[sizeof(T) / 2]; };

// load gives zeros where `in` is false.
template <class T> HD Raw<T> load(const T *p, bool in) {
    Raw<T> r;
    for (int i = 0; i < (int)(sizeof(T) / 2); i++) {
        r.v[i] = {{0, 0, 0, 0}};
        if (in) r.v[i] = ld16((const u8 *)p + 16 * i);
    }
    return r;
}
HD void unpack(float (&x)[8], const Raw<float> &r) {
    for (int i = 0; i < 8; i++) x[i] = bits_to_float(r.v[i / 4].w[i % 4]);
}
HD void unpack(float (&x)[8], const Raw<bf16> &r) {
    for (int i = 0; i < 4; i++) x[2 * i] = bits_to_float(r.v[0].w[i] << 16), x[2 * i + 1] = bits_to_float(r.v[0].w[i] & 0xffff0000u);
}

// load_part is ld8 at value i for pairs of registers and an array, cut off at n with zeros; store_part is st8.
HD void load_whole(i64) {}
template <class T, class... Rest> HD void load_whole(i64 i, float (&x)[8], const T *p, Rest &&...rest) {
    ld8(x, p + i);
    load_whole(i, rest...);
}
HD void load_tail(i64, i64) {}
template <class T, class... Rest> HD void load_tail(i64 i, i64 n, float (&x)[8], const T *p, Rest &&...rest) {
    for (int k = 0; k < 8; k++) x[k] = i + k < n ? to_float(p[i + k]) : 0.0f;
    load_tail(i, n, rest...);
}
template <class... Pairs> HD void load_part(i64 i, i64 n, Pairs &&...pairs) {
    if (i + 8 <= n) load_whole(i, pairs...);
    else load_tail(i, n, pairs...);
}
template <class T> HD void store_part(i64 i, i64 n, T *p, const float (&x)[8]) {
    if (i + 8 <= n) return st8(p + i, x);
    for (int k = 0; k < 8; k++)
        if (i + k < n) put(p[i + k], x[k]);
}
