// gdn_backward: of every chunk the gradients of q, k, g and beta (gdn.cuh), from e, S, D and dv. With
//
//   R_ij = do_i·e_j (i >= j)      F_ij = dv_i·e_j (i > j)      W = R . P - F . N
//
//   dP = s beta_j Gam . R         Z = -beta_j Gam . F           (gradients of the pairs q_i·k_j and k_i·k_j)
//   dq = s gamma do S' + dP k     dk = tail beta e D' - gamma dv S' + dP'q + (Z + Z')k
//   dbeta_j = sum_{i>=j} W_ij + tail_j k_j·(e D')_j
//
// and the gate's gradient as a sum of what really passes token t, with no difference of large sums: b_i = s gamma_i
// q_i·(do S')_i - gamma_i k_i·(dv S')_i comes from the state before t, h_i = tail_i beta_i k_i·(e D')_i goes to the state after,
//
//   dg_t = sum_{i>=t>j} W_ij beta_j + sum_{i>=t} b_i + sum_{i<t} h_i + gamma_last <D,S>.
//
// q and k here are normalised; the tiles hold them as they came, x = q/rq. Accumulated are dy = rq dq and rk dk, from which
// dx = dy - y (dy·y), y = rq x.
#include "gdn.cuh"

struct GDNBackwardArgs {
    void *dqkv;              // [T,Ch]; its v part holds dv
    float *dg, *dbeta;       // [T,Hv]
    const void *qkv;         // [T,Ch]
    const void *e, *dout;    // [Hv,T,Dv], [T,Hv,Dv]
    const void *state, *dstate;   // [T/64,Hv,Dv,Dk]
    const float *first, *dlast;   // [rows,Hv,Dk,Dv]; null = 0
    const GDNGate *gate;          // [Hv,T]
    const float *norm;            // [Hk,T,2]
    GDNChunks chunks;
    i64 T, Ch;
    i32 Hk, Hv, Dk, Dv;
    i32 ahead, unused; // whether there is shared memory to load a step's tiles ahead
};

// GDNBackward is the shape of a block's work: 4 rows of warps of 16 tokens, COLS columns of warps over Dk or the pairs.
template <class T, int DK> struct GDNBackward {
    static constexpr int COLS = sizeof(T) == 2 && DK >= 64 ? 4 : 2, WARPS = 4 * COLS, THREADS = 32 * WARPS;
    static constexpr int NK = DK / 8 / COLS, NP = 8 / COLS; // 8-blocks a warp has of Dk and of 64 tokens
    static constexpr int BV = sizeof(T) == 2 ? 64 : 16;     // columns of Dv at a time
    static constexpr int LD = DK + Tile<T>::PAD, LDV = BV + Tile<T>::PAD, LDP = GDN_C + Tile<T>::PAD, LDW = GDN_C + 2;

    // Tiles of a step: a block of Dv of a head comes by twice, for the products with S and over pairs, then for those with D.
    // With all at once a thread would have more sums than registers.
    struct Load {
        T e[GDN_C * LDV], S[BV * LD]; // S and D transposed
        union {
            T up[2 * GDN_C * LDV]; // do and dv, 16 rows each in turn
            T D[BV * LD];
        };
    };
    // Matrices over pairs of tokens; fp32 has room for one at a time.
    static constexpr bool ONE = sizeof(T) == 4;
    struct Pairs {
        union { T dP[GDN_C * LDP]; float W1[ONE ? GDN_C * LDW : 1]; };
        T Z[ONE ? 8 : GDN_C * LDP];
        float W[ONE ? 4 : GDN_C * LDW];
        float part[2][WARPS][GDN_C];
    };
    // Two Loads follow where the next step's tiles arrive ahead of their use; else one lies in the place of pairs.
    struct Shared {
        T q[GDN_C * LD], k[GDN_C * LD];
        GDNGate gate[2][GDN_C];    // of even and odd heads
        float dot[3][COLS][GDN_C]; // by column of warps: q·(do S'), k·(dv S'), k·(e D')
        float rq[GDN_C], rk[GDN_C], red[WARPS];
        Pairs pairs;
    };
};

// get_matrix fills a transposed tile [BV,DK] from an fp32 state [Dk,Dv].
template <class T, int DK> HD void get_matrix(T *dst, const float *src, int Dk, int Dv, int v0) {
    using B = GDNBackward<T, DK>;
#pragma unroll 1
    for (int i = threadIdx.x; i < B::BV * DK; i += B::THREADS) {
        int v = i % B::BV, k = i / B::BV;
        put(dst[v * B::LD + k], k < Dk && v0 + v < Dv ? src[k * Dv + v0 + v] : 0.0f);
    }
}

