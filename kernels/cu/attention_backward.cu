// Causal softmax attention over packed rows, backward, in two kernels that share nothing but delta, so that no sum depends
// on the order of blocks: attention_dq for a tile of queries, attention_dkv for a tile of keys. Both compute the
// probabilities again: P = exp(scale q kᵀ - lse), dS = P (dO Vᵀ - delta), dq = scale dS k, dk = scale dSᵀ q, dv = Pᵀ dO,
// delta = rowsum(dO o) (Dao et al. 2022, appendix B.2).
#include "attention.cuh"

struct AttentionBackwardArgs {
    void *dq, *dk, *dv;           // [T,Hq,d], [T,Hk,d], [T,Hk,d]
    const void *dout, *o;         // [T,Hq,d]
    const void *q, *k, *v;        // [T,Hq,d], [T,Hk,d], [T,Hk,d]
    const float *lse;             // [T,Hq]
    float *delta;                 // [T,Hq]
    AttentionRows rows;
    i64 n;                        // T·Hq
    i32 hq, hk, d;
    float scale;
};

// attention_delta: a warp an element of delta.
template <class T> HD void attention_delta(const AttentionBackwardArgs &a) {
    i64 row = (i64)blockIdx.x * (blockDim.x >> 5) + warp_id();
    if (row >= a.n) return;
    const T *x = (const T *)a.dout + row * a.d, *y = (const T *)a.o + row * a.d;
    float sum = 0;
    for (int c = lane_id() * 8; c < a.d; c += 256) {
        float u[8], w[8];
        ld8(u, x + c), ld8(w, y + c);
        for (int i = 0; i < 8; i++) sum = fmaf(u[i], w[i], sum);
    }
    sum = warp_sum(sum);
    if (lane_id() == 0) a.delta[row] = sum;
}
KERNELS(attention_delta, AttentionBackwardArgs, 256)

// probabilities turns q kᵀ in s into P.
template <class T, int MT, int NT> HD void probabilities(Frag<MT, NT> &s, const float (&lse)[MT][2], float scale) {
    const float unit = scale * Softmax<T>::UNIT;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) s.v[m][n][i] = Softmax<T>::exp(s.v[m][n][i] * unit - lse[m][i >> 1] * Softmax<T>::UNIT);
}

// gradients turns dP in g into dS.
template <int MT, int NT> HD void gradients(Frag<MT, NT> &g, const Frag<MT, NT> &p, const float (&delta)[MT][2]) {
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) g.v[m][n][i] = p.v[m][n][i] * (g.v[m][n][i] - delta[m][i >> 1]);
}

template <class T, int D, int BM, int BN> struct AttentionDqTiles {
    static constexpr int LD = D + Tile<T>::PAD, LDS = BN + Tile<T>::PAD;
    T q[BM * LD], dout[BM * LD], k[BN * LD], v[BN * LD], ds[BM * LDS];
    float lse[BM], delta[BM];
};

