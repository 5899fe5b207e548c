/* SIMD layer: one vector type V of VW floats in three variants, chosen by the file that includes this:
 *   HS_VEC_AVX512  16 lanes, AVX-512F
 *   HS_VEC_AVX2     8 lanes, AVX2 + FMA
 *   (neither)       8 lanes, GCC vector extensions; any machine
 *
 * Arithmetic is what is written: one rounding per call, fused only in v_fma and v_fnma (on a base machine
 * without FMA these round twice; bits are compared within one ISA only). v_max and v_min return the second
 * operand when either is NaN, on every variant. v_loadn and v_storen touch the first n lanes only (all from n = VW on;
 * a branch, because masked stores are slow on some machines). Transcendentals are own polynomials, so a scalar tail (one
 * lane of the same code: s_exp, s_log, ...) has the bits of the vector body.
 */
#ifndef HS_VEC_H
#define HS_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define HS_INLINE static inline __attribute__((always_inline, unused))

#if defined(HS_VEC_AVX512)
/* ------------------------------------------------------------------ AVX-512F */
#include <immintrin.h>
#define VW 16
typedef __m512 V;
typedef __m512i VI;
typedef __mmask16 VM;

HS_INLINE V v_load(const float *p) { return _mm512_loadu_ps(p); }
HS_INLINE void v_store(float *p, V a) { _mm512_storeu_ps(p, a); }
HS_INLINE VM v_tailmask(int64_t n) { return n >= VW ? (VM)0xFFFF : (VM)((1u << (n > 0 ? n : 0)) - 1u); }
HS_INLINE V v_loadn(const float *p, int64_t n) {
    return n >= VW ? v_load(p) : _mm512_maskz_loadu_ps(v_tailmask(n), p);
}
HS_INLINE void v_storen(float *p, V a, int64_t n) {
    if (n >= VW)
        v_store(p, a);
    else
        _mm512_mask_storeu_ps(p, v_tailmask(n), a);
}
HS_INLINE V v_set1(float x) { return _mm512_set1_ps(x); }
HS_INLINE V v_zero(void) { return _mm512_setzero_ps(); }
HS_INLINE V v_add(V a, V b) { return _mm512_add_ps(a, b); }
HS_INLINE V v_sub(V a, V b) { return _mm512_sub_ps(a, b); }
HS_INLINE V v_mul(V a, V b) { return _mm512_mul_ps(a, b); }
HS_INLINE V v_div(V a, V b) { return _mm512_div_ps(a, b); }
HS_INLINE V v_max(V a, V b) { return _mm512_max_ps(a, b); }
HS_INLINE V v_min(V a, V b) { return _mm512_min_ps(a, b); }
HS_INLINE V v_sqrt(V a) { return _mm512_sqrt_ps(a); }
HS_INLINE V v_fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
HS_INLINE V v_fnma(V a, V b, V c) { return _mm512_fnmadd_ps(a, b, c); }
HS_INLINE float v_first(V a) { return _mm512_cvtss_f32(a); }
/* Masks and integers. */
HS_INLINE VM v_lt(V a, V b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
HS_INLINE VM v_eq(V a, V b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
HS_INLINE V v_sel(VM m, V yes, V no) { return _mm512_mask_blend_ps(m, no, yes); }
HS_INLINE VI v_bits(V a) { return _mm512_castps_si512(a); }
HS_INLINE V v_frombits(VI a) { return _mm512_castsi512_ps(a); }
HS_INLINE VI vi_set1(int32_t x) { return _mm512_set1_epi32(x); }
HS_INLINE VI vi_add(VI a, VI b) { return _mm512_add_epi32(a, b); }
HS_INLINE VI vi_sub(VI a, VI b) { return _mm512_sub_epi32(a, b); }
HS_INLINE VI vi_and(VI a, VI b) { return _mm512_and_si512(a, b); }
HS_INLINE VI vi_or(VI a, VI b) { return _mm512_or_si512(a, b); }
#define vi_sll(a, k) _mm512_slli_epi32(a, k)
#define vi_srl(a, k) _mm512_srli_epi32(a, k)
#define vi_sra(a, k) _mm512_srai_epi32(a, k)
HS_INLINE VI v_toint(V a) { return _mm512_cvtps_epi32(a); } /* to nearest */
HS_INLINE V v_tofloat(VI a) { return _mm512_cvtepi32_ps(a); }

HS_INLINE __m256 v_half_(V a, int hi) {
    return _mm256_castpd_ps(hi ? _mm512_extractf64x4_pd(_mm512_castps_pd(a), 1) : _mm512_castpd512_pd256(_mm512_castps_pd(a)));
}
HS_INLINE float v_hsum(V a) {
    __m256 b = _mm256_add_ps(v_half_(a, 0), v_half_(a, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    c = _mm_add_ss(c, _mm_shuffle_ps(c, c, 1));
    return _mm_cvtss_f32(c);
}
HS_INLINE float v_hmax(V a) {
    __m256 b = _mm256_max_ps(v_half_(a, 0), v_half_(a, 1));
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    c = _mm_max_ss(c, _mm_shuffle_ps(c, c, 1));
    return _mm_cvtss_f32(c);
}

#elif defined(HS_VEC_AVX2)
/* ------------------------------------------------------------------ AVX2 + FMA */
#include <immintrin.h>
#define VW 8
typedef __m256 V;
typedef __m256i VI;
typedef __m256 VM;

HS_INLINE __m256i v_tailmask(int64_t n) {
    static const int32_t ramp[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
    int64_t k = n < 0 ? 0 : n > VW ? VW : n;
    return _mm256_loadu_si256((const __m256i *)(ramp + VW - k));
}
HS_INLINE V v_load(const float *p) { return _mm256_loadu_ps(p); }
HS_INLINE void v_store(float *p, V a) { _mm256_storeu_ps(p, a); }
HS_INLINE V v_loadn(const float *p, int64_t n) { return n >= VW ? v_load(p) : _mm256_maskload_ps(p, v_tailmask(n)); }
HS_INLINE void v_storen(float *p, V a, int64_t n) {
    if (n >= VW)
        v_store(p, a);
    else
        _mm256_maskstore_ps(p, v_tailmask(n), a);
}
HS_INLINE V v_set1(float x) { return _mm256_set1_ps(x); }
HS_INLINE V v_zero(void) { return _mm256_setzero_ps(); }
HS_INLINE V v_add(V a, V b) { return _mm256_add_ps(a, b); }
HS_INLINE V v_sub(V a, V b) { return _mm256_sub_ps(a, b); }
HS_INLINE V v_mul(V a, V b) { return _mm256_mul_ps(a, b); }
HS_INLINE V v_div(V a, V b) { return _mm256_div_ps(a, b); }
HS_INLINE V v_max(V a, V b) { return _mm256_max_ps(a, b); }
HS_INLINE V v_min(V a, V b) { return _mm256_min_ps(a, b); }
HS_INLINE V v_sqrt(V a) { return _mm256_sqrt_ps(a); }
HS_INLINE V v_fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
HS_INLINE V v_fnma(V a, V b, V c) { return _mm256_fnmadd_ps(a, b, c); }
HS_INLINE float v_first(V a) { return _mm256_cvtss_f32(a); }
HS_INLINE VM v_lt(V a, V b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
HS_INLINE VM v_eq(V a, V b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
HS_INLINE V v_sel(VM m, V yes, V no) { return _mm256_blendv_ps(no, yes, m); }
HS_INLINE VI v_bits(V a) { return _mm256_castps_si256(a); }
HS_INLINE V v_frombits(VI a) { return _mm256_castsi256_ps(a); }
HS_INLINE VI vi_set1(int32_t x) { return _mm256_set1_epi32(x); }
HS_INLINE VI vi_add(VI a, VI b) { return _mm256_add_epi32(a, b); }
HS_INLINE VI vi_sub(VI a, VI b) { return _mm256_sub_epi32(a, b); }
HS_INLINE VI vi_and(VI a, VI b) { return _mm256_and_si256(a, b); }
HS_INLINE VI vi_or(VI a, VI b) { return _mm256_or_si256(a, b); }
#define vi_sll(a, k) _mm256_slli_epi32(a, k)
#define vi_srl(a, k) _mm256_srli_epi32(a, k)
#define vi_sra(a, k) _mm256_srai_epi32(a, k)
HS_INLINE VI v_toint(V a) { return _mm256_cvtps_epi32(a); }
HS_INLINE V v_tofloat(VI a) { return _mm256_cvtepi32_ps(a); }

HS_INLINE float v_hsum(V a) {
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    c = _mm_add_ss(c, _mm_shuffle_ps(c, c, 1));
    return _mm_cvtss_f32(c);
}
HS_INLINE float v_hmax(V a) {
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    c = _mm_max_ss(c, _mm_shuffle_ps(c, c, 1));
    return _mm_cvtss_f32(c);
}

#else
/* ------------------------------------------------------------------ portable */
#define VW 8
typedef float V __attribute__((vector_size(32)));
typedef int32_t VI __attribute__((vector_size(32)));
typedef VI VM;

HS_INLINE V v_load(const float *p) { V a; memcpy(&a, p, sizeof a); return a; }
HS_INLINE void v_store(float *p, V a) { memcpy(p, &a, sizeof a); }
HS_INLINE V v_loadn(const float *p, int64_t n) {
    V a = {0};
    if (n >= VW) return v_load(p);
    for (int64_t i = 0; i < n; i++) a[i] = p[i];
    return a;
}
HS_INLINE void v_storen(float *p, V a, int64_t n) {
    if (n >= VW) { v_store(p, a); return; }
    for (int64_t i = 0; i < n; i++) p[i] = a[i];
}
HS_INLINE V v_set1(float x) { return (V){x, x, x, x, x, x, x, x}; }
HS_INLINE V v_zero(void) { return (V){0}; }
HS_INLINE V v_add(V a, V b) { return a + b; }
HS_INLINE V v_sub(V a, V b) { return a - b; }
HS_INLINE V v_mul(V a, V b) { return a * b; }
HS_INLINE V v_div(V a, V b) { return a / b; }
HS_INLINE VI v_bits(V a) { return (VI)a; }
HS_INLINE V v_frombits(VI a) { return (V)a; }
HS_INLINE VM v_lt(V a, V b) { return a < b; }
HS_INLINE VM v_eq(V a, V b) { return a == b; }
HS_INLINE V v_sel(VM m, V yes, V no) { return (V)((m & (VI)yes) | (~m & (VI)no)); }
HS_INLINE V v_max(V a, V b) { return v_sel(b < a, a, b); }
HS_INLINE V v_min(V a, V b) { return v_sel(a < b, a, b); }
HS_INLINE V v_sqrt(V a) {
    for (int i = 0; i < VW; i++) a[i] = sqrtf(a[i]);
    return a;
}
#ifdef __FP_FAST_FMAF
HS_INLINE V v_fma(V a, V b, V c) {
    for (int i = 0; i < VW; i++) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
}
HS_INLINE V v_fnma(V a, V b, V c) {
    for (int i = 0; i < VW; i++) c[i] = __builtin_fmaf(-a[i], b[i], c[i]);
    return c;
}
#else
HS_INLINE V v_fma(V a, V b, V c) { return a * b + c; }
HS_INLINE V v_fnma(V a, V b, V c) { return c - a * b; }
#endif
HS_INLINE float v_first(V a) { return a[0]; }
HS_INLINE VI vi_set1(int32_t x) { return (VI){x, x, x, x, x, x, x, x}; }
HS_INLINE VI vi_add(VI a, VI b) { return a + b; }
HS_INLINE VI vi_sub(VI a, VI b) { return a - b; }
HS_INLINE VI vi_and(VI a, VI b) { return a & b; }
HS_INLINE VI vi_or(VI a, VI b) { return a | b; }
typedef uint32_t VU_ __attribute__((vector_size(32)));
#define vi_sll(a, k) ((VI)((VU_)(a) << (k)))
#define vi_srl(a, k) ((VI)((VU_)(a) >> (k)))
#define vi_sra(a, k) ((a) >> (k))
/* To nearest, by the 1.5·2^23 trick: for |a| < 2^22. */
HS_INLINE VI v_toint(V a) {
    V r = (a + 12582912.0f) - 12582912.0f;
    return __builtin_convertvector(r, VI);
}
HS_INLINE V v_tofloat(VI a) { return __builtin_convertvector(a, V); }

HS_INLINE float v_hsum(V a) {
    float b0 = a[0] + a[4], b1 = a[1] + a[5], b2 = a[2] + a[6], b3 = a[3] + a[7];
    return (b0 + b2) + (b1 + b3);
}
HS_INLINE float v_hmax(V a) {
    float m = a[0];
    for (int i = 1; i < VW; i++) m = m > a[i] ? m : a[i];
    return m;
}
#endif

/* ------------------------------------------------------------------ common to all */

HS_INLINE V v_neg(V a) { return v_sub(v_zero(), a); }
HS_INLINE V v_abs(V a) { return v_frombits(vi_and(v_bits(a), vi_set1(0x7fffffff))); }
HS_INLINE V v_rsqrt(V a) { return v_div(v_set1(1.0f), v_sqrt(a)); } /* 1/sqrt, two correct roundings */

/* 2^n for integer -126 <= n <= 127. */
HS_INLINE V v_pow2i(VI n) { return v_frombits(vi_sll(vi_add(n, vi_set1(127)), 23)); }

/* e^x within 2 ulp. -inf and anything below -104 give 0, anything above 88.73 gives +inf, NaN stays NaN.
 * Range reduction and coefficients: Moshier, Cephes expf. */
HS_INLINE V v_exp(V x) {
    x = v_min(v_set1(89.0f), v_max(v_set1(-104.0f), x));
    VI n = v_toint(v_mul(x, v_set1(1.44269504088896341f)));
    V f = v_tofloat(n);
    V r = v_fnma(f, v_set1(0.693359375f), x);
    r = v_fnma(f, v_set1(-2.12194440e-4f), r);
    V p = v_set1(1.9875691500e-4f);
    p = v_fma(p, r, v_set1(1.3981999507e-3f));
    p = v_fma(p, r, v_set1(8.3334519073e-3f));
    p = v_fma(p, r, v_set1(4.1665795894e-2f));
    p = v_fma(p, r, v_set1(1.6666665459e-1f));
    p = v_fma(p, r, v_set1(5.0000001201e-1f));
    p = v_add(v_fma(p, v_mul(r, r), r), v_set1(1.0f));
#if defined(HS_VEC_AVX512)
    return _mm512_scalef_ps(p, f);
#else
    /* In two steps, so that results below the normal range round once and overflow becomes inf. */
    VI h = vi_sra(n, 1);
    return v_mul(v_mul(p, v_pow2i(h)), v_pow2i(vi_sub(n, h)));
#endif
}

/* ln x within 2 ulp. 0 gives -inf, a negative number NaN, +inf +inf, NaN NaN. Cephes logf. */
HS_INLINE V v_log(V x0) {
    VM tiny = v_lt(x0, v_set1(1.17549435e-38f));
    V x = v_sel(tiny, v_mul(x0, v_set1(33554432.0f)), x0);
    VI b = v_bits(x);
    V e = v_tofloat(vi_sub(vi_and(vi_srl(b, 23), vi_set1(0xff)), vi_set1(126)));
    e = v_sel(tiny, v_sub(e, v_set1(25.0f)), e);
    V m = v_frombits(vi_or(vi_and(b, vi_set1(0x007fffff)), vi_set1(0x3f000000)));
    VM low = v_lt(m, v_set1(0.707106781186547524f));
    e = v_sel(low, v_sub(e, v_set1(1.0f)), e);
    m = v_sub(v_sel(low, v_add(m, m), m), v_set1(1.0f));
    V z = v_mul(m, m);
    V p = v_set1(7.0376836292e-2f);
    p = v_fma(p, m, v_set1(-1.1514610310e-1f));
    p = v_fma(p, m, v_set1(1.1676998740e-1f));
    p = v_fma(p, m, v_set1(-1.2420140846e-1f));
    p = v_fma(p, m, v_set1(1.4249322787e-1f));
    p = v_fma(p, m, v_set1(-1.6668057665e-1f));
    p = v_fma(p, m, v_set1(2.0000714765e-1f));
    p = v_fma(p, m, v_set1(-2.4999993993e-1f));
    p = v_fma(p, m, v_set1(3.3333331174e-1f));
    p = v_mul(v_mul(p, m), z);
    p = v_fma(e, v_set1(-2.12194440e-4f), p);
    p = v_fma(z, v_set1(-0.5f), p);
    V r = v_fma(e, v_set1(0.693359375f), v_add(m, p));
    r = v_sel(v_eq(x0, v_set1(INFINITY)), x0, r);
    r = v_sel(v_eq(x0, v_zero()), v_set1(-INFINITY), r);
    r = v_sel(v_lt(x0, v_zero()), v_set1(NAN), r);
    return v_sel(v_eq(x0, x0), r, x0);
}

HS_INLINE V v_sigmoid(V x) { return v_div(v_set1(1.0f), v_add(v_set1(1.0f), v_exp(v_neg(x)))); }
HS_INLINE V v_silu(V x) { return v_div(x, v_add(v_set1(1.0f), v_exp(v_neg(x)))); }

/* ln(1+e^x); above 20 it is x. ln(1+u) with the rounding error of 1+u given back. */
HS_INLINE V v_softplus(V x) {
    V u = v_exp(x), w = v_add(v_set1(1.0f), u);
    V back = v_div(v_sub(u, v_sub(w, v_set1(1.0f))), w);
    V y = v_add(v_log(w), back);
    return v_sel(v_lt(v_set1(20.0f), x), x, y);
}

/* One value through the vector code. */
HS_INLINE float s_exp(float x) { return v_first(v_exp(v_set1(x))); }
HS_INLINE float s_log(float x) { return v_first(v_log(v_set1(x))); }
HS_INLINE float s_sigmoid(float x) { return v_first(v_sigmoid(v_set1(x))); }
HS_INLINE float s_silu(float x) { return v_first(v_silu(v_set1(x))); }
HS_INLINE float s_softplus(float x) { return v_first(v_softplus(v_set1(x))); }
HS_INLINE float s_rsqrt(float x) { return v_first(v_rsqrt(v_set1(x))); }
HS_INLINE float s_fma(float a, float b, float c) { return v_first(v_fma(v_set1(a), v_set1(b), v_set1(c))); }

#endif
