/* The gated delta rule, backward, chunk by chunk from the end of a row. Names follow gdn.inc.h; q is the normalised
 * query times Dk^-0.5, D = dL/dS at the chunk's end, gamma_i = exp(G_i), E_i = exp(G_last - G_i), and for i >= j
 * Gam_ij = exp(G_i - G_j), P_ij = Gam_ij q_i·k_j, N_ij = Gam_ij k_i·k_j (i > j).
 *
 *   R_ij  = dO_i·u_j                       dP = Gam . R
 *   dU    = P'dO + E (K D)
 *   dY    = (I + N beta)^-T dU             back substitution
 *   dV    = beta dY                        dbeta_i = dY_i·e_i
 *   dM_ij = -dY_i·u_j                      Z_ij = beta_i dM_ij Gam_ij
 *   dQ    = gamma dO S' + dP K
 *   dK    = E U D' + dP'Q - gamma dV S' + (Z + Z')K
 *   D     <- gamma_last D + Q'(gamma dO) - K'(gamma dV)
 *
 * The gate's gradient needs no difference of large sums. With Y = R.P + dM.(beta N), b_i = gamma_i dO_i·S'q_i -
 * gamma_i dV_i·S'k_i and h_i = E_i (K D)_i·u_i,
 *
 *   dg_t = sum_{i>=t>j} Y_ij + sum_{i>=t} b_i + sum_{i<t} h_i + gamma_last <D,S>.
 *
 * Pair matrices are kept transposed, [j][i] with lanes over i. Saved by the forward pass: e and the chunk starts S;
 * u = beta e has the forward's bits, the rest is computed again.
 */

/* Work space for one chunk: shared by the group, then per value head. Row strides: dk, dv rounded up to 16. */
typedef struct {
    int64_t n, ldk, ldv;
    float *q, *k, *rq, *rk, *QT, *KT; /* [64,ldk] x2, [64] x2, [dk,64] x2 */
    float *kk, *qk;                   /* [64,64] [j][i] */
    float *dq, *dk;                   /* [64,ldk] summed over the group */
    float *G, *gamma, *E, *beta;      /* G [2,64], else [64] */
    float *b, *h, *w;                 /* [64], [64], [128] */
    float *u, *dO, *dU;               /* [64,ldv]; dU becomes dY, then -gamma dV */
    float *T;                         /* [dv,64] transposes of dO, then dY */
    float *Gam, *P, *R, *M, *Y, *Z;   /* [64,64] [j][i]; R becomes dP */
    float *X, *Mt;                    /* [64, max(ldk,ldv)]; [dv,ldk] transposed state */
} FN(gdn_bwd);

HS_INLINE int64_t FN(gdn_bwd_layout)(FN(gdn_bwd) *w, const hs_gdn_shape *s, float *p) {
    float *p0 = p;
    w->ldk = hs_up16(s->dk);
    w->ldv = hs_up16(s->dv);
#define TAKE(field, words) w->field = p, p += (words)
    TAKE(q, HS_C * w->ldk); TAKE(k, HS_C * w->ldk); TAKE(rq, HS_C); TAKE(rk, HS_C);
    TAKE(QT, s->dk * HS_C); TAKE(KT, s->dk * HS_C); TAKE(kk, HS_C * HS_C); TAKE(qk, HS_C * HS_C);
    TAKE(dq, HS_C * w->ldk); TAKE(dk, HS_C * w->ldk);
    TAKE(G, 2 * HS_C); TAKE(gamma, HS_C); TAKE(E, HS_C); TAKE(beta, HS_C);
    TAKE(b, HS_C); TAKE(h, HS_C); TAKE(w, 2 * HS_C);
    TAKE(u, HS_C * w->ldv); TAKE(dO, HS_C * w->ldv); TAKE(dU, HS_C * w->ldv); TAKE(T, s->dv * HS_C);
    TAKE(Gam, HS_C * HS_C); TAKE(P, HS_C * HS_C); TAKE(R, HS_C * HS_C);
    TAKE(M, HS_C * HS_C); TAKE(Y, HS_C * HS_C); TAKE(Z, HS_C * HS_C);
    TAKE(X, HS_C * hs_max(w->ldk, w->ldv)); TAKE(Mt, s->dv * w->ldk);
#undef TAKE
    return p - p0;
}

