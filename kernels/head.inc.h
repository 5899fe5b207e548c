/* Rows of logits.
 *
 *   gather, scatter   dst =              head_stats   logp, entropy, lse =
 *   head_grad         z = dL/dz, in place             sample, top_logprobs   out =
 *
 * A row's statistics are always made by row_stats, so that a sampled token's log-prob has the bits that head_stats
 * gives it.
 */

HS_WORKER(gather) {
    const hs_gather_args *g = args_;
    for (int64_t i = lo; i < hi; i++)
        memcpy(g->dst + i * g->H, g->src + g->index[i] * g->H, (size_t)g->H * sizeof(float));
}

HS_WORKER(scatter) {
    const hs_gather_args *g = args_;
    for (int64_t i = lo; i < hi; i++)
        memcpy(g->dst + g->index[i] * g->H, g->src + i * g->H, (size_t)g->H * sizeof(float));
}

/* Of x = z·inv_temp: its maximum, ln sum e^(x-max), and the entropy. All NaN when some logit is NaN or +inf, or all
 * are -inf. */
typedef struct {
    float max, log_sum, entropy;
} FN(stats);

enum { HS_TILE = 256 };

static FN(stats) FN(row_stats)(const float *z, int64_t n, float inv_temp) {
    const V it = v_set1(inv_temp), low = v_set1(-INFINITY);
    V mv = low;
    int64_t j = 0;
    for (; j + VW <= n; j += VW) mv = v_max(mv, v_mul(v_load(z + j), it));
    float m = v_hmax(mv);
    for (; j < n; j++) m = m > z[j] * inv_temp ? m : z[j] * inv_temp;

    /* Sums of e^d and d·e^d with d = x - max, in tiles, tile sums in double. */
    const V mb = v_set1(m), floor_ = v_set1(-200.0f);
    double sum = 0, dot = 0;
    for (int64_t t = 0; t < n; t += HS_TILE) {
        const int64_t end = hs_min(t + HS_TILE, n);
        V s = v_zero(), w = v_zero();
        for (j = t; j < end; j += VW) {
            const int64_t left = end - j;
            V d = v_sub(v_mul(v_loadn(z + j, left), it), mb);
            if (left < VW) { /* lanes beyond the row count as -inf */
                float lane[VW];
                v_store(lane, d);
                for (int64_t l = left; l < VW; l++) lane[l] = -INFINITY;
                d = v_load(lane);
            }
            V e = v_exp(d);
            s = v_add(s, e);
            w = v_fma(v_max(floor_, d), e, w); /* -inf times 0 is 0 here; NaN stays */
        }
        sum += v_hsum(s);
        dot += v_hsum(w);
    }
    FN(stats) r;
    r.max = m;
    r.log_sum = (float)log(sum);
    r.entropy = r.log_sum - (float)(dot / sum);
    if (!(sum < INFINITY)) r.max = r.log_sum = r.entropy = NAN;
    if (r.entropy < 0) r.entropy = 0;
    return r;
}

/* Log-prob of logit z, never above 0; NaN stays NaN. */
HS_INLINE float FN(logprob)(float z, float inv_temp, FN(stats) s) {
    float l = (z * inv_temp - s.max) - s.log_sum;
    return l > 0 ? 0 : l;
}

HS_WORKER(head_stats) {
    const hs_rows_args *g = args_;
    for (int64_t i = lo; i < hi; i++) {
        const float *z = g->z + i * g->V;
        const int64_t t = g->index[i];
        FN(stats) s = FN(row_stats)(z, g->V, g->inv_temp);
        g->logp[t] = FN(logprob)(z[g->targets[t]], g->inv_temp, s);
        g->entropy[t] = s.entropy;
        g->lse[t] = s.max + s.log_sum;
    }
}

/* dz = coef·inv_temp·(1{v = target} - p), p = e^(x - lse). The target's 1-p is the sum of the other p, so that it keeps
 * its relative accuracy however peaked the row is. */
