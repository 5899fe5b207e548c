/* The flat C ABI of the CPU backend, as Go calls it: addresses are uintptr_t (memory of hs_alloc, never of the
 * Go heap), sizes int64_t in elements. Shapes were checked by the caller. One thread at a time uses a ctx. */
#ifndef HS_CPU_H
#define HS_CPU_H

#include <stddef.h>
#include <stdint.h>

typedef struct hs_ctx hs_ctx;

/* hs_open makes a context with threads >= 1 (the caller counts as one). isa is avx512, avx2, base or NULL for the
 * best one this machine has. On failure *err says why (a constant string) and NULL is returned. */
hs_ctx *hs_open(int threads, const char *isa, const char **err);
void hs_close(hs_ctx *c);
const char *hs_isa(const hs_ctx *c);
/* hs_error returns 0 or the first error since the last call (1 = out of memory) and clears it. */
int hs_error(hs_ctx *c);
/* hs_poison makes every job start with scratch full of NaN (tests). */
void hs_poison(hs_ctx *c, int on);

/* Zeroed, 64-byte aligned; 0 when there is no memory. */
uintptr_t hs_alloc(int64_t bytes);
void hs_free(uintptr_t p);

/* Dense; contracts in backend.go. */
void hs_embed(hs_ctx *c, uintptr_t y, uintptr_t ids, uintptr_t w, int64_t T, int64_t H, int64_t V);
void hs_embed_bwd(hs_ctx *c, uintptr_t dw, uintptr_t dy, uintptr_t ids, int64_t T, int64_t H, int64_t V);
int64_t hs_pack_size(const hs_ctx *c, int64_t out, int64_t in);
void hs_pack(hs_ctx *c, uintptr_t panels, uintptr_t master, int64_t out, int64_t in);
void hs_linear(hs_ctx *c, uintptr_t y, uintptr_t x, uintptr_t panels, int64_t T, int64_t out, int64_t in);
void hs_linear_bwd_input(hs_ctx *c, uintptr_t dx, uintptr_t dy, uintptr_t master, int64_t T, int64_t out, int64_t in,
                         int add);
void hs_linear_bwd_weight(hs_ctx *c, uintptr_t dw, uintptr_t dy, uintptr_t x, int64_t T, int64_t out, int64_t in);
void hs_rmsnorm(hs_ctx *c, uintptr_t y, uintptr_t rstd, uintptr_t x, uintptr_t w, int64_t T, int64_t H, float eps);
void hs_rmsnorm_bwd(hs_ctx *c, uintptr_t dx, uintptr_t dw, uintptr_t dy, uintptr_t x, uintptr_t rstd, uintptr_t w,
                    int64_t T, int64_t H);
void hs_add(hs_ctx *c, uintptr_t dst, uintptr_t src, int64_t n);
void hs_swiglu(hs_ctx *c, uintptr_t y, uintptr_t gate, uintptr_t up, int64_t n);
void hs_swiglu_bwd(hs_ctx *c, uintptr_t dgate, uintptr_t dup, uintptr_t dy, uintptr_t gate, uintptr_t up, int64_t n);

/* y = f(x), n values, f a function of vec.h: for tests. */
enum { HS_VEC_EXP, HS_VEC_LOG, HS_VEC_SIGMOID, HS_VEC_SILU, HS_VEC_SOFTPLUS, HS_VEC_RSQRT };
void hs_vec(hs_ctx *c, int what, uintptr_t y, uintptr_t x, int64_t n);

/* Head. */
void hs_head_fwd(hs_ctx *c, uintptr_t logp, uintptr_t entropy, uintptr_t lse, uintptr_t h, uintptr_t panels,
                 uintptr_t targets, int64_t T, int64_t V, int64_t H, float inv_temp);
void hs_head_bwd(hs_ctx *c, uintptr_t dh, uintptr_t dw, uintptr_t h, uintptr_t panels, uintptr_t master,
                 uintptr_t targets, uintptr_t lse, const float *coef, int64_t T, int64_t V, int64_t H, float inv_temp);

typedef struct {
    float inv_temp; /* 1 for the argmax */
    float top_p;
    int32_t argmax, top_k;
    uint64_t seed, counter;
    int64_t allowed_off, allowed_len; /* in the call's flat list; len -1 = all ids */
} hs_sample_in;

typedef struct {
    int32_t id; /* -1: the logits are not finite, or no id is allowed */
    float logprob, entropy;
} hs_sample_out;

void hs_sample(hs_ctx *c, uintptr_t z, const hs_sample_in *in, const int32_t *allowed, hs_sample_out *out, int64_t N,
               int64_t V);
/* Returns how many were written, k or V if that is less. */
int64_t hs_top_logprobs(hs_ctx *c, uintptr_t z, int64_t k, int64_t V, float inv_temp, int32_t *ids, float *logprobs);

/* Optimizer. step_size = lr / (1-beta1^step), decay = lr * weight_decay, vscale = 1 / sqrt(1-beta2^step). */
void hs_adamw(hs_ctx *c, uintptr_t w, uintptr_t m, uintptr_t v, uintptr_t g, int64_t n, float beta1, float beta2,
              float eps, float step_size, float decay, float vscale, float grad_scale);
double hs_sum_squares(hs_ctx *c, uintptr_t g, int64_t n);
int64_t hs_nonfinite(hs_ctx *c, uintptr_t g, int64_t n);

#endif