/* pad_transpose: dst [N,64] = src' with zeros in lanes n..63. */
static void FN(pad_transpose)(float *dst, const float *src, int64_t lds, int64_t n, int64_t N) {
    FN(transpose)(dst, HS_C, src, lds, n, N);
    for (int64_t c = 0; n < HS_C && c < N; c++) memset(dst + c * HS_C + n, 0, sizeof(float) * (size_t)(HS_C - n));
}

/* pair_product: C[j][i] = A_j·B_i for lanes i >= j (whole 16-blocks), B given transposed. */
static void FN(pair_product)(float *C, const float *A, int64_t lda, const float *BT, int64_t n, int64_t K) {
    for (int64_t j = 0; j < n; j += 16)
        FN(gemm)(1, C + j * HS_C + j, HS_C, A + j * lda, lda, 1, BT + j, HS_C, hs_min(16, n - j), HS_C - j, K);
}

/* upper_add: C[j] += sum_{i>=j} A[j][i] B[i];  lower_add: C[i] += sum_{j<=i} A[j][i] B[j]. A is 0 on the other side. */
static void FN(upper_add)(float *C, int64_t ldc, const float *A, const float *B, int64_t ldb, int64_t n, int64_t N) {
    for (int64_t j = 0; j < n; j += 16)
        FN(gemm)(0, C + j * ldc, ldc, A + j * HS_C + j, HS_C, 1, B + j * ldb, ldb, hs_min(16, n - j), N, n - j);
}
static void FN(lower_add)(float *C, int64_t ldc, const float *A, const float *B, int64_t ldb, int64_t n, int64_t N) {
    for (int64_t i = 0; i < n; i += 16) {
        int64_t m = hs_min(16, n - i);
        FN(gemm)(0, C + i * ldc, ldc, A + i, 1, HS_C, B, ldb, m, N, i + m);
    }
}

HS_INLINE void FN(back_tile)(const int R, const int NV, const int masked, int64_t tail, float *Y, int64_t ldy,
                             const float *M) {
    V y[8][TRI_VECS];
    FN(tri_load)(y, R, NV, masked, tail, Y, ldy);
#pragma GCC unroll 8
    for (int i = R - 1; i > 0; i--)
#pragma GCC unroll 8
        for (int j = 0; j < i; j++)
#pragma GCC unroll 2
            for (int v = 0; v < NV; v++) y[j][v] = v_fma(v_set1(M[j * HS_C + i]), y[i][v], y[j][v]);
    FN(tri_store)(y, R, NV, masked, tail, Y, ldy);
}

/* gdn_back_solve: Y_j += sum_{i>j} M[j][i] Y_i, from the last row up. */
static void FN(gdn_back_solve)(float *Y, int64_t ldy, const float *M, int64_t n, int64_t N) {
    if (FN(tri_block)(n)) {
#define TILE(R, NV, MASK, TAIL, c) FN(back_tile)(R, NV, MASK, TAIL, Y + c, ldy, M);
        TRI_DISPATCH(n, TILE)
#undef TILE
        return;
    }
    int64_t h = FN(tri_half)(n);
    FN(gdn_back_solve)(Y + h * ldy, ldy, M + h * HS_C + h, n - h, N);
    FN(gemm)(0, Y, ldy, M + h, HS_C, 1, Y + h * ldy, ldy, h, N, n - h);
    FN(gdn_back_solve)(Y, ldy, M, h, N);
}

