/* The update and the reductions over gradients. */
#define _GNU_SOURCE
#include "dense.h"

void hs_adamw(hs_ctx *c, uintptr_t w, uintptr_t m, uintptr_t v, uintptr_t g, int64_t n, float beta1, float beta2,
              float eps, float step_size, float decay, float vscale, float grad_scale) {
    hs_adamw_args a = {HS_F(w), HS_F(m), HS_F(v), HS_CF(g), beta1, beta2, eps, step_size, decay, vscale, grad_scale};
    hs_parallel(c, c->ops->adamw, &a, n, 16384, 0);
}

double hs_sum_squares(hs_ctx *c, uintptr_t g, int64_t n) {
    const int64_t blocks = hs_ceil(n, HS_BLOCK);
    double total = 0, *sums = (double *)hs_slot(c, 2, (size_t)blocks * 2);
    if (sums == NULL) return 0;
    hs_reduce_args a = {.g = HS_CF(g), .sums = sums, .n = n};
    hs_parallel(c, c->ops->sum_squares, &a, blocks, 8, 0);
    for (int64_t b = 0; b < blocks; b++) total += sums[b];
    return total;
}

int64_t hs_nonfinite(hs_ctx *c, uintptr_t g, int64_t n) {
    const int64_t blocks = hs_ceil(n, HS_BLOCK);
    int64_t total = 0, *counts = (int64_t *)hs_slot(c, 2, (size_t)blocks * 2);
    if (counts == NULL) return 0;
    hs_reduce_args a = {.g = HS_CF(g), .counts = counts, .n = n};
    hs_parallel(c, c->ops->nonfinite, &a, blocks, 8, 0);
    for (int64_t b = 0; b < blocks; b++) total += counts[b];
    return total;
}
