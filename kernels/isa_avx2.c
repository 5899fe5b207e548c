/* The workers for AVX2. */
#define _GNU_SOURCE
#if defined(__x86_64__)
#include <immintrin.h>
#include <math.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#define HS_VEC_AVX2 1
#define HS_ISA_NAME "avx2"
#define HS_TABLE hs_table_avx2
#define FN(name) hs_avx2_##name
#include "isa_body.h"
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
