/* Context, memory and thread pool of the CPU backend. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "internal.h"

#if defined(__x86_64__)
#define HS_PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define HS_PAUSE() __asm__ volatile("yield")
#else
#define HS_PAUSE() ((void)0)
#endif

/* ---------------------------------------------------------------- pool
 *
 * One word says all: generation (high 32 bits), OPEN, and how many workers are inside the current job. A worker joins
 * an open job it has not joined before by compare-and-swap; the caller closes the job when nothing is left to claim
 * and waits for those inside. So a worker that sleeps through a short job costs nothing, and the job's fields are
 * written only while nobody is inside.
 */
#define HS_OPEN ((uint64_t)1 << 31)
#define HS_INSIDE(w) ((w) & (HS_OPEN - 1))
#define HS_GEN(w) ((w) >> 32)
enum { HS_SPINS = 10000 }; /* some hundred microseconds, then sleep */

typedef struct {
    hs_pool *pool;
    pthread_t thread;
    int tid;
} hs_worker;

struct hs_pool {
    _Alignas(64) _Atomic uint64_t word;
    _Alignas(64) _Atomic int64_t next;
    _Alignas(64) atomic_int asleep;
    atomic_int waiting; /* the caller sleeps until the workers are out */
    atomic_int stop;
    hs_fn fn;
    const void *args;
    int64_t n, grain;
    hs_ctx *ctx;
    hs_worker *workers;
    int count;
    pthread_mutex_t mu;
    pthread_cond_t wake, done;
};

static void hs_claim(hs_pool *p, int tid) {
    for (;;) {
        int64_t lo = atomic_fetch_add_explicit(&p->next, p->grain, memory_order_relaxed);
        if (lo >= p->n) return;
        p->fn(p->args, lo, hs_min(lo + p->grain, p->n), tid, p->ctx->scratch[tid]);
    }
}

static int hs_joinable(hs_pool *p, uint64_t seen) {
    uint64_t w = atomic_load(&p->word);
    return ((w & HS_OPEN) && HS_GEN(w) != seen) || atomic_load(&p->stop);
}

static void hs_sleep(hs_pool *p, uint64_t seen) {
    for (int i = 0; i < HS_SPINS; i++) {
        if (hs_joinable(p, seen)) return;
        HS_PAUSE();
    }
    pthread_mutex_lock(&p->mu);
    atomic_fetch_add(&p->asleep, 1);
    while (!hs_joinable(p, seen)) pthread_cond_wait(&p->wake, &p->mu);
    atomic_fetch_sub(&p->asleep, 1);
    pthread_mutex_unlock(&p->mu);
}

static void *hs_main(void *arg) {
    hs_worker *me = arg;
    hs_pool *p = me->pool;
    uint64_t seen = 0;
    for (;;) {
        hs_sleep(p, seen);
        if (atomic_load(&p->stop)) return NULL;
        uint64_t w = atomic_load(&p->word);
        while ((w & HS_OPEN) && HS_GEN(w) != seen) {
            if (!atomic_compare_exchange_weak(&p->word, &w, w + 1)) continue;
            seen = HS_GEN(w);
            hs_claim(p, me->tid);
            uint64_t left = atomic_fetch_sub(&p->word, 1) - 1;
            if (!(left & HS_OPEN) && HS_INSIDE(left) == 0 && atomic_load(&p->waiting)) {
                pthread_mutex_lock(&p->mu);
                pthread_cond_signal(&p->done);
                pthread_mutex_unlock(&p->mu);
            }
            break;
        }
    }
}

/* hs_finish closes the job and waits for the workers inside. */
static void hs_finish(hs_pool *p) {
    uint64_t w = atomic_fetch_and(&p->word, ~HS_OPEN) & ~HS_OPEN;
    for (int i = 0; HS_INSIDE(w) != 0 && i < 16 * HS_SPINS; i++) {
        HS_PAUSE();
        w = atomic_load(&p->word);
    }
    if (HS_INSIDE(w) == 0) return;
    pthread_mutex_lock(&p->mu);
    atomic_store(&p->waiting, 1);
    while (HS_INSIDE(atomic_load(&p->word)) != 0) pthread_cond_wait(&p->done, &p->mu);
    atomic_store(&p->waiting, 0);
    pthread_mutex_unlock(&p->mu);
}

static void hs_run(hs_pool *p, hs_fn fn, const void *args, int64_t n, int64_t grain) {
    p->fn = fn;
    p->args = args;
    p->n = n;
    p->grain = grain;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    uint64_t gen = HS_GEN(atomic_load(&p->word)) + 1;
    atomic_store(&p->word, (gen & 0xffffffffu) << 32 | HS_OPEN);
    if (atomic_load(&p->asleep) > 0) {
        pthread_mutex_lock(&p->mu);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->mu);
    }
    hs_claim(p, 0);
    hs_finish(p);
}

static void hs_pool_stop(hs_pool *p) {
    pthread_mutex_lock(&p->mu);
    atomic_store(&p->stop, 1);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->mu);
    for (int i = 0; i < p->count; i++) pthread_join(p->workers[i].thread, NULL);
    pthread_mutex_destroy(&p->mu);
    pthread_cond_destroy(&p->wake);
    pthread_cond_destroy(&p->done);
    free(p->workers);
    free(p);
}

