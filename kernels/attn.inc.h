/* Causal softmax attention, forward. A page is HS_C tokens of one kv head: keys transposed [D,HS_C], values [HS_C,D].
 * Per query: scores are one chain over d; the maximum is exact; the sum of exponentials runs in lanes by absolute
 * position; the output is one chain over ascending position, divided once. attn_rows does it for training and
 * inference alike. */

enum { HS_QROWS = 16 }; /* queries of a block, which starts at a multiple of it */

/* Where the keys and values of one (sequence, kv head) are: page p at pages[p] + koff / voff when pages is set, else
 * at kt + p·kstep and v + p·vstep. */
typedef struct {
    const uintptr_t *pages;
    int64_t koff, voff;
    const float *kt, *v;
    int64_t kstep, vstep, ldv;
} FN(attn_kv);

HS_INLINE const float *FN(attn_kt)(const FN(attn_kv) *kv, int64_t p) {
    return kv->pages ? (const float *)kv->pages[p] + kv->koff : kv->kt + p * kv->kstep;
}
HS_INLINE const float *FN(attn_v)(const FN(attn_kv) *kv, int64_t p) {
    return kv->pages ? (const float *)kv->pages[p] + kv->voff : kv->v + p * kv->vstep;
}

/* attn_softmax: row of n scores, padded to whole pages: becomes exp(s - max); returns the sum, and the maximum. */
HS_INLINE float FN(attn_softmax)(float *s, int64_t n, float *max) {
    int64_t m = hs_ceil(n, VW) * VW;
    for (int64_t j = n; j < m; j++) s[j] = -INFINITY;
    V top = v_load(s), sum = v_zero();
    for (int64_t j = VW; j < m; j += VW) top = v_max(top, v_load(s + j));
    *max = v_hmax(top);
    top = v_set1(*max);
    for (int64_t j = 0; j < m; j += VW) {
        V p = v_exp(v_sub(v_load(s + j), top));
        sum = v_add(sum, p);
        v_store(s + j, p);
    }
    return v_hsum(sum);
}

/* attn_rows: queries at positions p0..p0+nq-1 (one HS_QROWS block) of the G heads that read kv. q [nq,Hq,D] from the
 * group's first head on, token stride ldq; o and lse (or NULL) alike, lse's token stride being hq. */
static void FN(attn_rows)(const hs_attn_args *a, const FN(attn_kv) *kv, float *o, float *lse, const float *q, int64_t p0,
                          int64_t nq, float *scratch) {
    int64_t G = a->hq / a->hk, D = a->D, M = nq * G, ldd = hs_up16(D), ldq = a->hq * D;
    int64_t n = p0 + nq, ls = hs_ceil(n, HS_C) * HS_C, base = p0 / HS_C * HS_C;
    float *qs = scratch, *out = qs + M * ldd, *sum = out + M * ldd, *S = sum + hs_up16(M); /* S [M,ls] */
    for (int64_t g = 0; g < G; g++)
        for (int64_t i = 0; i < nq; i++) FN(vec_scale)(qs + (g * nq + i) * ldd, q + i * ldq + g * D, a->scale, D);
    for (int64_t j = 0; j < n; j += HS_C) {
        int64_t lanes = hs_min(HS_C, hs_ceil(n - j, VW) * VW);
        FN(gemm)(1, S + j, ls, qs, ldd, 1, FN(attn_kt)(kv, j / HS_C), HS_C, M, lanes, D);
    }
    for (int64_t g = 0; g < G; g++)
        for (int64_t i = 0; i < nq; i++) {
            float max, l = FN(attn_softmax)(S + (g * nq + i) * ls, p0 + i + 1, &max);
            sum[g * nq + i] = l;
            if (lse) lse[i * a->hq + g] = max + s_log(l);
        }
    memset(out, 0, sizeof(float) * (size_t)(M * ldd));
    for (int64_t j = 0; j < base; j += HS_C)
        FN(gemm)(0, out, ldd, S + j, ls, 1, FN(attn_v)(kv, j / HS_C), kv->ldv, M, D, HS_C);
    const float *v = FN(attn_v)(kv, base / HS_C);
    FN(gemm)(0, out, ldd, S + base, ls, 1, v, kv->ldv, M, D, p0 - base);
    for (int64_t g = 0; g < G; g++)
        FN(tri_add)(out + g * nq * ldd, ldd, S + g * nq * ls + p0, ls, v + (p0 - base) * kv->ldv, kv->ldv, nq, D);
    for (int64_t g = 0; g < G; g++)
        for (int64_t i = 0; i < nq; i++)
            for (int64_t d = 0; d < D; d += VW) {
                int64_t m = hs_min(VW, D - d), r = g * nq + i;
                v_storen(o + i * ldq + g * D + d, v_div(v_loadn(out + r * ldd + d, m), v_set1(sum[r])), m);
            }
}