template <class T, int D, int BM, int BN, int WM, int WN> HD void attention_dq(const AttentionBackwardArgs &a) {
    using Shared = AttentionDqTiles<T, D, BM, BN>;
    DYNAMIC(Shared, s);
    constexpr int LD = Shared::LD, LDS = Shared::LDS, THREADS = 32 * WM * WN;
    constexpr int MT = BM / (16 * WM), NS = BN / (8 * WN), NO = D / (8 * WN);
    const AttentionTile w = find_tile<BM>(a.rows, (gridDim.x - 1 - blockIdx.x) / a.hq); // long tiles of a row first
    if (w.n == 0) return;
    const int head = blockIdx.x % a.hq, i0 = w.at, keys = min(w.n, i0 + BM), queries = w.n - i0;
    const int m0 = warp_id() % WM * 16 * MT, wn = warp_id() / WM, n0 = wn * 8 * NS;
    const i64 ldq = (i64)a.hq * a.d, ldk = (i64)a.hk * a.d, in = ((i64)w.t0 * a.hk + head / (a.hq / a.hk)) * a.d;
    const i64 row0 = (i64)(w.t0 + i0) * a.hq + head;
    const T *k = (const T *)a.k + in, *v = (const T *)a.v + in;

    load_rows<T, BM, D, LD, THREADS>(s.dout, (const T *)a.dout + row0 * a.d, ldq, queries, a.d);
    load_rows<T, BN, D, LD, THREADS>(s.v, v, ldk, keys, a.d);
    load_rows<T, BM, D, LD, THREADS>(s.q, (const T *)a.q + row0 * a.d, ldq, queries, a.d);
    cp_async_commit();
    for (int r = threadIdx.x; r < BM; r += THREADS) {
        s.lse[r] = row_value(a.lse + row0, r, a.hq, queries, -minus_inf());
        s.delta[r] = row_value(a.delta + row0, r, a.hq, queries, 0);
    }
    Frag<MT, NO> dq;
    dq.zero();
    cp_async_wait<0>();
    __syncthreads();
    load_rows<T, BN, D, LD, THREADS>(s.k, k, ldk, keys, a.d);
    cp_async_commit();

    for (int j0 = 0; j0 < keys; j0 += BN) {
        Frag<MT, NS> g, p;
        g.zero(), p.zero();
        warp_mma<false, false>(g, s.dout + m0 * LD, LD, s.v + n0 * LD, LD, D);
        cp_async_wait<0>();
        __syncthreads(); // keys are there; values are free
        int left = keys - j0 - BN;
        if (left > 0) load_rows<T, BN, D, LD, THREADS>(s.v, v + (j0 + BN) * ldk, ldk, left, a.d);
        cp_async_commit();
        warp_mma<false, false>(p, s.q + m0 * LD, LD, s.k + n0 * LD, LD, D);
        if (j0 + BN > i0 + 1) hide(p, i0 + m0, j0 + n0);
        float lse[MT][2], delta[MT][2];
        for (int m = 0; m < MT; m++)
            for (int h = 0; h < 2; h++) lse[m][h] = s.lse[m0 + frag_row(m, 2 * h)], delta[m][h] = s.delta[m0 + frag_row(m, 2 * h)];
        probabilities<T>(p, lse, a.scale);
        gradients(g, p, delta);
        put_frag(s.ds + m0 * LDS + n0, LDS, g);
        __syncthreads(); // dS is there
        warp_mma<false, true>(dq, s.ds + m0 * LDS, LDS, s.k + wn * 8 * NO, LD, BN);
        cp_async_wait<0>();
        __syncthreads(); // the next values are there; keys and dS are free
        if (left > 0) load_rows<T, BN, D, LD, THREADS>(s.k, k + (j0 + BN) * ldk, ldk, left, a.d);
        cp_async_commit();
    }

    put_frag(s.q + m0 * LD + wn * 8 * NO, LD, dq, a.scale);
    __syncthreads();
    store_rows<T, BM, D, LD, THREADS>((T *)a.dq + row0 * a.d, s.q, ldq, queries, a.d);
}

template <class T, int D, int BM, int BN, int STAGES> struct AttentionDkvTiles {
    static constexpr int LD = D + Tile<T>::PAD, LDS = BN + Tile<T>::PAD;
    T k[BN * LD], v[BN * LD], q[STAGES][BM * LD], dout[STAGES][BM * LD], p[BM * LDS], ds[BM * LDS];
};

// load_queries starts copying a tile's q and dout.
template <class T, int BM, int D, int LD, int THREADS> HD void load_queries(T *q, T *dout, const AttentionBackwardArgs &a, const QueryTiles<BM> &tile) {
    const i64 from = tile.row(a.hq) * a.d, ld = (i64)a.hq * a.d;
    load_rows<T, BM, D, LD, THREADS>(q, (const T *)a.q + from, ld, tile.valid(), a.d);
    load_rows<T, BM, D, LD, THREADS>(dout, (const T *)a.dout + from, ld, tile.valid(), a.d);
    cp_async_commit();
}

