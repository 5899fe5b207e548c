/* The gates of the delta rule, elementwise over [T,Hv], and the attention's output gate. */

/* Item: token. g = decay·softplus(a+bias), beta = sigmoid(b); decay = -exp(aLog). */
HS_WORKER(gates) {
    const hs_gates_args *a = args_;
    for (int64_t i = lo * a->hv; i < hi * a->hv; i += VW) {
        int64_t n = hs_min(VW, hi * a->hv - i), h = i % a->hv;
        V sp = v_softplus(v_add(v_loadn(a->a + i, n), v_load(a->bias + h)));
        v_storen(a->g + i, v_mul(v_load(a->decay + h), sp), n);
        v_storen(a->beta + i, v_sigmoid(v_loadn(a->b + i, n)), n);
    }
}

/* Item: HS_SUM_ROWS tokens, whose sums of dg·g and of da go to part. */
HS_WORKER(gates_backward) {
    const hs_gates_args *a = args_;
    float buf[VW];
    for (int64_t blk = lo; blk < hi; blk++) {
        int64_t i0 = blk * HS_SUM_ROWS * a->hv, i1 = hs_min((blk + 1) * HS_SUM_ROWS, a->T) * a->hv;
        float *sum_alog = a->part + blk * 2 * a->hv, *sum_dt = sum_alog + a->hv;
        memset(sum_alog, 0, sizeof(float) * 2 * (size_t)a->hv);
        for (int64_t i = i0; i < i1; i += VW) {
            int64_t n = hs_min(VW, i1 - i), h = i % a->hv;
            V x = v_add(v_loadn(a->a + i, n), v_load(a->bias + h)), decay = v_load(a->decay + h);
            V dg = v_loadn(a->dg + i, n);
            v_storen(a->da + i, v_mul(v_mul(decay, v_sigmoid(x)), dg), n);
            V s = v_sigmoid(v_loadn(a->b + i, n));
            v_storen(a->db + i, v_mul(v_loadn(a->dbeta + i, n), v_mul(s, v_sub(v_set1(1.0f), s))), n);
            v_store(buf, v_mul(dg, v_mul(decay, v_softplus(x))));
            for (int64_t j = 0; j < n; j++) {
                sum_alog[(i + j) % a->hv] += buf[j];
                sum_dt[(i + j) % a->hv] += a->da[i + j];
            }
        }
    }
}

/* Item: (token, head). y = o·sigmoid(gate). */
HS_WORKER(ogate) {
    const hs_ogate_args *a = args_;
    for (int64_t r = lo; r < hi; r++) {
        const float *o = a->o + r * a->D, *gate = a->qg + r * 2 * a->D + a->D;
        for (int64_t d = 0; d < a->D; d += VW) {
            int64_t n = hs_min(VW, a->D - d);
            v_storen(a->y + r * a->D + d, v_mul(v_loadn(o + d, n), v_sigmoid(v_loadn(gate + d, n))), n);
        }
    }
}

HS_WORKER(ogate_backward) {
    const hs_ogate_args *a = args_;
    for (int64_t r = lo; r < hi; r++) {
        const float *gate = a->qg + r * 2 * a->D + a->D;
        float *dgate = a->dqg + r * 2 * a->D + a->D;
        for (int64_t d = 0; d < a->D; d += VW) {
            int64_t n = hs_min(VW, a->D - d);
            V s = v_sigmoid(v_loadn(gate + d, n)), dy = v_loadn(a->dy + r * a->D + d, n);
            V o = v_loadn(a->o + r * a->D + d, n); /* read before do: they may be one buffer */
            V ds = v_mul(s, v_sub(v_set1(1.0f), s));
            v_storen(a->dout + r * a->D + d, v_mul(dy, s), n);
            v_storen(dgate + d, v_mul(v_mul(dy, o), ds), n);
        }
    }
}
