/* Matrix products. Every output element is a sum, in ascending order, of chains acc = fma(a[p], b[p], acc) over runs of
 * ascending p, lanes across columns: its bits depend on its own row and column alone, whatever the tiling, the batch or
 * the threads. Short runs, because the error of one long chain is too large for the delta rule: where a query is nearly
 * orthogonal to its keys, the gated norm turns an error of 1e-7 in the projections into 1e-4.
 *
 *   matmul     C  = A B   (or += with add), in runs of mm_run   B in panels
 *   matmul_tn  C += AᵀB   chains of HS_KC rows, each added to C in ascending order
 *   pack_t, pack_n      panels =
 */

enum { HS_NR = HS_NV * VW, HS_KC = 256, HS_MC = 8 * HS_MR };

/* How a tile's first run ends: C = acc; C += acc. */
enum { HS_STORE = 0, HS_ACCUMULATE = 1 };

/* mm_run: the length of a run over K, a divisor of HS_KC. The error is least near sqrt(K); longer ones cost less. */
HS_INLINE int64_t FN(mm_run)(int64_t K) { return K <= 512 ? 16 : K <= 2048 ? 32 : 64; }

/* One run of a tile: m rows (constant) of nv vectors (constant). A(i,p) = a[i*ars + p*acs]; B [k][HS_NR]; n valid columns. */
HS_INLINE void FN(mm_tile_run)(const int m, const int nv, const int row_major, int64_t k, const float *a, int64_t lda,
                               const float *b, float *c, int64_t ldc, int64_t n, int mode) {
    V acc[HS_MR][HS_NV];
    const int full = n == (int64_t)nv * VW;
#pragma GCC unroll 16
    for (int i = 0; i < m; i++) {
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) {
            acc[i][j] = v_zero();
            __builtin_prefetch(c + i * ldc + j * VW, 1);
        }
    }
    for (int64_t p = 0; p < k; p++) {
        V bv[HS_NV];
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) bv[j] = v_load(b + j * VW);
        b += HS_NR;
#pragma GCC unroll 16
        for (int i = 0; i < m; i++) {
            V av = v_set1(row_major ? a[i * lda] : a[i]);
#pragma GCC unroll 4
            for (int j = 0; j < nv; j++) acc[i][j] = v_fma(av, bv[j], acc[i][j]);
        }
        a += row_major ? 1 : lda;
    }
#pragma GCC unroll 16
    for (int i = 0; i < m; i++) {
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) {
            float *at = c + i * ldc + j * VW;
            if (full) {
                v_store(at, mode == HS_ACCUMULATE ? v_add(v_load(at), acc[i][j]) : acc[i][j]);
            } else {
                int64_t left = n - j * VW;
                v_storen(at, mode == HS_ACCUMULATE ? v_add(v_loadn(at, left), acc[i][j]) : acc[i][j], left);
            }
        }
    }
}

/* One tile, run after run. */
HS_INLINE void FN(mm_tile)(const int m, const int nv, const int row_major, int64_t k, int64_t run, const float *a,
                           int64_t lda, const float *b, float *c, int64_t ldc, int64_t n, int mode) {
    for (int64_t p = 0; p < k || p == 0; p += run, mode = HS_ACCUMULATE)
        FN(mm_tile_run)(m, nv, row_major, hs_min(run, k - p), a + (row_major ? p : p * lda), lda, b + p * HS_NR, c, ldc, n, mode);
}

/* m rows (1 or 2, constant) by np whole panels (constant) at once, C = or += (more) a run: one row alone has too few chains to
 * hide the latency of an FMA. Panel j is at b + j*ldp. */
