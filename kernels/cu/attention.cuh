// attention.cuh: what the attention kernels share. A block works on a tile of BM queries and a tile of BN keys of one row
// and one head; its WM·WN warps split every product of tiles as a grid, WM over rows, WN over columns. Probabilities pass
// from one product to the next through shared memory in T. Tiles start at the row's own start, so a row's result depends
// on that row alone.
#pragma once
#include "tile.cuh"

// KERNEL_ALONE is KERNEL, and the compiler is told that one block a multiprocessor will do: it would otherwise keep some
// values in local memory so that more fit.
#ifdef HS_SIM
#define KERNEL_ALONE KERNEL
#else
#define KERNEL_ALONE(name, Args, THREADS) extern "C" __global__ void __launch_bounds__(THREADS, 1) name(const __grid_constant__ Args a)
#endif

// AttentionRows are the rows of a packed batch, cut into chunks of CHUNK tokens from each row's start.
struct AttentionRows {
    const i32 *cu;          // [rows+1] first token of each row
    const i32 *first_chunk; // [rows+1] first chunk of each row
    const i32 *chunk_row;   // [chunks] each chunk's row
};
constexpr int CHUNK = 64;

// AttentionTile is SIZE tokens of a row from its at-th on; the row is tokens t0 .. t0+n of the batch. n = 0: no tile.
struct AttentionTile { int t0, n, at; };

// find_tile gives tile i, where every chunk has CHUNK / SIZE tiles; one of two chunks is found by its first.
template <int SIZE> HD AttentionTile find_tile(const AttentionRows &rows, int i) {
    constexpr int PER = SIZE < CHUNK ? CHUNK / SIZE : 1;
    int chunk = i / PER, row = rows.chunk_row[chunk], t0 = rows.cu[row], n = rows.cu[row + 1] - t0;
    int at = (chunk - rows.first_chunk[row]) * CHUNK + i % PER * SIZE;
    return {t0, at % SIZE == 0 && at < n ? n : 0, at};
}

// QueryTiles walks over the query tiles that a tile of keys at j0 has: those of the group's first head in ascending
// order, then those of its second, and so on.
template <int BM> struct QueryTiles {
    AttentionTile w;
    int first, head, last, at; // first token within the row, query heads head .. last, token of the tile within the row
    HS_MEMBER bool more() const { return head <= last; }
    HS_MEMBER void next() {
        at += BM;
        if (at >= w.n) at = first, head++;
    }
    HS_MEMBER i64 row(int hq) const { return (i64)(w.t0 + at) * hq + head; }
    HS_MEMBER int valid() const { return w.n - at; }
};

// row_value is x[r·hq] for rows before `valid`, and none, unread, for the rest of a tile. lse = infinity makes a row's
// probabilities 0.
HD float row_value(const float *x, int r, int hq, int valid, float none) { return r < valid ? x[(i64)r * hq] : none; }

constexpr float LOG2E = 1.44269504088896340736f;
HD float minus_inf() { return bits_to_float(0xff800000u); }

// Exponentials of scores. bf16 folds log2(e) into the scale and uses the fast base-2 one, fp32 the accurate one.
template <class T> struct Softmax;
template <> struct Softmax<bf16> {
    static constexpr float UNIT = LOG2E;
    static HS_MEMBER float exp(float x) { return exp2_fast(x); }
};
template <> struct Softmax<float> {
    static constexpr float UNIT = 1.0f;
    static HS_MEMBER float exp(float x) { return exp_(x); }
};

HD void put2(float *dst, float x, float y) { dst[0] = x, dst[1] = y; }
HD void put2(bf16 *dst, float x, float y) {
    *reinterpret_cast<u32 *>(dst) = (u32)to_bf16(x).bits | (u32)to_bf16(y).bits << 16;
}

HD void get2(float &x, float &y, const float *src) { x = src[0], y = src[1]; }
HD void get2(float &x, float &y, const bf16 *src) {
    u32 w = *reinterpret_cast<const u32 *>(src);
    x = bits_to_float(w << 16), y = bits_to_float(w & 0xffff0000u);
}

// put_frag writes a warp's result to shared memory at dst (row stride LD), times scale.
template <class T, int MT, int NT> HD void put_frag(T *dst, int LD, const Frag<MT, NT> &f, float scale = 1.0f) {
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i += 2)
                put2(dst + frag_row(m, i) * LD + frag_col(n, i), f.v[m][n][i] * scale, f.v[m][n][i + 1] * scale);
}

// load_rows starts copying ROWS rows of D values from src (row stride in values) to dst (row stride LD); rows from `valid`
// on and columns from d on (a multiple of 8) become 0. THREADS threads take part, all of the block.
template <class T, int ROWS, int D, int LD, int THREADS> HD void load_rows(T *dst, const T *src, i64 stride, int valid, int d) {
    constexpr int PER = 16 / sizeof(T), CHUNKS = D / PER, STEP = THREADS / CHUNKS;
    static_assert(THREADS % CHUNKS == 0 && ROWS % STEP == 0, "a thread keeps its column");
    int r = threadIdx.x / CHUNKS, c = threadIdx.x % CHUNKS * PER;
    const T *from = src + r * stride + c;
#pragma unroll
    for (int i = 0; i < ROWS / STEP; i++, r += STEP, from += STEP * stride) {
        bool ok = r < valid && c < d;
        cp_async16(dst + r * LD + c, ok ? from : src, ok);
    }
}

// copy16 copies 16 bytes between aligned places, in one load and one store.
HD void copy16(void *dst, const void *src) {
#ifdef HS_SIM
    st16(dst, ld16(src));
#else
    *reinterpret_cast<uint4 *>(dst) = *reinterpret_cast<const uint4 *>(src);
#endif
}

// store_rows writes the first `valid` rows and d columns of a tile in shared memory.
template <class T, int ROWS, int D, int LD, int THREADS> HD void store_rows(T *dst, const T *src, i64 stride, int valid, int d) {
    constexpr int PER = 16 / sizeof(T), CHUNKS = D / PER, STEP = THREADS / CHUNKS;
    int r = threadIdx.x / CHUNKS, c = threadIdx.x % CHUNKS * PER;
#pragma unroll
    for (int i = 0; i < ROWS / STEP; i++, r += STEP)
        if (r < valid && c < d) copy16(dst + r * stride + c, src + r * LD + c);
}

// hide sets the scores of keys after their query to -infinity; (query, key) is the position of the fragment's corner.
template <int MT, int NT> HD void hide(Frag<MT, NT> &s, int query, int key) {
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (key + frag_col(n, i) > query + frag_row(m, i)) s.v[m][n][i] = minus_inf();
}
