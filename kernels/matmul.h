/* Products as other ops use them. */
#ifndef HS_MATMUL_H
#define HS_MATMUL_H

#include "dense.h"

/* hs_matmul: out [M,N] = a [M,K] times panels (the chains start at out when add). */
void hs_matmul(hs_ctx *c, float *out, const float *a, const float *panels, int64_t M, int64_t N, int64_t K, int add);
/* hs_matmul_tn: out [M,N] += aᵀ b, a [K,M], b [K,N]. */
void hs_matmul_tn(hs_ctx *c, float *out, const float *a, const float *b, int64_t M, int64_t N, int64_t K);
/* hs_pack_n: panels of w [rows,cols] with columns along the panel, in slot 0; NULL without memory. */
float *hs_pack_n(hs_ctx *c, const float *w, int64_t rows, int64_t cols);

#endif
