/* The token-mixing and inference ops: work space, and how each op is cut into items. */
#define _GNU_SOURCE
#include "mixer.h"

#include <math.h>
#include <string.h>

#include "internal.h"
#include "mixer_args.h"

enum { MIXER_SLOT = 3 };

/* hs_take cuts the next n floats, rounded up to 16, off the work space at *p. */
static float *hs_take(float **p, int64_t n) {
    float *at = *p;
    *p += hs_up16(n);
    return at;
}

/* ---------------------------------------------------------------- convolution */

static void hs_conv_weights(float *wt, const float *w, int64_t ch, int64_t k) {
    for (int64_t i = 0; i < ch; i++)
        for (int64_t j = 0; j < k; j++) wt[j * ch + i] = w[i * k + j];
}

void hs_conv(hs_ctx *c, uintptr_t y, uintptr_t x, uintptr_t w, const int32_t *cu, int64_t rows, int64_t ch, int64_t k) {
    float *wt = hs_slot(c, MIXER_SLOT, (size_t)(ch * k));
    if (wt == NULL) return;
    hs_conv_weights(wt, HS_CF(w), ch, k);
    hs_conv_args a = {.y = HS_F(y), .x = HS_CF(x), .wt = wt, .cu = cu, .rows = rows, .ch = ch, .k = k};
    hs_parallel(c, c->ops->conv, &a, cu[rows], hs_grain(ch * (k + 10) / 8), 0);
}

void hs_conv_backward(hs_ctx *c, uintptr_t dx, uintptr_t dw, uintptr_t dy, uintptr_t x, uintptr_t w, const int32_t *cu,
                      int64_t rows, int64_t ch, int64_t k) {
    float *wt = hs_slot(c, MIXER_SLOT, (size_t)(ch * k));
    if (wt == NULL) return;
    hs_conv_weights(wt, HS_CF(w), ch, k);
    hs_conv_args a = {.dx = HS_F(dx), .dw = HS_F(dw), .dy = HS_CF(dy), .x = HS_CF(x), .wt = wt,
                      .cu = cu, .rows = rows, .ch = ch, .k = k};
    hs_parallel(c, c->ops->conv_backward, &a, hs_ceil(ch, HS_CONV_LANES), hs_grain(cu[rows] * (k + 10)),
                2 * HS_CONV_MAX * HS_CONV_LANES);
}

void hs_conv_extend(hs_ctx *c, uintptr_t y, uintptr_t x, uintptr_t w, const uintptr_t *states, const int64_t *spans,
                    int64_t nspans, int64_t ch, int64_t k) {
    float *p = hs_slot(c, MIXER_SLOT, (size_t)(hs_up16(ch * k) + 2 * (nspans + 1)));
    if (p == NULL) return;
    float *wt = hs_take(&p, ch * k);
    int64_t *first = (int64_t *)p;
    hs_conv_weights(wt, HS_CF(w), ch, k);
    hs_conv_args a = {.y = HS_F(y), .x = HS_CF(x), .wt = wt, .ch = ch, .k = k, .spans = (const hs_span *)spans,
                      .first = first, .states = states, .nspans = nspans};
    first[0] = 0;
    for (int64_t i = 0; i < nspans; i++) first[i + 1] = first[i] + a.spans[i].len;
    hs_parallel(c, c->ops->conv_extend, &a, first[nspans], hs_grain(ch * (k + 10) / 8), 0);
    hs_parallel(c, c->ops->conv_state, &a, nspans, hs_grain(ch * k), 0); /* copies in memory far away */
}

/* ---------------------------------------------------------------- gates */

/* hs_gate_params repeats -exp(aLog) and dtBias far enough that a vector may start at any head. */
static void hs_gate_params(float *decay, float *bias, const float *alog, const float *dtbias, int64_t hv, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        decay[i] = (float)-exp((double)alog[i % hv]);
        bias[i] = dtbias[i % hv];
    }
}

void hs_gates(hs_ctx *c, uintptr_t g, uintptr_t beta, uintptr_t a, uintptr_t b, uintptr_t alog, uintptr_t dtbias,
              int64_t T, int64_t hv) {
    int64_t n = hv + c->ops->vw;
    float *p = hs_slot(c, MIXER_SLOT, (size_t)(2 * hs_up16(n)));
    if (p == NULL) return;
    float *decay = hs_take(&p, n), *bias = hs_take(&p, n);
    hs_gate_params(decay, bias, HS_CF(alog), HS_CF(dtbias), hv, n);
    hs_gates_args args = {.g = HS_F(g), .beta = HS_F(beta), .a = HS_CF(a), .b = HS_CF(b), .decay = decay, .bias = bias,
                          .T = T, .hv = hv};
    hs_parallel(c, c->ops->gates, &args, T, hs_grain(hv * 10), 0);
}

