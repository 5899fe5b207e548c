// Causal depthwise convolution with silu: y_t = silu(z_t), z_t = sum_j w_j x_{t-k+1+j}, terms before the row's start left out
// (not multiplied by 0: what lies there may be NaN). A thread has CH channels and a run of tokens, whose inputs pass
// through a window in registers, so that x is read once but for k-1 tokens a run. The next tile of tokens is on its way
// while one is worked on. Taps are aligned to the right of K.
#include "pointwise.cuh"

constexpr int THREADS = 128;
constexpr int TILE = 4; // tokens loaded at a time

struct ConvArgs {
    void *y;     // backward: dx
    float *part; // backward: [runs,Ch,k], each run's dw
    const void *dy, *x, *w;
    const i32 *row_of, *cu; // [T] a token's row, [rows+1] a row's first token
    i64 T, run;             // tokens a thread
    i32 Ch, k;
};

// Channels are CH values as they lie in memory, in whole words: halves of words in registers cost a move at every turn.
template <class T, int CH> struct Channels {
    static constexpr int BYTES = CH * sizeof(T);
    struct alignas(BYTES < 4 ? 4 : BYTES < 16 ? BYTES : 16) Words { u32 w[(BYTES + 3) / 4]; } of;
};

template <class T, int CH> HD Channels<T, CH> load_token(const T *p, bool in) {
    Channels<T, CH> out;
    for (u32 &w : out.of.w) w = 0;
#ifdef HS_SIM
    hs_aligned(p, out.BYTES < 16 ? out.BYTES : 16);
#endif
    if (!in) return out;
    if constexpr (out.BYTES == 2) out.of.w[0] = *reinterpret_cast<const u16 *>(p);
    else out.of = *reinterpret_cast<const typename Channels<T, CH>::Words *>(p);
    return out;
}

template <int CH> HD void spread(float (&v)[CH], const Channels<float, CH> &from) {
    for (int i = 0; i < CH; i++) v[i] = bits_to_float(from.of.w[i]);
}
template <int CH> HD void spread(float (&v)[CH], const Channels<bf16, CH> &from) {
    for (int i = 0; i < CH; i++) v[i] = bits_to_float(i & 1 ? from.of.w[i / 2] & 0xffff0000u : from.of.w[i / 2] << 16);
}

template <int CH> HD void store_token(float *p, const float (&v)[CH]) {
    Channels<float, CH> out;
    for (int i = 0; i < CH; i++) out.of.w[i] = float_to_bits(v[i]);
    *reinterpret_cast<typename Channels<float, CH>::Words *>(p) = out.of;
}
template <int CH> HD void store_token(bf16 *p, const float (&v)[CH]) {
    if constexpr (CH == 1) *p = to_bf16(v[0]);
    else {
        Channels<bf16, CH> out;
        for (int i = 0; i < CH; i += 2) out.of.w[i / 2] = pack_bf16(v[i], v[i + 1]);
        *reinterpret_cast<typename Channels<bf16, CH>::Words *>(p) = out.of;
    }
}

// load_taps: w[j] are the weights of tap j of the thread's channels; the first K-k are not used.
template <int K, int CH, class T> HD void load_taps(float (&w)[K][CH], const T *from, int k) {
    for (int j = 0; j < K; j++)
        for (int i = 0; i < CH; i++) w[j][i] = j >= K - k ? to_float(from[i * k + j - (K - k)]) : 0.0f;
}

// Row follows the rows of ascending tokens.
struct Row { i32 row, start, end; };
HD Row row_at(const ConvArgs &a, i32 t) {
    i32 row = a.row_of[t];
    return {row, a.cu[row], a.cu[row + 1]};
}

// whole says whether tokens t..t+TILE-1 are of one row, below `end`, and have all taps.
template <int K> HD bool whole(const ConvArgs &a, const Row &r, i32 t, i32 end) {
    return a.k == K && t - (K - 1) >= r.start && t + TILE <= min(r.end, end);
}

// first_tap is the first of K taps that token t has within its row.
template <int K> HD int first_tap(const ConvArgs &a, Row &r, i32 t) {
    while (t >= r.end) r.row++, r.start = r.end, r.end = a.cu[r.row + 1];
    return K - min(a.k, t - r.start + 1);
}

