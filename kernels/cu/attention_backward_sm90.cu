// Causal softmax attention over packed rows, backward, for compute capability 9.0: the two kernels of attention_backward.cu with
// wgmma. Both keep 64 x D sums of a warpgroup in registers, and dS or P goes from one product to the next there; attention_dkv
// has keys along the rows of its scores, so that P and dS come out transposed, as its sums want them.
#include "attention_sm90.cuh"

struct AttentionBackwardSm90Args {
    TensorMap q, dout, k, v;   // [T,Hq·D] twice, [T,Hk·D] twice; boxes of PANEL columns and a tile's tokens
    void *dq, *dk, *dv;        // [T,Hq,D], [T,Hk,D], [T,Hk,D]
    const float *lse, *delta;  // [T,Hq]
    AttentionRows rows;
    i32 hq, hk;
    float scale;
};

constexpr int KEYS = 64; // of a tile, in both kernels

// A tile's copies count at `tail` where it reaches past its row's end: the loading warp then clears what is another row's, and
// what multiplies it would be 0 times, perhaps, infinity.
struct DqBarriers { u64 queries, tail, keys[2], keys_free[2], values, values_free; };

template <int D, int BM> struct DqTiles { bf16 q[BM * D], dout[BM * D], k[2][KEYS * D], v[KEYS * D]; };

// load_keys is the loading warp's part: K in a ring of two, V alone, since it is free early.
template <int D, int BM> HD void load_keys(const AttentionBackwardSm90Args &a, DqTiles<D, BM> &s, DqBarriers &bar, const AttentionTile &w, int head, int tiles) {
    constexpr u32 BYTES = KEYS * D * 2;
    const bool first = lane_id() == 0;
    const int column = head / (a.hq / a.hk) * D;
    if (first) {
        mbar_expect(&bar.queries, 2 * BM * D * 2);
        load_tile_async<D, BM>(s.q, &a.q, head * D, w.t0 + w.at, &bar.queries);
        load_tile_async<D, BM>(s.dout, &a.dout, head * D, w.t0 + w.at, &bar.queries);
    }
    for (int t = 0; t < tiles; t++) {
        const int stage = t & 1, token = w.t0 + t * KEYS;
        const bool tail = (t + 1) * KEYS > w.n; // the last tile
        u64 *there = tail ? &bar.tail : &bar.keys[stage];
        mbar_wait(&bar.keys_free[stage], (t >> 1 & 1) ^ 1); // all lanes, lest those without work wait for the tail meanwhile
        if (first) mbar_expect(there, tail ? 2 * BYTES : BYTES), load_tile_async<D, KEYS>(s.k[stage], &a.k, column, token, there);
        mbar_wait(&bar.values_free, (t & 1) ^ 1);
        if (first && !tail) mbar_expect(there = &bar.values, BYTES);
        if (first) load_tile_async<D, KEYS>(s.v, &a.v, column, token, there);
        if (tail) {
            mbar_wait(&bar.tail, 0);
            zero_rows<D, KEYS>(s.k[stage], w.n - t * KEYS);
            zero_rows<D, KEYS>(s.v, w.n - t * KEYS);
            async_proxy_fence();
            leave(&bar.keys[stage]);
            leave(&bar.values);
        }
    }
}

// row_probabilities turns scores into P, of rows' lse (times log2(e)).
template <int R> HD void row_probabilities(float (&s)[R], const float (&lse)[2], float unit) {
#pragma unroll
    for (int i = 0; i < R; i++) s[i] = exp2_fast(s[i] * unit - lse[i >> 1 & 1]);
}

// row_gradients turns dP in g into dS.
template <int R> HD void row_gradients(float (&g)[R], const float (&p)[R], const float (&delta)[2]) {
#pragma unroll
    for (int i = 0; i < R; i++) g[i] = p[i] * (g[i] - delta[i >> 1 & 1]);
}