void hs_gates_backward(hs_ctx *c, uintptr_t da, uintptr_t db, uintptr_t dalog, uintptr_t ddtbias, uintptr_t dg,
                       uintptr_t dbeta, uintptr_t a, uintptr_t b, uintptr_t alog, uintptr_t dtbias, int64_t T, int64_t hv) {
    int64_t n = hv + c->ops->vw, blocks = hs_ceil(T, HS_SUM_ROWS);
    float *p = hs_slot(c, MIXER_SLOT, (size_t)(2 * hs_up16(n) + hs_up16(blocks * 2 * hv)));
    if (p == NULL) return;
    float *decay = hs_take(&p, n), *bias = hs_take(&p, n), *part = hs_take(&p, blocks * 2 * hv);
    hs_gate_params(decay, bias, HS_CF(alog), HS_CF(dtbias), hv, n);
    hs_gates_args args = {.a = HS_CF(a), .b = HS_CF(b), .decay = decay, .bias = bias, .T = T, .hv = hv, .da = HS_F(da),
                          .db = HS_F(db), .part = part, .dg = HS_CF(dg), .dbeta = HS_CF(dbeta)};
    hs_parallel(c, c->ops->gates_backward, &args, blocks, 1, 0);
    for (int64_t i = 0; i < blocks; i++)
        for (int64_t h = 0; h < hv; h++) {
            HS_F(dalog)[h] += part[i * 2 * hv + h];
            HS_F(ddtbias)[h] += part[i * 2 * hv + hv + h];
        }
}

/* ---------------------------------------------------------------- gated delta rule */

static hs_gdn_shape hs_gdn_dims(int64_t hk, int64_t hv, int64_t dk, int64_t dv) {
    return (hs_gdn_shape){hk, hv, dk, dv, 2 * hk * dk + hv * dv};
}

/* hs_gdn_chunk0 numbers the rows' first chunks; NULL without memory. */
static int64_t *hs_gdn_chunk0(hs_ctx *c, const int32_t *cu, int64_t rows) {
    int64_t *first = (int64_t *)hs_slot(c, MIXER_SLOT, (size_t)(2 * (rows + 1)));
    if (first == NULL) return NULL;
    first[0] = 0;
    for (int64_t r = 0; r < rows; r++) first[r + 1] = first[r] + hs_ceil(cu[r + 1] - cu[r], HS_C);
    return first;
}

/* hs_gdn_work is the scratch of gdn_rows in gdn.inc.h. */
static int64_t hs_gdn_work(const hs_gdn_shape *s) {
    return 2 * HS_C * (hs_up16(s->dk) + 2 * HS_C + hs_up16(s->dv)) + HS_C * hs_up16(s->dv);
}

void hs_gdn(hs_ctx *c, uintptr_t o, uintptr_t saved, uintptr_t qkv, uintptr_t g, uintptr_t beta, const int32_t *cu,
            int64_t rows, int64_t hk, int64_t hv, int64_t dk, int64_t dv) {
    hs_gdn_args a = {.s = hs_gdn_dims(hk, hv, dk, dv), .o = HS_F(o), .qkv = HS_CF(qkv), .g = HS_CF(g),
                     .beta = HS_CF(beta), .cu = cu, .chunk0 = hs_gdn_chunk0(c, cu, rows)};
    if (a.chunk0 == NULL) return;
    if (saved) {
        a.err = HS_F(saved);
        a.start = a.err + cu[rows] * hv * dv;
    }
    int64_t group = hv / hk, cache = hs_up16(group * dk * dv) + group * 2 * HS_C + dk * HS_C + group * HS_C * hs_up16(dv);
    hs_parallel(c, c->ops->gdn, &a, rows * hk, 1, (size_t)(cache + hs_gdn_work(&a.s)));
}

