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

#endif
