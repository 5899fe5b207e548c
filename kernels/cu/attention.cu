// Causal softmax attention over packed rows, forward: the online softmax of FlashAttention-2 (Dao 2023).
// o = softmax(scale q kᵀ) v, lse = log of the sum of exp(scale q kᵀ).
#include "attention.cuh"

struct AttentionArgs {
    void *o;                   // [T,Hq,d]
    float *lse;                // [T,Hq] or null
    const void *q, *k, *v;     // [T,Hq,d], [T,Hk,d], [T,Hk,d]
    AttentionRows rows;        // block b of the grid has head b % Hq of the tile b / Hq, counted from the last
    i32 hq, hk, d;
    float scale;
};

template <class T, int D, int BM, int BN> struct AttentionTiles {
    static constexpr int LD = D + Tile<T>::PAD, LDP = BN + Tile<T>::PAD;
    T q[BM * LD], k[BN * LD], v[BN * LD], p[BM * LDP];
    float red[2 * BM]; // a float a row and column of warps
};

// RowState is what the online softmax carries for the rows of a fragment: the maximum, and this thread's part of the sum.
template <int MT> struct RowState {
    float max[MT][2], sum[MT][2];
};

// row_max leaves in red[row] (of this warp's column of the grid) the maximum of every row of s.
template <int MT, int NT> HD void row_max(float *red, const Frag<MT, NT> &s) {
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float x = s.v[m][0][2 * h];
#pragma unroll
            for (int n = 0; n < NT; n++) x = fmaxf(x, fmaxf(s.v[m][n][2 * h], s.v[m][n][2 * h + 1]));
            x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
            x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
            if ((lane_id() & 3) == 0) red[frag_row(m, 2 * h)] = x;
        }
}

// exponentials turns s into exp(unit (s - max)) with the maximum so far, and scales o and the sums to it.
template <class T, int BM, int WN, int MT, int NS, int NO>
HD void exponentials(Frag<MT, NS> &s, Frag<MT, NO> &o, RowState<MT> &row, const float *red, float unit) {
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float top = row.max[m][h];
#pragma unroll
            for (int w = 0; w < WN; w++) top = fmaxf(top, red[w * BM + frag_row(m, 2 * h)]);
            float base = top * unit, keep = Softmax<T>::exp(row.max[m][h] * unit - base), sum = 0;
            row.max[m][h] = top;
#pragma unroll
            for (int n = 0; n < NS; n++)
#pragma unroll
                for (int i = 2 * h; i < 2 * h + 2; i++) sum += s.v[m][n][i] = Softmax<T>::exp(s.v[m][n][i] * unit - base);
            row.sum[m][h] = row.sum[m][h] * keep + sum;
#pragma unroll
            for (int n = 0; n < NO; n++) o.v[m][n][2 * h] *= keep, o.v[m][n][2 * h + 1] *= keep;
        }
}

// finish divides o by the sums of its rows and gives lse; red is free, and every thread arrives.
template <class T, int BM, int WM, int WN, int MT, int NO>
HD void finish(Frag<MT, NO> &o, RowState<MT> &row, float *red, float *lse, int hq, int valid, float unit) {
    const int wm = warp_id() % WM, wn = warp_id() / WM;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float x = row.sum[m][h];
            x += __shfl_xor_sync(ALL_LANES, x, 1);
            x += __shfl_xor_sync(ALL_LANES, x, 2);
            if ((lane_id() & 3) == 0) red[wn * BM + wm * 16 * MT + frag_row(m, 2 * h)] = x;
        }
    __syncthreads();
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int r = wm * 16 * MT + frag_row(m, 2 * h);
            float sum = 0;
#pragma unroll
            for (int w = 0; w < WN; w++) sum += red[w * BM + r];
            if (lse && wn == 0 && (lane_id() & 3) == 0 && r < valid)
                lse[(i64)r * hq] = row.max[m][h] * unit / Softmax<T>::UNIT + log_(sum);
            float inv = 1.0f / sum;
#pragma unroll
            for (int n = 0; n < NO; n++) o.v[m][n][2 * h] *= inv, o.v[m][n][2 * h + 1] *= inv;
        }
}

