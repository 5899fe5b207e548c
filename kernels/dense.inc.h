/* Embeddings, norms and pointwise ops.
 *
 *   embed          y  =                  embed_bwd      dw +=
 *   rmsnorm        y, rstd =             rmsnorm_bwd_x  dx +=        rmsnorm_bwd_w  dw +=
 *   add            dst +=                swiglu         y =          swiglu_bwd     dgate, dup =
 *   vec            y  =
 *
 * A row statistic sums lane l over elements l, l+VW, l+2·VW, ... and then the lanes by v_hsum's tree.
 */

HS_WORKER(embed) {
    const hs_embed_args *g = args_;
    for (int64_t t = lo; t < hi; t++) memcpy(g->y + t * g->H, g->w + g->ids[t] * g->H, (size_t)g->H * sizeof(float));
}

/* Items are strips of HS_STRIP columns; tokens in order. y is dw here and w is dy. */
HS_WORKER(embed_bwd) {
    const hs_embed_args *g = args_;
    const int64_t c0 = lo * HS_STRIP, c1 = hs_min(hi * HS_STRIP, g->H);
    for (int64_t t = 0; t < g->T; t++) {
        float *dw = g->y + g->ids[t] * g->H;
        const float *dy = g->w + t * g->H;
        for (int64_t j = c0; j < c1; j += VW) {
            const int64_t n = c1 - j;
            v_storen(dw + j, v_add(v_loadn(dw + j, n), v_loadn(dy + j, n)), n);
        }
    }
}

HS_WORKER(rmsnorm) {
    const hs_rmsnorm_args *g = args_;
    const int64_t H = g->H;
    const V one = v_set1(1.0f);
    for (int64_t t = lo; t < hi; t++) {
        const float *x = g->x + t * H;
        float *y = g->y + t * H;
        V acc = v_zero();
        for (int64_t j = 0; j < H; j += VW) {
            V a = v_loadn(x + j, H - j);
            acc = v_fma(a, a, acc);
        }
        const float r = s_rsqrt(v_hsum(acc) / (float)H + g->eps);
        if (g->rstd != NULL) g->rstd[t] = r;
        const V rv = v_set1(r);
        for (int64_t j = 0; j < H; j += VW) {
            V a = v_mul(v_loadn(x + j, H - j), rv);
            v_storen(y + j, v_mul(a, v_add(one, v_loadn(g->w + j, H - j))), H - j);
        }
    }
}

/* With xh = x·r and q = dy·(1+w): dx += r·(q - xh·mean(q·xh)). */
HS_WORKER(rmsnorm_bwd_x) {
    const hs_rmsnorm_bwd_args *g = args_;
    const int64_t H = g->H;
    const V one = v_set1(1.0f);
    for (int64_t t = lo; t < hi; t++) {
        const float *x = g->x + t * H, *dy = g->dy + t * H;
        float *dx = g->dx + t * H;
        const V r = v_set1(g->rstd[t]);
        V acc = v_zero();
        for (int64_t j = 0; j < H; j += VW) {
            V q = v_mul(v_loadn(dy + j, H - j), v_add(one, v_loadn(g->w + j, H - j)));
            acc = v_fma(q, v_mul(v_loadn(x + j, H - j), r), acc);
        }
        const V mean = v_set1(v_hsum(acc) / (float)H);
        for (int64_t j = 0; j < H; j += VW) {
            V q = v_mul(v_loadn(dy + j, H - j), v_add(one, v_loadn(g->w + j, H - j)));
            V xh = v_mul(v_loadn(x + j, H - j), r);
            v_storen(dx + j, v_fma(r, v_fnma(xh, mean, q), v_loadn(dx + j, H - j)), H - j);
        }
    }
}

/* dw += sum over t of dy·x·r, tokens in order in chains of HS_KC. Items are strips of HS_STRIP columns. */
HS_WORKER(rmsnorm_bwd_w) {
    const hs_rmsnorm_bwd_args *g = args_;
    const int64_t H = g->H, c1 = hs_min(hi * HS_STRIP, H);
    for (int64_t j = lo * HS_STRIP; j < c1; j += VW) {
        const int64_t n = c1 - j;
        V total = v_loadn(g->dw + j, n);
        for (int64_t t0 = 0; t0 < g->T; t0 += HS_KC) {
            const int64_t t1 = hs_min(t0 + HS_KC, g->T);
            V acc = v_zero();
            for (int64_t t = t0; t < t1; t++) {
                V xh = v_mul(v_loadn(g->x + t * H + j, n), v_set1(g->rstd[t]));
                acc = v_fma(v_loadn(g->dy + t * H + j, n), xh, acc);
            }
            total = v_add(total, acc);
        }
        v_storen(g->dw + j, total, n);
    }
}

HS_WORKER(add) {
    const hs_map_args *g = args_;
    for (int64_t j = lo; j < hi; j += VW) {
        const int64_t n = hi - j;
        v_storen(g->y + j, v_add(v_loadn(g->y + j, n), v_loadn(g->a + j, n)), n);
    }
}

HS_WORKER(swiglu) {
    const hs_map_args *g = args_;
    for (int64_t j = lo; j < hi; j += VW) {
        const int64_t n = hi - j;
        v_storen(g->y + j, v_mul(v_silu(v_loadn(g->a + j, n)), v_loadn(g->b + j, n)), n);
    }
}

/* s = sigmoid(gate): dgate = dy·up·s·(1 + gate·(1-s)), dup = dy·gate·s. */
HS_WORKER(swiglu_bwd) {
    const hs_map_args *g = args_;
    const V one = v_set1(1.0f);
    for (int64_t j = lo; j < hi; j += VW) {
        const int64_t n = hi - j;
        V a = v_loadn(g->a + j, n), b = v_loadn(g->b + j, n), dy = v_loadn(g->dy + j, n);
        V s = v_sigmoid(a);
        V da = v_mul(v_mul(dy, b), v_mul(s, v_fma(a, v_sub(one, s), one)));
        V db = v_mul(dy, v_mul(a, s));
        v_storen(g->y + j, da, n);
        v_storen(g->y2 + j, db, n);
    }
}

/* One function of vec.h over many values, so that tests can measure it on every ISA. */
HS_WORKER(vec) {
    const hs_vec_args *g = args_;
    for (int64_t j = lo; j < hi; j += VW) {
        const int64_t n = hi - j;
        V x = v_loadn(g->x + j, n), y = v_zero();
        switch (g->what) {
        case HS_VEC_EXP: y = v_exp(x); break;
        case HS_VEC_LOG: y = v_log(x); break;
        case HS_VEC_SIGMOID: y = v_sigmoid(x); break;
        case HS_VEC_SILU: y = v_silu(x); break;
        case HS_VEC_SOFTPLUS: y = v_softplus(x); break;
        case HS_VEC_RSQRT: y = v_rsqrt(x); break;
        }
        v_storen(g->y + j, y, n);
    }
}