// put_ds writes dS = P (dP - delta), P from shared memory, to the same places of ds.
template <class T, int MT, int NT> HD void put_ds(T *ds, const T *p, int LDS, const Frag<MT, NT> &g, const float (&delta)[MT][2]) {
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                const int at = frag_row(m, i) * LDS + frag_col(n, i);
                float x, y;
                get2(x, y, p + at);
                put2(ds + at, x * (g.v[m][n][i] - delta[m][i >> 1]), y * (g.v[m][n][i + 1] - delta[m][i >> 1]));
            }
}

// attention_dkv: half of the warps compute P, the others dP and with it dS, each half WM x WN; then all add to dv and dk,
// [BN, D], split over VM x VN. With two stages the next queries arrive meanwhile.
template <class T, int D, int BM, int BN, int STAGES, int WM, int WN, int VM, int VN> HD void attention_dkv(const AttentionBackwardArgs &a) {
    using Shared = AttentionDkvTiles<T, D, BM, BN, STAGES>;
    DYNAMIC(Shared, s);
    static_assert(2 * WM * WN == VM * VN, "the same warps");
    constexpr int LD = Shared::LD, LDS = Shared::LDS, THREADS = 32 * VM * VN;
    constexpr int MT = BM / (16 * WM), NS = BN / (8 * WN), MO = BN / (16 * VM), NO = D / (8 * VN);
    const AttentionTile w = find_tile<BN>(a.rows, blockIdx.x / a.hk);
    if (w.n == 0) return;
    const int head = blockIdx.x % a.hk, group = a.hq / a.hk, j0 = w.at;
    const bool gradient = warp_id() >= WM * WN; // of dP and dS
    const int m0 = warp_id() % WM * 16 * MT, n0 = warp_id() / WM % WN * 8 * NS;
    const int r0 = warp_id() % VM * 16 * MO, c0 = warp_id() / VM * 8 * NO;
    const i64 ldk = (i64)a.hk * a.d, in = ((i64)(w.t0 + j0) * a.hk + head) * a.d;

    load_rows<T, BN, D, LD, THREADS>(s.k, (const T *)a.k + in, ldk, w.n - j0, a.d);
    load_rows<T, BN, D, LD, THREADS>(s.v, (const T *)a.v + in, ldk, w.n - j0, a.d);
    QueryTiles<BM> tile = {w, j0 / BM * BM, head * group, head * group + group - 1, j0 / BM * BM};
    load_queries<T, BM, D, LD, THREADS>(s.q[0], s.dout[0], a, tile);
    Frag<MO, NO> dk, dv;
    dk.zero(), dv.zero();

    for (int stage = 0; tile.more(); stage = (stage + 1) % STAGES) {
        const QueryTiles<BM> now = tile;
        const T *q = s.q[stage], *dout = s.dout[stage];
        float row[MT][2]; // delta, or lse
        for (int m = 0; m < MT; m++)
            for (int h = 0; h < 2; h++)
                row[m][h] = row_value((gradient ? a.delta : a.lse) + now.row(a.hq), m0 + frag_row(m, 2 * h), a.hq, now.valid(),
                                      gradient ? 0 : -minus_inf());
        tile.next();
        cp_async_wait<0>();
        __syncthreads(); // queries are there; the ones before, P and dS are free
        if (STAGES == 2 && tile.more()) load_queries<T, BM, D, LD, THREADS>(s.q[stage ^ 1], s.dout[stage ^ 1], a, tile);
        Frag<MT, NS> f;
        f.zero();
        warp_mma<false, false>(f, (gradient ? dout : q) + m0 * LD, LD, (gradient ? s.v : s.k) + n0 * LD, LD, D);
        if (!gradient) {
            if (j0 + BN > now.at + 1) hide(f, now.at + m0, j0 + n0);
            probabilities<T>(f, row, a.scale);
            put_frag(s.p + m0 * LDS + n0, LDS, f);
        }
        __syncthreads(); // P is there
        if (gradient) put_ds(s.ds + m0 * LDS + n0, s.p + m0 * LDS + n0, LDS, f, row);
        warp_mma<true, true>(dv, s.p + r0, LDS, dout + c0, LD, BM);
        __syncthreads(); // dS is there
        warp_mma<true, true>(dk, s.ds + r0, LDS, q + c0, LD, BM);
        if (STAGES == 1 && tile.more()) {
            __syncthreads(); // queries are free
            load_queries<T, BM, D, LD, THREADS>(s.q[0], s.dout[0], a, tile);
        }
    }

    put_frag(s.k + r0 * LD + c0, LD, dk, a.scale); // after the last products K and V are not read
    put_frag(s.v + r0 * LD + c0, LD, dv);
    __syncthreads();
    store_rows<T, BN, D, LD, THREADS>((T *)a.dk + in, s.k, ldk, w.n - j0, a.d);
    store_rows<T, BN, D, LD, THREADS>((T *)a.dv + in, s.v, ldk, w.n - j0, a.d);
}