void hs_gdn_backward(hs_ctx *c, uintptr_t dqkv, uintptr_t dg, uintptr_t dbeta, uintptr_t dout, uintptr_t saved,
                     uintptr_t qkv, uintptr_t g, uintptr_t beta, const int32_t *cu, int64_t rows, int64_t hk, int64_t hv,
                     int64_t dk, int64_t dv) {
    hs_gdn_args a = {.s = hs_gdn_dims(hk, hv, dk, dv), .qkv = HS_CF(qkv), .g = HS_CF(g), .beta = HS_CF(beta), .cu = cu,
                     .chunk0 = hs_gdn_chunk0(c, cu, rows), .err = HS_F(saved), .dqkv = HS_F(dqkv), .dg = HS_F(dg),
                     .dbeta = HS_F(dbeta), .dout = HS_CF(dout)};
    if (a.chunk0 == NULL) return;
    a.start = a.err + cu[rows] * hv * dv;
    int64_t ldk = hs_up16(dk), ldv = hs_up16(dv), pairs = 8 * HS_C * HS_C; /* gdn_bwd_layout in gdn_backward.inc.h */
    int64_t work = HS_C * (4 * ldk + 2 * dk + 3 * ldv + dv + hs_max(ldk, ldv) + 11) + pairs + dv * ldk;
    hs_parallel(c, c->ops->gdn_backward, &a, rows * hk, 1, (size_t)(work + hv / hk * dk * ldv));
}

void hs_gdn_extend(hs_ctx *c, uintptr_t o, uintptr_t qkv, uintptr_t g, uintptr_t beta, const uintptr_t *states,
                   const int64_t *spans, int64_t nspans, int64_t hk, int64_t hv, int64_t dk, int64_t dv) {
    hs_gdn_args a = {.s = hs_gdn_dims(hk, hv, dk, dv), .o = HS_F(o), .qkv = HS_CF(qkv), .g = HS_CF(g),
                     .beta = HS_CF(beta), .spans = (const hs_span *)spans, .states = states};
    /* Claims of several items, so that one can ask for the next one's state. */
    int64_t items = nspans * hk, grain = hs_max(1, items / (8 * c->threads));
    hs_parallel(c, c->ops->gdn_extend, &a, items, grain, (size_t)hs_gdn_work(&a.s));
}

/* ---------------------------------------------------------------- gated norm */

/* hs_sum_parts: dst[n] += the blocks' partial sums, in order; block i is part + i·stride. */
static void hs_sum_parts(float *dst, const float *part, int64_t blocks, int64_t stride, int64_t n) {
    for (int64_t b = 0; b < blocks; b++)
        for (int64_t i = 0; i < n; i++) dst[i] += part[b * stride + i];
}

void hs_gnorm(hs_ctx *c, uintptr_t y, uintptr_t x, uintptr_t z, uintptr_t w, int64_t N, int64_t D, float eps) {
    hs_gnorm_args a = {.y = HS_F(y), .x = HS_CF(x), .z = HS_CF(z), .w = HS_CF(w), .N = N, .D = D, .eps = eps};
    hs_parallel(c, c->ops->gnorm, &a, N, hs_grain(D * 3), 0);
}

void hs_gnorm_backward(hs_ctx *c, uintptr_t dx, uintptr_t dz, uintptr_t dw, uintptr_t dy, uintptr_t x, uintptr_t z,
                       uintptr_t w, int64_t N, int64_t D, float eps) {
    int64_t blocks = hs_ceil(N, HS_SUM_ROWS);
    float *part = hs_slot(c, MIXER_SLOT, (size_t)(blocks * D));
    if (part == NULL) return;
    hs_gnorm_args a = {.x = HS_CF(x), .z = HS_CF(z), .w = HS_CF(w), .N = N, .D = D, .eps = eps, .dx = HS_F(dx),
                       .dz = HS_F(dz), .part = part, .dy = HS_CF(dy)};
    hs_parallel(c, c->ops->gnorm_backward, &a, blocks, 1, (size_t)D);
    hs_sum_parts(HS_F(dw), part, blocks, D, D);
}

/* ---------------------------------------------------------------- q/k norm and RoPE */

static void hs_rope_freq(double *freq, int64_t rotary, double theta) {
    for (int64_t i = 0; i < rotary / 2; i++) freq[i] = pow(theta, -2.0 * (double)i / (double)rotary);
}

void hs_rope(hs_ctx *c, uintptr_t qout, uintptr_t kout, uintptr_t qg, uintptr_t k, uintptr_t wq, uintptr_t wk,
             uintptr_t pos, int64_t T, int64_t hq, int64_t hk, int64_t D, int64_t rotary, double theta, float eps) {
    double *freq = (double *)hs_slot(c, MIXER_SLOT, (size_t)rotary);
    if (freq == NULL) return;
    hs_rope_freq(freq, rotary, theta);
    hs_rope_args a = {.qout = HS_F(qout), .kout = HS_F(kout), .qg = HS_CF(qg), .k = HS_CF(k), .wq = HS_CF(wq),
                      .wk = HS_CF(wk), .pos = HS_CI(pos), .freq = freq, .T = T, .hq = hq, .hk = hk, .D = D,
                      .rotary = rotary, .eps = eps};
    hs_parallel(c, c->ops->rope, &a, T, hs_grain((hq + hk) * D + 50 * rotary), (size_t)rotary);
}