template <class T, int D, int BM, int BN, int WM, int WN> HD void attention(const AttentionArgs &a) {
    using Shared = AttentionTiles<T, D, BM, BN>;
    DYNAMIC(Shared, s);
    static_assert(WN <= 2, "the size of red");
    constexpr int LD = Shared::LD, LDP = Shared::LDP, THREADS = 32 * WM * WN;
    constexpr int MT = BM / (16 * WM), NS = BN / (8 * WN), NO = D / (8 * WN);
    const AttentionTile w = find_tile<BM>(a.rows, (gridDim.x - 1 - blockIdx.x) / a.hq); // long tiles of a row first
    if (w.n == 0) return;
    const int head = blockIdx.x % a.hq, i0 = w.at, keys = min(w.n, i0 + BM);
    const int m0 = warp_id() % WM * 16 * MT, wn = warp_id() / WM;
    const i64 ldq = (i64)a.hq * a.d, ldk = (i64)a.hk * a.d, in = ((i64)w.t0 * a.hk + head / (a.hq / a.hk)) * a.d;
    const i64 out = ((i64)(w.t0 + i0) * a.hq + head) * a.d;
    const T *k = (const T *)a.k + in;
    const float unit = a.scale * Softmax<T>::UNIT;

    load_rows<T, BM, D, LD, THREADS>(s.q, (const T *)a.q + out, ldq, w.n - i0, a.d);
    load_rows<T, BN, D, LD, THREADS>(s.k, k, ldk, keys, a.d);
    cp_async_commit();
    Frag<MT, NO> o;
    RowState<MT> row;
    o.zero();
    for (int m = 0; m < MT; m++)
        for (int h = 0; h < 2; h++) row.max[m][h] = minus_inf(), row.sum[m][h] = 0;

    for (int j0 = 0; j0 < keys; j0 += BN) {
        cp_async_wait<0>();
        __syncthreads(); // keys are there; values and p are free
        // v is addressed by k's offset: a pointer of its own is two registers more than there are on sm_100
        load_rows<T, BN, D, LD, THREADS>(s.v, (const T *)a.v + (k - (const T *)a.k) + j0 * ldk, ldk, keys - j0, a.d);
        cp_async_commit();
        Frag<MT, NS> p;
        p.zero();
        warp_mma<false, false>(p, s.q + m0 * LD, LD, s.k + wn * 8 * NS * LD, LD, D);
        if (j0 + BN > i0 + 1) hide(p, i0 + m0, j0 + wn * 8 * NS);
        row_max(s.red + wn * BM + m0, p);
        __syncthreads(); // maxima are there; keys are free
        if (j0 + BN < keys) load_rows<T, BN, D, LD, THREADS>(s.k, k + (j0 + BN) * ldk, ldk, keys - j0 - BN, a.d);
        cp_async_commit();
        exponentials<T, BM, WN>(p, o, row, s.red + m0, unit);
        put_frag(s.p + m0 * LDP + wn * 8 * NS, LDP, p);
        cp_async_wait<1>();
        __syncthreads(); // values and p are there
        warp_mma<false, true>(o, s.p + m0 * LDP, LDP, s.v + wn * 8 * NO, LD, BN);
    }

    finish<T, BM, WM, WN>(o, row, s.red, a.lse ? a.lse + (i64)(w.t0 + i0) * a.hq + head : nullptr, a.hq, w.n - i0, unit);
    put_frag(s.q + m0 * LD + wn * 8 * NO, LD, o); // all warps have read q
    __syncthreads();
    store_rows<T, BM, D, LD, THREADS>((T *)a.o + out, s.q, ldq, w.n - i0, a.d);
}

// The tiles; kernels/cuda_attention.go has the same table.
#define ATTENTION(name, T, D, BM, BN, WM, WN) \
    KERNEL_ALONE(name, AttentionArgs, 32 * WM * WN) { attention<T, D, BM, BN, WM, WN>(a); }

ATTENTION(attention_32_f32, float, 32, 32, 32, 2, 2)
ATTENTION(attention_64_f32, float, 64, 32, 32, 2, 2)
ATTENTION(attention_128_f32, float, 128, 32, 32, 2, 2)
ATTENTION(attention_256_f32, float, 256, 32, 16, 2, 2)
ATTENTION(attention_32_bf16, bf16, 32, 64, 64, 4, 1)
ATTENTION(attention_64_bf16, bf16, 64, 64, 64, 4, 1)
ATTENTION(attention_128_bf16, bf16, 128, 128, 64, 4, 2)
ATTENTION(attention_256_bf16, bf16, 256, 64, 32, 2, 2)
ATTENTION(attention_256_large_bf16, bf16, 256, 128, 64, 4, 2)
