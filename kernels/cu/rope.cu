// Per-head RMS norm of queries and keys with 1+w, then the half-split rotation of the leading 2·half dims by
// pos·theta^(-2i/(2·half)). A head belongs to a group of `lanes` lanes (the power of two at or above D/8), 8 values a lane.
#include "pointwise.cuh"

constexpr int THREADS = 256;
constexpr int MAX_HALF = 128; // D <= 256
constexpr int TOKENS = 4;     // tokens a block prepares angles for at a time

struct RopeArgs {
    void *q_out, *k_out;   // backward: dqg, dk
    const void *dq, *dk;   // backward: gradients of q_out and k_out
    const void *qg, *k;    // (T,Hq,2D), of which the first half of each head, and (T,Hk,D)
    const float *wq, *wk;
    float *part;           // backward: [blocks,2,D], each block's dwq and dwk
    const i32 *pos;
    double quarters[MAX_HALF]; // theta^(-2i/(2·half)) in quarter turns a position
    i64 T, tokens;             // tokens a block
    i32 Hq, Hk, D, half, lanes;
    float inverse, eps; // inverse = 1/D
};

// sin_cos of x quarter turns. The reduction is in double: in fp32 the angle of position 262144 would be off by 0.01 rad.
// Polynomials of Cephes' sinf and cosf on |r| <= pi/4, 1 ulp.
HD void sin_cos(double x, float &sin, float &cos) {
    double n = rint(x);
    float r = (float)((x - n) * 1.5707963267948966), z = r * r;
    float s = fmaf(fmaf(fmaf(-1.9515295891e-4f, z, 8.3321608736e-3f), z, -1.6666654611e-1f) * z, r, r);
    float c = fmaf(fmaf(fmaf(2.443315711809948e-5f, z, -1.388731625493765e-3f), z, 4.166664568298827e-2f) * z, z, fmaf(-0.5f, z, 1.0f));
    int q = (int)(i64)n & 3;
    sin = q & 1 ? c : s, cos = q & 1 ? s : c;
    if (q & 2) sin = -sin;
    if ((q + 1) & 2) cos = -cos;
}

struct Angles { float sin[TOKENS][MAX_HALF], cos[TOKENS][MAX_HALF]; };

// load_angles fills the angles of tokens t..t+n-1; barriers around it.
HD void load_angles(const RopeArgs &a, Angles &ang, i64 t, int n) {
    __syncthreads();
    for (int i = threadIdx.x; i < n * a.half; i += blockDim.x) {
        int u = i / a.half, d = i % a.half;
        sin_cos(a.pos[t + u] * a.quarters[d], ang.sin[u][d], ang.cos[u][d]);
    }
    __syncthreads();
}

// rotate turns a group's head, 8 values a lane from column c on: by the angle (sign 1) or back (sign -1). Partners meet in
// buf, the group's own memory. All lanes of the warp take part.
HD void rotate(float (&v)[8], float *buf, int c, int half, const float *sin, const float *cos, float sign) {
    bool turns = c < 2 * half;
    if (turns) st8(buf + c, v);
    __syncwarp();
    if (turns) {
        for (int i = 0; i < 8; i++) {
            int d = c + i;
            if (d < half) v[i] = fmaf(v[i], cos[d], -sign * buf[d + half] * sin[d]);
            else if (d < 2 * half) v[i] = fmaf(v[i], cos[d - half], sign * buf[d - half] * sin[d - half]);
        }
    }
    __syncwarp();
}

// Head is where a group's head lies: row `at` of [rows,D], and of the input, where query heads are 2D apart.
struct Head {
    bool on, query;
    int token;
    i64 at, in;
};

// head_of is head number n of the tokens t..t+tokens-1, all query heads and key heads of a token one after another.
HD Head head_of(const RopeArgs &a, i64 t, int tokens, int n) {
    int heads = a.Hq + a.Hk, u = n / heads, h = n % heads;
    Head out = {n < tokens * heads, h < a.Hq, u, 0, 0};
    if (!out.on) out.token = 0;
    if (out.query) out.at = ((t + u) * a.Hq + h) * a.D, out.in = 2 * out.at;
    else out.at = out.in = ((t + u) * a.Hk + h - a.Hq) * a.D;
    return out;
}

// head_in is a head's input from column c on.
template <class T> HD Raw<T> head_in(const RopeArgs &a, const Head &h, int c) {
    return load((const T *)(h.query ? a.qg : a.k) + h.in + c, h.on && c < a.D);
}

