// gdn_walk.cuh: what the forward and the backward walk along a row share: the ring of tiles in shared memory and the
// state's way in and out.
#pragma once
#include "gdn.cuh"

struct GDNWalkArgs {
    const void *q, *k; // of the first token and key head; token stride Ch
    const void *P, *A; // of gdn_prepare
    const GDNGate *gate;
    const i32 *cu; // [rows+1]
    i64 T, Ch;
    i32 Hk, Hv, Dk, Dv;
    i32 stages, pad; // chunks in shared memory: 1, or 2 to load one while another is worked on
};

// GDNWalk is one block's way along one row, for one value head and 16 columns of Dv a warp.
template <class T, int DK> struct GDNWalk {
    static constexpr int LD = DK + Tile<T>::PAD, LDP = GDN_C + Tile<T>::PAD;
    static constexpr int OWN_LD = (DK > GDN_C ? DK : GDN_C) + Tile<T>::PAD;
    // fp32 tiles of 128 columns leave no room for A and P, which then are read where they are.
    static constexpr bool PAIRS = sizeof(T) == 2 || DK < 128;
    static constexpr int OWN = sizeof(T) == 2 ? GDN_OWN : 16 * OWN_LD; // a warp's own values

    struct Tiles {
        const T *q, *k, *A, *P, *x; // x: v or do
        const GDNGate *gate;
        int ldp;
    };

    const GDNWalkArgs &a;
    i64 t0;
    int n, chunks, h, row, block_col, col, ldx;
    bool live; // the warp has columns
    T *own;
    u8 *ring;
    int stage_bytes, log_k, log_x;
    int forward; // 1, or -1: from the last chunk to the first

    HS_MEMBER GDNWalk(const GDNWalkArgs &args, u8 *memory) : a(args) {
        int warps = blockDim.x >> 5;
        h = blockIdx.y;
        row = blockIdx.x;
        t0 = a.cu[row];
        n = (int)(a.cu[row + 1] - t0);
        chunks = (n + GDN_C - 1) / GDN_C;
        block_col = blockIdx.z * 16 * warps;
        col = block_col + 16 * warp_id();
        live = col < a.Dv;
        ldx = 16 * warps + Tile<T>::PAD;
        log_k = log_pieces<T>(DK);
        log_x = log_pieces<T>(16 * warps);
        own = reinterpret_cast<T *>(memory) + warp_id() * OWN;
        ring = memory + warps * OWN * sizeof(T);
        stage_bytes = GDN_C * ((int)sizeof(GDNGate) + (2 * LD + (PAIRS ? 2 * LDP : 0) + ldx) * (int)sizeof(T));
    }

    HS_MEMBER int tokens(int c) const { return n - c * GDN_C < GDN_C ? n - c * GDN_C : GDN_C; }

    HS_MEMBER int chunk(int step) const { return forward > 0 ? step : chunks - 1 - step; }

    // load starts copying the tiles of the step's chunk.
    HS_MEMBER void load(int step, const T *x, i64 stride) {
        if (step < chunks) {
            int c = chunk(step), len = tokens(c);
            i64 t = t0 + (i64)c * GDN_C, key = t * a.Ch + (i64)(h / (a.Hv / a.Hk)) * a.Dk, val = h * a.T + t;
            T *p = reinterpret_cast<T *>(ring + step % a.stages * stage_bytes);
            load_part(p, LD, (const T *)a.q + key, a.Ch, GDN_C, log_k, len, a.Dk);
            load_part(p + GDN_C * LD, LD, (const T *)a.k + key, a.Ch, GDN_C, log_k, len, a.Dk);
            p += 2 * GDN_C * LD;
            load_part(p, ldx, x + (i64)c * GDN_C * stride, stride, GDN_C, log_x, len, a.Dv - block_col);
            p += GDN_C * ldx;
            if (PAIRS) {
                load_part(p, LDP, (const T *)a.A + val * GDN_C, GDN_C, GDN_C, log_pieces<T>(GDN_C), len, GDN_C);
                load_part(p + GDN_C * LDP, LDP, (const T *)a.P + val * GDN_C, GDN_C, GDN_C, log_pieces<T>(GDN_C), len, GDN_C);
                p += 2 * GDN_C * LDP;
            }
            GDNGate *gate = reinterpret_cast<GDNGate *>(p);
            load_part((float *)gate, 8, (const float *)(a.gate + val), 8, GDN_C, 1, len, 8);
        }
        cp_async_commit();
    }

    HS_MEMBER void begin(const T *x, i64 stride, int direction) {
        forward = direction;
        if (a.stages > 1) load(0, x, stride);
    }

    // next gives the step's tiles.
    HS_MEMBER Tiles next(int step, const T *x, i64 stride) {
        if (a.stages == 1) load(step, x, stride);
        cp_async_wait<0>();
        __syncthreads();
        if (a.stages > 1) load(step + 1, x, stride);
        Tiles t;
        const T *p = reinterpret_cast<const T *>(ring + step % a.stages * stage_bytes);
        t.q = p, t.k = p + GDN_C * LD, t.x = p + 2 * GDN_C * LD;
        p = t.x + GDN_C * ldx;
        if (PAIRS) {
            t.A = p, t.P = p + GDN_C * LDP, t.ldp = LDP;
            p += 2 * GDN_C * LDP;
        } else {
            i64 val = (h * a.T + t0 + (i64)chunk(step) * GDN_C) * GDN_C;
            t.A = (const T *)a.A + val, t.P = (const T *)a.P + val, t.ldp = GDN_C;
        }
        t.gate = reinterpret_cast<const GDNGate *>(p);
        return t;
    }

    // done ends the use of a step's tiles.
    HS_MEMBER void done() {
        if (a.stages == 1) __syncthreads();
    }
};

// each calls f(value, n, i) for every value of a fragment.
template <int NT, class F> HD void each(Frag<1, NT> &f, F fn) {
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) fn(f.v[0][n][i], n, i);
}

// put_state stores 16 columns of a state, transposed: dst [16,Dk].
template <class T, int NT> HD void put_state(T *dst, int Dk, const Frag<1, NT> &S) {
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i += 2)
            if (8 * n < Dk) put_pair(dst + frag_row(0, i) * Dk + frag_col(n, 0), S.v[0][n][i], S.v[0][n][i + 1]);
}

// get_state and put_last move a row's first and last state, [rows,Hv,Dk,Dv] fp32.
template <int NT, class Walk> HD void get_state(Frag<1, NT> &S, const float *src, const Walk &w) {
    src += ((i64)w.row * w.a.Hv + w.h) * w.a.Dk * w.a.Dv + w.col;
    each(S, [&](float &y, int n, int i) {
        if (8 * n < w.a.Dk) y = src[frag_col(n, i) * w.a.Dv + frag_row(0, i)];
    });
}
template <int NT, class Walk> HD void put_last(float *dst, Frag<1, NT> &S, const Walk &w) {
    dst += ((i64)w.row * w.a.Hv + w.h) * w.a.Dk * w.a.Dv + w.col;
    each(S, [&](float &y, int n, int i) {
        if (8 * n < w.a.Dk) dst[frag_col(n, i) * w.a.Dv + frag_row(0, i)] = y;
    });
}
