// Causal softmax attention over packed rows, forward, for compute capability 9.0 (attention.cu has the formulas): the form of
// FlashAttention-3 (Shah et al. 2024). While the tensor cores add one tile of values, the warpgroup works on the next
// tile's softmax.
#include "attention_sm90.cuh"

struct AttentionSm90Args {
    TensorMap q, k, v;         // [T,Hq·D], [T,Hk·D] twice; boxes of PANEL columns and BM or BN tokens
    void *o;                   // [T,Hq,D]
    float *lse;                // [T,Hq] or null
    AttentionRows rows;        // block b of the grid has head b % Hq of the tile b / Hq, counted from the last
    i32 hq, hk;
    float scale;
};

// KeyTiles is how K and V come and go: a ring of STAGES tiles each.
template <int STAGES> struct KeyTiles {
    u64 q, tail, keys[STAGES], values[STAGES], keys_free[STAGES], values_free[STAGES];
};

template <int D, int BM, int BN, int STAGES> struct AttentionSm90Tiles {
    bf16 q[BM * D], k[STAGES][BN * D], v[STAGES][BN * D];
};

// SoftmaxRows are a thread's two rows: the maximum so far, and its part of the sum.
struct SoftmaxRows { float max[2], sum[2]; };

// softmax_tile turns scores into exp2(unit (s - max)) with the maximum so far. keep is what earlier sums are scaled by.
template <int R> HD void softmax_tile(float (&s)[R], SoftmaxRows &row, float (&keep)[2], float unit) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = row.max[h];
#pragma unroll
        for (int i = 2 * h; i < R; i += 4) top = fmaxf(top, fmaxf(s[i], s[i + 1]));
        top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 1));
        top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 2));
        const float base = top * unit;
        float sum = 0;
        keep[h] = exp2_fast(row.max[h] * unit - base);
        row.max[h] = top;
#pragma unroll
        for (int i = 2 * h; i < R; i += 4) sum += s[i] = exp2_fast(s[i] * unit - base), sum += s[i + 1] = exp2_fast(s[i + 1] * unit - base);
        row.sum[h] = row.sum[h] * keep[h] + sum;
    }
}

template <int R> HD void scale_rows(float (&o)[R], const float (&by)[2]) {
#pragma unroll
    for (int i = 0; i < R; i++) o[i] *= by[i >> 1 & 1];
}

// load_keys is the loading warp's part. Values after the row's end would be multiplied by probabilities of 0: they are
// another row's, perhaps infinite, and are cleared.
template <int D, int BM, int BN, int STAGES>
HD void load_keys(const AttentionSm90Args &a, AttentionSm90Tiles<D, BM, BN, STAGES> &s, KeyTiles<STAGES> &bar, const AttentionTile &w, int head, int tiles) {
    constexpr u32 BYTES = BN * D * 2;
    const bool first = lane_id() == 0;
    const int column = head / (a.hq / a.hk) * D;
    if (first) mbar_expect(&bar.q, BM * D * 2), load_tile_async<D, BM>(s.q, &a.q, head * D, w.t0 + w.at, &bar.q);
    for (int t = 0; t < tiles; t++) {
        const int stage = t % STAGES, j0 = t * BN;
        const u32 parity = (t / STAGES & 1) ^ 1;
        const bool tail = j0 + BN > w.n;
        mbar_wait(&bar.keys_free[stage], parity); // all lanes, lest those without work wait for the tail meanwhile
        if (first) mbar_expect(&bar.keys[stage], BYTES), load_tile_async<D, BN>(s.k[stage], &a.k, column, w.t0 + j0, &bar.keys[stage]);
        u64 *there = tail ? &bar.tail : &bar.values[stage];
        mbar_wait(&bar.values_free[stage], parity);
        if (first) mbar_expect(there, BYTES), load_tile_async<D, BN>(s.v[stage], &a.v, column, w.t0 + j0, there);
        if (tail) { // the last tile
            mbar_wait(&bar.tail, 0);
            zero_rows<D, BN>(s.v[stage], w.n - j0);
            async_proxy_fence();
            leave(&bar.values[stage]);
        }
    }
}

