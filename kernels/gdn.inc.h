/* The gated delta rule, forward: chunks of HS_C rows counted from position 0 of the sequence.
 *
 * For chunk row i, with S the state at the chunk's start and G the cumulative log-decay since then:
 *
 *   x_i = v_i - exp(G_i) S'k_i
 *   e_i = x_i - sum_{j<i} exp(G_i-G_j) (k_i·k_j) u_j        u_i = beta_i e_i
 *   o_i = exp(G_i) S'q_i + sum_{j<=i} exp(G_i-G_j) (q_i·k_j) u_j
 *   after row 63:  S = exp(G_63) S + sum_i exp(G_63-G_i) k_i u_i'
 *
 * G is kept as the sum of two floats: under strong decay it reaches -1600 in a chunk, where one float would leave
 * exp(G_i-G_j) of neighbours with an error of 1e-4. (e is the recurrence's prediction error, v - S~'k.) Training and inference both run gdn_rows, so a row has the
 * same bits whichever rows came with it: all sums are the fixed chains of small_gemm.inc.h.
 */

/* What the rows of the current chunk leave behind, for one key head and its group of value heads. */
typedef struct {
    float *S;  /* [group,Dk,Dv] at the chunk's start */
    float *G;  /* [group,2,HS_C] cumulative log-decay, high and low part */
    float *KT; /* [Dk,HS_C] normalised keys, transposed */
    float *U;  /* [group,HS_C,Dv] corrected values */
} FN(gdn_cache);

/* The row's inputs for rows i0.. of a chunk: pointers to token i0. */
typedef struct {
    const float *q, *k, *v; /* token stride ch; v: of the group's first value head */
    const float *g, *beta;  /* token stride hv */
    float *o;               /* token stride hv·dv */
    float *err;             /* like o, or NULL */
} FN(gdn_rows_io);

/* l2norm: y = x·a with a = c/sqrt(sum x² + 1e-6). */
HS_INLINE void FN(l2norm)(float *y, const float *x, float c, int64_t n) {
    float r = c / sqrtf(FN(vec_dot)(x, x, n) + 1e-6f);
    FN(vec_scale)(y, x, r, n);
}

HS_INLINE void FN(solve_tile)(const int R, const int NV, const int masked, int64_t tail, float *E, int64_t lde, float *U,
                              int64_t ldu, const float *C, const float *beta, int64_t bs) {
    V e[8][TRI_VECS], u[8][TRI_VECS];
    FN(tri_load)(e, R, NV, masked, tail, E, lde);
#pragma GCC unroll 8
    for (int j = 0; j < R; j++) {
#pragma GCC unroll 2
        for (int v = 0; v < NV; v++) u[j][v] = v_mul(v_set1(beta[j * bs]), e[j][v]);
#pragma GCC unroll 8
        for (int i = j + 1; i < R; i++)
#pragma GCC unroll 2
            for (int v = 0; v < NV; v++) e[i][v] = v_fma(v_set1(C[i * HS_C + j]), u[j][v], e[i][v]);
    }
    FN(tri_store)(e, R, NV, masked, tail, E, lde);
    FN(tri_store)(u, R, NV, masked, tail, U, ldu);
}

/* gdn_solve: e_i += sum_{j<i} C[i,j] u_j, u_i = beta_i e_i for n rows of N columns, C's row stride HS_C. */
static void FN(gdn_solve)(float *E, int64_t lde, float *U, int64_t ldu, const float *C, const float *beta, int64_t bs,
                          int64_t n, int64_t N) {
    if (FN(tri_block)(n)) {
#define TILE(R, NV, MASK, TAIL, c) FN(solve_tile)(R, NV, MASK, TAIL, E + c, lde, U + c, ldu, C, beta, bs);
        TRI_DISPATCH(n, TILE)
#undef TILE
        return;
    }
    int64_t h = FN(tri_half)(n);
    FN(gdn_solve)(E, lde, U, ldu, C, beta, bs, h, N);
    FN(gemm)(0, E + h * lde, lde, C + h * HS_C, HS_C, 1, U, ldu, n - h, N, h);
    FN(gdn_solve)(E + h * lde, lde, U + h * ldu, ldu, C + h * HS_C + h, beta + h * bs, bs, n - h, N);
}