/* gdn_bwd_keys: what the value heads of the group share. */
static void FN(gdn_bwd_keys)(FN(gdn_bwd) *w, const hs_gdn_args *a, int64_t t, int64_t kh) {
    const hs_gdn_shape *s = &a->s;
    float qscale = 1.0f / sqrtf((float)s->dk);
    for (int64_t i = 0; i < w->n; i++) {
        const float *q = a->qkv + (t + i) * s->ch + kh * s->dk, *k = q + s->hk * s->dk;
        w->rq[i] = 1.0f / sqrtf(FN(vec_dot)(q, q, s->dk) + 1e-6f);
        w->rk[i] = 1.0f / sqrtf(FN(vec_dot)(k, k, s->dk) + 1e-6f);
        FN(l2norm)(w->q + i * w->ldk, q, qscale, s->dk);
        FN(l2norm)(w->k + i * w->ldk, k, 1.0f, s->dk);
    }
    FN(pad_transpose)(w->QT, w->q, w->ldk, w->n, s->dk);
    FN(pad_transpose)(w->KT, w->k, w->ldk, w->n, s->dk);
    FN(pair_product)(w->kk, w->k, w->ldk, w->KT, w->n, s->dk);
    FN(pair_product)(w->qk, w->k, w->ldk, w->QT, w->n, s->dk);
    memset(w->dq, 0, sizeof(float) * (size_t)(w->n * w->ldk));
    memset(w->dk, 0, sizeof(float) * (size_t)(w->n * w->ldk));
}

/* gdn_bwd_gates: G, gamma, E, beta, u, dO, and the pair matrices Gam and P; lanes past n repeat the last G. */
static void FN(gdn_bwd_gates)(FN(gdn_bwd) *w, const hs_gdn_args *a, int64_t t, int64_t h) {
    const hs_gdn_shape *s = &a->s;
    int64_t n = w->n, dv = s->dv;
    for (int64_t i = 0; i < HS_C; i++) {
        FN(gate_sum)(w->G, i, i < n ? a->g[(t + i) * s->hv + h] : 0.0f);
        w->beta[i] = i < n ? a->beta[(t + i) * s->hv + h] : 0.0f;
    }
    for (int64_t i = 0; i < HS_C; i += VW) {
        v_store(w->gamma + i, v_exp(v_load(w->G + i)));
        v_store(w->E + i, v_exp(FN(gate_diff)(w->G, n - 1, i, 1.0f)));
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t row = ((t + i) * s->hv + h) * dv;
        FN(vec_scale)(w->u + i * w->ldv, a->err + row, w->beta[i], dv);
        memcpy(w->dO + i * w->ldv, a->dout + row, sizeof(float) * (size_t)dv);
    }
    for (int64_t j = 0; j < n; j++) {
        float *gam = w->Gam + j * HS_C, *P = w->P + j * HS_C;
        int64_t i0 = j / VW * VW, b0 = j / 16 * 16;
        for (int64_t i = i0; i < HS_C; i += VW) /* min: lanes i < j must not overflow before they are cleared */
            v_store(gam + i, v_exp(v_min(v_zero(), FN(gate_diff)(w->G, j, i, -1.0f))));
        for (int64_t i = b0; i < j; i++) gam[i] = 0.0f;
        for (int64_t i = b0; i < HS_C; i += VW) v_store(P + i, v_mul(v_load(gam + i), v_load(w->qk + j * HS_C + i)));
    }
}

/* gdn_bwd_solve: dY into w->dU; h; writes dv and dbeta. */
static void FN(gdn_bwd_solve)(FN(gdn_bwd) *w, const hs_gdn_args *a, const float *D, int64_t t, int64_t h) {
    const hs_gdn_shape *s = &a->s;
    int64_t n = w->n, dv = s->dv, ld = w->ldv;
    FN(gemm)(1, w->X, ld, w->k, w->ldk, 1, D, ld, n, dv, s->dk); /* K D */
    for (int64_t i = 0; i < n; i++) {
        w->h[i] = w->E[i] * FN(vec_dot)(w->X + i * ld, w->u + i * ld, dv);
        FN(vec_scale)(w->dU + i * ld, w->X + i * ld, w->E[i], dv);
    }
    FN(upper_add)(w->dU, ld, w->P, w->dO, ld, n, dv);
    for (int64_t j = 0; j < n; j++) { /* M: -beta_i Gam_ij kk_ij, used for i > j only */
        float *M = w->M + j * HS_C;
        for (int64_t i = j / VW * VW; i < HS_C; i += VW)
            v_store(M + i, v_neg(v_mul(v_load(w->beta + i),
                                       v_mul(v_load(w->Gam + j * HS_C + i), v_load(w->kk + j * HS_C + i)))));
    }
    FN(gdn_back_solve)(w->dU, ld, w->M, n, dv);
    for (int64_t i = 0; i < n; i++) {
        int64_t row = (t + i) * s->hv + h;
        a->dbeta[row] = FN(vec_dot)(w->dU + i * ld, a->err + row * dv, dv);
        FN(vec_scale)(a->dqkv + (t + i) * s->ch + 2 * s->hk * s->dk + h * dv, w->dU + i * ld, w->beta[i], dv);
    }
}