HS_WORKER(head_grad) {
    const hs_rows_args *g = args_;
    const V it = v_set1(g->inv_temp);
    for (int64_t i = lo; i < hi; i++) {
        float *z = g->z + i * g->V;
        const int64_t t = g->index[i], y = g->targets[t];
        const float a = g->coef[t] * g->inv_temp;
        const V scale = v_set1(-a), lse = v_set1(g->lse[t]);
        z[y] = -INFINITY; /* out of the sum */
        float rest = 0;
        for (int64_t k = 0; k < g->V; k += HS_TILE) {
            const int64_t end = hs_min(k + HS_TILE, g->V);
            V sum = v_zero();
            int64_t j = k;
            for (; j + VW <= end; j += VW) {
                V p = v_exp(v_sub(v_mul(v_load(z + j), it), lse));
                sum = v_add(sum, p);
                v_store(z + j, v_mul(scale, p));
            }
            rest += v_hsum(sum);
            for (; j < end; j++) {
                const float p = s_exp(z[j] * g->inv_temp - g->lse[t]);
                rest += p;
                z[j] = -a * p;
            }
        }
        z[y] = a * rest;
    }
}

/* ---------------------------------------------------------------- sampling */

/* u in [0,1) from seed and counter: SplitMix64's finaliser over both (Steele, Lea, Flood 2014). */
HS_INLINE uint64_t FN(mix)(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}
HS_INLINE double FN(uniform)(uint64_t seed, uint64_t counter) {
    uint64_t x = FN(mix)(FN(mix)(seed + 0x9e3779b97f4a7c15u) + (counter + 1) * 0x9e3779b97f4a7c15u);
    return (double)(x >> 11) * 0x1p-53;
}

/* A candidate; better() orders by logit, then by the lower id. */
typedef struct {
    float z;
    int32_t id;
} FN(cand);

HS_INLINE int FN(better)(FN(cand) a, FN(cand) b) { return a.z > b.z || (a.z == b.z && a.id < b.id); }

static void FN(sift)(FN(cand) *h, int64_t n, int64_t i) {
    for (;;) {
        int64_t k = 2 * i + 1;
        if (k >= n) return;
        if (k + 1 < n && FN(better)(h[k + 1], h[k])) k++;
        if (!FN(better)(h[k], h[i])) return;
        FN(cand) x = h[i];
        h[i] = h[k];
        h[k] = x;
        i = k;
    }
}

static void FN(heapify)(FN(cand) *h, int64_t n) {
    for (int64_t i = n / 2; i-- > 0;) FN(sift)(h, n, i);
}

/* Takes the best out of the heap; afterwards it lies at h[n-1]. */
static FN(cand) FN(pop)(FN(cand) *h, int64_t n) {
    FN(cand) x = h[0];
    h[0] = h[n - 1];
    h[n - 1] = x;
    FN(sift)(h, n - 1, 0);
    return x;
}

/* The draw from the full distribution: ids ascending, cumulative sum in double. e is scratch of n floats. */
static int64_t FN(draw_all)(const float *z, int64_t n, float inv_temp, FN(stats) s, double u, float *e) {
    const V it = v_set1(inv_temp), m = v_set1(s.max);
    double total = 0, run = 0;
    for (int64_t j = 0; j < n; j += VW) v_storen(e + j, v_exp(v_sub(v_mul(v_loadn(z + j, n - j), it), m)), n - j);
    for (int64_t j = 0; j < n; j++) total += e[j];
    for (int64_t j = 0; j < n; j++) {
        run += e[j];
        if (run > u * total) return j;
    }
    return -1;
}

/* The candidates kept by top-k and top-p, best first, in place at the end of h[0..n): returns how many.
 * top-p keeps the shortest prefix whose probability (within the top-k) reaches p. *total is their weight. */
static int64_t FN(keep)(FN(cand) *h, int64_t n, const hs_sample_in *in, float max, double *total) {
    const int64_t k = in->top_k > 0 ? hs_min(in->top_k, n) : n;
    FN(heapify)(h, n);
    double sum = 0, run = 0;
    int64_t kept = 0;
    if (in->top_p < 1.0f) { /* the weight of the whole top-k set is needed first */
        if (k < n) {
            for (int64_t i = 0; i < k; i++) sum += s_exp(FN(pop)(h, n - i).z * in->inv_temp - max);
            FN(heapify)(h, n);
        } else {
            for (int64_t i = 0; i < n; i++) sum += s_exp(h[i].z * in->inv_temp - max);
        }
    }
    while (kept < k) {
        run += s_exp(FN(pop)(h, n - kept).z * in->inv_temp - max);
        kept++;
        if (in->top_p < 1.0f && run >= (double)in->top_p * sum) break;
    }
    *total = run;
    return kept;
}