HS_INLINE void FN(mm_thin)(const int m, const int np, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldp,
                           float *c, int64_t ldc, int more) {
    V acc[2][4 * HS_NV];
#pragma GCC unroll 2
    for (int i = 0; i < m; i++)
#pragma GCC unroll 8
        for (int j = 0; j < np * HS_NV; j++) acc[i][j] = v_zero();
    for (int64_t p = 0; p < k; p++) {
#pragma GCC unroll 2
        for (int i = 0; i < m; i++) {
            V av = v_set1(a[i * lda + p]);
#pragma GCC unroll 8
            for (int j = 0; j < np * HS_NV; j++)
                acc[i][j] = v_fma(av, v_load(b + (j / HS_NV) * ldp + p * HS_NR + (j % HS_NV) * VW), acc[i][j]);
        }
    }
#pragma GCC unroll 2
    for (int i = 0; i < m; i++)
#pragma GCC unroll 8
        for (int j = 0; j < np * HS_NV; j++) {
            float *at = c + i * ldc + j * VW;
            v_store(at, more ? v_add(v_load(at), acc[i][j]) : acc[i][j]);
        }
}

#if HS_MR > 6
#define HS_MORE_ROWS(call) \
    call(7) call(8) call(9) call(10) call(11) call(12) call(13) call(14)
#else
#define HS_MORE_ROWS(call)
#endif
#define HS_EACH_ROWS(call) call(1) call(2) call(3) call(4) call(5) call(6) HS_MORE_ROWS(call)

/* tile_rm: A row-major with row stride lda. tile_cm: A [k][lda], rows of the tile contiguous. */
#define HS_CASE_RM(r) \
    case r: FN(mm_tile)(r, HS_NV, 1, k, run, a, lda, b, c, ldc, n, mode); break;
#define HS_CASE_CM(r) \
    case r: FN(mm_tile)(r, HS_NV, 0, k, k, a, lda, b, c, ldc, n, mode); break;

static __attribute__((noinline)) void FN(mm_tile_rm)(int m, int64_t k, int64_t run, const float *a, int64_t lda, const float *b,
                                                  float *c, int64_t ldc, int64_t n, int mode) {
    switch (m) { HS_EACH_ROWS(HS_CASE_RM) }
}

static __attribute__((noinline)) void FN(mm_tile_cm)(int m, int64_t k, const float *a, int64_t lda, const float *b,
                                                  float *c, int64_t ldc, int64_t n, int mode) {
    switch (m) { HS_EACH_ROWS(HS_CASE_CM) }
}

/* Part i of n units split into parts as evenly as can be: [cut(i), cut(i+1)). */
HS_INLINE int64_t FN(mm_cut)(int64_t units, int64_t parts, int64_t i) { return units * i / parts; }

/* One or two rows r0..r1 by groups of four whole panels of j0..j1; returns the first panel left. */
static int64_t FN(matmul_thin)(const hs_matmul_args *g, int64_t r0, int64_t r1, int64_t j0, int64_t j1) {
    const float *a = g->a + r0 * g->K;
    for (; j0 + 4 <= j1 && (j0 + 4) * HS_NR <= g->N; j0 += 4) {
        const float *b = g->b + j0 * HS_NR * g->K;
        float *c = g->c + r0 * g->N + j0 * HS_NR;
        for (int64_t k0 = 0, run = FN(mm_run)(g->K); k0 < g->K; k0 += run) {
            const int64_t kc = hs_min(run, g->K - k0);
            if (r1 - r0 == 1)
                FN(mm_thin)(1, 4, kc, a + k0, g->K, b + k0 * HS_NR, HS_NR * g->K, c, g->N, k0 > 0);
            else
                FN(mm_thin)(2, 4, kc, a + k0, g->K, b + k0 * HS_NR, HS_NR * g->K, c, g->N, k0 > 0);
        }
    }
    return j0;
}

/* mm_copy copies m rows of n floats, n <= HS_NR. */
HS_INLINE void FN(mm_copy)(float *dst, int64_t ldd, const float *src, int64_t lds, int64_t m, int64_t n) {
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j += VW) v_storen(dst + i * ldd + j, v_loadn(src + i * lds + j, n - j), n - j);
}

/* tile_rm by way of a small buffer, for rows of C that lie a multiple of 2 KiB apart: they fall into one or two sets of the
 * first-level cache, and every one of many short runs would fetch them anew. */
