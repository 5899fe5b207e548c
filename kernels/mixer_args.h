/* Arguments of the token-mixing workers, shared by mixer.c, which fills them, and the *.inc.h bodies. */
#ifndef HS_MIXER_ARGS_H
#define HS_MIXER_ARGS_H

#include <stdint.h>

enum { HS_C = 64 };        /* chunk of the delta rule and tokens of a KV page (ChunkLen of the Go side) */
enum { HS_SUM_ROWS = 256 }; /* rows of one partial sum of a weight gradient: fixed, so that threads change no bit */
enum { HS_CONV_MAX = 16 };    /* widest convolution (maxConv of the Go side) */
enum { HS_CONV_TILE = 4 };    /* its backward pass: tokens at a time */
enum { HS_CONV_LANES = 64 };  /* and channels of an item */

/* hs_up16 rounds a row length up to whole vectors of any ISA. */
static inline int64_t hs_up16(int64_t n) { return (n + 15) & ~(int64_t)15; }

/* One chunk of at most HS_C tokens of a packed row. */
typedef struct {
    int32_t t0;  /* first token in the batch */
    int32_t n;   /* tokens, 1..HS_C */
    int32_t row; /* which row */
    int32_t idx; /* number of the chunk in its row */
} hs_chunk;

/* The new tokens of one cached sequence; kernels.Span with 64-bit fields. */
typedef struct {
    int64_t row, len, pos;
} hs_span;

typedef struct {
    float *y;
    const float *x, *w; /* w [Ch,K] */
    const float *wt;    /* [K,Ch] */
    const int32_t *cu;
    int64_t rows, ch, k;
    /* backward */
    float *dx, *dw;
    const float *dy;
    /* inference: item i is token i - first[s] of span s */
    const hs_span *spans;
    const int64_t *first; /* [spans+1] */
    const uintptr_t *states;
    int64_t nspans;
} hs_conv_args;

typedef struct {
    float *g, *beta;
    const float *a, *b;
    const float *decay, *bias; /* -exp(aLog) and dtBias, repeated to Hv+VW entries */
    int64_t T, hv;
    /* backward */
    float *da, *db, *part; /* part [blocks, 2, Hv]: sums of dg·g, da */
    const float *dg, *dbeta;
} hs_gates_args;

typedef struct {
    int64_t hk, hv, dk, dv, ch;
} hs_gdn_shape;

typedef struct {
    hs_gdn_shape s;
    float *o;
    const float *qkv, *g, *beta;
    const int32_t *cu;
    const int64_t *chunk0; /* [rows] number of the row's first chunk in saved */
    float *err;            /* saved: prediction errors e [T,Hv,Dv], or NULL */
    float *start;          /* saved: S at chunk starts [chunks,Hv,Dk,Dv], or NULL */
    /* backward */
    float *dqkv, *dg, *dbeta;
    const float *dout;
    /* inference */
    const hs_span *spans;
    const uintptr_t *states;
} hs_gdn_args;

typedef struct {
    float *y;
    const float *x, *z, *w;
    int64_t N, D;
    float eps;
    float *dx, *dz, *part; /* part [blocks, D] */
    const float *dy;
} hs_gnorm_args;

typedef struct {
    float *qout, *kout;
    const float *qg, *k, *wq, *wk;
    const int32_t *pos;
    const double *freq; /* [Rotary/2] */
    int64_t T, hq, hk, D, rotary;
    float eps;
    float *dqg, *dk, *part; /* part [blocks, 2, D]: dwq, dwk */
    const float *dqout, *dkout;
} hs_rope_args;

typedef struct {
    float *o, *lse;
    const float *q, *k, *v;
    int64_t hq, hk, D;
    float scale;
    const hs_chunk *chunks;
    int64_t nchunks;
    float *kt, *vt; /* [chunks,Hk,D,HS_C] */
    /* backward */
    float *dq, *dk, *dv, *delta; /* delta [T,Hq] */
    const float *dout;
    int64_t T;
    /* inference: chunks[i].row is the span, chunks[i].t0 the batch token, idx the absolute position */
    const hs_span *spans;
    const int64_t *page0;   /* [spans] first entry in pages */
    const uintptr_t *pages;
} hs_attn_args;

typedef struct {
    float *y, *dout, *dqg;
    const float *o, *qg, *dy;
    int64_t T, hq, D;
} hs_ogate_args;

#endif
