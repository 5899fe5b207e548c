/* Arguments of the dense, head and optimizer workers: what the ops in dense.c, head.c and optim.c hand to the
 * bodies in *.inc.h. */
#ifndef HS_DENSE_H
#define HS_DENSE_H

#include "internal.h"

/* Columns of one item where the items are strips of columns. */
enum { HS_STRIP = 32 };

typedef struct {
    float *y;
    const int32_t *ids;
    const float *w;
    int64_t T, H, V;
} hs_embed_args;

/* C[M,N] = A[M,K] B, B in panels of nr columns: panel j is [K][nr], zero beyond column N. */
typedef struct {
    float *c;
    const float *a, *b;
    int64_t M, N, K;
    int64_t row_blocks, col_blocks; /* items: row_blocks * col_blocks tasks */
    int add;                        /* the chain starts at C instead of 0 */
    int copy;                       /* copy blocks of A into scratch first (its row stride is unkind to the cache) */
} hs_matmul_args;

/* C[M,N] += Aᵀ B with A [K,M], B [K,N], all row-major. */
typedef struct {
    float *c;
    const float *a, *b;
    int64_t M, N, K;
    int64_t row_blocks, col_blocks;
} hs_matmul_tn_args;

/* Panels of W [rows, cols] for hs_matmul_args: pack_t puts rows of W along a panel's columns (B = Wᵀ), pack_n
 * puts columns there (B = W). Items are panels. */
typedef struct {
    float *panels;
    const float *w;
    int64_t rows, cols;
} hs_pack_args;

typedef struct {
    float *y, *rstd;
    const float *x, *w;
    int64_t T, H;
    float eps;
} hs_rmsnorm_args;

typedef struct {
    float *dx, *dw;
    const float *dy, *x, *rstd, *w;
    int64_t T, H;
} hs_rmsnorm_bwd_args;

typedef struct {
    float *y, *y2;
    const float *a, *b, *dy;
} hs_map_args;

typedef struct {
    float *y;
    const float *x;
    int what;
} hs_vec_args;

/* Rows z [n,V] of logits become statistics of row index[i] (head forward) or gradients in place (backward). */
typedef struct {
    float *z;
    const int32_t *index, *targets;
    float *logp, *entropy, *lse;
    const float *coef;
    int64_t V;
    float inv_temp;
} hs_rows_args;

/* dst[i] = src[index[i]] (gather) or dst[index[i]] = src[i] (scatter), rows of H floats. */
typedef struct {
    float *dst;
    const float *src;
    const int32_t *index;
    int64_t H;
} hs_gather_args;

typedef struct {
    const float *z;
    const hs_sample_in *in;
    const int32_t *allowed;
    hs_sample_out *out;
    int64_t V;
} hs_sample_args;

typedef struct {
    const float *z;
    int32_t *ids;
    float *logprobs;
    int64_t k, V;
    float inv_temp;
} hs_top_args;

typedef struct {
    float *w, *m, *v;
    const float *g;
    float beta1, beta2, eps, step_size, decay, vscale, grad_scale;
} hs_adamw_args;

/* Items are blocks of HS_BLOCK words; out has one double or count a block. */
enum { HS_BLOCK = 4096 };
typedef struct {
    const float *g;
    double *sums;
    int64_t *counts;
    int64_t n;
} hs_reduce_args;

#endif
