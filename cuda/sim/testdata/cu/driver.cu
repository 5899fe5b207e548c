// driver.cu: kernels for the tests of the simulated driver.
#include "hs.cuh"

struct LineArgs {
    float *y;
    const float *x;
    i64 n;
    float scale, add;
};
// y[i] = scale x[i] + add
KERNEL(line, LineArgs, 64) {
    for (i64 i = threadIdx.x; i < a.n; i += blockDim.x) a.y[i] = a.scale * a.x[i] + a.add;
}

struct StoreArgs {
    float *p;
    i64 at;
    float value;
    i32 pad;
};
KERNEL(store, StoreArgs, 32) {
    if (threadIdx.x == 0) a.p[a.at] = a.value;
}

struct LonelyArgs {
    float *p;
};
// A barrier that half of the block does not reach.
KERNEL(lonely_barrier, LonelyArgs, 64) {
    if (threadIdx.x < 32) __syncthreads();
}

struct Bytes { u8 b[1]; };
KERNEL(fill_shared, LonelyArgs, 64) {
    DYNAMIC(Bytes, s);
    s.b[0] = 1;
}
