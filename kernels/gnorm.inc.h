/* Gated RMS norm: y = w·(x·r)·silu(z), r = 1/sqrt(mean x² + eps), rows of D. */

/* Item: row. */
HS_WORKER(gnorm) {
    const hs_gnorm_args *a = args_;
    for (int64_t row = lo; row < hi; row++) {
        const float *x = a->x + row * a->D, *z = a->z + row * a->D;
        V r = v_set1(1.0f / sqrtf(FN(vec_dot)(x, x, a->D) / (float)a->D + a->eps));
        for (int64_t d = 0; d < a->D; d += VW) {
            int64_t n = hs_min(VW, a->D - d);
            V y = v_mul(v_loadn(a->w + d, n), v_mul(v_loadn(x + d, n), r));
            v_storen(a->y + row * a->D + d, v_mul(y, v_silu(v_loadn(z + d, n))), n);
        }
    }
}

/* gnorm_backward_row: dx = r (w q - x^ mean(x^ w q)), dz = dy w x^ silu'(z), dw += q x^, with q = dy silu(z). */
HS_INLINE void FN(gnorm_backward_row)(const hs_gnorm_args *a, int64_t row, float *dw, float *tmp) {
    const float *x = a->x + row * a->D, *z = a->z + row * a->D, *dy = a->dy + row * a->D;
    V r = v_set1(1.0f / sqrtf(FN(vec_dot)(x, x, a->D) / (float)a->D + a->eps)), dot = v_zero();
    for (int64_t d = 0; d < a->D; d += VW) {
        int64_t n = hs_min(VW, a->D - d);
        V xh = v_mul(v_loadn(x + d, n), r), w = v_loadn(a->w + d, n), g = v_loadn(dy + d, n), zz = v_loadn(z + d, n);
        V s = v_sigmoid(zz), silu = v_mul(zz, s);
        V ds = v_mul(s, v_fma(zz, v_sub(v_set1(1.0f), s), v_set1(1.0f)));
        V q = v_mul(g, silu), wq = v_mul(w, q);
        v_storen(a->dz + row * a->D + d, v_mul(v_mul(g, v_mul(w, xh)), ds), n);
        v_storen(dw + d, v_fma(q, xh, v_loadn(dw + d, n)), n);
        v_storen(tmp + d, wq, n);
        dot = v_fma(xh, wq, dot);
    }
    V mean = v_set1(v_hsum(dot) / (float)a->D);
    for (int64_t d = 0; d < a->D; d += VW) {
        int64_t n = hs_min(VW, a->D - d);
        V xh = v_mul(v_loadn(x + d, n), r);
        v_storen(a->dx + row * a->D + d, v_mul(r, v_fnma(xh, mean, v_loadn(tmp + d, n))), n);
    }
}

/* Item: HS_SUM_ROWS rows, whose dw goes to part. */
HS_WORKER(gnorm_backward) {
    const hs_gnorm_args *a = args_;
    for (int64_t blk = lo; blk < hi; blk++) {
        float *dw = a->part + blk * a->D;
        memset(dw, 0, sizeof(float) * (size_t)a->D);
        for (int64_t row = blk * HS_SUM_ROWS; row < hs_min((blk + 1) * HS_SUM_ROWS, a->N); row++)
            FN(gnorm_backward_row)(a, row, dw, scratch);
    }
}
