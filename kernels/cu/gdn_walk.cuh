// gdn_walk.cuh: what the forward and the backward walk along a row share: the warps' parts, the ring of tiles in shared
// memory and the state's way in and out.
//
// A block has 32 columns of Dv: two warps that keep 16 columns of the state each, two that do what does not wait for the state
// (help), and four that load. Helpers are a chunk behind or ahead of the state: forward, o = s gamma q S + P u comes after
// the state is known; backward, P'do and q'(gamma do) come before. What passes between a state warp and its helper goes
// through shared memory as it lies in registers. Where there is too little of it, the state warps do the helpers' work
// themselves: the same sums, so the same bits.
#pragma once
#include "gdn.cuh"

struct GDNWalkArgs {
    const void *q, *k; // of the first token and key head; token stride Ch
    const void *P, *A; // of gdn_prepare
    const GDNGate *gate;
    const i32 *cu; // [rows+1]
    i64 T, Ch;
    i32 Hk, Hv, Dk, Dv;
    i32 stages, split; // chunks in shared memory, 1 to 3 (2 or 3 with helpers); whether helpers work
};

constexpr int GDN_PAIRS = 2, GDN_LOADERS = 4; // state warps, as many helpers, and warps that load
constexpr int GDN_WALK_THREADS = 32 * (2 * GDN_PAIRS + GDN_LOADERS);

// load_lower is load_part for a matrix over pairs, of which bf16 needs the 16-blocks on and under the diagonal alone.
template <int LD, int THREADS> HD void load_lower(bf16 *dst, const bf16 *src, int valid, int thread) {
    constexpr int PIECES = GDN_C / 8, STEP = THREADS / PIECES;
    static_assert(STEP == 16, "a thread's rows are in different blocks");
    int r = thread / PIECES, c = thread % PIECES * 8;
#pragma unroll
    for (int i = 0; i < GDN_C; i += STEP)
        if (c <= i + 8) cp_async16(dst + (r + i) * LD + c, src + (r + i) * GDN_C + c, r + i < valid);
}
template <int LD, int THREADS> HD void load_lower(float *dst, const float *src, int valid, int thread) {
    load_part<GDN_C, GDN_C, LD, THREADS>(dst, src, GDN_C, valid, GDN_C, thread);
}

