/* Causal softmax attention, backward, in two passes that share nothing, so that no sum depends on the threads:
 * attn_dq per block of queries, attn_dkv per block of keys. Both compute the probabilities again from lse:
 * P = exp(s - lse), dS = P (dO V' - delta), dq = scale dS K, dk = dS'(scale q), dv = P'dO, delta = dO·o. */

/* Item: (token, query head). */
HS_WORKER(attn_delta) {
    const hs_attn_args *a = args_;
    for (int64_t i = lo; i < hi; i++) a->delta[i] = FN(vec_dot)(a->dout + i * a->D, a->o + i * a->D, a->D);
}

/* attn_pair: P and dS of n queries (qs scaled, dO) against one page, all [.,HS_C]; from = position of the first query
 * minus that of the page's first key, >= 0. Entries with key > query are 0. */
static void FN(attn_pair)(float *P, float *dS, const float *qs, int64_t ldd, const float *dO, int64_t ldo, const float *kt,
                          const float *vt, const float *lse, const float *delta, int64_t hq, int64_t from, int64_t n,
                          int64_t D) {
    for (int64_t i = 0; i < n; i += 16) {
        int64_t m = hs_min(16, n - i), lanes = hs_min(HS_C, hs_up16(from + i + m));
        FN(gemm)(1, P + i * HS_C, HS_C, qs + i * ldd, ldd, 1, kt, HS_C, m, lanes, D);
        FN(gemm)(1, dS + i * HS_C, HS_C, dO + i * ldo, ldo, 1, vt, HS_C, m, lanes, D);
        for (int64_t r = i; r < i + m; r++) {
            float *p = P + r * HS_C, *ds = dS + r * HS_C;
            int64_t seen = hs_min(HS_C, from + r + 1);
            V l = v_set1(lse[r * hq]), dl = v_set1(delta[r * hq]);
            for (int64_t j = seen; j < lanes; j++) p[j] = -INFINITY, ds[j] = 0.0f;
            for (int64_t j = 0; j < lanes; j += VW) {
                V e = v_exp(v_sub(v_load(p + j), l));
                v_store(p + j, e);
                v_store(ds + j, v_mul(e, v_sub(v_load(ds + j), dl)));
            }
            for (int64_t j = seen; j < lanes; j++) ds[j] = 0.0f;
        }
    }
}

/* attn_scaled: qs [n,up16(D)] = scale·q of one head from token t on. */
HS_INLINE void FN(attn_scaled)(float *qs, const hs_attn_args *a, int64_t t, int64_t h, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        FN(vec_scale)(qs + i * hs_up16(a->D), a->q + ((t + i) * a->hq + h) * a->D, a->scale, a->D);
}

/* Item: (chunk of queries, kv head). */
HS_WORKER(attn_dq) {
    const hs_attn_args *a = args_;
    int64_t G = a->hq / a->hk, D = a->D, ldd = hs_up16(D), page = D * HS_C;
    float *qs = scratch, *dq = qs + HS_C * ldd, *P = dq + HS_C * ldd, *dS = P + HS_C * HS_C;
    for (int64_t item = lo; item < hi; item++) {
        const hs_chunk *c = a->chunks + item / a->hk;
        int64_t kh = item % a->hk, first = item / a->hk - c->idx;
        for (int64_t g = 0; g < G; g++) {
            int64_t h = kh * G + g, row = c->t0 * a->hq + h;
            FN(attn_scaled)(qs, a, c->t0, h, c->n);
            for (int64_t p = 0; p <= c->idx; p++) {
                int64_t kv = (first + p) * a->hk + kh, t = c->t0 - (c->idx - p) * HS_C;
                FN(attn_pair)(P, dS, qs, ldd, a->dout + row * D, a->hq * D, a->kt + kv * page, a->vt + kv * page,
                              a->lse + row, a->delta + row, a->hq, (c->idx - p) * HS_C, c->n, D);
                for (int64_t i = 0; i < c->n; i += 16) {
                    int64_t m = hs_min(16, c->n - i), keys = p < c->idx ? HS_C : i + m;
                    FN(gemm)(p == 0, dq + i * ldd, ldd, dS + i * HS_C, HS_C, 1, a->k + (t * a->hk + kh) * D, a->hk * D, m,
                             D, keys);
                }
            }
            for (int64_t i = 0; i < c->n; i++) FN(vec_scale)(a->dq + (row + i * a->hq) * D, dq + i * ldd, a->scale, D);
        }
    }
}

/* Item: (chunk of keys, kv head); the group's heads, and the queries, in ascending order. */
HS_WORKER(attn_dkv) {
    const hs_attn_args *a = args_;
    int64_t G = a->hq / a->hk, D = a->D, ldd = hs_up16(D), page = D * HS_C;
    float *qs = scratch, *dk = qs + HS_C * ldd, *dv = dk + HS_C * ldd, *P = dv + HS_C * ldd, *dS = P + HS_C * HS_C;
    for (int64_t item = lo; item < hi; item++) {
        int64_t ci = item / a->hk, kh = item % a->hk;
        const hs_chunk *c = a->chunks + ci;
        memset(dk, 0, sizeof(float) * 2 * HS_C * (size_t)ldd);
        for (int64_t g = 0; g < G; g++)
            for (int64_t qi = ci; qi < a->nchunks && a->chunks[qi].row == c->row; qi++) {
                const hs_chunk *qc = a->chunks + qi;
                int64_t h = kh * G + g, row = qc->t0 * a->hq + h;
                FN(attn_scaled)(qs, a, qc->t0, h, qc->n);
                FN(attn_pair)(P, dS, qs, ldd, a->dout + row * D, a->hq * D, a->kt + item * page, a->vt + item * page,
                              a->lse + row, a->delta + row, a->hq, (qi - ci) * HS_C, qc->n, D);
                for (int64_t j = 0; j < c->n; j += 16) {
                    int64_t m = hs_min(16, c->n - j), i = qi == ci ? j : 0; /* on the diagonal, queries from j's block on */
                    FN(gemm)(0, dv + j * ldd, ldd, P + i * HS_C + j, 1, HS_C, a->dout + (row + i * a->hq) * D, a->hq * D, m,
                             D, qc->n - i);
                    FN(gemm)(0, dk + j * ldd, ldd, dS + i * HS_C + j, 1, HS_C, qs + i * ldd, ldd, m, D, qc->n - i);
                }
            }
        for (int64_t j = 0; j < c->n; j++) {
            int64_t out = ((c->t0 + j) * a->hk + kh) * D;
            memcpy(a->dk + out, dk + j * ldd, sizeof(float) * (size_t)D);
            memcpy(a->dv + out, dv + j * ldd, sizeof(float) * (size_t)D);
        }
    }
}