// row_dots adds up f·x over a warp's columns, for each of its 16 rows; x is a tile in shared memory.
template <class T, int M, int NT> HD void row_dots(float *out, const Frag<M, NT> &f, int m, const T *x, int ld, int row, int col) {
    for (int i = 0; i < 4; i += 2) {
        int r = row + frag_row(0, i);
        float sum = 0;
#pragma unroll
        for (int n = 0; n < NT; n++)
            for (int j = 0; j < 2; j++) sum = fmaf(f.v[m][n][i + j], to_float(x[r * ld + col + frag_col(n, j)]), sum);
        sum += __shfl_xor_sync(ALL_LANES, sum, 1);
        sum += __shfl_xor_sync(ALL_LANES, sum, 2);
        if ((lane_id() & 3) == 0) out[r] = sum;
    }
}

// pair_sums adds up over i, by warps of a few rows: rect_t = sum_{i>=t>j} W_ij beta_j and sum_{i>=j} W_ij. A lane has two
// columns.
template <int WARPS> HD void pair_sums(float (&part)[2][WARPS][GDN_C], const float *W, int ld, const GDNGate *gate) {
    constexpr int ROWS = GDN_C / WARPS;
    int l = lane_id(), w = warp_id(), t = 2 * l;
    float rect[2] = {}, all[2] = {}, b0 = gate[t].beta, b1 = gate[t + 1].beta;
    for (int i = w * ROWS; i < (w + 1) * ROWS; i++) {
        float w0 = W[i * ld + t], w1 = W[i * ld + t + 1];
        float y0 = i > t ? w0 * b0 : 0.0f, y1 = i > t + 1 ? w1 * b1 : 0.0f, before = y0 + y1;
        for (int o = 1; o < 32; o <<= 1) {
            float left = __shfl_up_sync(ALL_LANES, before, o);
            if (l >= o) before += left;
        }
        before = __shfl_up_sync(ALL_LANES, before, 1);
        if (l == 0) before = 0;
        if (i >= t) rect[0] += before;
        if (i >= t + 1) rect[1] += before + y0;
        all[0] += w0, all[1] += w1;
    }
    for (int j = 0; j < 2; j++) part[0][w][t + j] = rect[j], part[1][w][t + j] = all[j];
}

// finish_gates: dg and dbeta of a chunk and value head, by one warp; a lane has two tokens.
template <class T, int DK>
HD void finish_gates(const GDNBackwardArgs &a, const typename GDNBackward<T, DK>::Shared &sh, const GDNGate *gate, i64 t0, int n, int h) {
    using B = GDNBackward<T, DK>;
    int l = lane_id();
    float rect[2], b[2], h_[2], DS = 0;
    for (int w = 0; w < B::WARPS; w++) DS += sh.red[w];
    for (int j = 0; j < 2; j++) {
        int t = 2 * l + j;
        float sum[2] = {}, dot[3] = {};
        for (int k = 0; k < 2; k++)
            for (int w = 0; w < B::WARPS; w++) sum[k] += sh.pairs.part[k][w][t];
        for (int k = 0; k < 3; k++)
            for (int c = 0; c < B::COLS; c++) dot[k] += sh.dot[k][c][t];
        GDNGate g = gate[t];
        rect[j] = sum[0];
        b[j] = g.q_in * dot[0] - g.k_in * dot[1];
        h_[j] = g.k_out * dot[2];
        if (t < n) a.dbeta[(t0 + t) * a.Hv + h] = sum[1] + h_[j];
        h_[j] *= g.beta;
    }
    float from = b[0] + b[1], to = h_[0] + h_[1];
    for (int o = 1; o < 32; o <<= 1) {
        float right = __shfl_down_sync(ALL_LANES, from, o), left = __shfl_up_sync(ALL_LANES, to, o);
        if (l + o < 32) from += right;
        if (l >= o) to += left;
    }
    float after = __shfl_down_sync(ALL_LANES, from, 1), before = __shfl_up_sync(ALL_LANES, to, 1);
    if (l == 31) after = 0;
    if (l == 0) before = 0;
    float end = gate[n - 1].gamma * DS;
    float dg[2] = {rect[0] + from + before + end, rect[1] + (after + b[1]) + (before + h_[0]) + end};
    for (int j = 0; j < 2; j++)
        if (2 * l + j < n) a.dg[(t0 + 2 * l + j) * a.Hv + h] = dg[j];
}