/* gdn_bwd_pairs: R -> dP, dM -> Z, and Y. */
static void FN(gdn_bwd_pairs)(FN(gdn_bwd) *w, int64_t dv) {
    int64_t n = w->n, ld = w->ldv;
    FN(pad_transpose)(w->T, w->dO, ld, n, dv);
    FN(pair_product)(w->R, w->u, ld, w->T, n, dv);
    FN(pad_transpose)(w->T, w->dU, ld, n, dv);
    FN(pair_product)(w->Z, w->u, ld, w->T, n, dv); /* -dM */
    for (int64_t j = 0; j < n; j++) {
        int64_t row = j * HS_C, b0 = j / 16 * 16;
        float *Z = w->Z + row;
        for (int64_t i = b0; i <= j; i++) Z[i] = 0.0f;
        for (int64_t i = b0; i < HS_C; i += VW) {
            V gam = v_load(w->Gam + row + i), r = v_load(w->R + row + i);
            V z = v_neg(v_mul(v_mul(v_load(w->beta + i), v_load(Z + i)), gam));
            V y = v_mul(r, v_load(w->P + row + i));
            v_store(w->Y + row + i, v_fma(z, v_load(w->kk + row + i), y));
            v_store(w->R + row + i, v_mul(gam, r));
            v_store(Z + i, z);
        }
        for (int64_t i = b0; i <= j; i++) Z[i] = 0.0f; /* also where 0·NaN came in */
    }
}

/* gdn_bwd_qk: adds this head's dq and dk; b. S is the chunk's start, D the gradient at its end. */
static void FN(gdn_bwd_qk)(FN(gdn_bwd) *w, const hs_gdn_shape *s, const float *S, const float *D) {
    int64_t n = w->n, dk = s->dk, dv = s->dv, ldk = w->ldk, ld = w->ldv;
    for (int64_t i = 0; i < n; i++) { /* dO -> gamma dO, dY -> -gamma dV */
        FN(vec_scale)(w->dO + i * ld, w->dO + i * ld, w->gamma[i], dv);
        FN(vec_scale)(w->dU + i * ld, w->dU + i * ld, -w->gamma[i] * w->beta[i], dv);
    }
    FN(transpose)(w->Mt, ldk, S, dv, dk, dv);
    FN(gemm)(1, w->X, ldk, w->dO, ld, 1, w->Mt, ldk, n, dk, dv);
    for (int64_t i = 0; i < n; i++) w->b[i] = FN(vec_dot)(w->X + i * ldk, w->q + i * ldk, dk);
    FN(lower_add)(w->X, ldk, w->R, w->k, ldk, n, dk);
    for (int64_t i = 0; i < n; i++) FN(vec_axpy)(w->dq + i * ldk, w->X + i * ldk, 1.0f, dk);

    FN(gemm)(1, w->X, ldk, w->dU, ld, 1, w->Mt, ldk, n, dk, dv);
    for (int64_t i = 0; i < n; i++) w->b[i] += FN(vec_dot)(w->X + i * ldk, w->k + i * ldk, dk);
    for (int64_t i = 0; i < n; i++) FN(vec_scale)(w->u + i * ld, w->u + i * ld, w->E[i], dv);
    FN(transpose)(w->Mt, ldk, D, ld, dk, dv);
    FN(gemm)(0, w->X, ldk, w->u, ld, 1, w->Mt, ldk, n, dk, dv);
    FN(upper_add)(w->X, ldk, w->R, w->q, ldk, n, dk);
    FN(upper_add)(w->X, ldk, w->Z, w->k, ldk, n, dk);
    FN(lower_add)(w->X, ldk, w->Z, w->k, ldk, n, dk);
    for (int64_t i = 0; i < n; i++) FN(vec_axpy)(w->dk + i * ldk, w->X + i * ldk, 1.0f, dk);
}

