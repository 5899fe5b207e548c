/* The vocabulary projection, in chunks of rows so that the logits of a whole batch never exist. */
#define _GNU_SOURCE
#include "matmul.h"

#include <string.h>

/* Logits of one chunk stay within this many floats (or 16 rows, for the largest vocabularies). */
enum { HS_CHUNK = 1 << 20, HS_CHUNK_MIN = 16, HS_CHUNK_MAX = 1024 };

static int64_t hs_chunk_rows(int64_t T, int64_t V) {
    int64_t rows = hs_max(HS_CHUNK_MIN, hs_min(HS_CHUNK_MAX, HS_CHUNK / V));
    return hs_max(1, hs_min(T, rows));
}

/* Work space in slot 2: z [rows,V], h [rows,H], index [T] and, backward, dh [rows,H]. */
typedef struct {
    float *z, *h, *dh;
    int32_t *index;
    int64_t rows;
} hs_head_work;

static int hs_head_open(hs_ctx *c, hs_head_work *w, int64_t T, int64_t V, int64_t H) {
    w->rows = hs_chunk_rows(T, V);
    float *mem = hs_slot(c, 2, (size_t)(w->rows * (V + 2 * H) + T));
    if (mem == NULL) return 0;
    w->z = mem;
    w->h = w->z + w->rows * V;
    w->dh = w->h + w->rows * H;
    w->index = (int32_t *)(w->dh + w->rows * H);
    return 1;
}

/* The logits of rows index[at..at+n). */
static void hs_head_logits(hs_ctx *c, hs_head_work *w, const float *h, const float *panels, int64_t at, int64_t n,
                           int64_t V, int64_t H) {
    hs_gather_args gather = {w->h, h, w->index + at, H};
    hs_parallel(c, c->ops->gather, &gather, n, hs_grain(H / 4), 0);
    hs_matmul(c, w->z, w->h, panels, n, V, H, 0);
}

void hs_head_fwd(hs_ctx *c, uintptr_t logp, uintptr_t entropy, uintptr_t lse, uintptr_t h, uintptr_t panels,
                 uintptr_t targets, int64_t T, int64_t V, int64_t H, float inv_temp) {
    memset(HS_F(logp), 0, (size_t)T * sizeof(float));
    memset(HS_F(entropy), 0, (size_t)T * sizeof(float));
    memset(HS_F(lse), 0, (size_t)T * sizeof(float));
    hs_head_work w;
    if (T == 0 || !hs_head_open(c, &w, T, V, H)) return;
    int64_t count = 0;
    for (int64_t t = 0; t < T; t++)
        if (HS_CI(targets)[t] >= 0) w.index[count++] = (int32_t)t;
    for (int64_t at = 0; at < count; at += w.rows) {
        const int64_t n = hs_min(w.rows, count - at);
        hs_head_logits(c, &w, HS_CF(h), HS_CF(panels), at, n, V, H);
        hs_rows_args g = {.z = w.z, .index = w.index + at, .targets = HS_CI(targets), .logp = HS_F(logp),
                          .entropy = HS_F(entropy), .lse = HS_F(lse), .V = V, .inv_temp = inv_temp};
        hs_parallel(c, c->ops->head_stats, &g, n, hs_grain(V * 2), 0);
    }
}

void hs_head_bwd(hs_ctx *c, uintptr_t dh, uintptr_t dw, uintptr_t h, uintptr_t panels, uintptr_t master,
                 uintptr_t targets, uintptr_t lse, const float *coef, int64_t T, int64_t V, int64_t H, float inv_temp) {
    memset(HS_F(dh), 0, (size_t)(T * H) * sizeof(float));
    hs_head_work w;
    if (T == 0 || !hs_head_open(c, &w, T, V, H)) return;
    int64_t count = 0;
    for (int64_t t = 0; t < T; t++)
        if (HS_CI(targets)[t] >= 0 && coef[t] != 0) w.index[count++] = (int32_t)t;
    if (count == 0) return;
    const float *back = hs_pack_n(c, HS_CF(master), V, H);
    if (back == NULL) return;
    for (int64_t at = 0; at < count; at += w.rows) {
        const int64_t n = hs_min(w.rows, count - at);
        hs_head_logits(c, &w, HS_CF(h), HS_CF(panels), at, n, V, H);
        hs_rows_args g = {.z = w.z, .index = w.index + at, .targets = HS_CI(targets), .lse = HS_F(lse),
                          .coef = coef, .V = V, .inv_temp = inv_temp};
        hs_parallel(c, c->ops->head_grad, &g, n, hs_grain(V * 2), 0);
        hs_matmul(c, w.dh, w.z, back, n, H, V, 0);
        hs_gather_args put = {HS_F(dh), w.dh, w.index + at, H};
        hs_parallel(c, c->ops->scatter, &put, n, hs_grain(H / 4), 0);
        hs_matmul_tn(c, HS_F(dw), w.z, w.h, V, H, n);
    }
}

void hs_sample(hs_ctx *c, uintptr_t z, const hs_sample_in *in, const int32_t *allowed, hs_sample_out *out, int64_t N,
               int64_t V) {
    hs_sample_args g = {HS_CF(z), in, allowed, out, V};
    hs_parallel(c, c->ops->sample, &g, N, hs_grain(V * 4), (size_t)(2 * V + hs_ceil(V, 32)));
}

int64_t hs_top_logprobs(hs_ctx *c, uintptr_t z, int64_t k, int64_t V, float inv_temp, int32_t *ids, float *logprobs) {
    hs_top_args g = {HS_CF(z), ids, logprobs, hs_min(k, V), V, inv_temp};
    hs_parallel(c, c->ops->top_logprobs, &g, 1, 1, (size_t)(2 * V));
    return g.k;
}