static void FN(mm_tile_far)(int m, int64_t k, int64_t run, const float *a, int64_t lda, const float *b, float *c, int64_t ldc,
                            int64_t n, int mode) {
    _Alignas(64) float tile[HS_MR * HS_NR];
    if (mode == HS_ACCUMULATE) FN(mm_copy)(tile, HS_NR, c, ldc, m, n);
    FN(mm_tile_rm)(m, k, run, a, lda, b, tile, HS_NR, n, mode);
    FN(mm_copy)(c, ldc, tile, HS_NR, m, n);
}

/* Asks for part i of n floats of the next panel, to lie in the second-level cache when its turn comes. */
HS_INLINE void FN(mm_ahead)(const float *next, int64_t n, int64_t i, int64_t parts) {
    for (int64_t at = FN(mm_cut)(n / 16, parts, i), end = FN(mm_cut)(n / 16, parts, i + 1); at < end; at++)
        __builtin_prefetch(next + at * 16, 0, 2);
}

/* Rows r0..r1 by panels j0..j1 of the product. */
static void FN(matmul_block)(const hs_matmul_args *g, int64_t r0, int64_t r1, int64_t j0, int64_t j1, float *scratch) {
    if (r1 - r0 <= 2 && !g->add) j0 = FN(matmul_thin)(g, r0, r1, j0, j1);
    const int64_t rows = r1 - r0, slivers = hs_ceil(rows, HS_MR), run = FN(mm_run)(g->K);
    for (int64_t k0 = 0; k0 < g->K; k0 += HS_KC) {
        const int64_t kc = hs_min(HS_KC, g->K - k0);
        const int mode = k0 > 0 || g->add ? HS_ACCUMULATE : HS_STORE;
        const float *a = g->a + r0 * g->K + k0;
        int64_t lda = g->K;
        if (g->copy) {
            lda = kc + 16;
            for (int64_t i = 0; i < rows; i++) memcpy(scratch + i * lda, a + i * g->K, (size_t)kc * sizeof(float));
            a = scratch;
        }
        for (int64_t j = j0; j < j1; j++) {
            const float *b = g->b + j * HS_NR * g->K + k0 * HS_NR;
            const int64_t n = hs_min(HS_NR, g->N - j * HS_NR);
            for (int64_t s = 0; s < slivers; s++) {
                const int64_t i0 = FN(mm_cut)(rows, slivers, s), i1 = FN(mm_cut)(rows, slivers, s + 1);
                if ((j + 1) * HS_NR < g->N) FN(mm_ahead)(b + HS_NR * g->K, kc * HS_NR, s, slivers);
                if (g->N % 512 == 0 && run < 32)
                    FN(mm_tile_far)((int)(i1 - i0), kc, run, a + i0 * lda, lda, b, g->c + (r0 + i0) * g->N + j * HS_NR, g->N, n, mode);
                else
                    FN(mm_tile_rm)((int)(i1 - i0), kc, run, a + i0 * lda, lda, b, g->c + (r0 + i0) * g->N + j * HS_NR, g->N, n, mode);
            }
        }
    }
}

HS_WORKER(matmul) {
    const hs_matmul_args *g = args_;
    const int64_t panels = hs_ceil(g->N, HS_NR);
    for (int64_t t = lo; t < hi; t++) {
        const int64_t ib = t / g->col_blocks, jb = t % g->col_blocks;
        FN(matmul_block)(g, FN(mm_cut)(g->M, g->row_blocks, ib), FN(mm_cut)(g->M, g->row_blocks, ib + 1),
                       FN(mm_cut)(panels, g->col_blocks, jb), FN(mm_cut)(panels, g->col_blocks, jb + 1), scratch);
    }
}

/* Cuts rows of n floats into strips width floats wide, the last one padded with zeros: strip s is [rows][width] at
 * dst + s*mm_strip(rows, width). Stores are whole vectors, so a row may spill into the next one (written later) and
 * the last row into the gap between strips. */
HS_INLINE int64_t FN(mm_strip)(int64_t rows, int64_t width) { return rows * width + VW; }