template <class T> HD void qk_norm_rope(const RopeArgs &a) {
    SHARED(Angles, ang);
    SHARED_ARRAY(float, buf, THREADS * 8);
    int groups = blockDim.x / a.lanes, g = threadIdx.x / a.lanes, c = threadIdx.x % a.lanes * 8;
    i64 t = blockIdx.x * a.tokens;
    int tokens = (int)min(a.tokens, a.T - t), heads = tokens * (a.Hq + a.Hk);
    Head next = head_of(a, t, tokens, g);
    Raw<T> raw = head_in<T>(a, next, c); // the next head's, on its way while one is worked on
    load_angles(a, ang, t, tokens);
    for (int first = 0; first < heads; first += groups) {
        Head h = next;
        bool on = h.on && c < a.D;
        float x[8], w[8], sum = 0;
        unpack(x, raw);
        next = head_of(a, t, tokens, first + groups + g);
        raw = head_in<T>(a, next, c);
        unpack(w, load((h.query ? a.wq : a.wk) + c, on));
        for (int i = 0; i < 8; i++) sum = fmaf(x[i], x[i], sum);
        float r = rsqrt_of<T>(fmaf(group_sum(sum, a.lanes), a.inverse, a.eps));
        for (int i = 0; i < 8; i++) x[i] = x[i] * r * (1.0f + w[i]);
        rotate(x, buf + g * a.lanes * 8, c, a.half, ang.sin[h.token], ang.cos[h.token], 1.0f);
        if (on) st8((T *)(h.query ? a.q_out : a.k_out) + h.at + c, x);
    }
}
KERNELS(qk_norm_rope, RopeArgs, THREADS)

// sum_groups: dst[d] = the sum over groups of their lanes' v, in order.
HD void sum_groups(const RopeArgs &a, float *dst, const float (&v)[8], float *buf) {
    __syncthreads();
    st8(buf + threadIdx.x * 8, v);
    __syncthreads();
    for (int d = threadIdx.x; d < a.D; d += blockDim.x) {
        float sum = 0;
        for (int g = 0; g < (int)blockDim.x / a.lanes; g++) sum += buf[g * a.lanes * 8 + d];
        dst[d] = sum;
    }
}

// With dn the gradient rotated back, xh = x·r and q = dn·(1+w): dx = r·(q - xh·mean(q·xh)), dw = sum of dn·xh.
template <class T> HD void qk_norm_rope_backward(const RopeArgs &a) {
    SHARED(Angles, ang);
    SHARED_ARRAY(float, buf, THREADS * 8);
    int groups = blockDim.x / a.lanes, g = threadIdx.x / a.lanes, c = threadIdx.x % a.lanes * 8;
    float dwq[8], dwk[8];
    zero8(dwq), zero8(dwk);
    i64 end = min((blockIdx.x + 1) * a.tokens, a.T);
    for (i64 t = blockIdx.x * a.tokens; t < end; t += TOKENS) {
        int tokens = (int)min((i64)TOKENS, end - t), heads = tokens * (a.Hq + a.Hk);
        load_angles(a, ang, t, tokens);
        for (int first = 0; first < heads; first += groups) {
            Head h = head_of(a, t, tokens, first + g);
            bool on = h.on && c < a.D;
            Raw<T> raw_x = head_in<T>(a, h, c), raw_dn = load((const T *)(h.query ? a.dq : a.dk) + h.at + c, on);
            float x[8], dn[8], w[8], sum = 0, dot = 0;
            unpack(w, load((h.query ? a.wq : a.wk) + c, on));
            unpack(x, raw_x), unpack(dn, raw_dn);
            for (int i = 0; i < 8; i++) sum = fmaf(x[i], x[i], sum);
            float r = rsqrt_of<T>(fmaf(group_sum(sum, a.lanes), a.inverse, a.eps));
            rotate(dn, buf + g * a.lanes * 8, c, a.half, ang.sin[h.token], ang.cos[h.token], -1.0f);
            for (int i = 0; i < 8; i++) {
                x[i] *= r;
                if (h.on && h.query) dwq[i] = fmaf(dn[i], x[i], dwq[i]);
                if (h.on && !h.query) dwk[i] = fmaf(dn[i], x[i], dwk[i]);
                dn[i] *= 1.0f + w[i];
                dot = fmaf(dn[i], x[i], dot);
            }
            float mean = group_sum(dot, a.lanes) * a.inverse;
            for (int i = 0; i < 8; i++) x[i] = r * fmaf(-x[i], mean, dn[i]);
            if (on) st8((T *)(h.query ? a.q_out : a.k_out) + h.in + c, x);
        }
    }
    float *part = a.part + (i64)blockIdx.x * 2 * a.D;
    sum_groups(a, part, dwq, buf);
    sum_groups(a, part + a.D, dwk, buf);
}
KERNELS(qk_norm_rope_backward, RopeArgs, THREADS)