void hs_rope_backward(hs_ctx *c, uintptr_t dqg, uintptr_t dk, uintptr_t dwq, uintptr_t dwk, uintptr_t dqout,
                      uintptr_t dkout, uintptr_t qg, uintptr_t k, uintptr_t wq, uintptr_t wk, uintptr_t pos, int64_t T,
                      int64_t hq, int64_t hk, int64_t D, int64_t rotary, double theta, float eps) {
    int64_t blocks = hs_ceil(T, HS_SUM_ROWS);
    float *p = hs_slot(c, MIXER_SLOT, (size_t)(hs_up16(rotary) + blocks * 2 * D));
    if (p == NULL) return;
    double *freq = (double *)hs_take(&p, rotary);
    hs_rope_freq(freq, rotary, theta);
    hs_rope_args a = {.qg = HS_CF(qg), .k = HS_CF(k), .wq = HS_CF(wq), .wk = HS_CF(wk), .pos = HS_CI(pos), .freq = freq,
                      .T = T, .hq = hq, .hk = hk, .D = D, .rotary = rotary, .eps = eps, .dqg = HS_F(dqg),
                      .dk = HS_F(dk), .part = p, .dqout = HS_CF(dqout), .dkout = HS_CF(dkout)};
    hs_parallel(c, c->ops->rope_backward, &a, blocks, 1, (size_t)(rotary + D));
    hs_sum_parts(HS_F(dwq), a.part, blocks, 2 * D, D);
    hs_sum_parts(HS_F(dwk), a.part + D, blocks, 2 * D, D);
}

/* ---------------------------------------------------------------- attention */

static int64_t hs_count_chunks(const int32_t *cu, int64_t rows) {
    int64_t n = 0;
    for (int64_t r = 0; r < rows; r++) n += hs_ceil(cu[r + 1] - cu[r], HS_C);
    return n;
}

static void hs_list_chunks(hs_chunk *out, const int32_t *cu, int64_t rows) {
    for (int64_t r = 0; r < rows; r++)
        for (int32_t t = cu[r], i = 0; t < cu[r + 1]; t += HS_C, i++)
            *out++ = (hs_chunk){t, (int32_t)hs_min(HS_C, cu[r + 1] - t), (int32_t)r, i};
}

static int64_t hs_longest(const int32_t *cu, int64_t rows) {
    int64_t n = 0;
    for (int64_t r = 0; r < rows; r++) n = hs_max(n, cu[r + 1] - cu[r]);
    return n;
}

/* hs_attn_work is the scratch of attn_rows when the last position is below len. */
static int64_t hs_attn_work(int64_t len, int64_t group, int64_t D) {
    int64_t M = 16 * group;
    return M * (2 * hs_up16(D) + hs_ceil(len, HS_C) * HS_C) + hs_up16(M);
}

void hs_attn(hs_ctx *c, uintptr_t o, uintptr_t lse, uintptr_t q, uintptr_t k, uintptr_t v, const int32_t *cu,
             int64_t rows, int64_t hq, int64_t hk, int64_t D) {
    int64_t n = hs_count_chunks(cu, rows);
    float *p = hs_slot(c, MIXER_SLOT, (size_t)(hs_up16(4 * n) + n * hk * D * HS_C));
    if (p == NULL) return;
    hs_chunk *chunks = (hs_chunk *)hs_take(&p, 4 * n);
    hs_list_chunks(chunks, cu, rows);
    hs_attn_args a = {.o = HS_F(o), .lse = HS_F(lse), .q = HS_CF(q), .k = HS_CF(k), .v = HS_CF(v), .hq = hq, .hk = hk,
                      .D = D, .scale = 1.0f / sqrtf((float)D), .chunks = chunks, .nchunks = n, .kt = p};
    hs_parallel(c, c->ops->attn_pages, &a, n * hk, hs_grain(HS_C * D), 0);
    hs_parallel(c, c->ops->attn, &a, n * hk, 1, (size_t)hs_attn_work(hs_longest(cu, rows), hq / hk, D));
}