template <int D, int BM> HD void attention_dq_sm90(const AttentionBackwardSm90Args &a) {
    using Tiles = DqTiles<D, BM>;
    DYNAMIC(u8, memory);
    SHARED(DqBarriers, bar);
    Tiles &s = *reinterpret_cast<Tiles *>(align_atom(&memory));
    constexpr int WARPS = BM / 16; // that multiply
    const AttentionTile w = find_tile<BM>(a.rows, (gridDim.x - 1 - blockIdx.x) / a.hq); // long tiles of a row first
    if (w.n == 0) return;
    const int head = blockIdx.x % a.hq, tiles = (min(w.n, w.at + BM) + KEYS - 1) / KEYS;
    if (threadIdx.x == 0) {
        mbar_init(&bar.queries, 1), mbar_init(&bar.tail, 1), mbar_init(&bar.values, 1), mbar_init(&bar.values_free, WARPS);
        for (int i = 0; i < 2; i++) mbar_init(&bar.keys[i], 1), mbar_init(&bar.keys_free[i], WARPS);
        mbar_fence();
    }
    __syncthreads();
    if (warp_id() >= WARPS) {
        fewer_registers<24>();
        if (warp_id() == WARPS) load_keys(a, s, bar, w, head, tiles);
        return;
    }
    more_registers<240>();

    const int m0 = warp_id() / 4 * 64, query = w.at + m0, valid = w.n - query;
    const i64 row0 = (i64)(w.t0 + query) * a.hq + head;
    const bf16 *q = s.q + m0 * PANEL, *dout = s.dout + m0 * PANEL;
    const float unit = a.scale * LOG2E;
    float lse[2], delta[2], dq[D / 2], p[KEYS / 2], g[KEYS / 2];
    u32 ds[KEYS / 16][4];
    for (int h = 0; h < 2; h++) {
        lse[h] = row_value(a.lse + row0, acc_row(2 * h), a.hq, valid, -minus_inf()) * LOG2E;
        delta[h] = row_value(a.delta + row0, acc_row(2 * h), a.hq, valid, 0);
    }
    for (int i = 0; i < D / 2; i++) dq[i] = 0;

    mbar_wait(&bar.queries, 0);
    mbar_wait(&bar.keys[0], 0);
    wgmma_fence();
    start_scores<D, BM>(p, q, s.k[0]);
    mbar_wait(&bar.values, 0);
    wgmma_fence();
    start_scores<D, BM>(g, dout, s.v);
    wgmma_wait<1>();
    if (KEYS > query + 1) hide_later(p, query, 0);
    row_probabilities(p, lse, unit);
    wgmma_wait<0>();
    leave(&bar.values_free);
    row_gradients(g, p, delta);
    as_operand(ds, g);
    for (int t = 1; t < tiles; t++) { // the products of one tile's dS run while the next tile's P is formed
        const int stage = t & 1;
        mbar_wait(&bar.keys[stage], t >> 1 & 1);
        wgmma_fence();
        start_scores<D, BM>(p, q, s.k[stage]);
        start_sum(dq, ds, s.k[stage ^ 1]);
        mbar_wait(&bar.values, t & 1);
        wgmma_fence();
        start_scores<D, BM>(g, dout, s.v);
        wgmma_wait<2>();
        if ((t + 1) * KEYS > query + 1) hide_later(p, query, t * KEYS);
        row_probabilities(p, lse, unit);
        wgmma_wait<1>();
        leave(&bar.keys_free[stage ^ 1]);
        wgmma_wait<0>();
        leave(&bar.values_free);
        row_gradients(g, p, delta);
        as_operand(ds, g);
    }
    wgmma_fence();
    start_sum(dq, ds, s.k[(tiles - 1) & 1]);
    wgmma_wait<0>();

    const float scale[2] = {a.scale, a.scale};
    bf16 *own = s.q + m0 * PANEL;
    bar_sync(1 + m0 / 64, 128); // the warpgroup has read it
    store_warp_rows<D, BM>((bf16 *)a.dq + row0 * D, (i64)a.hq * D, valid, own, dq, scale);
}

// QUERIES are those of a tile of attention_dkv, which come and go in a ring of two.
constexpr int QUERIES = 64;

struct DkvBarriers { u64 keys, tail, queries[2], queries_free[2], p, p_free; };

template <int D> struct DkvTiles {
    bf16 k[KEYS * D], v[KEYS * D], q[2][QUERIES * D], dout[2][QUERIES * D];
    u32 p[QUERIES / 16][128][4]; // P of each thread of the first warpgroup, for the same thread of the second
    float lse[2][QUERIES], delta[2][QUERIES];
};