/* gate_sum: G of row i from that of the row before. */
HS_INLINE void FN(gate_sum)(float *G, int64_t i, float g) {
    double sum = g;
    if (i > 0) sum += (double)G[i - 1] + (double)G[HS_C + i - 1];
    G[i] = (float)sum;
    G[HS_C + i] = (float)(sum - (double)G[i]);
}

/* gate_diff: sign·(G_i - G_j) in lanes j, j+1, ... */
HS_INLINE V FN(gate_diff)(const float *G, int64_t i, int64_t j, float sign) {
    V hi = v_sub(v_set1(G[i]), v_load(G + j)), lo = v_sub(v_set1(G[HS_C + i]), v_load(G + HS_C + j));
    return v_mul(v_set1(sign), v_add(hi, lo));
}

/* gdn_coef: row i of the chunk: C = -exp(G_i-G_j) kk_j for j < i and P = exp(G_i-G_j) qk_j for j <= i. Lanes beyond i
 * hold rubbish, which nothing reads. */
HS_INLINE void FN(gdn_coef)(float *C, float *P, const float *kk, const float *qk, const float *G, int64_t i) {
    for (int64_t j = 0; j <= i; j += VW) {
        V gam = v_exp(FN(gate_diff)(G, i, j, 1.0f));
        v_store(C + j, v_mul(v_neg(gam), v_load(kk + j)));
        v_store(P + j, v_mul(gam, v_load(qk + j)));
    }
}

/* gdn_fold: S = exp(G_last) S + sum_i exp(G_last - G_i) k_i u_i'. W is scratch [HS_C,up16(Dv)]. */
static void FN(gdn_fold)(const hs_gdn_shape *s, float *S, const float *G, const float *KT, const float *U, float *W) {
    int64_t ldw = hs_up16(s->dv);
    float E[HS_C];
    for (int64_t i = 0; i < HS_C; i += VW) v_store(E + i, v_exp(FN(gate_diff)(G, HS_C - 1, i, 1.0f)));
    for (int64_t i = 0; i < HS_C; i++) FN(vec_scale)(W + i * ldw, U + i * s->dv, E[i], s->dv);
    FN(vec_scale)(S, S, s_exp(G[HS_C - 1]), s->dk * s->dv);
    FN(gemm)(0, S, s->dv, KT, HS_C, 1, W, ldw, s->dk, s->dv, HS_C);
}

