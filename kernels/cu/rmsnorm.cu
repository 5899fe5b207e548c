// RMSNorm with weight 1+w over rows of H: y = x·r·(1+w), r = 1/sqrt(mean x² + eps). A block a row; thread i holds chunks
// i and i + blockDim of 8 values in registers, so that each input is read once. Statistics and sums are fp32.
#include "pointwise.cuh"

constexpr int CHUNKS = 2;    // a thread's chunks of 8 values
constexpr int MAX_ROW = 512; // threads a row at most: H <= 8192

// CHUNK_LOOP runs over a thread's chunks: j its number, c its first column.
#define CHUNK_LOOP(j, c, H)                                                                                            \
    _Pragma("unroll") for (int j = 0; j < CHUNKS; j++)                                                                 \
        if (int c = 8 * (threadIdx.x + j * blockDim.x); c < (H))

struct RMSNormArgs {
    void *y;
    float *rstd; // may be null
    void *x;
    const void *res; // add_rmsnorm: x += res first
    const float *w;
    i32 H;
    float eps;
};

template <class T, bool ADD> HD void norm_row(const RMSNormArgs &a, float *red) {
    i64 at = (i64)blockIdx.x * a.H;
    T *x = (T *)a.x + at, *y = (T *)a.y + at;
    float v[CHUNKS][8], sum = 0;
    CHUNK_LOOP(j, c, a.H) {
        ld8(v[j], x + c);
        if (ADD) {
            float r[8];
            ld8(r, (const T *)a.res + at + c);
            for (int i = 0; i < 8; i++) {
                T stored; // the norm is of the sum as the next reader sees it
                put(stored, v[j][i] + r[i]);
                v[j][i] = to_float(stored);
            }
            st8(x + c, v[j]);
        }
        for (int i = 0; i < 8; i++) sum = fmaf(v[j][i], v[j][i], sum);
    }
    float r = rsqrt_(block_sum(sum, red) / (float)a.H + a.eps);
    if (a.rstd && threadIdx.x == 0) a.rstd[blockIdx.x] = r;
    CHUNK_LOOP(j, c, a.H) {
        float w[8];
        ld8(w, a.w + c);
        for (int i = 0; i < 8; i++) v[j][i] = v[j][i] * r * (1.0f + w[i]);
        st8(y + c, v[j]);
    }
}

template <class T> HD void rmsnorm(const RMSNormArgs &a) {
    SHARED_ARRAY(float, red, MAX_ROW / 32);
    norm_row<T, false>(a, red);
}
KERNELS(rmsnorm, RMSNormArgs, MAX_ROW)

template <class T> HD void add_rmsnorm(const RMSNormArgs &a) {
    SHARED_ARRAY(float, red, MAX_ROW / 32);
    norm_row<T, true>(a, red);
}
KERNELS(add_rmsnorm, RMSNormArgs, MAX_ROW)

struct RMSNormBackwardArgs {
    void *dx;
    float *part; // [blocks,H]: each block's sum of dy·x·r
    const void *dy, *x;
    const float *rstd, *w;
    i64 T, rows; // rows a block
    i32 H;
};

// With xh = x·r and q = dy·(1+w): dx += r·(q - xh·mean(q·xh)). Block b has rows b·rows and on, in order.
template <class T> HD void rmsnorm_backward(const RMSNormBackwardArgs &a) {
    SHARED_ARRAY(float, red, MAX_ROW / 32);
    float dw[CHUNKS][8];
    for (int j = 0; j < CHUNKS; j++) zero8(dw[j]);
    i64 end = min((blockIdx.x + 1) * a.rows, a.T);
    for (i64 t = blockIdx.x * a.rows; t < end; t++) {
        const T *x = (const T *)a.x + t * a.H, *dy = (const T *)a.dy + t * a.H;
        T *dx = (T *)a.dx + t * a.H;
        float r = a.rstd[t], xh[CHUNKS][8], q[CHUNKS][8], old[CHUNKS][8], sum = 0;
        CHUNK_LOOP(j, c, a.H) {
            ld8(xh[j], x + c);
            ld8(q[j], dy + c);
            ld8(old[j], dx + c);
        }
        CHUNK_LOOP(j, c, a.H) {
            float w[8];
            ld8(w, a.w + c);
            for (int i = 0; i < 8; i++) {
                xh[j][i] *= r;
                dw[j][i] = fmaf(q[j][i], xh[j][i], dw[j][i]);
                q[j][i] *= 1.0f + w[i];
                sum = fmaf(q[j][i], xh[j][i], sum);
            }
        }
        float mean = block_sum(sum, red) / (float)a.H;
        CHUNK_LOOP(j, c, a.H) {
            for (int i = 0; i < 8; i++) old[j][i] = fmaf(r, fmaf(-xh[j][i], mean, q[j][i]), old[j][i]);
            st8(dx + c, old[j]);
        }
    }
    CHUNK_LOOP(j, c, a.H) st8(a.part + (i64)blockIdx.x * a.H + c, dw[j]);
}
KERNELS(rmsnorm_backward, RMSNormBackwardArgs, MAX_ROW)