// norm_backward stores dx = dy - y (dy·y) for a warp's part of 64 rows, y = r x.
template <class T, int DK>
HD void norm_backward(T *dx, i64 Ch, const Frag<1, GDNBackward<T, DK>::NK> &dy, const T *x, const float *r, float (&dot)[GDNBackward<T, DK>::COLS][GDN_C],
                      int n, int Dk) {
    using B = GDNBackward<T, DK>;
    int row = 16 * (warp_id() & 3), wc = warp_id() >> 2, col = wc * B::NK * 8;
    row_dots(dot[wc], dy, 0, x, B::LD, row, col);
    __syncthreads();
    for (int i = 0; i < 4; i += 2) {
        int t = row + frag_row(0, i);
        float sum = 0;
        for (int c = 0; c < B::COLS; c++) sum += dot[c][t];
        if (t >= n) continue;
        sum *= r[t];
#pragma unroll
        for (int b = 0; b < B::NK; b++) {
            int c = col + frag_col(b, 0);
            if (c >= Dk) continue;
            const T *at = x + t * B::LD + c;
            put_pair(dx + t * Ch + c, dy.v[0][b][i] - r[t] * to_float(at[0]) * sum, dy.v[0][b][i + 1] - r[t] * to_float(at[1]) * sum);
        }
    }
}

// load_state starts copying columns v0.. of S or D to a tile: at the row's edge from the row's own state, which may be null,
// else from `states`, where the walk left it.
template <class T, int DK>
HD void load_state(T *tile, const GDNBackwardArgs &a, const void *states, i64 slot, bool edge, const float *own, int row, int h, int v0, int thread) {
    using B = GDNBackward<T, DK>;
    if (!edge) load_part<B::BV, DK, B::LD, B::THREADS>(tile, (const T *)states + ((slot * a.Hv + h) * a.Dv + v0) * a.Dk, a.Dk, a.Dv - v0, a.Dk, thread);
    else if (own) get_matrix<T, DK>(tile, own + ((i64)row * a.Hv + h) * a.Dk * a.Dv, a.Dk, a.Dv, v0);
}

// load_step starts copying the tiles of a step: of each value head all blocks of Dv without D, then all with D.
template <class T, int DK>
HD void load_step(typename GDNBackward<T, DK>::Load &to, GDNGate (&gate)[2][GDN_C], const GDNBackwardArgs &a, const GDNChunk &c, int step) {
    using B = GDNBackward<T, DK>;
    constexpr int LDV = B::LDV, BV = B::BV, THREADS = B::THREADS;
    int thread = fresh(threadIdx.x), blocks = (a.Dv + BV - 1) / BV, group = a.Hv / a.Hk, pass = step / blocks;
    if (pass >= 2 * group) return;
    int h = blockIdx.y * group + pass / 2, v0 = step % blocks * BV, left = a.Dv - v0;
    i64 col = (i64)h * a.Dv + v0, stride = (i64)a.Hv * a.Dv;
    load_part<GDN_C, BV, LDV, THREADS>(to.e, (const T *)a.e + (h * a.T + c.t0) * a.Dv + v0, a.Dv, c.n, left, thread);
    load_state<T, DK>(to.S, a, a.state, gdn_slot(c.t0), c.first, a.first, c.row, h, v0, thread);
    if (pass & 1) {
        load_state<T, DK>(to.D, a, a.dstate, gdn_slot(c.t0 + GDN_C), c.last, a.dlast, c.row, h, v0, thread);
    } else {
        load_part<GDN_C, BV, LDV, THREADS, 16>(to.up, (const T *)a.dout + c.t0 * stride + col, stride, c.n, left, thread);
        const T *dv = (const T *)a.dqkv + c.t0 * a.Ch + 2 * (i64)a.Hk * a.Dk + col;
        load_part<GDN_C, BV, LDV, THREADS, 16>(to.up + 16 * LDV, dv, a.Ch, c.n, left, thread);
        if (v0 == 0) load_part<GDN_C, 8, 8, THREADS>((float *)gate[pass / 2 & 1], (const float *)(a.gate + h * a.T + c.t0), 8, c.n, 8, thread);
    }
}

