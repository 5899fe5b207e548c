// Small matrix products on row-major operands in cache, for the mixers. Included once per instruction set.
//
// The rule of bits: every element of C is ONE chain of fused multiply-adds over ascending k that starts from
// the value in C. The chain does not depend on the tile an element falls into, so a row has the same bits
// alone or among others, and a product over k may be cut into several calls.

// GEMM_VECS vectors by GEMM_ROWS rows is the largest register tile; small tiles keep the accumulators in registers.
#if VW == 16
#define GEMM_VECS 4
#else
#define GEMM_VECS 2
#endif

// gemm_tile: R rows by NV vectors; the last vector has `tail` valid lanes when masked. All of R, NV and masked are
// compile-time constants at every call.
static inline __attribute__((always_inline)) void FN(gemm_tile)(
    const int R, const int NV, const int masked, int tail, float *restrict C, size_t ldc, const float *A, size_t ars,
    size_t acs, const float *B, size_t ldb, int K) {
  V acc[8][GEMM_VECS];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; v++) {
      const float *c = C + r * ldc + v * VW;
      acc[r][v] = masked && v == NV - 1 ? v_loadn(c, tail) : v_load(c);
    }
  }
  for (int k = 0; k < K; k++) {
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

#define GEMM_ARGS float *restrict C, size_t ldc, const float *A, size_t ars, size_t acs, const float *B, size_t ldb
#define GEMM_STEP(R, NV, MASK)                                                 \
  for (; m + R <= M; m += R)                                                   \
    FN(gemm_tile)(R, NV, MASK, tail, C + m * ldc, ldc, A + m * ars, ars, acs, B, ldb, K);

// gemm_cols_*: all M rows of one strip of NV vectors.
#define GEMM_COLS(NAME, NV, MASK, BIG)                                                    \
  static void FN(NAME)(int tail, GEMM_ARGS, int M, int K) {                               \
    int m = 0;                                                                            \
    (void)tail;                                                                           \
    if (BIG == 8) { GEMM_STEP(8, NV, MASK) }                                              \
    GEMM_STEP(4, NV, MASK)                                                                \
    GEMM_STEP(2, NV, MASK)                                                                \
    GEMM_STEP(1, NV, MASK)                                                                \
  }

#if GEMM_VECS == 4
GEMM_COLS(gemm_cols_4, 4, 0, 4)
GEMM_COLS(gemm_cols_2, 2, 0, 8)
GEMM_COLS(gemm_cols_1, 1, 0, 8)
GEMM_COLS(gemm_cols_1m, 1, 1, 8)
#else
GEMM_COLS(gemm_cols_2, 2, 0, 4)
GEMM_COLS(gemm_cols_1, 1, 0, 8)
GEMM_COLS(gemm_cols_1m, 1, 1, 8)
#endif

// gemm: C[M,N] += A[M,K] B[K,N] with A[m,k] at A[m*ars + k*acs]; B and C row-major with strides ldb, ldc.
static void FN(gemm)(GEMM_ARGS, int M, int N, int K) {
  int n = 0;
  if (M <= 0 || K <= 0) return;
#if GEMM_VECS == 4
  for (; n + 4 * VW <= N; n += 4 * VW) FN(gemm_cols_4)(0, C + n, ldc, A, ars, acs, B + n, ldb, M, K);
#endif
  for (; n + 2 * VW <= N; n += 2 * VW) FN(gemm_cols_2)(0, C + n, ldc, A, ars, acs, B + n, ldb, M, K);
  for (; n + VW <= N; n += VW) FN(gemm_cols_1)(0, C + n, ldc, A, ars, acs, B + n, ldb, M, K);
  if (n < N) FN(gemm_cols_1m)(N - n, C + n, ldc, A, ars, acs, B + n, ldb, M, K);
}

// zero_rows: C[M,N] = 0.
static inline void FN(zero_rows)(float *C, size_t ldc, int M, int N) {
  for (int m = 0; m < M; m++) memset(C + m * ldc, 0, sizeof(float) * N);
}

// transpose: dst[c*ldd + r] = src[r*lds + c] for an [R,N] block.
static void FN(transpose)(float *restrict dst, size_t ldd, const float *restrict src, size_t lds, int R, int N) {
  for (int r0 = 0; r0 < R; r0 += 16) {
    int r1 = r0 + 16 < R ? r0 + 16 : R;
    for (int c = 0; c < N; c++)
      for (int r = r0; r < r1; r++) dst[c * ldd + r] = src[r * lds + c];
  }
}