/* Item: (chunk, kv head). Transposes keys, and for the backward pass values, into pages; lanes past the row are 0. */
HS_WORKER(attn_pages) {
    const hs_attn_args *a = args_;
    for (int64_t item = lo; item < hi; item++) {
        const hs_chunk *c = a->chunks + item / a->hk;
        int64_t off = (c->t0 * a->hk + item % a->hk) * a->D;
        FN(pad_transpose)(a->kt + item * a->D * HS_C, a->k + off, a->hk * a->D, c->n, a->D);
        if (a->vt) FN(pad_transpose)(a->vt + item * a->D * HS_C, a->v + off, a->hk * a->D, c->n, a->D);
    }
}

/* Item: (chunk, kv head). */
HS_WORKER(attn) {
    const hs_attn_args *a = args_;
    int64_t G = a->hq / a->hk;
    for (int64_t item = lo; item < hi; item++) {
        const hs_chunk *c = a->chunks + item / a->hk;
        int64_t kh = item % a->hk, t0 = c->t0 - c->idx * HS_C;
        FN(attn_kv) kv = {
            .kt = a->kt + ((item / a->hk - c->idx) * a->hk + kh) * a->D * HS_C,
            .v = a->v + (t0 * a->hk + kh) * a->D,
            .kstep = a->hk * a->D * HS_C,
            .vstep = HS_C * a->hk * a->D,
            .ldv = a->hk * a->D,
        };
        for (int64_t i = 0; i < c->n; i += HS_QROWS) {
            int64_t h = (c->t0 + i) * a->hq + kh * G;
            FN(attn_rows)(a, &kv, a->o + h * a->D, a->lse ? a->lse + h : NULL, a->q + h * a->D, c->idx * HS_C + i,
                          hs_min(HS_QROWS, c->n - i), scratch);
        }
    }
}

/* Item: (span, kv head). Appends the new keys and values to the pages. */
HS_WORKER(attn_store) {
    const hs_attn_args *a = args_;
    for (int64_t item = lo; item < hi; item++) {
        const hs_span *sp = a->spans + item / a->hk;
        int64_t kh = item % a->hk;
        for (int64_t i = 0; i < sp->len; i++) {
            int64_t pos = sp->pos + i, j = pos % HS_C, in = ((sp->row + i) * a->hk + kh) * a->D;
            float *page = (float *)a->pages[a->page0[item / a->hk] + pos / HS_C];
            float *kt = page + kh * a->D * HS_C, *v = page + (a->hk + kh) * a->D * HS_C;
            for (int64_t d = 0; d < a->D; d++) kt[d * HS_C + j] = a->k[in + d];
            memcpy(v + j * a->D, a->v + in, sizeof(float) * (size_t)a->D);
        }
    }
}

/* Item: (block of queries, kv head); chunks[i] = {batch token, queries, span, position}. */
HS_WORKER(attn_extend) {
    const hs_attn_args *a = args_;
    int64_t G = a->hq / a->hk;
    for (int64_t item = lo; item < hi; item++) {
        const hs_chunk *c = a->chunks + item / a->hk;
        int64_t kh = item % a->hk, h = c->t0 * a->hq + kh * G;
        FN(attn_kv) kv = {
            .pages = a->pages + a->page0[c->row],
            .koff = kh * a->D * HS_C,
            .voff = (a->hk + kh) * a->D * HS_C,
            .ldv = a->D,
        };
        FN(attn_rows)(a, &kv, a->o + h * a->D, NULL, a->q + h * a->D, c->idx, c->n, scratch);
    }
}