// matrix_dot is a thread's part of <S,D>.
template <class T, int DK> HD float matrix_dot(const typename GDNBackward<T, DK>::Load &load) {
    using B = GDNBackward<T, DK>;
    float sum = 0;
    for (int i = threadIdx.x; i < B::BV * DK / 8; i += B::THREADS) {
        float x[8], y[8];
        int at = i / (DK / 8) * B::LD + i % (DK / 8) * 8;
        ld8(x, load.S + at), ld8(y, load.D + at);
        for (int j = 0; j < 8; j++) sum = fmaf(x[j], y[j], sum);
    }
    return sum;
}

// each_pair calls f(b, v, i, j) for every value of a fragment whose first is pair (row, col).
template <int NP, class F> HD void each_pair(int row, int col, F f) {
#pragma unroll
    for (int b = 0; b < NP; b++)
#pragma unroll
        for (int v = 0; v < 4; v++) f(b, v, row + frag_row(0, v), col + frag_col(b, v));
}

// Grid: chunks, key heads; a block goes through the value heads of its key head in order.
template <class T, int DK> HD void gdn_backward(const GDNBackwardArgs &a) {
    using B = GDNBackward<T, DK>;
    using Load = typename B::Load;
    using Shared = typename B::Shared;
    constexpr int LD = B::LD, LDV = B::LDV, LDP = B::LDP, NK = B::NK, NP = B::NP;
    DYNAMIC(Shared, sh);
    typename B::Pairs &pairs = sh.pairs;
    Load *loads = reinterpret_cast<Load *>(a.ahead ? (void *)(&sh + 1) : &pairs);
    GDNChunk c = gdn_chunk(a.chunks, blockIdx.x);
    int kh = blockIdx.y, group = a.Hv / a.Hk, n = c.n, step = 0;
    int row = 16 * (warp_id() & 3), wc = warp_id() >> 2, kcol = wc * NK * 8, pcol = wc * NP * 8;
    bool hasS = !c.first || a.first, hasD = !c.last || a.dlast;
    const T *x = (const T *)a.qkv + c.t0 * a.Ch + (i64)kh * a.Dk;
    load_part<GDN_C, DK, LD, B::THREADS>(sh.q, x, a.Ch, n, a.Dk, threadIdx.x);
    load_part<GDN_C, DK, LD, B::THREADS>(sh.k, x + (i64)a.Hk * a.Dk, a.Ch, n, a.Dk, threadIdx.x);
    if (threadIdx.x < GDN_C) {
        i64 at = 2 * (kh * a.T + c.t0 + threadIdx.x);
        sh.rq[threadIdx.x] = threadIdx.x < n ? a.norm[at] : 0.0f;
        sh.rk[threadIdx.x] = threadIdx.x < n ? a.norm[at + 1] : 0.0f;
    }

    // arrive gives the tiles of the next step; leave ends their use.
    auto arrive = [&]() -> const Load & {
        if (!a.ahead || step == 0) load_step<T, DK>(loads[0], sh.gate, a, c, step), cp_async_commit();
        cp_async_wait<0>();
        __syncthreads();
        step++;
        if (!a.ahead) return loads[0];
        load_step<T, DK>(loads[step & 1], sh.gate, a, c, step), cp_async_commit();
        return loads[(step - 1) & 1];
    };
    auto leave = [&] {
        if (!a.ahead) __syncthreads();
    };

    Frag<1, NK> dq, dk;
    dq.zero(), dk.zero();
#pragma unroll 1
    for (int head = 0; head < group; head++) {
        const GDNGate *gate = sh.gate[fresh(head & 1)]; // known ahead, its address would be kept, and spilled
        Frag<2, NP> RF;
        RF.zero();
        {
            Frag<2, NK> up; // do S', dv S'
            up.zero();
#pragma unroll 1
            for (int v0 = 0; v0 < a.Dv; v0 += B::BV) {
                const Load &load = arrive();
                if (hasS) warp_mma<false, true>(up, load.up + 2 * row * LDV, LDV, load.S + kcol, LD, B::BV);
                warp_mma<false, false>(RF, load.up + 2 * row * LDV, LDV, load.e + pcol * LDV, LDV, B::BV);
                leave();
            }
            row_dots(sh.dot[0][wc], up, 0, sh.q, LD, row, kcol);
            row_dots(sh.dot[1][wc], up, 1, sh.k, LD, row, kcol);
            for (int b = 0; b < NK; b++)
                for (int i = 0; i < 4; i++) {
                    const GDNGate &g = gate[row + frag_row(0, i)];
                    dq.v[0][b][i] += g.q_in * up.v[0][b][i];
                    dk.v[0][b][i] -= g.k_in * up.v[1][b][i];
                }
        }
        {
            Frag<1, NK> eD;
            eD.zero();
            float DS = 0;
#pragma unroll 1
            for (int v0 = 0; v0 < a.Dv; v0 += B::BV) {
                const Load &load = arrive();
                if (hasD) warp_mma<false, true>(eD, load.e + row * LDV, LDV, load.D + kcol, LD, B::BV);
                if (hasD && hasS) DS += matrix_dot<T, DK>(load);
                leave();
            }
            DS = warp_sum(DS);
            if (lane_id() == 0) sh.red[warp_id()] = DS;
            row_dots(sh.dot[2][wc], eD, 0, sh.k, LD, row, kcol);
            for (int b = 0; b < NK; b++)
                for (int i = 0; i < 4; i++) {
                    const GDNGate &g = gate[row + frag_row(0, i)];
                    dk.v[0][b][i] += g.k_out * g.beta * eD.v[0][b][i];
                }
        }
        const float scale = rsqrt_((float)a.Dk);
        Frag<1, NP> qk, kk;
        qk.zero(), kk.zero();
        warp_mma<false, false>(qk, sh.q + row * LD, LD, sh.k + pcol * LD, LD, DK);
        warp_mma<false, false>(kk, sh.k + row * LD, LD, sh.k + pcol * LD, LD, DK);
        T *Z = B::ONE ? pairs.dP : pairs.Z;
        float *Wt = B::ONE ? pairs.W1 : pairs.W;
        auto put_Z = [&](int i, int j, float z) { // Z + Z'
            if (i >= j) put(Z[i * LDP + j], z), put(Z[j * LDP + i], z);
        };
        each_pair<NP>(row, pcol, [&](int b, int v, int i, int j) {
            const GDNGate &gi = gate[i], &gj = gate[j];
            float gam = i >= j && i < n ? sh.rk[j] * exp_((gi.high - gj.high) + (gi.low - gj.low)) : 0.0f;
            float R = scale * sh.rq[i] * gam * RF.v[0][b][v], F = i > j ? sh.rk[i] * gam * RF.v[1][b][v] : 0.0f;
            float w = R * qk.v[0][b][v] - F * kk.v[0][b][v], z = -gj.beta * F;
            put(pairs.dP[i * LDP + j], gj.beta * R);
            if (B::ONE) qk.v[0][b][v] = w, kk.v[0][b][v] = z;
            else put_Z(i, j, z), Wt[i * B::LDW + j] = w;
        });
        __syncthreads();
        warp_mma<false, true>(dq, pairs.dP + row * LDP, LDP, sh.k + kcol, LD, GDN_C);
        warp_mma<true, true>(dk, pairs.dP + row, LDP, sh.q + kcol, LD, GDN_C);
        if (B::ONE) {
            __syncthreads();
            each_pair<NP>(row, pcol, [&](int b, int v, int i, int j) { put_Z(i, j, kk.v[0][b][v]); });
            __syncthreads();
        }
        warp_mma<false, true>(dk, Z + row * LDP, LDP, sh.k + kcol, LD, GDN_C);
        if (B::ONE) {
            __syncthreads();
            each_pair<NP>(row, pcol, [&](int b, int v, int i, int j) { Wt[i * B::LDW + j] = qk.v[0][b][v]; });
            __syncthreads();
        }
        pair_sums(pairs.part, Wt, B::LDW, gate);
        __syncthreads();
        if (warp_id() == 0) finish_gates<T, DK>(a, sh, gate, c.t0, n, kh * group + head);
        leave();
    }
    __syncthreads();
    T *out = (T *)a.dqkv + c.t0 * a.Ch + (i64)kh * a.Dk;
    norm_backward<T, DK>(out, a.Ch, dq, sh.q, sh.rq, sh.dot[0], n, a.Dk);
    norm_backward<T, DK>(out + (i64)a.Hk * a.Dk, a.Ch, dk, sh.k, sh.rk, sh.dot[1], n, a.Dk);
}
#define GDN_BACKWARD(DK, THREADS) \
    KERNEL(gdn_backward_k##DK##_f32, GDNBackwardArgs, GDN_BOUNDS(256, 1)) { gdn_backward<float, DK>(a); } \
    KERNEL(gdn_backward_k##DK##_bf16, GDNBackwardArgs, GDN_BOUNDS(THREADS, 1)) { gdn_backward<bf16, DK>(a); }
GDN_BACKWARD(32, 256)
GDN_BACKWARD(64, 512)
GDN_BACKWARD(128, 512)
