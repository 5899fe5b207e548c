// runtime.cu: small kernels for the tests of the runtime.
#include "hs.cuh"

struct ScaleArgs {
    float *y;
    const float *x;
    i64 n;
    float scale;
    i32 add;
};
// y[i] = scale x[i] + add, one block of threads a part of n.
KERNEL(scale, ScaleArgs, 128) {
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < a.n; i += (i64)gridDim.x * blockDim.x) a.y[i] = a.scale * a.x[i] + a.add;
}

struct SumArgs {
    float *out;
    const float *x;
    i32 n;
    i32 pad;
};
struct Words { float w[1]; };
// out[0] = the sum of x through dynamic shared memory of n floats.
KERNEL(sum_shared, SumArgs, 64) {
    DYNAMIC(Words, s);
    for (int i = threadIdx.x; i < a.n; i += blockDim.x) s.w[i] = a.x[i];
    __syncthreads();
    if (threadIdx.x == 0) {
        float t = 0;
        for (int i = 0; i < a.n; i++) t += s.w[i];
        a.out[0] = t;
    }
}

struct StrayArgs {
    float *p;
    i64 offset;
};
// Writes where it is told to: the tests point it outside of every buffer.
KERNEL(stray, StrayArgs, 32) {
    if (threadIdx.x == 0) a.p[a.offset] = 1;
}
