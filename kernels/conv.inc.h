/* Causal depthwise convolution with silu: y_t = silu(sum_j w_j x_{t-K+1+j}), one chain over ascending j; terms before
 * the sequence's start are left out. */

enum { HS_CONV_MAX = 16 }; /* widest kernel */

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

/* conv_backward_lanes: all tokens of one vector of channels, k a constant where it matters. x holds the window
 * x_{t-K+1..t}, p the unfinished dx of the same tokens. */
HS_INLINE void FN(conv_backward_lanes)(const hs_conv_args *a, const int64_t k, int64_t c, int64_t lanes) {
    V w[HS_CONV_MAX], dw[HS_CONV_MAX], x[HS_CONV_MAX], p[HS_CONV_MAX];
    float buf[VW];
    for (int64_t j = 0; j < k; j++) {
        w[j] = v_loadn(a->wt + j * a->ch + c, lanes);
        dw[j] = v_zero();
    }
    for (int64_t row = 0; row < a->rows; row++) {
        int64_t t0 = a->cu[row], t1 = a->cu[row + 1];
        for (int64_t j = 0; j < k; j++) x[j] = p[j] = v_zero();
        for (int64_t t = t0; t < t1; t++) {
            for (int64_t j = 0; j + 1 < k; j++) x[j] = x[j + 1];
            x[k - 1] = v_loadn(a->x + t * a->ch + c, lanes);
            V z = v_zero();
            for (int64_t j = 0; j < k; j++) z = v_fma(w[j], x[j], z);
            V s = v_sigmoid(z);
            V ds = v_mul(s, v_fma(z, v_sub(v_set1(1.0f), s), v_set1(1.0f))); /* silu'(z) */
            V dz = v_mul(v_loadn(a->dy + t * a->ch + c, lanes), ds);
            for (int64_t j = 0; j < k; j++) {
                dw[j] = v_fma(dz, x[j], dw[j]);
                p[j] = v_fma(w[j], dz, p[j]);
            }
            if (t - k + 1 >= t0) v_storen(a->dx + (t - k + 1) * a->ch + c, p[0], lanes);
            for (int64_t j = 0; j + 1 < k; j++) p[j] = p[j + 1];
            p[k - 1] = v_zero();
        }
        for (int64_t j = 0; j + 1 < k; j++) /* p[j] now belongs to token t1-K+1+j */
            if (t1 - k + 1 + j >= t0) v_storen(a->dx + (t1 - k + 1 + j) * a->ch + c, p[j], lanes);
    }
    for (int64_t j = 0; j < k; j++) {
        v_store(buf, dw[j]);
        for (int64_t i = 0; i < lanes; i++) a->dw[(c + i) * k + j] += buf[i];
    }
}

/* Item: 16 channels. */
HS_WORKER(conv_backward) {
    const hs_conv_args *a = args_;
    for (int64_t c = lo * 16; c < hs_min(hi * 16, a->ch); c += VW) {
        int64_t lanes = hs_min(VW, a->ch - c);
        switch (a->k) {
        case 4: FN(conv_backward_lanes)(a, 4, c, lanes); break;
        default: FN(conv_backward_lanes)(a, a->k, c, lanes); break;
        }
    }
}
