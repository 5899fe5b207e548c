/* What the C files of the CPU backend share: the context, the pool, the table of workers.
 *
 * An op is a C function (dense.c, ...) that fills a struct of arguments and calls hs_parallel with a worker of
 * the ISA's table: hs_parallel(c, c->ops->rmsnorm, &args, T, grain, scratch). Workers live in *.inc.h, which
 * isa_avx512.c, isa_avx2.c and isa_base.c each compile once (see isa_body.h).
 */
#ifndef HS_INTERNAL_H
#define HS_INTERNAL_H

#include <stdatomic.h>
#include <stdint.h>
#include <stddef.h>

#include "cpu.h"

/* A worker does items lo..hi-1 of a job. Items may be split in any way over calls and threads: the outputs must not
 * depend on it. scratch is this thread's own, 64-byte aligned, as large as hs_parallel was told. */
typedef void (*hs_fn)(const void *args, int64_t lo, int64_t hi, int tid, float *scratch);

typedef struct hs_table {
    const char *isa;
    int vw; /* floats in a vector */
    int mr; /* rows of a GEMM tile */
    int nr; /* columns of a GEMM tile = of a packed panel */
#define HS_OP(name) hs_fn name;
#include "table_dense.def"
#include "table_mixer.def"
#undef HS_OP
} hs_table;

extern const hs_table hs_table_base;
#if defined(__x86_64__)
extern const hs_table hs_table_avx2, hs_table_avx512;
#endif

enum { HS_SLOTS = 4 };
typedef struct hs_pool hs_pool;

struct hs_ctx {
    const hs_table *ops;
    int threads;
    int poison;
    int err; /* sticky, 1 = out of memory */
    hs_pool *pool; /* NULL with one thread */
    float **scratch; /* [threads] */
    size_t *scratch_cap; /* floats */
    float *slot[HS_SLOTS];
    size_t slot_cap[HS_SLOTS];
};

/* hs_parallel runs fn over items 0..n-1 in claims of grain items on all threads, the caller included, and returns
 * when all are done. When n <= grain, or there is one thread, it is a plain call fn(args, 0, n, 0, scratch).
 * scratch_floats may be 0. Without memory for the scratch it records the error and runs nothing. */
void hs_parallel(hs_ctx *c, hs_fn fn, const void *args, int64_t n, int64_t grain, size_t scratch_floats);

/* hs_slot is work space shared by all threads, kept between calls (contents are not): slots 0 and 1 belong to the
 * GEMMs, 2 to other dense ops, 3 to the mixer ops. NULL (and the error recorded) without memory. */
float *hs_slot(hs_ctx *c, int slot, size_t floats);

static inline int64_t hs_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t hs_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t hs_ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* hs_grain is how many items of a given cost (in elementary operations) make a claim worth a thread's while. */
static inline int64_t hs_grain(int64_t cost) { return hs_max(1, 16384 / hs_max(1, cost)); }

#define HS_F(p) ((float *)(p))
#define HS_CF(p) ((const float *)(p))
#define HS_CI(p) ((const int32_t *)(p))

#endif
