// gdn.cuh: what the kernels of the gated delta rule share.
//
// A row is cut into chunks of 64 tokens from its own start. Of one chunk and value head, with g summed from the chunk's
// start (G_i), gamma_i = exp(G_i), tail_i = exp(G_last - G_i), Gam_ij = exp(G_i - G_j) for i >= j, normalised rows q, k,
// s = Dk^-0.5, and the state S [Dk,Dv] at the chunk's start:
//
//   N = Gam . kk' (i > j)      A = (1 + N beta)^-1      P = s Gam . qk' (i >= j)
//   x = v - gamma k S          e = A x                  u = beta e          (e is the recurrence's prediction error)
//   o = s gamma q S + P u      S <- gamma_last S + k'(tail u)
//
// and backward, with D = dL/dS at the chunk's end:
//
//   du = P'do + tail k D       dv = A'(beta du)
//   D <- gamma_last D + s q'(gamma do) - k'(gamma dv)
//
// Normalised rows are never stored: products take the rows as the convolution left them, which bf16 holds exactly, and
// the reciprocal norms go into the factors of the rows.
//
// gdn_prepare makes A, P and the gates of all chunks at once; gdn_scan and gdn_scan_backward walk along a row with S or D
// in registers; gdn_backward makes all other gradients of all chunks at once from what the two walks left in memory.
//
// Memory, of T tokens (element size 2 in bf16 mode, 4 in fp32; in brackets for T = 32768, Hk 16, Hv 32, Dk = Dv = 128):
//   saved:    e [Hv,T,Dv] (268 MB), A [Hv,T,64] (134 MB), S at each chunk's start but a row's first [T/64,Hv,Dv,Dk] (537 MB)
//   scratch:  P [Hv,T,64] (134 MB), gates [Hv,T] (34 MB), norms [Hk,T] (4 MB), without a backward pass A;
//             backward also D [T/64,Hv,Dv,Dk] (537 MB)
// A chunk's state lies at slot (first token)/64 - 1 of [T/64]: the chunk before it in the row has 64 tokens, so no two
// chunks share one, and rows of a few tokens cost nothing.
#pragma once
#include "tile.cuh"

constexpr int GDN_C = 64; // tokens of a chunk

// GDNChunks lists the chunks of a batch.
struct GDNChunks { const i32 *cu, *row, *at; }; // [rows+1] first tokens of the rows; [chunks] each chunk's row and first token

struct GDNChunk {
    i64 t0;
    int n, row;       // tokens (1..64)
    bool first, last; // of its row
};
HD GDNChunk gdn_chunk(const GDNChunks &c, int i) {
    int row = c.row[i], t0 = c.at[i], end = c.cu[row + 1];
    bool last = end - t0 <= GDN_C;
    return {t0, last ? end - t0 : GDN_C, row, t0 == c.cu[row], last};
}

// GDNGate is what kernels need of a token and value head; rk, rq are the reciprocal norms.
struct alignas(16) GDNGate {
    float k_in, q_in, k_out, beta; // gamma rk, s gamma rq, tail rk
    float gamma, unused, high, low; // exp(G), and G in two parts
};

// fresh is x, of which the compiler knows nothing: what is computed from it is computed again and not kept in registers.
#ifdef HS_SIM
HD int fresh(int x) { return x; }
#else
HD int fresh(int x) { asm volatile("" : "+r"(x)); return x; }
#endif

// GDN_BOUNDS: threads of a block, and how many blocks a multiprocessor must have registers for. Left to choose, the compiler
// aims at more blocks than there is shared memory for, and spills.
#ifdef HS_SIM
#define GDN_BOUNDS(threads, blocks) threads
#else
#define GDN_BOUNDS(threads, blocks) threads, blocks
#endif

// GDN_KERNELS makes a kernel for each padded key dim, in both storage types; BLOCKS is for bf16.
#define GDN_KERNELS(name, Args, THREADS, BLOCKS) \
    GDN_KERNEL(name, 32, Args, THREADS, BLOCKS) \
    GDN_KERNEL(name, 64, Args, THREADS, BLOCKS) \
    GDN_KERNEL(name, 128, Args, THREADS, BLOCKS)
