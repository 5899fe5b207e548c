/* Causal depthwise convolution with silu: y_t = silu(sum_j w_j x_{t-K+1+j}), one chain over ascending j; terms before
 * the sequence's start are left out. */

/* conv_token: one token; src[j] is x_{t-K+1+j} or NULL. */
HS_INLINE void FN(conv_token)(float *y, const float *const *src, const float *wt, int64_t ch, int64_t k) {
    int64_t c = 0;
    for (; c + VW <= ch; c += VW) {
        V acc = v_zero();
        for (int64_t j = 0; j < k; j++)
            if (src[j]) acc = v_fma(v_load(wt + j * ch + c), v_load(src[j] + c), acc);
        v_store(y + c, v_silu(acc));
    }
    if (c < ch) {
        V acc = v_zero();
        for (int64_t j = 0; j < k; j++)
            if (src[j]) acc = v_fma(v_loadn(wt + j * ch + c, ch - c), v_loadn(src[j] + c, ch - c), acc);
        v_storen(y + c, v_silu(acc), ch - c);
    }
}

/* Item: token. */
HS_WORKER(conv) {
    const hs_conv_args *a = args_;
    int64_t row = 0;
    for (int64_t t = lo; t < hi; t++) {
        while (a->cu[row + 1] <= t) row++;
        const float *src[HS_CONV_MAX];
        for (int64_t j = 0; j < a->k; j++) {
            int64_t from = t - a->k + 1 + j;
            src[j] = from >= a->cu[row] ? a->x + from * a->ch : NULL;
        }
        FN(conv_token)(a->y + t * a->ch, src, a->wt, a->ch, a->k);
    }
}

/* Item: new token, all spans' one after another. */
HS_WORKER(conv_extend) {
    const hs_conv_args *a = args_;
    int64_t s = 0;
    for (int64_t i = lo; i < hi; i++) {
        while (a->first[s + 1] <= i) s++;
        const hs_span *sp = a->spans + s;
        int64_t t = i - a->first[s];
        const float *state = (const float *)a->states[s], *src[HS_CONV_MAX];
        for (int64_t j = 0; j < a->k; j++) {
            int64_t from = t - a->k + 1 + j; /* relative to the span */
            if (from >= 0) src[j] = a->x + (sp->row + from) * a->ch;
            else src[j] = sp->pos + from >= 0 ? state + (from + a->k - 1) * a->ch : NULL;
        }
        FN(conv_token)(a->y + (sp->row + t) * a->ch, src, a->wt, a->ch, a->k);
    }
}

/* Item: span. The state becomes the last K-1 inputs, oldest first. */
HS_WORKER(conv_state) {
    const hs_conv_args *a = args_;
    size_t bytes = sizeof(float) * (size_t)a->ch;
    for (int64_t s = lo; s < hi; s++) {
        const hs_span *sp = a->spans + s;
        float *state = (float *)a->states[s];
        for (int64_t r = 0; r < a->k - 1; r++) {
            int64_t from = sp->len - (a->k - 1) + r; /* relative to the span */
            const float *x = from >= 0 ? a->x + (sp->row + from) * a->ch : state + (r + sp->len) * a->ch;
            memcpy(state + r * a->ch, x, bytes);
        }
    }
}

/* conv_backward_tile: m tokens from t on, one vector of channels, m and k constants where it matters. pend [K-1] holds
 * the unfinished dx of the tokens before t, dw [K] the sums so far; both step HS_CONV_LANES. */
