/* The update.
 *
 *   adamw   w, m, v = (in place)      sum_squares, nonfinite   one number a block of HS_BLOCK words, =
 */

/* PyTorch's AdamW: w -= lr·wd·w; m, v = moments; w -= lr/(1-b1^s) · m / (sqrt(v)/sqrt(1-b2^s) + eps). */
HS_WORKER(adamw) {
    const hs_adamw_args *g = args_;
    const V b1 = v_set1(g->beta1), b2 = v_set1(g->beta2), c1 = v_set1(1.0f - g->beta1), c2 = v_set1(1.0f - g->beta2);
    const V eps = v_set1(g->eps), step = v_set1(g->step_size), decay = v_set1(g->decay);
    const V vs = v_set1(g->vscale), gs = v_set1(g->grad_scale);
    for (int64_t j = lo; j < hi; j += VW) {
        const int64_t n = hi - j;
        V gr = v_mul(v_loadn(g->g + j, n), gs), w = v_loadn(g->w + j, n);
        V m = v_fma(b1, v_loadn(g->m + j, n), v_mul(c1, gr));
        V v = v_fma(b2, v_loadn(g->v + j, n), v_mul(c2, v_mul(gr, gr)));
        V den = v_fma(v_sqrt(v), vs, eps);
        w = v_fnma(decay, w, w);
        w = v_fnma(step, v_div(m, den), w);
        v_storen(g->m + j, m, n);
        v_storen(g->v + j, v, n);
        v_storen(g->w + j, w, n);
    }
}

HS_WORKER(sum_squares) {
    const hs_reduce_args *g = args_;
    for (int64_t b = lo; b < hi; b++) {
        const float *x = g->g + b * HS_BLOCK;
        const int64_t n = hs_min(HS_BLOCK, g->n - b * HS_BLOCK);
        double lane[8] = {0};
        int64_t i = 0;
        for (; i + 8 <= n; i += 8)
            for (int l = 0; l < 8; l++) lane[l] += (double)x[i + l] * (double)x[i + l];
        for (; i < n; i++) lane[i % 8] += (double)x[i] * (double)x[i];
        g->sums[b] = ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
    }
}

HS_WORKER(nonfinite) {
    const hs_reduce_args *g = args_;
    for (int64_t b = lo; b < hi; b++) {
        const float *x = g->g + b * HS_BLOCK;
        const int64_t n = hs_min(HS_BLOCK, g->n - b * HS_BLOCK);
        int64_t bad = 0;
        for (int64_t i = 0; i < n; i++) {
            uint32_t u;
            memcpy(&u, x + i, sizeof u);
            bad += (u & 0x7f800000u) == 0x7f800000u;
        }
        g->counts[b] = bad;
    }
}
