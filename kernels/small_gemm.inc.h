/* Small matrix products on row-major operands in cache, for the mixers.
 *
 * The rule of bits: every element of C is ONE chain of fused multiply-adds over ascending k, started from 0 or from
 * the value in C. The chain does not depend on the tile that the element falls into, so a row has the same bits alone
 * or among others, and a product over k may be cut into several calls.
 */

/* The largest register tile has GEMM_VECS vectors of columns. */
#if defined(HS_VEC_AVX512)
#define GEMM_VECS 4
#else
#define GEMM_VECS 2
#endif

#define GEMM_ARGS \
    int zero, float *restrict C, int64_t ldc, const float *A, int64_t ars, int64_t acs, const float *B, int64_t ldb

/* gemm_tile: R rows by NV vectors; the last vector has tail valid lanes when masked. R, NV and masked are constants
 * at every call, so that the accumulators live in registers. */
HS_INLINE void FN(gemm_tile)(const int R, const int NV, const int masked, int64_t tail, GEMM_ARGS, int64_t K) {
    V acc[8][GEMM_VECS];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) {
            const float *c = C + r * ldc + v * VW;
            if (zero) acc[r][v] = v_zero();
            else acc[r][v] = masked && v == NV - 1 ? v_loadn(c, tail) : v_load(c);
        }
    }
#pragma GCC unroll 4
    for (int64_t k = 0; k < K; k++) {
        V b[GEMM_VECS];
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) {
            const float *p = B + k * ldb + v * VW;
            b[v] = masked && v == NV - 1 ? v_loadn(p, tail) : v_load(p);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            V a = v_set1(A[r * ars + k * acs]);
#pragma GCC unroll 4
            for (int v = 0; v < NV; v++) acc[r][v] = v_fma(a, b[v], acc[r][v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) {
            float *c = C + r * ldc + v * VW;
            if (masked && v == NV - 1) v_storen(c, acc[r][v], tail);
            else v_store(c, acc[r][v]);
        }
    }
}

#define GEMM_STEP(R, NV, MASK) \
    for (; m + R <= M; m += R) \
        FN(gemm_tile)(R, NV, MASK, tail, zero, C + m * ldc, ldc, A + m * ars, ars, acs, B, ldb, K);

/* All M rows of one strip of NV vectors. */
#define GEMM_STRIP(NAME, NV, MASK, BIG)                                            \
    static void FN(NAME)(int64_t tail, GEMM_ARGS, int64_t M, int64_t K) {          \
        int64_t m = 0;                                                             \
        (void)tail;                                                                \
        if (BIG == 8) { GEMM_STEP(8, NV, MASK) }                                   \
        GEMM_STEP(4, NV, MASK)                                                     \
        GEMM_STEP(2, NV, MASK)                                                     \
        GEMM_STEP(1, NV, MASK)                                                     \
    }

#if GEMM_VECS == 4
GEMM_STRIP(gemm_strip4, 4, 0, 4)
GEMM_STRIP(gemm_strip2, 2, 0, 8)
#else
GEMM_STRIP(gemm_strip2, 2, 0, 4)
#endif
GEMM_STRIP(gemm_strip1, 1, 0, 8)
GEMM_STRIP(gemm_tail, 1, 1, 8)

/* gemm: C[M,N] = (zero) or += A[M,K] B[K,N] with A[m,k] at A[m·ars + k·acs]; B and C row-major, strides ldb, ldc. */
static void FN(gemm)(GEMM_ARGS, int64_t M, int64_t N, int64_t K) {
    int64_t n = 0;
    if (M <= 0 || (K <= 0 && !zero)) return;
#if GEMM_VECS == 4
    for (; n + 4 * VW <= N; n += 4 * VW) FN(gemm_strip4)(0, zero, C + n, ldc, A, ars, acs, B + n, ldb, M, K);
#endif
    for (; n + 2 * VW <= N; n += 2 * VW) FN(gemm_strip2)(0, zero, C + n, ldc, A, ars, acs, B + n, ldb, M, K);
    for (; n + VW <= N; n += VW) FN(gemm_strip1)(0, zero, C + n, ldc, A, ars, acs, B + n, ldb, M, K);
    if (n < N) FN(gemm_tail)(N - n, zero, C + n, ldc, A, ars, acs, B + n, ldb, M, K);
}