HS_INLINE void FN(conv_backward_tile)(const hs_conv_args *a, const int64_t k, const int64_t m, int64_t t0, int64_t t,
                                      int64_t c, int64_t lanes, float *pend, float *dwsum) {
    V w[HS_CONV_MAX], dw[HS_CONV_MAX], x[HS_CONV_MAX + HS_CONV_TILE], q[HS_CONV_MAX + HS_CONV_TILE];
    for (int64_t j = 0; j < k; j++) {
        w[j] = v_loadn(a->wt + j * a->ch + c, lanes);
        dw[j] = v_load(dwsum + j * HS_CONV_LANES);
    }
    for (int64_t j = 0; j < k - 1 + m; j++) {
        int64_t from = t - k + 1 + j;
        x[j] = from >= t0 ? v_loadn(a->x + from * a->ch + c, lanes) : v_zero();
        q[j] = j < k - 1 ? v_load(pend + j * HS_CONV_LANES) : v_zero();
    }
    for (int64_t i = 0; i < m; i++) {
        V z = v_zero();
        for (int64_t j = 0; j < k; j++) z = v_fma(w[j], x[i + j], z);
        V s = v_sigmoid(z);
        V ds = v_mul(s, v_fma(z, v_sub(v_set1(1.0f), s), v_set1(1.0f))); /* silu'(z) */
        V dz = v_mul(v_loadn(a->dy + (t + i) * a->ch + c, lanes), ds);
        for (int64_t j = 0; j < k; j++) {
            dw[j] = v_fma(dz, x[i + j], dw[j]);
            q[i + j] = v_fma(w[j], dz, q[i + j]);
        }
    }
    for (int64_t i = 0; i < m; i++) /* q[i] is the finished dx of token t-K+1+i */
        if (t - k + 1 + i >= t0) v_storen(a->dx + (t - k + 1 + i) * a->ch + c, q[i], lanes);
    for (int64_t j = 0; j < k - 1; j++) v_store(pend + j * HS_CONV_LANES, q[m + j]);
    for (int64_t j = 0; j < k; j++) v_store(dwsum + j * HS_CONV_LANES, dw[j]);
}

/* conv_backward_row: tokens t0..t1-1 of channels c0..c1-1. */
static void FN(conv_backward_row)(const hs_conv_args *a, int64_t t0, int64_t t1, int64_t c0, int64_t c1, float *pend,
                                  float *dw) {
    memset(pend, 0, sizeof(float) * HS_CONV_MAX * HS_CONV_LANES);
    for (int64_t t = t0; t < t1; t += HS_CONV_TILE) {
        int64_t m = hs_min(HS_CONV_TILE, t1 - t);
        for (int64_t c = c0; c < c1; c += VW) {
            int64_t lanes = hs_min(VW, c1 - c), at = c - c0;
            if (a->k == 4 && m == HS_CONV_TILE && lanes == VW)
                FN(conv_backward_tile)(a, 4, HS_CONV_TILE, t0, t, c, VW, pend + at, dw + at);
            else
                FN(conv_backward_tile)(a, a->k, m, t0, t, c, lanes, pend + at, dw + at);
        }
    }
    for (int64_t j = hs_max(0, a->k - 1 - (t1 - t0)); j < a->k - 1; j++) /* pend[j] belongs to token t1-K+1+j */
        memcpy(a->dx + (t1 - a->k + 1 + j) * a->ch + c0, pend + j * HS_CONV_LANES, sizeof(float) * (size_t)(c1 - c0));
}

/* Item: HS_CONV_LANES channels of all rows. */
HS_WORKER(conv_backward) {
    const hs_conv_args *a = args_;
    float *pend = scratch, *dw = pend + HS_CONV_MAX * HS_CONV_LANES;
    for (int64_t item = lo; item < hi; item++) {
        int64_t c0 = item * HS_CONV_LANES, c1 = hs_min(c0 + HS_CONV_LANES, a->ch);
        memset(dw, 0, sizeof(float) * HS_CONV_MAX * HS_CONV_LANES);
        for (int64_t row = 0; row < a->rows; row++) FN(conv_backward_row)(a, a->cu[row], a->cu[row + 1], c0, c1, pend, dw);
        for (int64_t c = c0; c < c1; c++)
            for (int64_t j = 0; j < a->k; j++) a->dw[c * a->k + j] += dw[j * HS_CONV_LANES + c - c0];
    }
}
