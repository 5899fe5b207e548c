// Causal depthwise convolution with silu: y_t = silu(z_t), z_t = sum_j w_j x_{t-k+1+j}, terms before the row's start left out
// (not multiplied by 0: what lies there may be NaN). A thread has CH channels and a run of tokens, whose inputs pass
// through a window in registers, so that x is read once but for k-1 tokens a run. Taps are aligned to the right of K.
#include "pointwise.cuh"

constexpr int THREADS = 128;
constexpr int TILE = 4; // tokens loaded at a time

struct ConvArgs {
    void *y;           // backward: dx
    float *part;       // backward: [runs,Ch,k], each run's dw
    const void *dy, *x, *w;
    const i32 *row_of, *cu; // [T] a token's row, [rows+1] its first token
    i64 T, run;        // tokens a thread
    i32 Ch, k;
};

// A thread's CH channels of token t of x; zeros outside [0, T).
template <int CH, class T> HD void load_token(float (&v)[CH], const T *x, i64 t, const ConvArgs &a) {
    bool in = t >= 0 && t < a.T;
    if constexpr (CH == 8) {
        if (in) ld8(v, x + t * a.Ch);
        else zero8(v);
    } else
        for (int i = 0; i < CH; i++) v[i] = in ? to_float(x[t * a.Ch + i]) : 0.0f;
}
template <int CH, class T> HD void store_token(T *y, i64 t, const float (&v)[CH], const ConvArgs &a) {
    if constexpr (CH == 8) st8(y + t * a.Ch, v);
    else
        for (int i = 0; i < CH; i++) put(y[t * a.Ch + i], v[i]);
}

// load_taps: w[j] are the weights of tap j of the thread's channels; the first K-k are not used.
template <int K, int CH, class T> HD void load_taps(float (&w)[K][CH], const T *from, int k) {
    for (int j = 0; j < K; j++)
        for (int i = 0; i < CH; i++) w[j][i] = j >= K - k ? to_float(from[i * k + j - (K - k)]) : 0.0f;
}

// first_tap is the first of K taps that token t has within its row.
template <int K> HD int first_tap(const ConvArgs &a, i64 t) {
    if (t >= a.T) return 0;
    return K - (int)min((i64)a.k, t - a.cu[a.row_of[t]] + 1);
}

template <int K, int CH> HD void convolve(float (&z)[CH], const float (&w)[K][CH], const float (*win)[CH], int from) {
    for (int i = 0; i < CH; i++) z[i] = 0;
#pragma unroll
    for (int j = 0; j < K; j++)
        if (j >= from)
            for (int i = 0; i < CH; i++) z[i] = fmaf(w[j][i], win[j][i], z[i]);
}

// Grid: runs, groups of channels.
template <class T, int K, int CH> HD void conv_forward(const ConvArgs &a) {
    i32 c = CH * (blockIdx.y * blockDim.x + threadIdx.x);
    if (c >= a.Ch) return;
    const T *x = (const T *)a.x + c;
    i64 t0 = blockIdx.x * a.run, t1 = min(t0 + a.run, a.T);
    float w[K][CH], win[K - 1 + TILE][CH];
    load_taps(w, (const T *)a.w + (i64)c * a.k, a.k);
    for (int j = 0; j < K - 1; j++) load_token(win[j], x, t0 - K + 1 + j, a);
    for (i64 t = t0; t < t1; t += TILE) {
        int from[TILE];
#pragma unroll
        for (int j = 0; j < TILE; j++) load_token(win[K - 1 + j], x, t + j, a);
        for (int j = 0; j < TILE; j++) from[j] = first_tap<K>(a, t + j);
#pragma unroll
        for (int j = 0; j < TILE; j++) {
            if (t + j >= t1) continue;
            float z[CH];
            convolve(z, w, win + j, from[j]);
            for (int i = 0; i < CH; i++) z[i] *= sigmoid_of<T>(z[i]);
            store_token((T *)a.y + c, t + j, z, a);
        }
        for (int j = 0; j < K - 1; j++)
            for (int i = 0; i < CH; i++) win[j][i] = win[TILE + j][i];
    }
}

