// gdn_prepare: of every chunk the matrices A and P, the gates and the reciprocal norms (gdn.cuh).
#include "gdn.cuh"

struct GDNPrepareArgs {
    void *P, *A;           // [Hv,T,64], row i has columns j <= i and zeros; A may be null (backward has it from forward)
    GDNGate *gate;         // [Hv,T]
    float *norm;           // [Hk,T,2]: reciprocal norms of q and k
    const void *qkv;       // [T,Ch]
    const float *g, *beta; // [T,Hv]
    GDNChunks chunks;
    i64 T, Ch;
    i32 Hk, Hv, Dk;
};

constexpr int GDN_PREPARE_WARPS = 4;
constexpr int LDM = GDN_C + 4;

// Beside it lie G (two parts) and beta of each value head of the group: [group,3,64].
template <class T, int DK> struct GDNPrepareShared {
    static constexpr int LD = DK + Tile<T>::PAD;
    T q[GDN_C * LD], k[GDN_C * LD];
    float M[GDN_C * LDM]; // N beta, then the inverse A
    float tmp[32 * 36];
    float rq[GDN_C], rk[GDN_C];
};

// norms: r = 1/sqrt(sum x² + 1e-6) of 64 rows. DK/8 lanes have a row.
template <class T, int DK> HD void norms(float *r, const T *x, int ld) {
    constexpr int LANES = DK / 8;
    for (int i = threadIdx.x; i < GDN_C * LANES; i += blockDim.x) {
        float v[8], sum = 0;
        ld8(v, x + i / LANES * ld + i % LANES * 8);
        for (int j = 0; j < 8; j++) sum = fmaf(v[j], v[j], sum);
        for (int o = LANES / 2; o; o >>= 1) sum += __shfl_xor_sync(ALL_LANES, sum, o);
        if (i % LANES == 0) r[i / LANES] = rsqrt_(sum + 1e-6f);
    }
}

// add2: (hi, lo) += (h, l), sums of two floats. Under strong decay G reaches -1600 in a chunk, where one float would
// leave exp(G_i - G_j) of neighbours with an error of 1e-4.
HD void add2(float &hi, float &lo, float h, float l) {
    float s = hi + h, t = s - hi, err = (hi - (s - t)) + (h - t);
    err += lo + l;
    hi = s + err;
    lo = err - (hi - s);
}

// sum_gates: one warp makes G, beta and the gates of a value head; a lane has two tokens. Past the end G is repeated.
HD void sum_gates(const GDNPrepareArgs &a, float *G, const float *rq, const float *rk, i64 t0, int n, int h) {
    float g[2], hi = 0, lo = 0;
    for (int i = 0; i < 2; i++) {
        int r = 2 * lane_id() + i;
        g[i] = r < n ? a.g[(t0 + r) * a.Hv + h] : 0.0f;
        G[2 * GDN_C + r] = r < n ? a.beta[(t0 + r) * a.Hv + h] : 0.0f;
        add2(hi, lo, g[i], 0);
    }
    for (int o = 1; o < 32; o <<= 1) {
        float h2 = __shfl_up_sync(ALL_LANES, hi, o), l2 = __shfl_up_sync(ALL_LANES, lo, o);
        if (lane_id() >= o) add2(hi, lo, h2, l2);
    }
    float hi0 = __shfl_up_sync(ALL_LANES, hi, 1), lo0 = __shfl_up_sync(ALL_LANES, lo, 1);
    if (lane_id() == 0) hi0 = lo0 = 0;
    add2(hi0, lo0, g[0], 0);
    float end_hi = __shfl_sync(ALL_LANES, hi, 31), end_lo = __shfl_sync(ALL_LANES, lo, 31);
    float scale = rsqrt_((float)a.Dk);
    for (int i = 0; i < 2; i++) {
        int r = 2 * lane_id() + i;
        float high = i ? hi : hi0, low = i ? lo : lo0, gamma = exp_(high + low), tail = exp_((end_hi - high) + (end_lo - low));
        G[r] = high;
        G[GDN_C + r] = low;
        if (r < n) a.gate[h * a.T + t0 + r] = {gamma * rk[r], scale * gamma * rq[r], tail * rk[r], G[2 * GDN_C + r], gamma, 0, high, low};
    }
}

// invert_block: m = (1 + m)^-1 for a strictly lower 16x16 block, by one warp; lane c has column c.
HD void invert_block(float *m) {
    float x[16];
    int c = lane_id();
#pragma unroll
    for (int i = 0; i < 16; i++) {
        x[i] = i == c ? 1.0f : 0.0f;
#pragma unroll
        for (int j = 0; j < i; j++) x[i] = fmaf(-m[i * LDM + j], x[j], x[i]);
    }
    __syncwarp();
    if (c < 16)
#pragma unroll
        for (int i = 0; i < 16; i++) m[i * LDM + c] = x[i];
}

// put_block stores scale·f as a 16x16 block.
HD void put_block(float *dst, int ld, const Frag<1, 2> &f, float scale) {
    for (int n = 0; n < 2; n++)
        for (int i = 0; i < 4; i++) dst[frag_row(0, i) * ld + frag_col(n, i)] = scale * f.v[0][n][i];
}