template <int D, int BM, int BN, int STAGES> HD void attention_sm90(const AttentionSm90Args &a) {
    using Tiles = AttentionSm90Tiles<D, BM, BN, STAGES>;
    DYNAMIC(u8, memory);
    SHARED(KeyTiles<STAGES>, bar);
    Tiles &s = *reinterpret_cast<Tiles *>(align_atom(&memory));
    constexpr int WARPS = BM / 16; // that multiply
    const AttentionTile w = find_tile<BM>(a.rows, (gridDim.x - 1 - blockIdx.x) / a.hq); // long tiles of a row first
    if (w.n == 0) return;
    const int head = blockIdx.x % a.hq, tiles = (min(w.n, w.at + BM) + BN - 1) / BN;
    if (threadIdx.x == 0) {
        mbar_init(&bar.q, 1), mbar_init(&bar.tail, 1);
        for (int i = 0; i < STAGES; i++) {
            mbar_init(&bar.keys[i], 1), mbar_init(&bar.values[i], 1);
            mbar_init(&bar.keys_free[i], WARPS), mbar_init(&bar.values_free[i], WARPS);
        }
        mbar_fence();
    }
    __syncthreads();
    if (warp_id() >= WARPS) {
        fewer_registers<24>();
        if (warp_id() == WARPS) load_keys(a, s, bar, w, head, tiles);
        return;
    }
    more_registers<240>();

    const int m0 = warp_id() / 4 * 64, query = w.at + m0;
    const bf16 *q = s.q + m0 * PANEL;
    const float unit = a.scale * LOG2E;
    SoftmaxRows row = {{minus_inf(), minus_inf()}, {0, 0}};
    float o[D / 2], x[BN / 2], keep[2];
    u32 p[BN / 16][4];
    for (int i = 0; i < D / 2; i++) o[i] = 0;

    mbar_wait(&bar.q, 0);
    mbar_wait(&bar.keys[0], 0);
    wgmma_fence();
    start_scores<D, BM>(x, q, s.k[0]);
    wgmma_wait<0>();
    leave(&bar.keys_free[0]);
    if (BN > query + 1) hide_later(x, query, 0);
    softmax_tile(x, row, keep, unit);
    as_operand(p, x);
    for (int t = 1; t < tiles; t++) {
        const int now = t % STAGES, before = (t - 1) % STAGES;
        mbar_wait(&bar.keys[now], t / STAGES & 1);
        wgmma_fence();
        start_scores<D, BM>(x, q, s.k[now]);
        mbar_wait(&bar.values[before], (t - 1) / STAGES & 1);
        wgmma_fence();
        start_sum(o, p, s.v[before]);
        wgmma_wait<1>();
        leave(&bar.keys_free[now]);
        if ((t + 1) * BN > query + 1) hide_later(x, query, t * BN);
        softmax_tile(x, row, keep, unit);
        wgmma_wait<0>();
        leave(&bar.values_free[before]);
        scale_rows(o, keep);
        as_operand(p, x);
    }
    const int last = (tiles - 1) % STAGES;
    mbar_wait(&bar.values[last], (tiles - 1) / STAGES & 1);
    wgmma_fence();
    start_sum(o, p, s.v[last]);
    wgmma_wait<0>();

    const i64 out = (i64)(w.t0 + query) * a.hq + head;
    const int valid = w.n - query;
    float inverse[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = row.sum[h];
        sum += __shfl_xor_sync(ALL_LANES, sum, 1);
        sum += __shfl_xor_sync(ALL_LANES, sum, 2);
        const int r = acc_row(2 * h);
        if (a.lse && (lane_id() & 3) == 0 && r < valid) a.lse[out + (i64)r * a.hq] = row.max[h] * unit / LOG2E + log_(sum);
        inverse[h] = 1.0f / sum;
    }
    bf16 *own = s.q + m0 * PANEL;
    bar_sync(1 + m0 / 64, 128); // the warpgroup has read it
    store_warp_rows<D, BM>((bf16 *)a.o + out * D, (i64)a.hq * D, valid, own, o, inverse);
}

// The tiles; kernels/cuda_attention_sm90.go has the same table.
#define ATTENTION_SM90(name, D, BM, BN, STAGES) \
    KERNEL_ALONE(name, AttentionSm90Args, 2 * BM + 128) { attention_sm90<D, BM, BN, STAGES>(a); }

ATTENTION_SM90(attention_sm90_128_bf16, 128, 128, 128, 2)
ATTENTION_SM90(attention_sm90_256_bf16, 256, 128, 80, 2)