#define GDN_KERNEL(name, DK, Args, THREADS, BLOCKS) \
    KERNEL(name##_k##DK##_f32, Args, GDN_BOUNDS(THREADS, 1)) { name<float, DK>(a); } \
    KERNEL(name##_k##DK##_bf16, Args, GDN_BOUNDS(THREADS, BLOCKS)) { name<bf16, DK>(a); }

// put_pair stores two neighbouring values; dst is aligned for both together.
HD void put_pair(bf16 *dst, float x, float y) { *reinterpret_cast<u32 *>(dst) = pack_bf16(x, y); }
struct alignas(8) Pair { float x, y; };
HD void put_pair(float *dst, float x, float y) { *reinterpret_cast<Pair *>(dst) = {x, y}; }

// gdn_slot is the place of the state between two chunks of a row; t0 is the first token of the later one.
HD i64 gdn_slot(i64 t0) { return t0 / GDN_C - 1; }

// load_part starts copying ROWS rows of COLS values to dst (row stride LD) by THREADS threads, of which the caller is number
// `thread`. Rows from `valid` on and columns from `cols` on become 0. GAP is how many rows of dst are skipped after every 16.
template <int ROWS, int COLS, int LD, int THREADS, int GAP = 0, class T>
HD void load_part(T *dst, const T *src, i64 stride, int valid, int cols, int thread) {
    constexpr int PER = 16 / sizeof(T), PIECES = COLS / PER, STEP = THREADS / PIECES;
    static_assert(THREADS % PIECES == 0 && (STEP % 16 == 0 || 16 % STEP == 0), "a thread keeps its column, and its place in 16 rows");
    int r = thread / PIECES, c = thread % PIECES * PER;
    src += r * stride + c;
    dst += (r + r / 16 * GAP) * LD + c;
    if (c >= cols) valid = 0;
#pragma unroll
    for (int i = 0; i < ROWS; i += STEP) {
        if (ROWS % STEP && r + i >= ROWS) continue;
        cp_async16(dst + (i + i / 16 * GAP) * LD, src, r + i < valid);
        src += STEP * stride;
    }
}

// Rows is a warp's [16,16·KB] left operand made from an fp32 result: in registers in bf16, in the warp's own piece of
// shared memory (16 rows of LD values) in fp32.
template <class T, int KB> struct Rows;
template <int KB> struct Rows<bf16, KB> { u32 r[KB][4]; };
template <int KB> struct Rows<float, KB> { const float *p; int ld; };

template <int KB> HD void set_rows(Rows<bf16, KB> &a, const Frag<1, 2 * KB> &f, bf16 *, int) {
#pragma unroll
    for (int k = 0; k < KB; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float(&v)[4] = f.v[0][2 * k + (i >> 1)];
            a.r[k][i] = pack_bf16(v[2 * (i & 1)], v[2 * (i & 1) + 1]);
        }
}
template <int KB> HD void set_rows(Rows<float, KB> &a, const Frag<1, 2 * KB> &f, float *own, int ld) {
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 2 * KB; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) own[frag_row(0, i) * ld + frag_col(n, i)] = f.v[0][n][i];
    __syncwarp();
    a.p = own;
    a.ld = ld;
}

// Which 16-blocks (k, n) of the right operand can differ from 0.
enum Shape { FULL, UPPER, LOWER }; // UPPER: k <= n, LOWER: k >= n

// rows_mma: acc [16,8·NT] += a B, B as in warp_mma.
template <bool TB, Shape SHAPE, int KB, int NT>
HD void rows_mma(Frag<1, NT> &acc, const Rows<bf16, KB> &a, const bf16 *B, int ldb) {
    int l = lane_id();
    SharedAt at = shared_at(TB ? B + (l & 15) * ldb + (l >> 4) * 8 : B + ((l & 7) + (l >> 4) * 8) * ldb + ((l >> 3) & 1) * 8);
#pragma unroll
    for (int k = 0; k < KB; k++)
#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            if ((SHAPE == UPPER && k > n / 2) || (SHAPE == LOWER && k < n / 2)) continue;
            u32 b[4];
            if (TB) load_matrices_trans(b, at + 2 * (16 * k * ldb + 8 * n));
            else load_matrices(b, at + 2 * (8 * n * ldb + 16 * k));
            u32 b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
            mma_bf16(acc.v[0][n], a.r[k], b0);
            mma_bf16(acc.v[0][n + 1], a.r[k], b1);
        }
}
template <bool TB, Shape SHAPE, int KB, int NT>
HD void rows_mma(Frag<1, NT> &acc, const Rows<float, KB> &a, const float *B, int ldb) {
    warp_mma<false, TB>(acc, a.p, a.ld, B, ldb, 16 * KB);
}

