/* Embeddings, projections, norms and the MLP: how each op is cut into items. */
#define _GNU_SOURCE
#include "matmul.h"

#include <string.h>

void hs_embed(hs_ctx *c, uintptr_t y, uintptr_t ids, uintptr_t w, int64_t T, int64_t H, int64_t V) {
    hs_embed_args g = {HS_F(y), HS_CI(ids), HS_CF(w), T, H, V};
    hs_parallel(c, c->ops->embed, &g, T, hs_grain(H / 4), 0);
}

void hs_embed_bwd(hs_ctx *c, uintptr_t dw, uintptr_t dy, uintptr_t ids, int64_t T, int64_t H, int64_t V) {
    hs_embed_args g = {HS_F(dw), HS_CI(ids), HS_CF(dy), T, H, V};
    hs_parallel(c, c->ops->embed_bwd, &g, hs_ceil(H, HS_STRIP), hs_grain(T * 8), 0);
}

/* ---------------------------------------------------------------- products */

int64_t hs_pack_size(const hs_ctx *c, int64_t out, int64_t in) { return hs_ceil(out, c->ops->nr) * c->ops->nr * in; }

void hs_pack(hs_ctx *c, uintptr_t panels, uintptr_t master, int64_t out, int64_t in) {
    hs_pack_args g = {HS_F(panels), HS_CF(master), out, in};
    hs_parallel(c, c->ops->pack_t, &g, hs_ceil(out, c->ops->nr), hs_grain(c->ops->nr * in), 0);
}

float *hs_pack_n(hs_ctx *c, const float *w, int64_t rows, int64_t cols) {
    const int64_t panels = hs_ceil(cols, c->ops->nr);
    hs_pack_args g = {hs_slot(c, 0, (size_t)(panels * c->ops->nr * rows)), w, rows, cols};
    if (g.panels != NULL) hs_parallel(c, c->ops->pack_n, &g, panels, hs_grain(c->ops->nr * rows / 4), 0);
    return g.panels;
}

/* hs_cut_tiles chooses how many row and column blocks make enough tasks for the threads, each not too small. */
static void hs_cut_tiles(const hs_ctx *c, int64_t M, int64_t panels, int64_t flops, int64_t mc, int64_t nc, int64_t *rb,
                         int64_t *cb) {
    *rb = hs_ceil(M, mc);
    *cb = hs_ceil(panels, nc);
    if (c->threads == 1) return;
    const int64_t worth = hs_max(1, flops / 200000); /* a task is at least some microseconds */
    const int64_t want = hs_min(4 * c->threads, worth);
    if (*rb * *cb < want) *cb = hs_min(panels, hs_ceil(want, *rb));
    *cb = hs_ceil(panels, panels / *cb); /* blocks of one width, the last one excepted */
    if (*rb * *cb < want) *rb = hs_min(hs_ceil(M, c->ops->mr), hs_ceil(want, *cb));
}

void hs_matmul(hs_ctx *c, float *out, const float *a, const float *panels, int64_t M, int64_t N, int64_t K, int add) {
    hs_matmul_args g = {.c = out, .a = a, .b = panels, .M = M, .N = N, .K = K, .add = add};
    const int64_t mc = 8 * c->ops->mr, np = hs_ceil(N, c->ops->nr);
    hs_cut_tiles(c, M, np, 2 * M * N * K, mc, np, &g.row_blocks, &g.col_blocks);
    /* Rows a multiple of 1 KiB apart fall into few sets of the first-level cache. */
    g.copy = K % 256 == 0 && M >= c->ops->mr && np >= 4;
    hs_parallel(c, c->ops->matmul, &g, g.row_blocks * g.col_blocks, 1, g.copy ? (size_t)(mc * (256 + 16)) : 0);
}

