// tile.cuh: products of tiles in shared memory by one warp, in either storage type: bf16 goes through mma.sync, fp32
// through fused multiply-adds with the same distribution of the result over lanes, so that a kernel is written once.
#pragma once
#include "ptx.cuh"

// PAD is what a row of a tile is longer than its columns: rows start 16-byte aligned and eight of them fall into
// different banks.
template <class T> struct Tile;
template <> struct Tile<bf16> { static constexpr int PAD = 8; };
template <> struct Tile<float> { static constexpr int PAD = 4; };

// Frag is a warp's [16·MT, 8·NT] fp32 result. Lane l holds of block (m, n), with g = l/4 and q = l%4, in [m][n]:
// 0, 1: (16m+g, 8n+2q and +1)   2, 3: (16m+g+8, 8n+2q and +1).
template <int MT, int NT> struct Frag {
    float v[MT][NT][4];
    HS_MEMBER void zero() {
        for (int m = 0; m < MT; m++) for (int n = 0; n < NT; n++) for (int i = 0; i < 4; i++) v[m][n][i] = 0;
    }
};
HD int frag_row(int m, int i) { return 16 * m + (lane_id() >> 2) + (i >> 1) * 8; }
HD int frag_col(int n, int i) { return 8 * n + (lane_id() & 3) * 2 + (i & 1); }

// SharedAt is an address in shared memory, to which offsets in bytes are added: constant ones cost no register on a device.
#ifdef HS_SIM
typedef const u8 *SharedAt;
HD SharedAt shared_at(const void *p) { return (SharedAt)p; }
HD void load_matrices(u32 (&r)[4], SharedAt row) { ldmatrix_x4(r, row); }
HD void load_matrices_trans(u32 (&r)[4], SharedAt row) { ldmatrix_x4_trans(r, row); }
#else
typedef u32 SharedAt;
HD SharedAt shared_at(const void *p) { return shared_addr(p); }
HD void load_matrices(u32 (&r)[4], SharedAt row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
}
HD void load_matrices_trans(u32 (&r)[4], SharedAt row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");
}
#endif

// warp_mma: acc += A B over K (a multiple of 16). A is [16·MT, K]: element (m, k) at A[m·lda+k], or A[k·lda+m] with TA.
// B is [K, 8·NT]: element (k, n) at B[n·ldb+k], or B[k·ldb+n] with TB. bf16: NT is even, rows are 16-byte aligned.
template <bool TA, bool TB, int MT, int NT> HD void warp_mma(Frag<MT, NT> &acc, const bf16 *A, int lda, const bf16 *B, int ldb, int K) {
    static_assert(NT % 2 == 0, "two blocks of B are loaded at a time");
    const int l = lane_id(), low = l & 15, high = (l >> 4) * 8, row = (l & 7) + high, mid = (l >> 3 & 1) * 8;
    SharedAt at = shared_at(TA ? A + row * lda + mid : A + low * lda + high);
    SharedAt bt = shared_at(TB ? B + low * ldb + high : B + row * ldb + mid);
#pragma unroll 16
    for (int k = 0; k < K; k += 16) {
        u32 a[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++) {
            if (TA) load_matrices_trans(a[m], at + 2 * (k * lda + 16 * m));
            else load_matrices(a[m], at + 2 * (16 * m * lda + k));
        }
#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            u32 b[4];
            if (TB) load_matrices_trans(b, bt + 2 * (k * ldb + 8 * n));
            else load_matrices(b, bt + 2 * (8 * n * ldb + k));
            u32 b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
#pragma unroll
            for (int m = 0; m < MT; m++) mma_bf16(acc.v[m][n], a[m], b0), mma_bf16(acc.v[m][n + 1], a[m], b1);
        }
    }
}

template <bool TA, bool TB, int MT, int NT> HD void warp_mma(Frag<MT, NT> &acc, const float *A, int lda, const float *B, int ldb, int K) {
    int g = lane_id() >> 2, q = lane_id() & 3;
    for (int k = 0; k < K; k++) {
        float a[MT][2];
#pragma unroll
        for (int m = 0; m < MT; m++) {
            a[m][0] = TA ? A[k * lda + 16 * m + g] : A[(16 * m + g) * lda + k];
            a[m][1] = TA ? A[k * lda + 16 * m + g + 8] : A[(16 * m + g + 8) * lda + k];
        }
#pragma unroll
        for (int n = 0; n < NT; n++) {
            float b0 = TB ? B[k * ldb + 8 * n + 2 * q] : B[(8 * n + 2 * q) * ldb + k];
            float b1 = TB ? B[k * ldb + 8 * n + 2 * q + 1] : B[(8 * n + 2 * q + 1) * ldb + k];
#pragma unroll
            for (int m = 0; m < MT; m++) {
                acc.v[m][n][0] = fmaf(a[m][0], b0, acc.v[m][n][0]);
                acc.v[m][n][1] = fmaf(a[m][0], b1, acc.v[m][n][1]);
                acc.v[m][n][2] = fmaf(a[m][1], b0, acc.v[m][n][2]);
                acc.v[m][n][3] = fmaf(a[m][1], b1, acc.v[m][n][3]);
            }
        }
    }
}

// load_tile starts copying `rows` rows of COLS values (COLS·sizeof(T) a multiple of 16) from src (row stride in values) to
// dst (row stride LD); rows from `valid` on become 0. All threads of the block take part; commit, wait and barrier are the
// caller's.
template <class T, int COLS> HD void load_tile(T *dst, int LD, const T *src, i64 stride, int rows, int valid) {
    constexpr int PER = 16 / sizeof(T), CHUNKS = COLS / PER;
    static_assert(COLS % PER == 0, "rows are copied 16 bytes at a time");
    for (int i = threadIdx.x; i < rows * CHUNKS; i += blockDim.x) {
        int r = i / CHUNKS, c = i % CHUNKS * PER;
        bool ok = r < valid;
        cp_async16(dst + r * LD + c, src + (ok ? r * stride + c : 0), ok);
    }
}
