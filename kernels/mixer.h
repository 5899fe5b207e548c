/* C ABI of the token-mixing and inference ops; conventions of cpu.h. What each op computes, and the shapes, stand in
 * backend.go. cu is [rows+1]; spans are triples row, len, pos. */
#ifndef HS_MIXER_H
#define HS_MIXER_H

#include "cpu.h"

void hs_conv(hs_ctx *c, uintptr_t y, uintptr_t x, uintptr_t w, const int32_t *cu, int64_t rows, int64_t ch, int64_t k);
void hs_conv_backward(hs_ctx *c, uintptr_t dx, uintptr_t dw, uintptr_t dy, uintptr_t x, uintptr_t w, const int32_t *cu,
                      int64_t rows, int64_t ch, int64_t k);
void hs_conv_extend(hs_ctx *c, uintptr_t y, uintptr_t x, uintptr_t w, const uintptr_t *states, const int64_t *spans,
                    int64_t nspans, int64_t ch, int64_t k);

void hs_gates(hs_ctx *c, uintptr_t g, uintptr_t beta, uintptr_t a, uintptr_t b, uintptr_t alog, uintptr_t dtbias,
              int64_t T, int64_t hv);
void hs_gates_backward(hs_ctx *c, uintptr_t da, uintptr_t db, uintptr_t dalog, uintptr_t ddtbias, uintptr_t dg,
                       uintptr_t dbeta, uintptr_t a, uintptr_t b, uintptr_t alog, uintptr_t dtbias, int64_t T, int64_t hv);

/* saved: e [T,Hv,Dv], then S at the chunk starts [chunks,Hv,Dk,Dv]; 0 for none. */
void hs_gdn(hs_ctx *c, uintptr_t o, uintptr_t saved, uintptr_t qkv, uintptr_t g, uintptr_t beta, const int32_t *cu,
            int64_t rows, int64_t hk, int64_t hv, int64_t dk, int64_t dv);
void hs_gdn_backward(hs_ctx *c, uintptr_t dqkv, uintptr_t dg, uintptr_t dbeta, uintptr_t dout, uintptr_t saved,
                     uintptr_t qkv, uintptr_t g, uintptr_t beta, const int32_t *cu, int64_t rows, int64_t hk, int64_t hv,
                     int64_t dk, int64_t dv);
/* State: S [Hv,Dk,Dv] | G [Hv,2,64] | normalised keys [Hk,Dk,64] | u [Hv,64,Dv]. */
void hs_gdn_extend(hs_ctx *c, uintptr_t o, uintptr_t qkv, uintptr_t g, uintptr_t beta, const uintptr_t *states,
                   const int64_t *spans, int64_t nspans, int64_t hk, int64_t hv, int64_t dk, int64_t dv);

void hs_gnorm(hs_ctx *c, uintptr_t y, uintptr_t x, uintptr_t z, uintptr_t w, int64_t N, int64_t D, float eps);
void hs_gnorm_backward(hs_ctx *c, uintptr_t dx, uintptr_t dz, uintptr_t dw, uintptr_t dy, uintptr_t x, uintptr_t z,
                       uintptr_t w, int64_t N, int64_t D, float eps);

void hs_rope(hs_ctx *c, uintptr_t qout, uintptr_t kout, uintptr_t qg, uintptr_t k, uintptr_t wq, uintptr_t wk,
             uintptr_t pos, int64_t T, int64_t hq, int64_t hk, int64_t D, int64_t rotary, double theta, float eps);
void hs_rope_backward(hs_ctx *c, uintptr_t dqg, uintptr_t dk, uintptr_t dwq, uintptr_t dwk, uintptr_t dqout,
                      uintptr_t dkout, uintptr_t qg, uintptr_t k, uintptr_t wq, uintptr_t wk, uintptr_t pos, int64_t T,
                      int64_t hq, int64_t hk, int64_t D, int64_t rotary, double theta, float eps);

void hs_attn(hs_ctx *c, uintptr_t o, uintptr_t lse, uintptr_t q, uintptr_t k, uintptr_t v, const int32_t *cu,
             int64_t rows, int64_t hq, int64_t hk, int64_t D);
void hs_attn_backward(hs_ctx *c, uintptr_t dq, uintptr_t dk, uintptr_t dv, uintptr_t dout, uintptr_t o, uintptr_t lse,
                      uintptr_t q, uintptr_t k, uintptr_t v, const int32_t *cu, int64_t rows, int64_t hq, int64_t hk,
                      int64_t D);
/* Page: keys [Hk,D,64] | values [Hk,64,D]. page0[i] is span i's first entry in pages. */
void hs_attn_extend(hs_ctx *c, uintptr_t o, uintptr_t q, uintptr_t k, uintptr_t v, const uintptr_t *pages,
                    const int64_t *page0, const int64_t *spans, int64_t nspans, int64_t hq, int64_t hk, int64_t D);

void hs_ogate(hs_ctx *c, uintptr_t y, uintptr_t o, uintptr_t qg, int64_t T, int64_t hq, int64_t D);
void hs_ogate_backward(hs_ctx *c, uintptr_t dout, uintptr_t dqg, uintptr_t dy, uintptr_t o, uintptr_t qg, int64_t T,
                       int64_t hq, int64_t D);

#endif