/* Triangles. A block of up to TRI_ROWS rows is done in registers, larger ones by halves that meet in a product, so that
 * every element's chain runs over the rows in order, whatever the cut. */
enum { TRI_ROWS = 8 };
#if defined(HS_VEC_AVX512)
#define TRI_VECS 2
#else
#define TRI_VECS 1
#endif

/* tri_half: rows of the first half of n > 1: the largest power of two below n. */
HS_INLINE int64_t FN(tri_half)(int64_t n) {
    int64_t h = 1;
    while (2 * h < n) h *= 2;
    return h;
}

/* tri_block: whether n rows are one register block. */
HS_INLINE int FN(tri_block)(int64_t n) { return n <= TRI_ROWS && (n & (n - 1)) == 0; }

/* TRI_DISPATCH calls TILE(R, NV, masked, tail, column) for n = R rows over all N columns, R and NV constants. */
#define TRI_COLUMNS(R, TILE)                                                \
    {                                                                       \
        int64_t c_ = 0;                                                     \
        for (; c_ + TRI_VECS * VW <= N; c_ += TRI_VECS * VW) TILE(R, TRI_VECS, 0, VW, c_) \
        for (; c_ + VW <= N; c_ += VW) TILE(R, 1, 0, VW, c_)                \
        if (c_ < N) TILE(R, 1, 1, N - c_, c_)                               \
    }
#define TRI_DISPATCH(n, TILE)                \
    switch (n) {                             \
    case 8: TRI_COLUMNS(8, TILE) break;      \
    case 4: TRI_COLUMNS(4, TILE) break;      \
    case 2: TRI_COLUMNS(2, TILE) break;      \
    default: TRI_COLUMNS(1, TILE) break;     \
    }

HS_INLINE void FN(tri_load)(V acc[8][TRI_VECS], const int R, const int NV, const int masked, int64_t tail, const float *C,
                            int64_t ldc) {
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int v = 0; v < NV; v++)
            acc[r][v] = masked && v == NV - 1 ? v_loadn(C + r * ldc + v * VW, tail) : v_load(C + r * ldc + v * VW);
}
HS_INLINE void FN(tri_store)(V acc[8][TRI_VECS], const int R, const int NV, const int masked, int64_t tail, float *C,
                             int64_t ldc) {
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int v = 0; v < NV; v++)
            if (masked && v == NV - 1) v_storen(C + r * ldc + v * VW, acc[r][v], tail);
            else v_store(C + r * ldc + v * VW, acc[r][v]);
}

HS_INLINE void FN(tri_add_tile)(const int R, const int NV, const int masked, int64_t tail, float *C, int64_t ldc,
                                const float *A, int64_t lda, const float *B, int64_t ldb) {
    V acc[8][TRI_VECS], b[8][TRI_VECS];
    FN(tri_load)(acc, R, NV, masked, tail, C, ldc);
    FN(tri_load)(b, R, NV, masked, tail, B, ldb);
#pragma GCC unroll 8
    for (int j = 0; j < R; j++)
#pragma GCC unroll 8
        for (int i = j; i < R; i++)
#pragma GCC unroll 2
            for (int v = 0; v < NV; v++) acc[i][v] = v_fma(v_set1(A[i * lda + j]), b[j][v], acc[i][v]);
    FN(tri_store)(acc, R, NV, masked, tail, C, ldc);
}

/* tri_add: C[i] += sum over j <= i of A[i,j] B[j] for n rows of N columns; A has row stride lda. */
static void FN(tri_add)(float *C, int64_t ldc, const float *A, int64_t lda, const float *B, int64_t ldb, int64_t n,
                        int64_t N) {
    if (n <= 0) return;
    if (FN(tri_block)(n)) {
#define TILE(R, NV, MASK, TAIL, c) FN(tri_add_tile)(R, NV, MASK, TAIL, C + c, ldc, A, lda, B + c, ldb);
        TRI_DISPATCH(n, TILE)
#undef TILE
        return;
    }
    int64_t h = FN(tri_half)(n);
    FN(tri_add)(C, ldc, A, lda, B, ldb, h, N);
    FN(gemm)(0, C + h * ldc, ldc, A + h * lda, lda, 1, B, ldb, n - h, N, h);
    FN(tri_add)(C + h * ldc, ldc, A + h * lda + h, lda, B + h * ldb, ldb, n - h, N);
}