template <int K, int CH> HD void convolve(float (&z)[CH], const float (&w)[K][CH], const float (*win)[CH], int from) {
    for (int i = 0; i < CH; i++) z[i] = 0;
#pragma unroll
    for (int j = 0; j < K; j++)
        if (j >= from)
            for (int i = 0; i < CH; i++) z[i] = fmaf(w[j][i], win[j][i], z[i]);
}

// Tokens are a thread's place: its channels of tokens t and on, and what it holds of them.
template <class T, int K, int CH> struct Tokens {
    i32 t, t1, end, all; // the next token, the run's end, that of the tokens it reads, that of the batch
    i64 step;       // values from a token to the next
    const T *x;     // of token t
    float w[K][CH], win[K - 1 + TILE][CH];
    Channels<T, CH> next[TILE];
    Row row;

    HS_MEMBER void start(const ConvArgs &a, i32 c, i32 t0, i32 last) {
        all = (i32)a.T, step = a.Ch;
        t = t0, t1 = (i32)min(t0 + a.run, a.T), end = (i32)min((i64)t1 + last, a.T);
        x = (const T *)a.x + t0 * step + c;
        for (int j = 0; j < TILE; j++) next[j] = load_token<T, CH>(x + j * step, t + j < all);
        for (int j = 0; j < K - 1; j++) spread(win[j], load_token<T, CH>(x + (j - K + 1) * step, t >= K - 1 - j));
        load_taps(w, (const T *)a.w + (i64)c * a.k, a.k);
        row = row_at(a, t);
    }
    // fetch moves the tile on its way into the window and sends for the next.
    HS_MEMBER void fetch() {
        for (int j = 0; j < TILE; j++) spread(win[K - 1 + j], next[j]);
        for (int j = 0; j < TILE; j++) next[j] = load_token<T, CH>(x + (TILE + j) * step, t + TILE + j < all);
    }
    HS_MEMBER void advance() {
        for (int j = 0; j < K - 1; j++)
            for (int i = 0; i < CH; i++) win[j][i] = win[TILE + j][i];
        t += TILE, x += TILE * step;
    }
};

template <bool WHOLE, class T, int K, int CH> HD void forward_tile(const ConvArgs &a, Tokens<T, K, CH> &s, T *y) {
#pragma unroll
    for (int j = 0; j < TILE; j++) {
        if (!WHOLE && s.t + j >= s.t1) continue;
        float z[CH];
        convolve(z, s.w, s.win + j, WHOLE ? 0 : first_tap<K>(a, s.row, s.t + j));
        for (int i = 0; i < CH; i++) z[i] *= sigmoid_of<T>(z[i]);
        store_token(y + j * s.step, z);
    }
}

// Grid: runs, groups of channels.
template <class T, int K, int CH> HD void conv_forward(const ConvArgs &a) {
    i32 c = CH * (blockIdx.y * blockDim.x + threadIdx.x), t0 = (i32)(blockIdx.x * a.run);
    if (c >= a.Ch) return;
    Tokens<T, K, CH> s;
    s.start(a, c, t0, 0);
    T *y = (T *)a.y + t0 * s.step + c;
    for (; s.t < s.t1; s.advance(), y += TILE * s.step) {
        s.fetch();
        if (whole<K>(a, s.row, s.t, s.t1)) forward_tile<true>(a, s, y);
        else forward_tile<false>(a, s, y);
    }
}

template <class T, int K, int CH> struct Gradients {
    float dw[K][CH], q[K][CH]; // q[j] is the unfinished dx of token t-K+1+j
    Channels<T, CH> next[TILE];
    const T *dy; // of token t
    T *dx;       // of token t-K+1
};