/* The draw from a restricted set. h has room for the candidates; seen for one bit an id. */
static hs_sample_out FN(draw_some)(const float *z, int64_t V_, const hs_sample_in *in, const int32_t *allowed,
                                   FN(stats) s, FN(cand) *h, uint32_t *seen) {
    hs_sample_out out = {.id = -1, .logprob = NAN, .entropy = s.entropy};
    int64_t n = 0;
    if (in->allowed_len < 0) {
        for (; n < V_; n++) h[n] = (FN(cand)){z[n], (int32_t)n};
    } else {
        memset(seen, 0, (size_t)hs_ceil(V_, 32) * sizeof *seen);
        for (int64_t i = 0; i < in->allowed_len; i++) {
            const int32_t id = allowed[in->allowed_off + i];
            if (id < 0 || id >= V_ || !(z[id] > -INFINITY) || (seen[id / 32] >> (id % 32) & 1)) continue;
            seen[id / 32] |= 1u << (id % 32);
            h[n++] = (FN(cand)){z[id], id};
        }
    }
    if (n == 0) return out;
    float max = h[0].z;
    for (int64_t i = 1; i < n; i++) max = h[i].z > max ? h[i].z : max;
    max *= in->inv_temp;
    hs_sample_in what = *in;
    if (in->argmax) what.top_k = 0, what.top_p = 1.0f;
    double total, run = 0;
    const int64_t kept = FN(keep)(h, n, &what, max, &total);
    const double u = in->argmax ? 0 : FN(uniform)(in->seed, in->counter);
    for (int64_t i = 0; i < kept; i++) {
        const FN(cand) x = h[n - 1 - i];
        run += s_exp(x.z * in->inv_temp - max);
        if (run > u * total) {
            const float l = (x.z * in->inv_temp - max) - s_log((float)total);
            out.id = x.id;
            out.logprob = l > 0 ? 0 : l;
            return out;
        }
    }
    return out;
}

HS_WORKER(sample) {
    const hs_sample_args *g = args_;
    for (int64_t i = lo; i < hi; i++) {
        const float *z = g->z + i * g->V;
        const hs_sample_in *in = g->in + i;
        FN(stats) s = FN(row_stats)(z, g->V, in->inv_temp);
        hs_sample_out *out = g->out + i;
        *out = (hs_sample_out){.id = -1, .logprob = NAN, .entropy = s.entropy};
        if (!(s.log_sum == s.log_sum)) continue;
        if (in->allowed_len >= 0 || (!in->argmax && ((in->top_k > 0 && in->top_k < g->V) || in->top_p < 1.0f))) {
            *out = FN(draw_some)(z, g->V, in, g->allowed, s, (FN(cand) *)scratch,
                                (uint32_t *)(scratch + 2 * g->V));
            continue;
        }
        int64_t id = 0;
        if (in->argmax) {
            for (int64_t j = 1; j < g->V; j++) id = z[j] > z[id] ? j : id;
        } else {
            id = FN(draw_all)(z, g->V, in->inv_temp, s, FN(uniform)(in->seed, in->counter), scratch);
        }
        if (id < 0) continue;
        out->id = (int32_t)id;
        out->logprob = FN(logprob)(z[id], in->inv_temp, s);
    }
}

HS_WORKER(top_logprobs) {
    const hs_top_args *g = args_;
    FN(cand) *h = (FN(cand) *)scratch;
    (void)lo, (void)hi;
    FN(stats) s = FN(row_stats)(g->z, g->V, g->inv_temp);
    for (int64_t j = 0; j < g->V; j++) h[j] = (FN(cand)){g->z[j], (int32_t)j};
    FN(heapify)(h, g->V);
    for (int64_t i = 0; i < g->k; i++) {
        FN(cand) x = FN(pop)(h, g->V - i);
        g->ids[i] = x.id;
        g->logprobs[i] = FN(logprob)(x.z, g->inv_temp, s);
    }
}