static void FN(mm_strips)(float *dst, int64_t width, const float *src, int64_t ld, int64_t rows, int64_t n) {
    const int64_t step = FN(mm_strip)(rows, width);
    for (int64_t p = 0; p < rows; p++, src += ld) {
        float *to = dst + p * width;
        for (int64_t c = 0; c < n; c += width, to += step) {
            for (int64_t j = 0; j < width; j += VW) {
                const int64_t left = n - c - j;
                v_store(to + j, left >= VW ? v_load(src + c + j) : v_loadn(src + c + j, left));
            }
        }
    }
}

/* Rows r0..r1 by panels j0..j1 of the product, in blocks of HS_KC rows of A and B, both cut into strips first. */
static void FN(matmul_tn_block)(const hs_matmul_tn_args *g, int64_t r0, int64_t r1, int64_t j0, int64_t j1, float *scratch) {
    const int64_t m = r1 - r0, width = hs_ceil(m, hs_ceil(m, HS_MR)), c0 = j0 * HS_NR, c1 = hs_min(j1 * HS_NR, g->N);
    for (int64_t k0 = 0; k0 < g->K; k0 += HS_KC) {
        const int64_t kc = hs_min(HS_KC, g->K - k0);
        float *pa = scratch, *pb = scratch + hs_ceil(hs_ceil(m, width) * FN(mm_strip)(kc, width), 16) * 16;
        FN(mm_strips)(pa, width, g->a + k0 * g->M + r0, g->M, kc, m);
        FN(mm_strips)(pb, HS_NR, g->b + k0 * g->N + c0, g->N, kc, c1 - c0);
        for (int64_t j = c0; j < c1; j += HS_NR) {
            const float *b = pb + (j - c0) / HS_NR * FN(mm_strip)(kc, HS_NR);
            for (int64_t i = 0; i < m; i += width)
                FN(mm_tile_cm)((int)hs_min(width, m - i), kc, pa + i / width * FN(mm_strip)(kc, width), width, b,
                               g->c + (r0 + i) * g->N + j, g->N, hs_min(HS_NR, g->N - j), HS_ACCUMULATE);
        }
    }
}

HS_WORKER(matmul_tn) {
    const hs_matmul_tn_args *g = args_;
    const int64_t panels = hs_ceil(g->N, HS_NR);
    for (int64_t t = lo; t < hi; t++) {
        const int64_t ib = t / g->col_blocks, jb = t % g->col_blocks;
        FN(matmul_tn_block)(g, FN(mm_cut)(g->M, g->row_blocks, ib), FN(mm_cut)(g->M, g->row_blocks, ib + 1),
                            FN(mm_cut)(panels, g->col_blocks, jb), FN(mm_cut)(panels, g->col_blocks, jb + 1), scratch);
    }
}

HS_WORKER(pack_t) {
    const hs_pack_args *g = args_;
    for (int64_t j = lo; j < hi; j++) {
        float *panel = g->panels + j * HS_NR * g->cols;
        const int64_t n = hs_min(HS_NR, g->rows - j * HS_NR);
        for (int64_t p0 = 0; p0 < g->cols; p0 += 16) {
            const int64_t p1 = hs_min(p0 + 16, g->cols);
            for (int64_t r = 0; r < n; r++) {
                const float *src = g->w + (j * HS_NR + r) * g->cols;
                for (int64_t p = p0; p < p1; p++) panel[p * HS_NR + r] = src[p];
            }
            for (int64_t p = p0; p < p1; p++)
                for (int64_t r = n; r < HS_NR; r++) panel[p * HS_NR + r] = 0;
        }
    }
}

HS_WORKER(pack_n) {
    const hs_pack_args *g = args_;
    for (int64_t j = lo; j < hi; j++)
        FN(mm_strips)(g->panels + j * HS_NR * g->rows, HS_NR, g->w + j * HS_NR, g->cols, g->rows,
                      hs_min(HS_NR, g->cols - j * HS_NR));
}