// The tiles; kernels/cuda_attention.go has the same table.
#define ATTENTION_DQ(name, T, D, BM, BN, WM, WN) \
    KERNEL_ALONE(name, AttentionBackwardArgs, 32 * WM * WN) { attention_dq<T, D, BM, BN, WM, WN>(a); }
#define ATTENTION_DKV(name, T, D, BM, BN, STAGES, WM, WN, VM, VN) \
    KERNEL(name, AttentionBackwardArgs, 32 * VM * VN) { attention_dkv<T, D, BM, BN, STAGES, WM, WN, VM, VN>(a); }

ATTENTION_DQ(attention_dq_32_f32, float, 32, 32, 32, 2, 2)
ATTENTION_DQ(attention_dq_64_f32, float, 64, 32, 32, 2, 2)
ATTENTION_DQ(attention_dq_128_f32, float, 128, 32, 32, 2, 2)
ATTENTION_DQ(attention_dq_256_f32, float, 256, 16, 16, 1, 2)
ATTENTION_DQ(attention_dq_32_bf16, bf16, 32, 64, 64, 2, 2)
ATTENTION_DQ(attention_dq_64_bf16, bf16, 64, 64, 64, 2, 2)
ATTENTION_DQ(attention_dq_128_bf16, bf16, 128, 64, 64, 2, 2)
ATTENTION_DQ(attention_dq_256_bf16, bf16, 256, 32, 32, 2, 2)
ATTENTION_DQ(attention_dq_256_large_bf16, bf16, 256, 64, 64, 2, 4)
ATTENTION_DQ(attention_dq_256_huge_bf16, bf16, 256, 128, 64, 4, 2)

ATTENTION_DKV(attention_dkv_32_f32, float, 32, 32, 32, 1, 2, 1, 2, 2)
ATTENTION_DKV(attention_dkv_64_f32, float, 64, 32, 32, 1, 2, 1, 2, 2)
ATTENTION_DKV(attention_dkv_128_f32, float, 128, 32, 32, 1, 2, 1, 2, 2)
ATTENTION_DKV(attention_dkv_256_f32, float, 256, 16, 16, 1, 1, 1, 1, 2)
ATTENTION_DKV(attention_dkv_32_bf16, bf16, 32, 64, 64, 2, 2, 1, 2, 2)
ATTENTION_DKV(attention_dkv_64_bf16, bf16, 64, 64, 64, 2, 2, 1, 2, 2)
ATTENTION_DKV(attention_dkv_128_bf16, bf16, 128, 32, 64, 2, 1, 2, 2, 2)
ATTENTION_DKV(attention_dkv_256_bf16, bf16, 256, 32, 32, 1, 2, 1, 1, 4)
ATTENTION_DKV(attention_dkv_256_large_bf16, bf16, 256, 32, 64, 2, 2, 2, 2, 4)
ATTENTION_DKV(attention_dkv_256_huge_bf16, bf16, 256, 64, 64, 2, 2, 2, 2, 4)
