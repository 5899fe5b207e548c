// pointwise.cuh: what the elementwise and row kernels share. A thread works on chunks of 8 values (16 bytes in bf16).
#pragma once
#include "hs.cuh"

#ifdef HS_SIM
HD float rcp_fast(float x) { return 1.0f / x; }
#else
// rcp_fast is rcp.approx: 1 ulp, denormals are 0. For bf16 storage only.
HD float rcp_fast(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
#endif

// sigmoid_of<T> is accurate for fp32 storage. For bf16 it errs by some 1e-6 of the value, in a tenth of the instructions:
// with the accurate one these kernels would wait for arithmetic and not for memory.
template <class T> HD float sigmoid_of(float x) {
    if constexpr (sizeof(T) == sizeof(float)) return sigmoid_(x);
    else return rcp_fast(1.0f + exp2_fast(-1.44269504f * x));
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

// load_part and store_part are ld8 and st8 at value i of p, cut off at n.
template <class T> HD void load_part(float (&x)[8], const T *p, i64 i, i64 n) {
    if (i + 8 <= n) return ld8(x, p + i);
    for (int k = 0; k < 8; k++) x[k] = i + k < n ? to_float(p[i + k]) : 0.0f;
}
template <class T> HD void store_part(T *p, const float (&x)[8], i64 i, i64 n) {
    if (i + 8 <= n) return st8(p + i, x);
    for (int k = 0; k < 8; k++)
        if (i + k < n) put(p[i + k], x[k]);
}