// load_queries is the loading warp's part. lse is infinite after a row's end, so that P is 0 there.
template <int D> HD void load_queries(const AttentionBackwardSm90Args &a, DkvTiles<D> &s, DkvBarriers &bar, QueryTiles<QUERIES> tile, int j0, int head) {
    constexpr u32 BYTES = 2 * KEYS * D * 2;
    const bool first = lane_id() == 0;
    if (first) {
        mbar_expect(&bar.keys, BYTES);
        load_tile_async<D, KEYS>(s.k, &a.k, head * D, tile.w.t0 + j0, &bar.keys);
        load_tile_async<D, KEYS>(s.v, &a.v, head * D, tile.w.t0 + j0, &bar.keys);
    }
    u32 tails = 0;
    for (int t = 0; tile.more(); t++, tile.next()) {
        const int stage = t & 1, valid = tile.valid();
        const bool tail = valid < QUERIES;
        u64 *there = tail ? &bar.tail : &bar.queries[stage];
        mbar_wait(&bar.queries_free[stage], (t >> 1 & 1) ^ 1);
        if (first) {
            if (tail) mbar_expect(there, BYTES);
            load_tile_async<D, QUERIES>(s.q[stage], &a.q, tile.head * D, tile.w.t0 + tile.at, there);
            load_tile_async<D, QUERIES>(s.dout[stage], &a.dout, tile.head * D, tile.w.t0 + tile.at, there);
        }
        for (int r = lane_id(); r < QUERIES; r += 32) {
            s.lse[stage][r] = row_value(a.lse + tile.row(a.hq), r, a.hq, valid, -minus_inf()) * LOG2E;
            s.delta[stage][r] = row_value(a.delta + tile.row(a.hq), r, a.hq, valid, 0);
        }
        if (tail) {
            mbar_wait(&bar.tail, tails++ & 1);
            zero_rows<D, QUERIES>(s.q[stage], valid);
            zero_rows<D, QUERIES>(s.dout[stage], valid);
            async_proxy_fence();
            leave(&bar.queries[stage]);
        } else {
            __syncwarp();
            if (first) mbar_expect(&bar.queries[stage], BYTES);
        }
    }
}

// hide_earlier sets the scores of queries before their key to -infinity; key and query are those of row and column 0.
template <int R> HD void hide_earlier(float (&s)[R], int key, int query) {
    const int first = key - query + acc_row(0) - acc_col(0);
#pragma unroll
    for (int i = 0; i < R; i++)
        if ((i >> 2) * 8 + (i & 1) < first + (i >> 1 & 1) * 8) s[i] = minus_inf();
}

// sum_values is the first warpgroup's part: P, and dv += P dO.
template <int D> HD void sum_values(float (&dv)[D / 2], DkvTiles<D> &s, DkvBarriers &bar, QueryTiles<QUERIES> tile, int j0, float unit) {
    float x[QUERIES / 2];
    u32 p[QUERIES / 16][4];
    for (int t = 0; tile.more(); t++, tile.next()) {
        const int stage = t & 1;
        mbar_wait(&bar.queries[stage], t >> 1 & 1);
        wgmma_fence();
        start_scores<D, KEYS>(x, s.k, s.q[stage]);
        wgmma_wait<0>();
        if (j0 + KEYS > tile.at + 1) hide_earlier(x, j0, tile.at);
        const float *lse = s.lse[stage] + acc_col(0);
#pragma unroll
        for (int i = 0; i < QUERIES / 2; i += 4) {
            const float l0 = lse[2 * i], l1 = lse[2 * i + 1];
            x[i] = exp2_fast(x[i] * unit - l0), x[i + 1] = exp2_fast(x[i + 1] * unit - l1);
            x[i + 2] = exp2_fast(x[i + 2] * unit - l0), x[i + 3] = exp2_fast(x[i + 3] * unit - l1);
        }
        as_operand(p, x);
        mbar_wait(&bar.p_free, (t & 1) ^ 1);
#pragma unroll
        for (int k = 0; k < QUERIES / 16; k++) st16(s.p[k][threadIdx.x & 127], Vec16{p[k][0], p[k][1], p[k][2], p[k][3]});
        leave(&bar.p);
        wgmma_fence();
        start_sum(dv, p, s.dout[stage]);
        wgmma_wait<0>();
        leave(&bar.queries_free[stage]);
    }
}