// With WHOLE all of the tile's tokens are the run's own, and so are those whose dx they finish.
template <bool WHOLE, class T, int K, int CH>
HD void gradient_tile(const ConvArgs &a, Tokens<T, K, CH> &s, Gradients<T, K, CH> &g, const Channels<T, CH> (&dy)[TILE], i32 t0) {
#pragma unroll
    for (int j = 0; j < TILE; j++) {
        i32 t = s.t + j;
        if (!WHOLE && t >= s.end) continue;
        int from = WHOLE ? 0 : first_tap<K>(a, s.row, t);
        float z[CH], dz[CH];
        convolve(z, s.w, s.win + j, from);
        spread(dz, dy[j]);
        for (int i = 0; i < CH; i++) dz[i] *= silu_grad(z[i], sigmoid_of<T>(z[i])), g.q[K - 1][i] = 0;
#pragma unroll
        for (int n = 0; n < K; n++) {
            if (n < from) continue;
            for (int i = 0; i < CH; i++) g.q[n][i] = fmaf(s.w[n][i], dz[i], g.q[n][i]);
            if (WHOLE || t < s.t1)
                for (int i = 0; i < CH; i++) g.dw[n][i] = fmaf(dz[i], s.win[j + n][i], g.dw[n][i]);
        }
        if (WHOLE || t - K + 1 >= t0) store_token(g.dx + j * s.step, g.q[0]);
        for (int n = 0; n < K - 1; n++)
            for (int i = 0; i < CH; i++) g.q[n][i] = g.q[n + 1][i];
    }
}

// dz_t = dy_t·silu'(z_t); dx_u = sum_j w_j dz_{u+k-1-j} over the row, in order of the token; dw_j = sum_t dz_t x_{t-k+1+j}.
// A run also goes through the K-1 tokens after it, for its own dx.
template <class T, int K, int CH> HD void conv_gradient(const ConvArgs &a) {
    i32 c = CH * (blockIdx.y * blockDim.x + threadIdx.x), t0 = (i32)(blockIdx.x * a.run);
    if (c >= a.Ch) return;
    Tokens<T, K, CH> s;
    Gradients<T, K, CH> g;
    g.dy = (const T *)a.dy + t0 * (i64)a.Ch + c;
    for (int j = 0; j < TILE; j++) g.next[j] = load_token<T, CH>(g.dy + j * (i64)a.Ch, t0 + j < a.T);
    s.start(a, c, t0, K - 1);
    g.dx = (T *)a.y + (t0 - K + 1) * s.step + c;
    for (int j = 0; j < K; j++)
        for (int i = 0; i < CH; i++) g.dw[j][i] = g.q[j][i] = 0;
    for (; s.t < s.end; s.advance(), g.dy += TILE * s.step, g.dx += TILE * s.step) {
        Channels<T, CH> dy[TILE];
        for (int j = 0; j < TILE; j++) dy[j] = g.next[j];
        s.fetch();
        for (int j = 0; j < TILE; j++) g.next[j] = load_token<T, CH>(g.dy + (TILE + j) * s.step, s.t + TILE + j < s.all);
        if (s.t - K + 1 >= t0 && whole<K>(a, s.row, s.t, s.t1)) gradient_tile<true>(a, s, g, dy, t0);
        else gradient_tile<false>(a, s, g, dy, t0);
    }
    T *dx = (T *)a.y + (s.end - K + 1) * s.step + c; // the last tokens of the batch are still in q
    for (int n = 0; n < K - 1; n++)
        if (s.end - K + 1 + n >= t0 && s.end - K + 1 + n < s.t1) store_token(dx + n * s.step, g.q[n]);
    float *part = a.part + (blockIdx.x * (i64)a.Ch + c) * a.k;
    for (int i = 0; i < CH; i++)
        for (int j = 0; j < K; j++)
            if (j >= K - a.k) part[i * a.k + j - (K - a.k)] = g.dw[j][i];
}

template <class T> HD void conv4(const ConvArgs &a) { conv_forward<T, 4, 8>(a); }
KERNELS(conv4, ConvArgs, THREADS)
template <class T> HD void conv4_backward(const ConvArgs &a) { conv_gradient<T, 4, 4>(a); }
KERNELS(conv4_backward, ConvArgs, THREADS)
// Wider ones than the models' 4 have a channel a thread: four would not fit into registers.
template <class T> HD void conv8(const ConvArgs &a) { conv_forward<T, 8, 1>(a); }
KERNELS(conv8, ConvArgs, THREADS)
template <class T> HD void conv8_backward(const ConvArgs &a) { conv_gradient<T, 8, 1>(a); }
KERNELS(conv8_backward, ConvArgs, THREADS)