// dz_t = dy_t·silu'(z_t); dx_u = sum_j w_j dz_{u+k-1-j} over the row, in order of the token; dw_j = sum_t dz_t x_{t-k+1+j}.
// A run also goes through the K-1 tokens after it, for its own dx: q[j] is the unfinished dx of token t-K+1+j.
template <class T, int K, int CH> HD void conv_gradient(const ConvArgs &a) {
    i32 c = CH * (blockIdx.y * blockDim.x + threadIdx.x);
    if (c >= a.Ch) return;
    const T *x = (const T *)a.x + c, *dy = (const T *)a.dy + c;
    T *dx = (T *)a.y + c;
    i64 t0 = blockIdx.x * a.run, t1 = min(t0 + a.run, a.T), end = min(t1 + K - 1, a.T);
    float w[K][CH], dw[K][CH], q[K][CH], win[K - 1 + TILE][CH];
    load_taps(w, (const T *)a.w + (i64)c * a.k, a.k);
    for (int j = 0; j < K; j++)
        for (int i = 0; i < CH; i++) dw[j][i] = q[j][i] = 0;
    for (int j = 0; j < K - 1; j++) load_token(win[j], x, t0 - K + 1 + j, a);
    for (i64 t = t0; t < end; t += TILE) {
        float g[TILE][CH];
        int from[TILE];
#pragma unroll
        for (int j = 0; j < TILE; j++) load_token(win[K - 1 + j], x, t + j, a), load_token(g[j], dy, t + j, a);
        for (int j = 0; j < TILE; j++) from[j] = first_tap<K>(a, t + j);
#pragma unroll
        for (int j = 0; j < TILE; j++) {
            if (t + j >= end) continue;
            float z[CH];
            convolve(z, w, win + j, from[j]);
            for (int i = 0; i < CH; i++) g[j][i] *= silu_grad(z[i], sigmoid_of<T>(z[i])), q[K - 1][i] = 0;
#pragma unroll
            for (int n = 0; n < K; n++) {
                if (n < from[j]) continue;
                for (int i = 0; i < CH; i++) q[n][i] = fmaf(w[n][i], g[j][i], q[n][i]);
                if (t + j < t1)
                    for (int i = 0; i < CH; i++) dw[n][i] = fmaf(g[j][i], win[j + n][i], dw[n][i]);
            }
            if (t + j - K + 1 >= t0) store_token(dx, t + j - K + 1, q[0], a);
            for (int n = 0; n < K - 1; n++)
                for (int i = 0; i < CH; i++) q[n][i] = q[n + 1][i];
        }
        for (int j = 0; j < K - 1; j++)
            for (int i = 0; i < CH; i++) win[j][i] = win[TILE + j][i];
    }
    for (int n = 0; n < K - 1; n++) { // the last tokens of the batch
        i64 u = end - K + 1 + n;
        if (u >= t0 && u < t1) store_token(dx, u, q[n], a);
    }
    float *part = a.part + (blockIdx.x * (i64)a.Ch + c) * a.k;
    for (int i = 0; i < CH; i++)
        for (int j = 0; j < K; j++)
            if (j >= K - a.k) part[i * a.k + j - (K - a.k)] = dw[j][i];
}

template <class T> HD void conv4(const ConvArgs &a) { conv_forward<T, 4, 8>(a); }
KERNELS(conv4, ConvArgs, THREADS)
template <class T> HD void conv4_backward(const ConvArgs &a) { conv_gradient<T, 4, 8>(a); }
KERNELS(conv4_backward, ConvArgs, THREADS)
// Wider ones than the models' 4 have a channel a thread: eight would not fit into registers.
template <class T> HD void conv8(const ConvArgs &a) { conv_forward<T, 8, 1>(a); }
KERNELS(conv8, ConvArgs, THREADS)
template <class T> HD void conv8_backward(const ConvArgs &a) { conv_gradient<T, 8, 1>(a); }
KERNELS(conv8_backward, ConvArgs, THREADS)
