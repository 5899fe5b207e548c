// Rows picked by number: embeddings, gather, scatter.
#include "pointwise.cuh"

struct RowsArgs {
    void *y;
    const void *x;
    const i32 *rows;
    i64 H;
    i32 limit; // row numbers are 0 to limit-1
};

// Grid: an output row each. A bad number makes its row NaN: reading anything would hide it, and no error comes back from here.
template <class T> HD void gather(const RowsArgs &a) {
    i32 from = a.rows[blockIdx.x];
    bool ok = from >= 0 && from < a.limit;
    const T *x = (const T *)a.x + (ok ? from * a.H : 0);
    T *y = (T *)a.y + blockIdx.x * a.H;
    constexpr int PER = 16 / sizeof(T);
    for (i64 i = threadIdx.x * PER; i < a.H; i += blockDim.x * PER) {
        Vec16 v = {{ALL_LANES, ALL_LANES, ALL_LANES, ALL_LANES}}; // NaN in both types
        if (ok) v = ld16(x + i);
        st16(y + i, v);
    }
}
KERNELS(gather, RowsArgs, 256)

// Grid: an input row each. y holds zeros already.
template <class T> HD void scatter(const RowsArgs &a) {
    i32 to = a.rows[blockIdx.x];
    if (to < 0 || to >= a.limit) return;
    const T *x = (const T *)a.x + blockIdx.x * a.H;
    T *y = (T *)a.y + to * a.H;
    constexpr int PER = 16 / sizeof(T);
    for (i64 i = threadIdx.x * PER; i < a.H; i += blockDim.x * PER) st16(y + i, ld16(x + i));
}
KERNELS(scatter, RowsArgs, 256)

struct EmbedBackwardArgs {
    float *dw;
    const void *dy;
    const i32 *ids;
    i64 H;
    i32 T, V;
};

constexpr int ID_TILE = 1024; // ids looked at by a block at a time, 4 a thread

// id_match says whether ids[4i..4i+3], of which those in [lo, hi) count, hold id: one bit each.
HD int id_match(const i32 *ids, i64 i, i64 lo, i64 hi, i32 id) {
    if (4 * i >= hi) return 0;
    Vec16 v;
    if (4 * i + 4 <= hi) v = ld16(ids + 4 * i);
    else
        for (int j = 0; j < 4; j++) v.w[j] = 4 * i + j < hi ? (u32)ids[4 * i + j] : 0;
    int bits = 0;
    for (int j = 0; j < 4; j++)
        if ((i32)v.w[j] == id && 4 * i + j >= lo && 4 * i + j < hi) bits |= 1 << j;
    return bits;
}

// count_before gives every thread the sum of n over the threads before it, and the block's total. red: an int a warp.
HD int count_before(int n, int *red, int &total) {
    int sum = n; // over this lane and those before it
    for (int o = 1; o < 32; o <<= 1) {
        int up = __shfl_sync(ALL_LANES, sum, lane_id() - o < 0 ? 0 : lane_id() - o);
        if (lane_id() >= o) sum += up;
    }
    __syncthreads();
    if (lane_id() == 31) red[warp_id()] = sum;
    __syncthreads();
    int before = 0;
    total = 0;
    for (int w = 0; w < (int)(blockDim.x >> 5); w++) {
        if (w < warp_id()) before += red[w];
        total += red[w];
    }
    return before + sum - n;
}

// add_rows: dw += dy[t] for the n tokens t of list, in order, in the 8 columns from c on.
template <class T> HD void add_rows(float *dw, const T *dy, const i32 *list, int n, i64 H, i64 c) {
    constexpr int AHEAD = 8; // rows under way at a time: one block may have thousands, and nobody to share them with
    float sum[8];
    ld8(sum, dw + c);
    for (int k = 0; k < n; k += AHEAD) {
        Raw<T> raw[AHEAD];
        for (int j = 0; j < AHEAD; j++) raw[j] = load(dy + (k + j < n ? list[k + j] * H + c : 0), k + j < n);
        for (int j = 0; j < AHEAD; j++) {
            if (k + j >= n) break;
            float v[8];
            unpack(v, raw[j]);
            for (int i = 0; i < 8; i++) sum[i] += v[i];
        }
    }
    st8(dw + c, sum);
}

// Grid: tokens, groups of 8·blockDim columns. The blocks of an id's first token find the others and add all their rows in
// token order, so that a row of dw has one writer and one order; the blocks of later tokens have nothing to do.
template <class T> HD void embed_backward(const EmbedBackwardArgs &a) {
    SHARED_ARRAY(i32, list, ID_TILE);
    SHARED_ARRAY(int, red, ID_TILE / 4 / 32);
    const i32 *ids = a.ids;
    i64 t = blockIdx.x;
    i32 id = ids[t];
    if (id < 0 || id >= a.V) return;
    i64 c = 8 * (blockIdx.y * blockDim.x + threadIdx.x);
    int total, bits = 0;
    for (i64 i = threadIdx.x; 4 * i < t && !bits; i += blockDim.x) bits = id_match(ids, i, 0, t, id);
    count_before(bits, red, total);
    if (total) return;
    for (i64 u = t / ID_TILE * ID_TILE; u < a.T; u += ID_TILE) {
        bits = id_match(ids, u / 4 + threadIdx.x, t, a.T, id);
        int count = 0;
        for (int j = 0; j < 4; j++) count += bits >> j & 1;
        int at = count_before(count, red, total);
        if (!total) continue;
        for (int j = 0; j < 4; j++)
            if (bits >> j & 1) list[at++] = (i32)(u + 4 * threadIdx.x + j);
        __syncthreads();
        if (c < a.H) add_rows(a.dw + id * a.H, (const T *)a.dy, list, total, a.H, c);
    }
}
KERNELS(embed_backward, EmbedBackwardArgs, ID_TILE / 4)
