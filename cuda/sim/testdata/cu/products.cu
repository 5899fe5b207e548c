// products.cu: warp_mma of tile.cuh. in: A [32, 48] or its transpose, then B [48, 32] as [n, k] or as [k, n], fp32 words;
// out [4 warps, 32, 32]. Each warp adds the product to its own number.
#include "test.cuh"

constexpr int M = 32, N = 32, K = 48;

template <class T, bool TA, bool TB> HD void product(const Args &a) {
    constexpr int P = Tile<T>::PAD, LDA = (TA ? M : K) + P, LDB = (TB ? N : K) + P, ROWS_A = TA ? K : M, ROWS_B = TB ? K : N;
    struct Memory {
        alignas(16) T a[ROWS_A * LDA];
        alignas(16) T b[ROWS_B * LDB];
    };
    DYNAMIC(Memory, s);
    for (int i = threadIdx.x; i < M * K; i += blockDim.x)
        put(s.a[i / (LDA - P) * LDA + i % (LDA - P)], bits_to_float(a.in[i]));
    for (int i = threadIdx.x; i < N * K; i += blockDim.x)
        put(s.b[i / (LDB - P) * LDB + i % (LDB - P)], bits_to_float(a.in[M * K + i]));
    __syncthreads();
    Frag<2, 4> acc;
    acc.zero();
    for (int m = 0; m < 2; m++) for (int n = 0; n < 4; n++) for (int i = 0; i < 4; i++) acc.v[m][n][i] = warp_id();
    warp_mma<TA, TB>(acc, s.a, LDA, s.b, LDB, K);
    for (int m = 0; m < 2; m++) for (int n = 0; n < 4; n++) for (int i = 0; i < 4; i++)
        a.out[(warp_id() * M + frag_row(m, i)) * N + frag_col(n, i)] = float_to_bits(acc.v[m][n][i]);
}

template <class T> HD void product_nn(const Args &a) { product<T, false, false>(a); }
template <class T> HD void product_nt(const Args &a) { product<T, false, true>(a); }
template <class T> HD void product_tn(const Args &a) { product<T, true, false>(a); }
template <class T> HD void product_tt(const Args &a) { product<T, true, true>(a); }
KERNELS(product_nn, Args, 128)
KERNELS(product_nt, Args, 128)
KERNELS(product_tn, Args, 128)
KERNELS(product_tt, Args, 128)

// load_tile: in [rows, 20] in T's words; out as bits of fp32 [p[0], 16]. p[1] rows are valid.
template <class T> HD void tiles(const Args &a) {
    DYNAMIC(T, tile);
    constexpr int LD = 16 + Tile<T>::PAD;
    load_tile<T, 16>(&tile, LD, reinterpret_cast<const T *>(a.in), 24, a.p[0], a.p[1]);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    for (int i = threadIdx.x; i < a.p[0] * 16; i += blockDim.x) a.out[i] = float_to_bits(to_float((&tile)[i / 16 * LD + i % 16]));
}
KERNELS(tiles, Args, 128)