// GDNWalk is one block's way along one row, for one value head. HAND is how many values a state warp and its helper share,
// STATE_LEADS whether the state is ahead of the helpers.
template <class T, int DK, int HAND, bool STATE_LEADS> struct GDNWalk {
    static constexpr int LD = DK + Tile<T>::PAD, BV = 16 * GDN_PAIRS, LDX = BV + Tile<T>::PAD;
    static constexpr bool MAY_SPLIT = sizeof(T) == 2;
    // fp32 tiles of 128 columns leave no room for A and P, which then are read where they are.
    static constexpr bool PAIRS = sizeof(T) == 2 || DK < 128;
    static constexpr int LDP = GDN_C + (PAIRS ? Tile<T>::PAD : 0);
    // A pair's own values: left operands in fp32, columns on their way out in bf16.
    static constexpr int OWN_LD = (DK > GDN_C ? DK : GDN_C) + Tile<T>::PAD, OWN = sizeof(T) == 2 ? GDN_OWN : 16 * OWN_LD;

    struct Stage {
        T q[GDN_C * LD], P[PAIRS ? GDN_C * LDP : 8]; // the helper's
        T k[GDN_C * LD], A[PAIRS ? GDN_C * LDP : 8]; // the state's
        T x[GDN_C * LDX];                            // v or do, of who leads
        GDNGate gate[2][GDN_C];                      // the helper's and the state's
    };
    struct Tiles {
        const T *q, *k, *x, *A, *P; // x: the warp's columns
        const GDNGate *gate;
        float *hand;
        int n; // tokens
        i64 t0;
    };

    const GDNWalkArgs &a;
    const T *x;
    i64 t0, stride; // first token of the row; token stride of x
    int n, chunks, h, row, pair, col;
    bool split, live; // live: the warp has columns
    T *own;
    float *hands; // [2][GDN_PAIRS][HAND], with helpers
    Stage *ring;

    // x is v or do at the first token and value head.
    HS_MEMBER GDNWalk(const GDNWalkArgs &args, u8 *memory, const void *x, i64 stride) : a(args), stride(stride) {
        h = blockIdx.y;
        row = blockIdx.x;
        t0 = a.cu[row];
        n = (int)(a.cu[row + 1] - t0);
        chunks = (n + GDN_C - 1) / GDN_C;
        pair = warp_id() % GDN_PAIRS;
        col = blockIdx.z * BV + 16 * pair;
        split = MAY_SPLIT && a.split;
        live = warp_id() < (split ? 2 : 1) * GDN_PAIRS && col < a.Dv;
        this->x = (const T *)x + (i64)h * a.Dv + blockIdx.z * BV;
        own = reinterpret_cast<T *>(memory) + pair * OWN;
        memory += GDN_PAIRS * OWN * sizeof(T);
        hands = reinterpret_cast<float *>(memory);
        ring = reinterpret_cast<Stage *>(memory + (split ? 2 * GDN_PAIRS * HAND * sizeof(float) : 0));
    }

    HS_MEMBER int chunk(int step) const { return STATE_LEADS ? step : chunks - 1 - step; } // the way back starts at the end
    HS_MEMBER bool loads() const { return warp_id() >= 2 * GDN_PAIRS; }
    HS_MEMBER bool helps() const { return warp_id() >= GDN_PAIRS; }

    // load starts copying what who leads needs for a step, and what the other needs, which is `lag` steps behind.
    HS_MEMBER void load(int step) const {
        int lag = split ? 1 : 0;
        load_set(step, true);
        load_set(step - lag, false);
        cp_async_commit();
    }
    HS_MEMBER void load_set(int step, bool lead) const {
        constexpr int THREADS = 32 * GDN_LOADERS;
        if (step < 0 || step >= chunks) return;
        int thread = fresh(threadIdx.x - 64 * GDN_PAIRS), c = chunk(step), len = n - c * GDN_C < GDN_C ? n - c * GDN_C : GDN_C;
        i64 t = t0 + (i64)c * GDN_C, key = t * a.Ch + (i64)(h / (a.Hv / a.Hk)) * a.Dk, val = h * a.T + t;
        Stage &s = ring[step % a.stages];
        bool state = lead == STATE_LEADS;
        load_part<GDN_C, DK, LD, THREADS>(state ? s.k : s.q, (const T *)(state ? a.k : a.q) + key, a.Ch, len, a.Dk, thread);
        if (PAIRS) load_lower<LDP, THREADS>(state ? s.A : s.P, (const T *)(state ? a.A : a.P) + val * GDN_C, len, thread);
        load_part<GDN_C, 8, 8, THREADS>((float *)s.gate[state], (const float *)(a.gate + val), 8, len, 8, thread);
        if (lead) load_part<GDN_C, BV, LDX, THREADS>(s.x, x + t * stride, stride, len, a.Dv - blockIdx.z * BV, thread);
    }

    HS_MEMBER Tiles tiles(int step) const {
        int c = chunk(step);
        const Stage &s = ring[step % a.stages];
        Tiles t = {s.q, s.k, s.x + 16 * pair, s.A, s.P, s.gate[!(split && helps())], hands + ((step & 1) * GDN_PAIRS + pair) * HAND, 0, t0 + (i64)c * GDN_C};
        t.n = n - c * GDN_C < GDN_C ? n - c * GDN_C : GDN_C;
        if (!PAIRS) {
            i64 val = (h * a.T + t.t0) * GDN_C;
            t.A = (const T *)a.A + val, t.P = (const T *)a.P + val;
        }
        return t;
    }

    // run calls state(step, tiles) and, with helpers, help(step, tiles) for every chunk.
    template <class State, class Help> HS_MEMBER void run(State state, Help help) const {
        const int ahead = a.stages - 1, end = chunks + (split && chunks ? 1 : 0), late = split && helps() == STATE_LEADS ? 1 : 0;
        if (loads()) for (int i = 0; i < ahead; i++) load(i);
#pragma unroll 1
        for (int step = 0; step < end; step++) {
            if (loads()) {
                if (ahead == 0) load(step);
                if (ahead < 2) cp_async_wait<0>();
                else cp_async_wait<1>();
            }
            __syncthreads();
            if (loads()) {
                if (ahead) load(step + ahead);
            } else if (live && step >= late && step - late < chunks) {
                if (MAY_SPLIT && helps()) help(step - late, tiles(step - late));
                else state(step - late, tiles(step - late));
            }
            if (ahead == 0) __syncthreads();
        }
    }
};