static hs_pool *hs_pool_start(hs_ctx *c) {
    void *mem = NULL;
    if (posix_memalign(&mem, 64, sizeof(hs_pool)) != 0) return NULL;
    hs_pool *p = mem;
    memset(p, 0, sizeof *p);
    p->ctx = c;
    p->workers = calloc((size_t)c->threads, sizeof *p->workers);
    if (p->workers == NULL) {
        free(p);
        return NULL;
    }
    pthread_mutex_init(&p->mu, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->done, NULL);
    for (int i = 0; i < c->threads - 1; i++) {
        p->workers[i] = (hs_worker){.pool = p, .tid = i + 1};
        if (pthread_create(&p->workers[i].thread, NULL, hs_main, &p->workers[i]) != 0) {
            hs_pool_stop(p);
            return NULL;
        }
        p->count++;
    }
    return p;
}

/* ---------------------------------------------------------------- memory */

/* hs_grow makes *buf at least floats large; the contents are lost. */
static int hs_grow(float **buf, size_t *cap, size_t floats) {
    if (floats <= *cap) return 1;
    void *mem = NULL;
    size_t want = (floats + 1023) / 1024 * 1024;
    free(*buf);
    *buf = NULL;
    *cap = 0;
    if (posix_memalign(&mem, 64, want * sizeof(float)) != 0) return 0;
    *buf = mem;
    *cap = want;
    return 1;
}

float *hs_slot(hs_ctx *c, int slot, size_t floats) {
    if (!hs_grow(&c->slot[slot], &c->slot_cap[slot], floats + 16)) {
        c->err = 1;
        return NULL;
    }
    if (c->poison) memset(c->slot[slot], 0xff, c->slot_cap[slot] * sizeof(float));
    return c->slot[slot];
}

/* hs_even makes few claims even, so that no thread waits for another's last one: their number becomes a multiple of the
 * threads. Large claims keep to whole vectors. */
static int64_t hs_even(int64_t n, int64_t grain, int64_t threads) {
    const int64_t claims = hs_ceil(n, grain);
    if (claims > 4 * threads) return grain;
    const int64_t even = hs_ceil(n, hs_ceil(claims, threads) * threads);
    return even < 1024 ? even : hs_ceil(even, 64) * 64;
}

void hs_parallel(hs_ctx *c, hs_fn fn, const void *args, int64_t n, int64_t grain, size_t scratch_floats) {
    if (n <= 0) return;
    if (grain < 1) grain = 1;
    if (n > grain) grain = hs_even(n, grain, c->threads);
    int alone = c->pool == NULL || n <= grain;
    for (int i = 0; i < (alone ? 1 : c->threads); i++) {
        if (!hs_grow(&c->scratch[i], &c->scratch_cap[i], scratch_floats)) {
            c->err = 1;
            return;
        }
        if (c->poison && c->scratch_cap[i] > 0) memset(c->scratch[i], 0xff, c->scratch_cap[i] * sizeof(float));
    }
    if (alone)
        fn(args, 0, n, 0, c->scratch[0]);
    else
        hs_run(c->pool, fn, args, n, grain);
}

/* Large blocks (weights, caches) are asked for in huge pages: a decoding step walks through all of them. */
enum { HS_HUGE = 1 << 21 };

uintptr_t hs_alloc(int64_t bytes) {
    void *mem = NULL;
    const size_t align = bytes >= 2 * HS_HUGE ? HS_HUGE : 64;
    if (bytes < 0 || bytes > (int64_t)1 << 46 || posix_memalign(&mem, align, (size_t)bytes + 64) != 0) return 0;
#if defined(MADV_HUGEPAGE)
    if (align == HS_HUGE) madvise(mem, (size_t)bytes / HS_HUGE * HS_HUGE, MADV_HUGEPAGE); /* a wish: may fail */
#endif
    memset(mem, 0, (size_t)bytes);
    return (uintptr_t)mem;
}

void hs_free(uintptr_t p) { free((void *)p); }

/* ---------------------------------------------------------------- context */

static const hs_table *hs_pick(const char *isa, const char **err) {
    int any = isa == NULL || *isa == 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    int has2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    int has512 = has2 && __builtin_cpu_supports("avx512f");
    if (has512 && (any || strcmp(isa, "avx512") == 0)) return &hs_table_avx512;
    if (has2 && (any || strcmp(isa, "avx2") == 0)) return &hs_table_avx2;
#endif
    if (any || strcmp(isa, "base") == 0) return &hs_table_base;
    *err = strcmp(isa, "avx512") == 0 || strcmp(isa, "avx2") == 0 ? "this machine does not have the instruction set asked for"
                                                                 : "unknown instruction set (want avx512, avx2 or base)";
    return NULL;
}

hs_ctx *hs_open(int threads, const char *isa, const char **err) {
    const hs_table *ops = hs_pick(isa, err);
    if (ops == NULL) return NULL;
    hs_ctx *c = calloc(1, sizeof *c);
    if (c != NULL) {
        c->ops = ops;
        c->threads = threads;
        c->scratch = calloc((size_t)threads, sizeof *c->scratch);
        c->scratch_cap = calloc((size_t)threads, sizeof *c->scratch_cap);
        if (c->scratch != NULL && c->scratch_cap != NULL) {
            if (threads == 1) return c;
            c->pool = hs_pool_start(c);
            if (c->pool != NULL) return c;
        }
        hs_close(c);
    }
    *err = "could not start the threads (out of memory or of threads)";
    return NULL;
}

void hs_close(hs_ctx *c) {
    if (c->pool != NULL) hs_pool_stop(c->pool);
    for (int i = 0; c->scratch != NULL && i < c->threads; i++) free(c->scratch[i]);
    for (int i = 0; i < HS_SLOTS; i++) free(c->slot[i]);
    free(c->scratch);
    free(c->scratch_cap);
    free(c);
}

const char *hs_isa(const hs_ctx *c) { return c->ops->isa; }

int hs_error(hs_ctx *c) {
    int e = c->err;
    c->err = 0;
    return e;
}

void hs_poison(hs_ctx *c, int on) { c->poison = on; }