/* gdn_rows: rows i0..i0+n-1 (i0+n <= HS_C) of the current chunk; folds the cache when row HS_C-1 is done. */
static void FN(gdn_rows)(const hs_gdn_shape *s, FN(gdn_cache) c, FN(gdn_rows_io) io, int64_t i0, int64_t n,
                         float *scratch) {
    int64_t dk = s->dk, dv = s->dv, group = s->hv / s->hk, ldk = hs_up16(dk), ldv = hs_up16(dv), i1 = i0 + n;
    float *kq = scratch;             /* [2n,ldk] keys, then scaled queries */
    float *prod = kq + 2 * n * ldk;  /* [2n,HS_C] k·k, then q·k */
    float *coef = prod + 2 * n * HS_C; /* [2n,HS_C] */
    float *eo = coef + 2 * n * HS_C; /* [2n,ldv] e, then o */
    float *W = eo + 2 * n * ldv;     /* [HS_C,ldv] */
    float qscale = 1.0f / sqrtf((float)dk);
    for (int64_t i = 0; i < n; i++) {
        FN(l2norm)(kq + i * ldk, io.k + i * s->ch, 1.0f, dk);
        FN(l2norm)(kq + (n + i) * ldk, io.q + i * s->ch, qscale, dk);
    }
    FN(transpose)(c.KT + i0, HS_C, kq, ldk, n, dk);
    if (n <= 16) /* keys and queries lie together: one product, so that a lone row has two chains in flight */
        FN(gemm)(1, prod, HS_C, kq, ldk, 1, c.KT, HS_C, 2 * n, hs_ceil(i1, VW) * VW, dk);
    for (int64_t r = 0; n > 16 && r < n; r += 16) { /* the triangle, 16 rows at a time */
        int64_t m = hs_min(16, n - r), lanes = hs_ceil(i0 + r + m, VW) * VW;
        FN(gemm)(1, prod + r * HS_C, HS_C, kq + r * ldk, ldk, 1, c.KT, HS_C, m, lanes, dk);
        FN(gemm)(1, prod + (n + r) * HS_C, HS_C, kq + (n + r) * ldk, ldk, 1, c.KT, HS_C, m, lanes, dk);
    }
    for (int64_t h = 0; h < group; h++) {
        float *S = c.S + h * dk * dv, *G = c.G + h * 2 * HS_C, *U = c.U + h * HS_C * dv;
        const float *beta = io.beta + h;
        FN(gemm)(1, eo, ldv, kq, ldk, 1, S, dv, 2 * n, dv, dk);
        for (int64_t i = 0; i < n; i++) FN(gate_sum)(G, i0 + i, io.g[i * s->hv + h]);
        for (int64_t i = 0; i < n; i++) {
            float eg = s_exp(G[i0 + i]);
            const float *v = io.v + i * s->ch + h * dv;
            float *e = eo + i * ldv;
            FN(gdn_coef)(coef + i * HS_C, coef + (n + i) * HS_C, prod + i * HS_C, prod + (n + i) * HS_C, G, i0 + i);
            FN(vec_scale)(eo + (n + i) * ldv, eo + (n + i) * ldv, eg, dv);
            int64_t k = 0;
            for (; k + VW <= dv; k += VW) v_store(e + k, v_fnma(v_set1(eg), v_load(e + k), v_load(v + k)));
            if (k < dv) v_storen(e + k, v_fnma(v_set1(eg), v_loadn(e + k, dv - k), v_loadn(v + k, dv - k)), dv - k);
        }
        FN(gemm)(0, eo, ldv, coef, HS_C, 1, U, dv, 2 * n, dv, i0);
        FN(gdn_solve)(eo, ldv, U + i0 * dv, dv, coef + i0, beta, s->hv, n, dv);
        FN(tri_add)(eo + n * ldv, ldv, coef + n * HS_C + i0, HS_C, U + i0 * dv, dv, n, dv);
        for (int64_t i = 0; i < n; i++) {
            memcpy(io.o + (i * s->hv + h) * dv, eo + (n + i) * ldv, sizeof(float) * (size_t)dv);
            if (io.err) memcpy(io.err + (i * s->hv + h) * dv, eo + i * ldv, sizeof(float) * (size_t)dv);
        }
        if (i1 == HS_C) FN(gdn_fold)(s, S, G, c.KT, U, W);
    }
}

/* gdn_io: the inputs of token t for key head kh. */
HS_INLINE FN(gdn_rows_io) FN(gdn_io)(const hs_gdn_args *a, int64_t t, int64_t kh) {
    const hs_gdn_shape *s = &a->s;
    int64_t h0 = kh * (s->hv / s->hk);
    FN(gdn_rows_io) io = {
        .q = a->qkv + t * s->ch + kh * s->dk,
        .k = a->qkv + t * s->ch + (s->hk + kh) * s->dk,
        .v = a->qkv + t * s->ch + 2 * s->hk * s->dk + h0 * s->dv,
        .g = a->g + t * s->hv + h0,
        .beta = a->beta + t * s->hv + h0,
        .o = a->o + (t * s->hv + h0) * s->dv,
        .err = a->err ? a->err + (t * s->hv + h0) * s->dv : NULL,
    };
    return io;
}