// each calls f(value, n, i) for every value of a fragment.
template <int NT, class F> HD void each(Frag<1, NT> &f, F fn) {
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) fn(f.v[0][n][i], n, i);
}

// hand_on and take pass a warp's fragment on, 128 values for every block of it; the operand of bf16 takes half of that.
template <int NT> HD void hand_on(float *to, const Frag<1, NT> &f) {
#pragma unroll
    for (int n = 0; n < NT; n++) {
        Vec16 v;
        for (int i = 0; i < 4; i++) v.w[i] = float_to_bits(f.v[0][n][i]);
        st16(to + 128 * n + 4 * lane_id(), v);
    }
}
template <int NT> HD void take(Frag<1, NT> &f, const float *from) {
#pragma unroll
    for (int n = 0; n < NT; n++) {
        Vec16 v = ld16(from + 128 * n + 4 * lane_id());
        for (int i = 0; i < 4; i++) f.v[0][n][i] = bits_to_float(v.w[i]);
    }
}
template <int KB> HD void hand_on(float *to, const Rows<bf16, KB> &a) {
#pragma unroll
    for (int k = 0; k < KB; k++) st16(to + 128 * k + 4 * lane_id(), {a.r[k][0], a.r[k][1], a.r[k][2], a.r[k][3]});
}
template <int KB> HD void take(Rows<bf16, KB> &a, const float *from) {
#pragma unroll
    for (int k = 0; k < KB; k++) {
        Vec16 v = ld16(from + 128 * k + 4 * lane_id());
        for (int i = 0; i < 4; i++) a.r[k][i] = v.w[i];
    }
}
// fp32 has no helpers.
template <int KB> HD void hand_on(float *, const Rows<float, KB> &) {}
template <int KB> HD void take(Rows<float, KB> &, const float *) {}

// put_state stores 16 columns of a state, transposed: dst [16,Dk].
template <class T, int NT> HD void put_state(T *dst, int Dk, const Frag<1, NT> &S) {
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i += 2)
            if (8 * n < Dk) put_pair(dst + frag_row(0, i) * Dk + frag_col(n, 0), S.v[0][n][i], S.v[0][n][i + 1]);
}
template <int KB> HD void put_state(bf16 *dst, int Dk, const Rows<bf16, KB> &S) {
#pragma unroll
    for (int k = 0; k < KB; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (16 * k < Dk) *reinterpret_cast<u32 *>(dst + frag_row(0, 2 * (i & 1)) * Dk + frag_col(2 * k + (i >> 1), 0)) = S.r[k][i];
}
template <int KB> HD void put_state(float *, int, const Rows<float, KB> &) {}

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

// GDN_WALKS makes a walk's kernels. They leave it to the compiler how many blocks to aim at: told one, it fills all registers
// with loads ahead of their use, and spills.
#define GDN_WALKS(name, Args) GDN_WALK(name, 32, Args) GDN_WALK(name, 64, Args) GDN_WALK(name, 128, Args)
#define GDN_WALK(name, DK, Args) \
    KERNEL(name##_k##DK##_f32, Args, GDN_WALK_THREADS) { name<float, DK>(a); } \
    KERNEL(name##_k##DK##_bf16, Args, GDN_WALK_THREADS) { name<bf16, DK>(a); }