// pair_mma: acc [16,64] += a B for a matrix over pairs of tokens of which `valid` rows can be read: A' or P' (UPPER) and,
// with TB, A or P (LOWER). a is 0 past them.
template <bool TB> HD void pair_mma(Frag<1, 8> &acc, const Rows<bf16, 4> &a, const bf16 *B, int ldb, int) {
    rows_mma<TB, TB ? LOWER : UPPER>(acc, a, B, ldb);
}
template <bool TB> HD void pair_mma(Frag<1, 8> &acc, const Rows<float, 4> &a, const float *B, int ldb, int valid) {
    if (TB) {
        warp_mma<false, true>(acc, a.p, a.ld, B, ldb, valid);
        return;
    }
    int g = lane_id() >> 2, q = lane_id() & 3;
    for (int k = 0; k < valid; k++) {
        float a0 = a.p[g * a.ld + k], a1 = a.p[(g + 8) * a.ld + k];
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int r = 8 * n + 2 * q + i; // a row past the end stands for nothing: any will do
                float b = B[(r < valid ? r : valid - 1) * ldb + k];
                acc.v[0][n][i] = fmaf(a0, b, acc.v[0][n][i]);
                acc.v[0][n][i + 2] = fmaf(a1, b, acc.v[0][n][i + 2]);
            }
    }
}

// get_transposed reads f [16,64] = the transpose of columns 0..15 of a tile of 64 rows.
HD void get_transposed(Frag<1, 8> &f, const bf16 *tile, int ld) {
    int l = lane_id();
    SharedAt at = shared_at(tile + ((l & 7) + (l >> 4) * 8) * ld + ((l >> 3) & 1) * 8);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        u32 a[4];
        load_matrices_trans(a, at + 2 * 16 * k * ld);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            f.v[0][2 * k + (i >> 1)][2 * (i & 1)] = bits_to_float(a[i] << 16);
            f.v[0][2 * k + (i >> 1)][2 * (i & 1) + 1] = bits_to_float(a[i] & 0xffff0000u);
        }
    }
}
HD void get_transposed(Frag<1, 8> &f, const float *tile, int ld) {
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) f.v[0][n][i] = tile[frag_col(n, i) * ld + frag_row(0, i)];
}

// put_transposed stores f [16,64] as 16 columns of `valid` rows at dst. own is the warp's piece of shared memory,
// GDN_OWN values.
constexpr int GDN_OWN = 64 * 24;
HD void put_transposed(bf16 *dst, i64 stride, int valid, const Frag<1, 8> &f, bf16 *own) {
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) own[frag_col(n, i) * 24 + frag_row(0, i)] = to_bf16(f.v[0][n][i]);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int r = i * 16 + (lane_id() >> 1), c = (lane_id() & 1) * 8;
        if (r < valid) st16(dst + r * stride + c, ld16(own + r * 24 + c));
    }
}
HD void put_transposed(float *dst, i64 stride, int valid, const Frag<1, 8> &f, float *) {
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (frag_col(n, i) < valid) dst[frag_col(n, i) * stride + frag_row(0, i)] = f.v[0][n][i];
}
