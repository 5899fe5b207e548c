/* Own matrix products against OpenBLAS's sgemm, one thread, found at run time (skipped where it is missing).
 *
 *   cd kernels && gcc -std=c11 -O3 -Wno-psabi -o /tmp/sgemm_bench testdata/sgemm_bench.c *.c -I. -lm -lpthread -ldl
 *   OPENBLAS_NUM_THREADS=1 [OPENBLAS_CORETYPE=SkylakeX] /tmp/sgemm_bench [isa] [rounds]
 *
 * Prints GFLOP/s of both (best of the rounds, taken in turns) and the ratio, for Linear, its input gradient and its
 * weight gradient.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "cpu.h"

typedef void (*sgemm_fn)(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                         int ldb, float beta, float *c, int ldc);
enum { ROW = 101, NO = 111, YES = 112 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* fair when other work shares the core */
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static sgemm_fn find_sgemm(void) {
    void *lib = dlopen("libopenblas.so.0", RTLD_NOW);
    if (lib == NULL) lib = dlopen("libopenblas.so", RTLD_NOW);
    sgemm_fn f = NULL;
    if (lib != NULL) *(void **)&f = dlsym(lib, "cblas_sgemm");
    return f;
}

typedef struct {
    hs_ctx *c;
    uintptr_t x, w, panels, y, dw;
    int64_t T, out, in;
    sgemm_fn blas;
} problem;

static void own(const problem *p, int what) {
    if (what == 0) hs_linear(p->c, p->y, p->x, p->panels, p->T, p->out, p->in);
    if (what == 1) hs_linear_bwd_input(p->c, p->x, p->y, p->w, p->T, p->out, p->in, 0);
    if (what == 2) hs_linear_bwd_weight(p->c, p->dw, p->y, p->x, p->T, p->out, p->in);
}

static void theirs(const problem *p, int what) {
    float *x = (float *)p->x, *w = (float *)p->w, *y = (float *)p->y, *dw = (float *)p->dw;
    int T = (int)p->T, out = (int)p->out, in = (int)p->in;
    if (what == 0) p->blas(ROW, NO, YES, T, out, in, 1, x, in, w, in, 0, y, out);
    if (what == 1) p->blas(ROW, NO, NO, T, in, out, 1, y, out, w, in, 0, x, in);
    if (what == 2) p->blas(ROW, YES, NO, out, in, T, 1, y, out, x, in, 1, dw, in);
}

static double seconds(void (*f)(const problem *, int), const problem *p, int what, int times) {
    double t0 = now();
    for (int i = 0; i < times; i++) f(p, what);
    return (now() - t0) / times;
}

static void fill(uintptr_t p, int64_t n) {
    for (int64_t i = 0; i < n; i++) ((float *)p)[i] = (float)rand() / (float)RAND_MAX - 0.5f;
}

static void measure(hs_ctx *c, sgemm_fn blas, int64_t T, int64_t out, int64_t in, int rounds) {
    static const char *names[] = {"y", "dx", "dw"};
    problem p = {.c = c, .T = T, .out = out, .in = in, .blas = blas};
    p.x = hs_alloc(4 * T * in), p.w = hs_alloc(4 * out * in), p.y = hs_alloc(4 * T * out), p.dw = hs_alloc(4 * out * in);
    p.panels = hs_alloc(4 * hs_pack_size(c, out, in));
    fill(p.w, out * in);
    hs_pack(c, p.panels, p.w, out, in);
    const double flop = 2.0 * (double)T * (double)out * (double)in;
    const int times = flop > 4e8 ? 1 : (int)(4e8 / flop);
    for (int what = 0; what < 3; what++) {
        double best[2] = {1e9, 1e9};
        fill(p.x, T * in), fill(p.y, T * out), fill(p.dw, out * in);
        for (int r = 0; r < rounds; r++) {
            double s = seconds(own, &p, what, times);
            best[0] = s < best[0] ? s : best[0];
            s = blas != NULL ? seconds(theirs, &p, what, times) : 0;
            best[1] = s < best[1] ? s : best[1];
        }
        printf("T=%-5ld out=%-5ld in=%-5ld %-3s own %7.1f", (long)T, (long)out, (long)in, names[what], flop / best[0] * 1e-9);
        if (blas != NULL) printf("  openblas %7.1f  ratio %.2f", flop / best[1] * 1e-9, best[1] / best[0]);
        printf("\n");
    }
    hs_free(p.x), hs_free(p.w), hs_free(p.y), hs_free(p.dw), hs_free(p.panels);
}

int main(int argc, char **argv) {
    const char *err = "";
    hs_ctx *c = hs_open(1, argc > 1 ? argv[1] : "", &err);
    if (c == NULL) return fprintf(stderr, "%s\n", err), 1;
    const int rounds = argc > 2 ? atoi(argv[2]) : 5;
    sgemm_fn blas = find_sgemm();
    printf("%s, one thread%s\n", hs_isa(c), blas == NULL ? "; OpenBLAS not found" : "");
    static const int64_t shapes[][3] = {
        {4096, 128, 128}, {4096, 384, 128}, {4096, 128, 384}, {4096, 512, 128}, {4096, 1024, 128}, {1024, 1024, 1024},
        {64, 384, 128}, {64, 1024, 128}, {64, 1024, 1024}, {16, 384, 128}, {4, 1024, 128}, {1, 384, 128}, {1, 1024, 1024},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) measure(c, blas, shapes[i][0], shapes[i][1], shapes[i][2], rounds);
    hs_close(c);
    return 0;
}
