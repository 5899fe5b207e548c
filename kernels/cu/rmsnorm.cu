// RMSNorm with weight 1+w over rows of H: y = x·r·(1+w), r = 1/sqrt(mean x² + eps). A block a row; thread i holds chunks
// i and i + blockDim of 8 values in registers, so that each input is read once. Statistics and sums are fp32.
#include "pointwise.cuh"

constexpr int CHUNKS = 2;    // a thread's chunks of 8 values
constexpr int MAX_ROW = 512; // threads a row at most: H <= 8192

// column is the first column of a thread's chunk j.
HD int column(int j) { return 8 * (threadIdx.x + j * blockDim.x); }

struct RMSNormArgs {
    void *y;
    float *rstd; // may be null
    void *x;
    const void *res; // add_rmsnorm: x += res first
    const float *w;
    i32 H;
    float inverse, eps; // inverse = 1/H
};

template <class T, bool ADD> HD void norm_row(const RMSNormArgs &a, float *red) {
    i64 at = (i64)blockIdx.x * a.H;
    T *x = (T *)a.x + at;
    Raw<T> in[CHUNKS], res[CHUNKS];
    for (int j = 0; j < CHUNKS; j++) {
        in[j] = load(x + column(j), column(j) < a.H);
        if (ADD) res[j] = load((const T *)a.res + at + column(j), column(j) < a.H);
    }
    float v[CHUNKS][8], sum = 0;
    for (int j = 0; j < CHUNKS; j++) {
        unpack(v[j], in[j]);
        if (ADD) {
            float r[8];
            unpack(r, res[j]);
            for (int i = 0; i < 8; i++) {
                T stored; // the norm is of the sum as the next reader sees it
                put(stored, v[j][i] + r[i]);
                v[j][i] = to_float(stored);
            }
            if (column(j) < a.H) st8(x + column(j), v[j]);
        }
        for (int i = 0; i < 8; i++) sum = fmaf(v[j][i], v[j][i], sum);
    }
    float r = rsqrt_of<T>(fmaf(block_sum(sum, red), a.inverse, a.eps));
    if (a.rstd && threadIdx.x == 0) a.rstd[blockIdx.x] = r;
    Raw<float> weights[CHUNKS];
    for (int j = 0; j < CHUNKS; j++) weights[j] = load(a.w + column(j), column(j) < a.H);
    for (int j = 0; j < CHUNKS; j++) {
        float w[8];
        unpack(w, weights[j]);
        for (int i = 0; i < 8; i++) v[j][i] = v[j][i] * r * (1.0f + w[i]);
        if (column(j) < a.H) st8((T *)a.y + at + column(j), v[j]);
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
    float inverse; // 1/H
};

// RowIn is what a thread reads of row t; nothing where t is not below end.
template <class T> struct RowIn { Raw<T> x[CHUNKS], dy[CHUNKS], dx[CHUNKS]; };
template <class T> HD RowIn<T> row_in(const RMSNormBackwardArgs &a, i64 t, i64 end) {
    RowIn<T> in;
    for (int j = 0; j < CHUNKS; j++) {
        i64 at = t * a.H + column(j);
        bool on = t < end && column(j) < a.H;
        in.x[j] = load((const T *)a.x + at, on);
        in.dy[j] = load((const T *)a.dy + at, on);
        in.dx[j] = load((const T *)a.dx + at, on);
    }
    return in;
}

// With xh = x·r and q = dy·(1+w): dx += r·(q - xh·mean(q·xh)). Block b has rows b·rows and on, in order; in bf16 the next
// row is on its way while one is worked on (two rows of fp32 would not fit into registers).
template <class T> HD void rmsnorm_backward(const RMSNormBackwardArgs &a) {
    constexpr bool AHEAD = sizeof(T) == sizeof(bf16);
    SHARED_ARRAY(float, red, MAX_ROW / 32);
    float dw[CHUNKS][8];
    for (int j = 0; j < CHUNKS; j++) zero8(dw[j]);
    i64 t = blockIdx.x * a.rows, end = min(t + a.rows, a.T);
    RowIn<T> next = row_in<T>(a, t, end);
    for (; t < end; t++) {
        RowIn<T> in = next;
        float r = a.rstd[t], xh[CHUNKS][8], q[CHUNKS][8], sum = 0;
        if (AHEAD) next = row_in<T>(a, t + 1, end);
        for (int j = 0; j < CHUNKS; j++) {
            float w[8];
            unpack(w, load(a.w + column(j), column(j) < a.H));
            unpack(xh[j], in.x[j]);
            unpack(q[j], in.dy[j]);
            for (int i = 0; i < 8; i++) {
                xh[j][i] *= r;
                dw[j][i] = fmaf(q[j][i], xh[j][i], dw[j][i]);
                q[j][i] *= 1.0f + w[i];
                sum = fmaf(q[j][i], xh[j][i], sum);
            }
        }
        float mean = block_sum(sum, red) * a.inverse;
        for (int j = 0; j < CHUNKS; j++) {
            float dx[8];
            unpack(dx, in.dx[j]);
            for (int i = 0; i < 8; i++) dx[i] = fmaf(r, fmaf(-xh[j][i], mean, q[j][i]), dx[i]);
            if (column(j) < a.H) st8((T *)a.dx + t * a.H + column(j), dx);
        }
        if (!AHEAD) next = row_in<T>(a, t + 1, end);
    }
    for (int j = 0; j < CHUNKS; j++)
        if (column(j) < a.H) st8(a.part + (i64)blockIdx.x * a.H + column(j), dw[j]);
}
KERNELS(rmsnorm_backward, RMSNormBackwardArgs, MAX_ROW)