/* gdn_bwd_dg writes dg of the chunk and moves D to the chunk's start. */
static void FN(gdn_bwd_dg)(FN(gdn_bwd) *w, const hs_gdn_args *a, const float *S, float *D, int64_t t, int64_t h) {
    const hs_gdn_shape *s = &a->s;
    int64_t n = w->n, ld = w->ldv;
    float last = w->gamma[n - 1], ds = 0.0f, bsum = 0.0f, hsum = 0.0f;
    for (int64_t d = 0; d < s->dk; d++) ds += FN(vec_dot)(D + d * ld, S + d * s->dv, s->dv);
    for (int64_t i = n - 1; i >= 0; i--) w->b[i] = bsum = bsum + w->b[i];
    memset(w->w, 0, sizeof(float) * 2 * HS_C);
    for (int64_t i = 0; i < n; i++) { /* w[i] = sum of Y_ij over the j below the current row */
        V pairs = v_zero();
        for (int64_t k = i; k < n; k += VW) pairs = v_add(pairs, v_load(w->w + k));
        a->dg[(t + i) * s->hv + h] = v_hsum(pairs) + w->b[i] + (hsum + last * ds);
        hsum += w->h[i];
        for (int64_t k = i / 16 * 16; k < HS_C; k += VW)
            v_store(w->w + k, v_add(v_load(w->w + k), v_load(w->Y + i * HS_C + k)));
    }
    for (int64_t d = 0; d < s->dk; d++) FN(vec_scale)(D + d * ld, D + d * ld, last, s->dv);
    FN(gemm)(0, D, ld, w->QT, HS_C, 1, w->dO, ld, s->dk, s->dv, n);
    FN(gemm)(0, D, ld, w->KT, HS_C, 1, w->dU, ld, s->dk, s->dv, n);
}

/* l2norm_backward: dx = r (c dy - x r dot(c dy, x r)). */
HS_INLINE void FN(l2norm_backward)(float *dx, const float *dy, const float *x, float r, float c, int64_t n) {
    float dot = FN(vec_dot)(dy, x, n) * (r * r * r * c);
    FN(vec_scale)(dx, dy, r * c, n);
    FN(vec_axpy)(dx, x, -dot, n);
}

/* Item: (row, key head), with its value heads one after another: their dq and dk are summed in that order. */
HS_WORKER(gdn_backward) {
    const hs_gdn_args *a = args_;
    const hs_gdn_shape *s = &a->s;
    FN(gdn_bwd) w;
    float *D = scratch + FN(gdn_bwd_layout)(&w, s, scratch); /* [group,dk,ldv] */
    int64_t group = s->hv / s->hk;
    float qscale = 1.0f / sqrtf((float)s->dk);
    for (int64_t item = lo; item < hi; item++) {
        int64_t row = item / s->hk, kh = item % s->hk, t0 = a->cu[row], t1 = a->cu[row + 1];
        memset(D, 0, sizeof(float) * (size_t)(group * s->dk * w.ldv));
        for (int64_t c = hs_ceil(t1 - t0, HS_C) - 1; c >= 0; c--) {
            int64_t t = t0 + c * HS_C;
            w.n = hs_min(HS_C, t1 - t);
            FN(gdn_bwd_keys)(&w, a, t, kh);
            for (int64_t g = 0; g < group; g++) {
                int64_t h = kh * group + g;
                float *Dh = D + g * s->dk * w.ldv;
                const float *S = a->start + ((a->chunk0[row] + c) * s->hv + h) * s->dk * s->dv;
                FN(gdn_bwd_gates)(&w, a, t, h);
                FN(gdn_bwd_solve)(&w, a, Dh, t, h);
                FN(gdn_bwd_pairs)(&w, s->dv);
                FN(gdn_bwd_qk)(&w, s, S, Dh);
                FN(gdn_bwd_dg)(&w, a, S, Dh, t, h);
            }
            for (int64_t i = 0; i < w.n; i++) {
                int64_t off = (t + i) * s->ch + kh * s->dk, koff = off + s->hk * s->dk;
                FN(l2norm_backward)(a->dqkv + off, w.dq + i * w.ldk, a->qkv + off, w.rq[i], qscale, s->dk);
                FN(l2norm_backward)(a->dqkv + koff, w.dk + i * w.ldk, a->qkv + koff, w.rk[i], 1.0f, s->dk);
            }
        }
    }
}