void hs_matmul_tn(hs_ctx *c, float *out, const float *a, const float *b, int64_t M, int64_t N, int64_t K) {
    hs_matmul_tn_args g = {.c = out, .a = a, .b = b, .M = M, .N = N, .K = K};
    const int64_t mr = c->ops->mr, nr = c->ops->nr, mc = 10 * mr, nc = 256 / nr;
    hs_cut_tiles(c, M, hs_ceil(N, nr), 2 * M * N * K, mc, nc, &g.row_blocks, &g.col_blocks);
    /* Both strips of one block of 256 rows, with the gaps between strips: some 400 KB, half of a second-level cache. */
    const int64_t strips = (mc + mr + nc * nr) * 256 + (10 + 1 + nc) * 16 + 256;
    hs_parallel(c, c->ops->matmul_tn, &g, g.row_blocks * g.col_blocks, 1, (size_t)strips);
}

void hs_linear(hs_ctx *c, uintptr_t y, uintptr_t x, uintptr_t panels, int64_t T, int64_t out, int64_t in) {
    hs_matmul(c, HS_F(y), HS_CF(x), HS_CF(panels), T, out, in, 0);
}

void hs_linear_bwd_input(hs_ctx *c, uintptr_t dx, uintptr_t dy, uintptr_t master, int64_t T, int64_t out, int64_t in,
                         int add) {
    const float *panels = T > 0 ? hs_pack_n(c, HS_CF(master), out, in) : NULL;
    if (panels != NULL) hs_matmul(c, HS_F(dx), HS_CF(dy), panels, T, in, out, add);
}

void hs_linear_bwd_weight(hs_ctx *c, uintptr_t dw, uintptr_t dy, uintptr_t x, int64_t T, int64_t out, int64_t in) {
    hs_matmul_tn(c, HS_F(dw), HS_CF(dy), HS_CF(x), out, in, T);
}

/* ---------------------------------------------------------------- norms, pointwise */

void hs_rmsnorm(hs_ctx *c, uintptr_t y, uintptr_t rstd, uintptr_t x, uintptr_t w, int64_t T, int64_t H, float eps) {
    hs_rmsnorm_args g = {HS_F(y), HS_F(rstd), HS_CF(x), HS_CF(w), T, H, eps};
    hs_parallel(c, c->ops->rmsnorm, &g, T, hs_grain(H / 2), 0);
}

void hs_rmsnorm_bwd(hs_ctx *c, uintptr_t dx, uintptr_t dw, uintptr_t dy, uintptr_t x, uintptr_t rstd, uintptr_t w,
                    int64_t T, int64_t H) {
    hs_rmsnorm_bwd_args g = {HS_F(dx), HS_F(dw), HS_CF(dy), HS_CF(x), HS_CF(rstd), HS_CF(w), T, H};
    hs_parallel(c, c->ops->rmsnorm_bwd_w, &g, hs_ceil(H, HS_STRIP), hs_grain(T * 8), 0);
    hs_parallel(c, c->ops->rmsnorm_bwd_x, &g, T, hs_grain(H), 0);
}

/* Pointwise ops are claimed in multiples of 4096 words, so that only the last claim has a tail. */
void hs_add(hs_ctx *c, uintptr_t dst, uintptr_t src, int64_t n) {
    hs_map_args g = {.y = HS_F(dst), .a = HS_CF(src)};
    hs_parallel(c, c->ops->add, &g, n, 32768, 0);
}

void hs_swiglu(hs_ctx *c, uintptr_t y, uintptr_t gate, uintptr_t up, int64_t n) {
    hs_map_args g = {.y = HS_F(y), .a = HS_CF(gate), .b = HS_CF(up)};
    hs_parallel(c, c->ops->swiglu, &g, n, 8192, 0);
}

void hs_swiglu_bwd(hs_ctx *c, uintptr_t dgate, uintptr_t dup, uintptr_t dy, uintptr_t gate, uintptr_t up, int64_t n) {
    hs_map_args g = {.y = HS_F(dgate), .y2 = HS_F(dup), .a = HS_CF(gate), .b = HS_CF(up), .dy = HS_CF(dy)};
    hs_parallel(c, c->ops->swiglu_bwd, &g, n, 8192, 0);
}

void hs_vec(hs_ctx *c, int what, uintptr_t y, uintptr_t x, int64_t n) {
    hs_vec_args g = {HS_F(y), HS_CF(x), what};
    hs_parallel(c, c->ops->vec, &g, n, 8192, 0);
}