// invert: M = (1 + M)^-1 for a strictly lower 64x64 matrix. Diagonal blocks of 16 by substitution, then of 32 and 64 by
// [A 0; M B]^-1 = [A^-1 0; -B^-1 M A^-1, B^-1].
HD void invert(float *M, float *tmp) {
    int w = warp_id();
    invert_block(M + 16 * w * (LDM + 1));
    __syncthreads();
    if (w < 2) {
        float *low = M + (32 * w + 16) * LDM + 32 * w, *own = tmp + w * 16 * 36;
        Frag<1, 2> f;
        f.zero();
        warp_mma<false, true>(f, low, LDM, M + 32 * w * (LDM + 1), LDM, 16);
        put_block(own, 36, f, 1);
        __syncwarp();
        f.zero();
        warp_mma<false, true>(f, low + 16, LDM, own, 36, 16);
        __syncwarp();
        put_block(low, LDM, f, -1);
    }
    __syncthreads();
    int r = w >> 1 << 4, c = (w & 1) << 4;
    Frag<1, 2> f;
    f.zero();
    warp_mma<false, true>(f, M + (32 + r) * LDM + c, LDM, M + c * LDM + c, LDM, 32 - c);
    put_block(tmp + r * 36 + c, 36, f, 1);
    __syncthreads();
    f.zero();
    warp_mma<false, true>(f, M + (32 + r) * LDM + 32, LDM, tmp + c, 36, r + 16);
    put_block(M + (32 + r) * LDM + c, LDM, f, -1);
    __syncthreads();
}

// Grid: chunks, key heads.
template <class T, int DK> HD void gdn_prepare(const GDNPrepareArgs &a) {
    using Shared = GDNPrepareShared<T, DK>;
    constexpr int LD = Shared::LD;
    DYNAMIC(Shared, sh);
    float *gates = reinterpret_cast<float *>(&sh + 1);
    GDNChunk c = gdn_chunk(a.chunks, blockIdx.x);
    int kh = blockIdx.y, group = a.Hv / a.Hk, w = warp_id();
    const T *x = (const T *)a.qkv + c.t0 * a.Ch + (i64)kh * a.Dk;
    load_part<GDN_C, DK, LD, 32 * GDN_PREPARE_WARPS>(sh.q, x, a.Ch, c.n, a.Dk, threadIdx.x);
    load_part<GDN_C, DK, LD, 32 * GDN_PREPARE_WARPS>(sh.k, x + (i64)a.Hk * a.Dk, a.Ch, c.n, a.Dk, threadIdx.x);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    norms<T, DK>(sh.rq, sh.q, LD);
    norms<T, DK>(sh.rk, sh.k, LD);
    __syncthreads();
    for (int h = w; h < group; h += GDN_PREPARE_WARPS) sum_gates(a, gates + h * 3 * GDN_C, sh.rq, sh.rk, c.t0, c.n, kh * group + h);
    for (int i = threadIdx.x; i < c.n; i += blockDim.x) put_pair(a.norm + 2 * (kh * a.T + c.t0 + i), sh.rq[i], sh.rk[i]);
    __syncthreads();

    Frag<1, 8> qk, kk;
    qk.zero(), kk.zero();
    warp_mma<false, false>(qk, sh.q + 16 * w * LD, LD, sh.k, LD, DK);
    if (a.A) warp_mma<false, false>(kk, sh.k + 16 * w * LD, LD, sh.k, LD, DK);
    float scale = rsqrt_((float)a.Dk);
    for (int h = 0; h < group; h++) {
        const float *G = gates + h * 3 * GDN_C, *beta = G + 2 * GDN_C;
        i64 out = ((i64)(kh * group + h) * a.T + c.t0) * GDN_C;
#pragma unroll
        for (int b = 0; b < 8; b++)
#pragma unroll
            for (int half = 0; half < 4; half += 2) {
                int i = 16 * w + frag_row(0, half), j = frag_col(b, 0);
                float p[2] = {}, m[2] = {};
                if (b / 2 <= w) // a block under the diagonal or on it
                    for (int e = 0; e < 2; e++) {
                        float gam = i >= j + e ? sh.rk[j + e] * exp_((G[i] - G[j + e]) + (G[GDN_C + i] - G[GDN_C + j + e])) : 0.0f;
                        p[e] = i >= j + e ? scale * sh.rq[i] * gam * qk.v[0][b][half + e] : 0.0f;
                        m[e] = i > j + e ? sh.rk[i] * gam * beta[j + e] * kk.v[0][b][half + e] : 0.0f;
                    }
                if (i < c.n) put_pair((T *)a.P + out + i * GDN_C + j, p[0], p[1]);
                put_pair(sh.M + i * LDM + j, m[0], m[1]);
            }
        if (!a.A) continue;
        __syncthreads();
        invert(sh.M, sh.tmp);
        for (int i = threadIdx.x; i < c.n * (GDN_C / 8); i += blockDim.x) {
            int r = i / (GDN_C / 8), col = i % (GDN_C / 8) * 8;
            float v[8];
            ld8(v, sh.M + r * LDM + col);
            st8((T *)a.A + out + r * GDN_C + col, v);
        }
        __syncthreads();
    }
}
GDN_KERNELS(gdn_prepare, GDNPrepareArgs, GDN_PREPARE_WARPS * 32, 3)
