// Sums of partial rows, casts, and what the optimizer needs besides its update.
#include "pointwise.cuh"

struct ColumnSumArgs {
    float *dst;
    const float *part;
    i64 rows, stride, cols;
};

constexpr int SUM_WARPS = 16;

// dst[c] += the sum over rows of part[row·stride + c]. A lane has a column, a warp every SUM_WARPS-th row; then warps in
// order. It is the second stage of every gradient that is summed over tokens.
HD void column_sum_block(const ColumnSumArgs &a, float *sums) {
    i64 c = (i64)blockIdx.x * 32 + lane_id();
    float sum = 0;
    if (c < a.cols) {
        const float *p = a.part + c;
#pragma unroll 8
        for (i64 r = warp_id(); r < a.rows; r += SUM_WARPS) sum += p[r * a.stride];
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (warp_id() || c >= a.cols) return;
    for (int w = 1; w < SUM_WARPS; w++) sum += sums[w * 32 + lane_id()];
    a.dst[c] += sum;
}
KERNEL(column_sum, ColumnSumArgs, SUM_WARPS * 32) {
    SHARED_ARRAY(float, sums, SUM_WARPS * 32);
    column_sum_block(a, sums);
}

struct CastArgs {
    void *y;
    const float *x;
    i64 n;
};

// y = x in the storage type.
template <class T> HD void cast(const CastArgs &a) {
    i64 i = 8 * ((i64)blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= a.n) return;
    float x[8];
    load_part(i, a.n, x, a.x);
    store_part(i, a.n, (T *)a.y, x);
}
KERNELS(cast, CastArgs, 256)

struct ReduceArgs {
    void *part; // one number a block
    const void *x;
    i64 n, per; // values, values a block
};

constexpr int REDUCE = 256;

// block_total is the sum over the block in thread order by halves; only thread 0 has it. S is double or i64.
template <class S> HD S block_total(S v, S *sums) {
    sums[threadIdx.x] = v;
    for (int n = REDUCE / 2; n; n >>= 1) {
        __syncthreads();
        if ((int)threadIdx.x < n) sums[threadIdx.x] += sums[threadIdx.x + n];
    }
    return threadIdx.x == 0 ? sums[0] : 0;
}

HD void count_in(double &sum, float x) { sum += (double)x * (double)x; }
HD void count_in(i64 &count, float x) { count += (float_to_bits(x) & 0x7f800000u) == 0x7f800000u; }

// Block b has values b·per and on (per is a multiple of 8). Zeros stand in for chunks beyond the end: they add nothing.
template <class S> HD void reduce_block(const ReduceArgs &a, S *sums) {
    constexpr int AHEAD = 2;
    const float *x = (const float *)a.x;
    i64 end = min((blockIdx.x + 1) * a.per, a.n), whole = end & ~7LL;
    S total = 0;
    for (i64 i = blockIdx.x * a.per + 8 * threadIdx.x; i < whole; i += 8 * REDUCE * AHEAD) {
        Raw<float> raw[AHEAD];
        for (int j = 0; j < AHEAD; j++) raw[j] = load(x + i + j * 8 * REDUCE, i + j * 8 * REDUCE < whole);
        for (int j = 0; j < AHEAD; j++) {
            float v[8];
            unpack(v, raw[j]);
            for (int k = 0; k < 8; k++) count_in(total, v[k]);
        }
    }
    if (threadIdx.x == 0)
        for (i64 i = whole; i < end; i++) count_in(total, x[i]);
    total = block_total(total, sums);
    if (threadIdx.x == 0) ((S *)a.part)[blockIdx.x] = total;
}

// One block: the sum of n partial numbers.
template <class S> HD void reduce_parts(const ReduceArgs &a, S *sums) {
    S total = 0;
    for (i64 i = threadIdx.x; i < a.n; i += REDUCE) total += ((const S *)a.x)[i];
    total = block_total(total, sums);
    if (threadIdx.x == 0) *(S *)a.part = total;
}

KERNEL(sum_squares, ReduceArgs, REDUCE) {
    SHARED_ARRAY(double, sums, REDUCE);
    reduce_block(a, sums);
}
KERNEL(sum_doubles, ReduceArgs, REDUCE) {
    SHARED_ARRAY(double, sums, REDUCE);
    reduce_parts(a, sums);
}
KERNEL(non_finite, ReduceArgs, REDUCE) {
    SHARED_ARRAY(i64, sums, REDUCE);
    reduce_block(a, sums);
}
KERNEL(sum_counts, ReduceArgs, REDUCE) {
    SHARED_ARRAY(i64, sums, REDUCE);
    reduce_parts(a, sums);
}