// sum_keys is the second one's: dS, and dk += dS q.
template <int D> HD void sum_keys(float (&dk)[D / 2], DkvTiles<D> &s, DkvBarriers &bar, QueryTiles<QUERIES> tile) {
    float x[QUERIES / 2];
    u32 ds[QUERIES / 16][4];
    for (int t = 0; tile.more(); t++, tile.next()) {
        const int stage = t & 1;
        mbar_wait(&bar.queries[stage], t >> 1 & 1);
        wgmma_fence();
        start_scores<D, KEYS>(x, s.v, s.dout[stage]);
        wgmma_wait<0>();
        const float *delta = s.delta[stage] + acc_col(0);
        mbar_wait(&bar.p, t & 1);
#pragma unroll
        for (int k = 0; k < QUERIES / 16; k++) {
            const Vec16 p = ld16(s.p[k][threadIdx.x & 127]);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *d = delta + 16 * k + i / 2 * 8;
                ds[k][i] = pack_bf16(bits_to_float(p.w[i] << 16) * (x[8 * k + 2 * i] - d[0]), bits_to_float(p.w[i] & 0xffff0000u) * (x[8 * k + 2 * i + 1] - d[1]));
            }
        }
        leave(&bar.p_free);
        wgmma_fence();
        start_sum(dk, ds, s.q[stage]);
        wgmma_wait<0>();
        leave(&bar.queries_free[stage]);
    }
}

template <int D> HD void attention_dkv_sm90(const AttentionBackwardSm90Args &a) {
    using Tiles = DkvTiles<D>;
    DYNAMIC(u8, memory);
    SHARED(DkvBarriers, bar);
    Tiles &s = *reinterpret_cast<Tiles *>(align_atom(&memory));
    const AttentionTile w = find_tile<KEYS>(a.rows, blockIdx.x / a.hk);
    if (w.n == 0) return;
    const int head = blockIdx.x % a.hk, group = a.hq / a.hk, j0 = w.at;
    const QueryTiles<QUERIES> tile = {w, j0 / QUERIES * QUERIES, head * group, head * group + group - 1, j0 / QUERIES * QUERIES};
    if (threadIdx.x == 0) {
        mbar_init(&bar.keys, 1), mbar_init(&bar.tail, 1), mbar_init(&bar.p, 4), mbar_init(&bar.p_free, 4);
        for (int i = 0; i < 2; i++) mbar_init(&bar.queries[i], 1), mbar_init(&bar.queries_free[i], 8);
        mbar_fence();
    }
    __syncthreads();
    if (warp_id() >= 8) {
        fewer_registers<24>();
        if (warp_id() == 8) load_queries(a, s, bar, tile, j0, head);
        return;
    }
    more_registers<240>();

    const bool values = warp_id() < 4;
    float sum[D / 2];
    for (int i = 0; i < D / 2; i++) sum[i] = 0;
    mbar_wait(&bar.keys, 0);
    if (values) sum_values(sum, s, bar, tile, j0, a.scale * LOG2E);
    else sum_keys(sum, s, bar, tile);

    const float by = values ? 1.0f : a.scale, scale[2] = {by, by};
    const i64 out = ((i64)(w.t0 + j0) * a.hk + head) * D;
    bf16 *own = values ? s.k : s.v;
    bar_sync(values ? 1 : 2, 128); // the warpgroup has read it
    store_warp_rows<D, KEYS>((bf16 *)(values ? a.dv : a.dk) + out, (i64)a.hk * D, w.n - j0, own, sum, scale);
}

// The tiles; kernels/cuda_attention_sm90.go has the same table.
#define ATTENTION_DQ_SM90(name, D, BM) KERNEL_ALONE(name, AttentionBackwardSm90Args, 2 * BM + 128) { attention_dq_sm90<D, BM>(a); }
#define ATTENTION_DKV_SM90(name, D) KERNEL_ALONE(name, AttentionBackwardSm90Args, 384) { attention_dkv_sm90<D>(a); }

ATTENTION_DQ_SM90(attention_dq_sm90_128_bf16, 128, 128)
ATTENTION_DQ_SM90(attention_dq_sm90_256_bf16, 256, 128)
ATTENTION_DKV_SM90(attention_dkv_sm90_128_bf16, 128)
ATTENTION_DKV_SM90(attention_dkv_sm90_256_bf16, 256)