/* Item: (row, key head), from zero state. */
HS_WORKER(gdn) {
    const hs_gdn_args *a = args_;
    const hs_gdn_shape *s = &a->s;
    int64_t group = s->hv / s->hk, state = group * s->dk * s->dv;
    FN(gdn_cache) c = {.S = scratch};
    c.G = c.S + hs_up16(state);
    c.KT = c.G + group * 2 * HS_C;
    c.U = c.KT + s->dk * HS_C;
    float *work = c.U + group * HS_C * hs_up16(s->dv);
    for (int64_t item = lo; item < hi; item++) {
        int64_t row = item / s->hk, kh = item % s->hk, t1 = a->cu[row + 1], chunk = a->chunk0[row];
        memset(c.S, 0, sizeof(float) * (size_t)state);
        for (int64_t t = a->cu[row]; t < t1; t += HS_C, chunk++) {
            if (a->start) memcpy(a->start + chunk * s->hk * state + kh * state, c.S, sizeof(float) * (size_t)state);
            FN(gdn_rows)(s, c, FN(gdn_io)(a, t, kh), 0, hs_min(HS_C, t1 - t), work);
        }
    }
}

/* touch asks for n floats ahead of their use. */
HS_INLINE void FN(touch)(const float *p, int64_t n) {
    for (int64_t i = 0; i < n; i += 16) __builtin_prefetch(p + i);
}

/* gdn_touch asks for what a lone row at place i0 of its chunk reads of the cache: a decoding step meets every sequence's
 * state once, from far memory, and would wait for each line in turn. */
static void FN(gdn_touch)(const hs_gdn_shape *s, FN(gdn_cache) c, int64_t i0) {
    int64_t group = s->hv / s->hk;
    FN(touch)(c.S, group * s->dk * s->dv);
    for (int64_t d = 0; d < s->dk; d++) FN(touch)(c.KT + d * HS_C, i0 + 1);
    for (int64_t h = 0; h < group; h++) FN(touch)(c.U + h * HS_C * s->dv, i0 * s->dv);
}

/* gdn_state is the part of a span's state that belongs to an item. */
HS_INLINE FN(gdn_cache) FN(gdn_state)(const hs_gdn_args *a, int64_t item) {
    const hs_gdn_shape *s = &a->s;
    int64_t group = s->hv / s->hk, kh = item % s->hk, h0 = kh * group;
    float *st = (float *)a->states[item / s->hk];
    float *G = st + s->hv * s->dk * s->dv, *KT = G + s->hv * 2 * HS_C, *U = KT + s->hk * s->dk * HS_C;
    return (FN(gdn_cache)){st + h0 * s->dk * s->dv, G + h0 * 2 * HS_C, KT + kh * s->dk * HS_C, U + h0 * HS_C * s->dv};
}

/* Item: (span, key head). State: S [Hv,Dk,Dv] | G [Hv,2,HS_C] | KT [Hk,Dk,HS_C] | U [Hv,HS_C,Dv]. */
HS_WORKER(gdn_extend) {
    const hs_gdn_args *a = args_;
    const hs_gdn_shape *s = &a->s;
    for (int64_t item = lo; item < hi; item++) {
        const hs_span *sp = a->spans + item / s->hk;
        FN(gdn_cache) c = FN(gdn_state)(a, item);
        if (item + 1 < hi) FN(gdn_touch)(s, FN(gdn_state)(a, item + 1), a->spans[(item + 1) / s->hk].pos % HS_C);
        for (int64_t done = 0; done < sp->len;) {
            int64_t i0 = (sp->pos + done) % HS_C, n = hs_min(HS_C - i0, sp->len - done);
            FN(gdn_rows)(s, c, FN(gdn_io)(a, sp->row + done, item % s->hk), i0, n, scratch);
            done += n;
        }
    }
}
