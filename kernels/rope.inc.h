/* Per-head RMS norm of queries and keys with (1+w), then the half-split rotation of the leading Rotary dims by
 * pos·theta^(-2i/Rotary). Angles are formed in double: an fp32 product would be off by 0.01 rad at position 262144. */

HS_INLINE void FN(rope_angles)(float *cs, float *sn, const double *freq, int32_t pos, int64_t half) {
    for (int64_t i = 0; i < half; i++) {
        cs[i] = (float)cos(pos * freq[i]);
        sn[i] = (float)sin(pos * freq[i]);
    }
}

/* rotate: y's leading 2·half dims in place, by the angle (sign 1) or back (sign -1). */
HS_INLINE void FN(rotate)(float *y, const float *cs, const float *sn, int64_t half, float sign) {
    for (int64_t d = 0; d < half; d += VW) {
        int64_t n = hs_min(VW, half - d);
        V a = v_loadn(y + d, n), b = v_loadn(y + half + d, n);
        V c = v_loadn(cs + d, n), s = v_mul(v_set1(sign), v_loadn(sn + d, n));
        v_storen(y + d, v_fnma(b, s, v_mul(a, c)), n);
        v_storen(y + half + d, v_fma(a, s, v_mul(b, c)), n);
    }
}

HS_INLINE void FN(norm_rope)(float *y, const float *x, const float *w, const float *cs, const float *sn,
                             const hs_rope_args *a) {
    V r = v_set1(1.0f / sqrtf(FN(vec_dot)(x, x, a->D) / (float)a->D + a->eps));
    for (int64_t d = 0; d < a->D; d += VW) {
        int64_t n = hs_min(VW, a->D - d);
        V xh = v_mul(v_loadn(x + d, n), r);
        v_storen(y + d, v_fma(xh, v_loadn(w + d, n), xh), n);
    }
    FN(rotate)(y, cs, sn, a->rotary / 2, 1.0f);
}

/* Item: token. */
HS_WORKER(rope) {
    const hs_rope_args *a = args_;
    float *cs = scratch, *sn = scratch + a->rotary / 2;
    for (int64_t t = lo; t < hi; t++) {
        FN(rope_angles)(cs, sn, a->freq, a->pos[t], a->rotary / 2);
        for (int64_t h = t * a->hq; h < (t + 1) * a->hq; h++)
            FN(norm_rope)(a->qout + h * a->D, a->qg + h * 2 * a->D, a->wq, cs, sn, a);
        for (int64_t h = t * a->hk; h < (t + 1) * a->hk; h++)
            FN(norm_rope)(a->kout + h * a->D, a->k + h * a->D, a->wk, cs, sn, a);
    }
}

/* norm_rope_backward: dx = r (dn (1+w) - x^ mean(x^ dn (1+w))), dw += dn x^; dn = dy rotated back. */
HS_INLINE void FN(norm_rope_backward)(float *dx, float *dw, const float *dy, const float *x, const float *w,
                                      const float *cs, const float *sn, const hs_rope_args *a, float *dn) {
    V r = v_set1(1.0f / sqrtf(FN(vec_dot)(x, x, a->D) / (float)a->D + a->eps)), dot = v_zero();
    memcpy(dn, dy, sizeof(float) * (size_t)a->D);
    FN(rotate)(dn, cs, sn, a->rotary / 2, -1.0f);
    for (int64_t d = 0; d < a->D; d += VW) {
        int64_t n = hs_min(VW, a->D - d);
        V xh = v_mul(v_loadn(x + d, n), r), g = v_loadn(dn + d, n);
        v_storen(dw + d, v_fma(g, xh, v_loadn(dw + d, n)), n);
        g = v_fma(g, v_loadn(w + d, n), g);
        v_storen(dn + d, g, n);
        dot = v_fma(xh, g, dot);
    }
    V mean = v_set1(v_hsum(dot) / (float)a->D);
    for (int64_t d = 0; d < a->D; d += VW) {
        int64_t n = hs_min(VW, a->D - d);
        V xh = v_mul(v_loadn(x + d, n), r);
        v_storen(dx + d, v_mul(r, v_fnma(xh, mean, v_loadn(dn + d, n))), n);
    }
}

/* Item: HS_SUM_ROWS tokens, whose dwq and dwk go to part. */
HS_WORKER(rope_backward) {
    const hs_rope_args *a = args_;
    float *cs = scratch, *sn = scratch + a->rotary / 2, *dn = scratch + a->rotary;
    for (int64_t blk = lo; blk < hi; blk++) {
        float *dwq = a->part + blk * 2 * a->D, *dwk = dwq + a->D;
        memset(dwq, 0, sizeof(float) * 2 * (size_t)a->D);
        for (int64_t t = blk * HS_SUM_ROWS; t < hs_min((blk + 1) * HS_SUM_ROWS, a->T); t++) {
            FN(rope_angles)(cs, sn, a->freq, a->pos[t], a->rotary / 2);
            for (int64_t h = t * a->hq; h < (t + 1) * a->hq; h++)
                FN(norm_rope_backward)(a->dqg + h * 2 * a->D, dwq, a->dqout + h * a->D, a->qg + h * 2 * a->D, a->wq,
                                       cs, sn, a, dn);
            for (int64_t h = t * a->hk; h < (t + 1) * a->hk; h++)
                FN(norm_rope_backward)(a->dk + h * a->D, dwk, a->dkout + h * a->D, a->k + h * a->D, a->wk,
                                       cs, sn, a, dn);
        }
    }
}