#if defined(HS_VEC_AVX512)
/* transpose16: a 16x16 block in registers, off-diagonal quarters changing place at 1, 2, 4, 8. */
static void FN(transpose16)(float *restrict dst, int64_t ldd, const float *restrict src, int64_t lds) {
    V x[16];
#pragma GCC unroll 16
    for (int r = 0; r < 16; r++) x[r] = v_load(src + r * lds);
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
#pragma GCC unroll 4
    for (int s = 1; s < 16; s *= 2) {
        /* In a permutation of two vectors, lane 16+j is lane j of the second. */
        const __mmask16 odd = _mm512_test_epi32_mask(lane, _mm512_set1_epi32(s));
        const __m512i lo = _mm512_mask_add_epi32(lane, odd, lane, _mm512_set1_epi32(16 - s));
        const __m512i hi = _mm512_mask_add_epi32(_mm512_add_epi32(lane, _mm512_set1_epi32(s)), odd, lane, _mm512_set1_epi32(16));
#pragma GCC unroll 16
        for (int r = 0; r < 16; r++)
            if (!(r & s)) {
                V a = x[r], b = x[r + s];
                x[r] = _mm512_permutex2var_ps(a, lo, b);
                x[r + s] = _mm512_permutex2var_ps(a, hi, b);
            }
    }
#pragma GCC unroll 16
    for (int r = 0; r < 16; r++) v_store(dst + r * ldd, x[r]);
}
#endif

/* transpose: dst[c·ldd + r] = src[r·lds + c] for an [R,N] block. */
static void FN(transpose)(float *restrict dst, int64_t ldd, const float *restrict src, int64_t lds, int64_t R, int64_t N) {
    for (int64_t r0 = 0; r0 < R; r0 += 16) {
        int64_t r1 = hs_min(r0 + 16, R), c = 0;
#if defined(HS_VEC_AVX512)
        for (; r1 - r0 == 16 && c + 16 <= N; c += 16)
            FN(transpose16)(dst + c * ldd + r0, ldd, src + r0 * lds + c, lds);
#endif
        for (; c < N; c++)
            for (int64_t r = r0; r < r1; r++) dst[c * ldd + r] = src[r * lds + c];
    }
}

/* vec_dot: sum of x·y over n in a fixed lane order. */
HS_INLINE float FN(vec_dot)(const float *x, const float *y, int64_t n) {
    V acc = v_zero();
    int64_t i = 0;
    for (; i + VW <= n; i += VW) acc = v_fma(v_load(x + i), v_load(y + i), acc);
    if (i < n) acc = v_fma(v_loadn(x + i, n - i), v_loadn(y + i, n - i), acc);
    return v_hsum(acc);
}

/* vec_scale: y = a·x, n words. */
HS_INLINE void FN(vec_scale)(float *y, const float *x, float a, int64_t n) {
    V va = v_set1(a);
    int64_t i = 0;
    for (; i + VW <= n; i += VW) v_store(y + i, v_mul(va, v_load(x + i)));
    if (i < n) v_storen(y + i, v_mul(va, v_loadn(x + i, n - i)), n - i);
}

/* vec_axpy: y += a·x, n words. */
HS_INLINE void FN(vec_axpy)(float *y, const float *x, float a, int64_t n) {
    V va = v_set1(a);
    int64_t i = 0;
    for (; i + VW <= n; i += VW) v_store(y + i, v_fma(va, v_load(x + i), v_load(y + i)));
    if (i < n) v_storen(y + i, v_fma(va, v_loadn(x + i, n - i), v_loadn(y + i, n - i)), n - i);
}
