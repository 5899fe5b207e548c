// Gated RMSNorm: y = w·(x·r)·silu(z), r = 1/sqrt(mean x² + eps), over rows of D <= 256. A row belongs to a group of `lanes`
// lanes (the power of two at or above D/8), 8 values a lane.
#include "pointwise.cuh"

constexpr int THREADS = 256;

struct GNormArgs {
    void *y;
    const void *x, *z;
    const float *w;
    i64 N, rows; // rows a block
    i32 D, lanes;
    float inverse, eps; // inverse = 1/D
};

template <class T> HD void gnorm(const GNormArgs &a) {
    int groups = blockDim.x / a.lanes, g = threadIdx.x / a.lanes, c = threadIdx.x % a.lanes * 8;
    bool have = c < a.D;
    float w[8];
    unpack(w, load(a.w + c, have));
    i64 end = min((blockIdx.x + 1) * a.rows, a.N);
    for (i64 first = blockIdx.x * a.rows; first < end; first += groups) {
        i64 at = (first + g) * a.D + c;
        bool on = have && first + g < end;
        Raw<T> raw_x = load((const T *)a.x + at, on), raw_z = load((const T *)a.z + at, on);
        float x[8], z[8], sum = 0;
        unpack(x, raw_x), unpack(z, raw_z);
        for (int i = 0; i < 8; i++) sum = fmaf(x[i], x[i], sum);
        float r = rsqrt_of<T>(fmaf(group_sum(sum, a.lanes), a.inverse, a.eps));
        if (!on) continue;
        for (int i = 0; i < 8; i++) x[i] = w[i] * (x[i] * r) * (z[i] * sigmoid_of<T>(z[i]));
        st8((T *)a.y + at, x);
    }
}
KERNELS(gnorm, GNormArgs, THREADS)

struct GNormBackwardArgs {
    void *dx, *dz;
    float *part; // [blocks,D]: each block's sum of q·xh
    const void *dy, *x, *z;
    const float *w;
    i64 N, rows;
    i32 D, lanes;
    float inverse, eps; // inverse = 1/D
};

// With xh = x·r and q = dy·silu(z): dx = r·(w·q - xh·mean(xh·w·q)), dz = dy·w·xh·silu'(z).
template <class T> HD void gnorm_backward(const GNormBackwardArgs &a) {
    SHARED_ARRAY(float, sums, THREADS * 8);
    int groups = blockDim.x / a.lanes, g = threadIdx.x / a.lanes, c = threadIdx.x % a.lanes * 8;
    bool have = c < a.D;
    float w[8], dw[8];
    zero8(dw);
    unpack(w, load(a.w + c, have));
    i64 end = min((blockIdx.x + 1) * a.rows, a.N);
    for (i64 first = blockIdx.x * a.rows; first < end; first += groups) {
        i64 at = (first + g) * a.D + c;
        bool on = have && first + g < end;
        Raw<T> raw_x = load((const T *)a.x + at, on), raw_z = load((const T *)a.z + at, on), raw_dy = load((const T *)a.dy + at, on);
        float x[8], z[8], dy[8], sum = 0;
        unpack(x, raw_x), unpack(z, raw_z), unpack(dy, raw_dy);
        for (int i = 0; i < 8; i++) sum = fmaf(x[i], x[i], sum);
        float r = rsqrt_of<T>(fmaf(group_sum(sum, a.lanes), a.inverse, a.eps)), dot = 0;
        for (int i = 0; i < 8; i++) {
            float s = sigmoid_of<T>(z[i]), q = dy[i] * z[i] * s;
            x[i] *= r;
            z[i] = dy[i] * w[i] * x[i] * silu_grad(z[i], s);
            dw[i] = fmaf(q, x[i], dw[i]);
            dy[i] = w[i] * q;
            dot = fmaf(x[i], dy[i], dot);
        }
        float mean = group_sum(dot, a.lanes) * a.inverse;
        if (!on) continue;
        st8((T *)a.dz + at, z);
        for (int i = 0; i < 8; i++) x[i] = r * fmaf(-x[i], mean, dy[i]);
        st8((T *)a.dx + at, x);
    }
    st8(sums + threadIdx.x * 8, dw);
    __syncthreads();
    for (int d = threadIdx.x; d < a.D; d += blockDim.x) {
        float sum = 0;
        for (int k = 0; k < groups; k++) sum += sums[k * a.lanes * 8 + d];
        a.part[(i64)blockIdx.x * a.D + d] = sum;
    }
}
KERNELS(gnorm_backward, GNormBackwardArgs, THREADS)