void hs_attn_backward(hs_ctx *c, uintptr_t dq, uintptr_t dk, uintptr_t dv, uintptr_t dout, uintptr_t o, uintptr_t lse,
                      uintptr_t q, uintptr_t k, uintptr_t v, const int32_t *cu, int64_t rows, int64_t hq, int64_t hk,
                      int64_t D) {
    int64_t n = hs_count_chunks(cu, rows), T = cu[rows], page = hk * D * HS_C;
    float *p = hs_slot(c, MIXER_SLOT, (size_t)(hs_up16(4 * n) + 2 * n * page + T * hq));
    if (p == NULL) return;
    hs_chunk *chunks = (hs_chunk *)hs_take(&p, 4 * n);
    hs_list_chunks(chunks, cu, rows);
    hs_attn_args a = {.o = HS_F(o), .lse = HS_F(lse), .q = HS_CF(q), .k = HS_CF(k), .v = HS_CF(v), .hq = hq, .hk = hk,
                      .D = D, .scale = 1.0f / sqrtf((float)D), .chunks = chunks, .nchunks = n, .dq = HS_F(dq),
                      .dk = HS_F(dk), .dv = HS_F(dv), .dout = HS_CF(dout), .T = T};
    a.kt = hs_take(&p, n * page);
    a.vt = hs_take(&p, n * page);
    a.delta = p;
    size_t work = (size_t)(HS_C * (3 * hs_up16(D) + 2 * HS_C));
    hs_parallel(c, c->ops->attn_pages, &a, n * hk, hs_grain(2 * HS_C * D), 0);
    hs_parallel(c, c->ops->attn_delta, &a, T * hq, hs_grain(D), 0);
    hs_parallel(c, c->ops->attn_dq, &a, n * hk, 1, work);
    hs_parallel(c, c->ops->attn_dkv, &a, n * hk, 1, work);
}

/* hs_query_blocks cuts each span at absolute multiples of 16 positions; out may be NULL to count. */
static int64_t hs_query_blocks(hs_chunk *out, const hs_span *spans, int64_t nspans) {
    int64_t count = 0;
    for (int64_t s = 0; s < nspans; s++)
        for (int64_t i = 0; i < spans[s].len; count++) {
            int64_t pos = spans[s].pos + i, n = hs_min(16 - pos % 16, spans[s].len - i);
            if (out) out[count] = (hs_chunk){(int32_t)(spans[s].row + i), (int32_t)n, (int32_t)s, (int32_t)pos};
            i += n;
        }
    return count;
}

void hs_attn_extend(hs_ctx *c, uintptr_t o, uintptr_t q, uintptr_t k, uintptr_t v, const uintptr_t *pages,
                    const int64_t *page0, const int64_t *spans, int64_t nspans, int64_t hq, int64_t hk, int64_t D) {
    const hs_span *sp = (const hs_span *)spans;
    int64_t n = hs_query_blocks(NULL, sp, nspans), longest = 0;
    hs_chunk *blocks = (hs_chunk *)hs_slot(c, MIXER_SLOT, (size_t)(4 * n));
    if (blocks == NULL) return;
    hs_query_blocks(blocks, sp, nspans);
    for (int64_t i = 0; i < nspans; i++) longest = hs_max(longest, sp[i].pos + sp[i].len);
    hs_attn_args a = {.o = HS_F(o), .q = HS_CF(q), .k = HS_CF(k), .v = HS_CF(v), .hq = hq, .hk = hk, .D = D,
                      .scale = 1.0f / sqrtf((float)D), .chunks = blocks, .nchunks = n, .spans = sp, .page0 = page0,
                      .pages = pages};
    hs_parallel(c, c->ops->attn_store, &a, nspans * hk, hs_grain(D * 4), 0);
    hs_parallel(c, c->ops->attn_extend, &a, n * hk, 1, (size_t)hs_attn_work(longest, hq / hk, D));
}

/* ---------------------------------------------------------------- output gate */

void hs_ogate(hs_ctx *c, uintptr_t y, uintptr_t o, uintptr_t qg, int64_t T, int64_t hq, int64_t D) {
    hs_ogate_args a = {.y = HS_F(y), .o = HS_CF(o), .qg = HS_CF(qg), .T = T, .hq = hq, .D = D};
    hs_parallel(c, c->ops->ogate, &a, T * hq, hs_grain(D * 3), 0);
}

void hs_ogate_backward(hs_ctx *c, uintptr_t dout, uintptr_t dqg, uintptr_t dy, uintptr_t o, uintptr_t qg, int64_t T,
                       int64_t hq, int64_t D) {
    hs_ogate_args a = {.dout = HS_F(dout), .dqg = HS_F(dqg), .o = HS_CF(o), .qg = HS_CF(qg), .dy = HS_CF(dy), .T = T,
                       .hq = hq, .D = D};
    hs_parallel(c, c->ops->ogate_backward, &a, T * hq, hs_grain(D * 4), 0);
}
