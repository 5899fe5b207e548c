// attention_sm90.cuh: what the attention kernels of compute capability 9.0 share. Two warpgroups multiply with wgmma, 64 rows of
// a tile each; one warp of a third one lets the TMA unit load. Probabilities stay in registers: the fragment of one product's
// result is the A operand of the next. bf16, head dim D exactly.
#pragma once
#include "attention.cuh"
#include "hopper.cuh"

// A tile of ROWS tokens in shared memory is D / PANEL panels, each ROWS rows of 128 bytes, swizzled. A row of a panel is a
// row of the TMA unit's box.
constexpr int PANEL = 64, ATOM = 1024; // values in a row of a panel; bytes of 8 such rows, to which a tile is aligned

HD u8 *align_atom(u8 *memory) { return memory + ((ATOM - (shared_addr(memory) & (ATOM - 1))) & (ATOM - 1)); }

// load_tile_async lets the map's box of ROWS tokens come from `token` on, D columns from `column` on; the caller expects bytes.
template <int D, int ROWS> HD void load_tile_async(bf16 *tile, const TensorMap *map, int column, int token, u64 *bar) {
#pragma unroll
    for (int p = 0; p < D; p += PANEL) tensor_load(tile + p * ROWS, map, column + p, token, bar);
}

// start_scores starts s = A Bᵀ, A 64 rows from a on in a tile of AROWS, B a whole tile of N = 2R rows.
template <int D, int AROWS, int R> HD void start_scores(float (&s)[R], const bf16 *a, const bf16 *b) {
    const u64 A = wgmma_desc(a, 16, ATOM, SWIZZLE_128), B = wgmma_desc(b, 16, ATOM, SWIZZLE_128);
    wgmma<false, false, false>(s, A, B);
#pragma unroll
    for (int k = 16; k < D; k += 16) { // descriptors count in units of 16 bytes
        const int panel = k / PANEL * PANEL, in = k % PANEL;
        wgmma<false, false>(s, A + (panel * AROWS + in) * 2 / 16, B + (panel * 2 * R + in) * 2 / 16);
    }
    wgmma_commit();
}

// start_sum starts o[64,D] += P V: P [64, 16·KS] in registers, V a tile of 16·KS rows.
template <int KS, int R> HD void start_sum(float (&o)[R], const u32 (&p)[KS][4], const bf16 *v) {
    const u64 V = wgmma_desc(v, 16 * KS * PANEL * 2, ATOM, SWIZZLE_128);
#pragma unroll
    for (int k = 0; k < KS; k++) wgmma<true>(o, p[k], V + k * 16 * PANEL * 2 / 16);
    wgmma_commit();
}

// A result's value i of this thread is in row acc_row(i) and column acc_col(i) of the warpgroup's 64 rows.
HD int acc_row(int i) { return (warp_id() & 3) * 16 + (lane_id() >> 2) + (i >> 1 & 1) * 8; }
HD int acc_col(int i) { return (i >> 2) * 8 + (lane_id() & 3) * 2 + (i & 1); }

// hide_later sets the scores of keys after their query to -infinity; query and key are those of row and column 0.
template <int R> HD void hide_later(float (&s)[R], int query, int key) {
    const int last = query - key + acc_row(0) - acc_col(0);
#pragma unroll
    for (int i = 0; i < R; i++)
        if ((i >> 2) * 8 + (i & 1) > last + (i >> 1 & 1) * 8) s[i] = minus_inf();
}

// as_operand packs a result [64, 16·KS] as the A operand of a product.
template <int KS> HD void as_operand(u32 (&p)[KS][4], const float (&s)[8 * KS]) {
#pragma unroll
    for (int k = 0; k < KS; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) p[k][i] = pack_bf16(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
}

// zero_rows clears rows from..ROWS of a tile, by one warp. The tile's copies must be there.
template <int D, int ROWS> HD void zero_rows(bf16 *tile, int from) {
    for (int r = from; r < ROWS; r++)
        for (int c = lane_id(); c < D / 8; c += 32) st16(tile + c / 8 * ROWS * PANEL + r * PANEL + c % 8 * 8, Vec16{});
}

// leave says that this warp is done with what an mbarrier guards.
HD void leave(u64 *bar) {
    __syncwarp();
    if (lane_id() == 0) mbar_arrive(bar);
}

// store_warp_rows writes a warp's 16 rows of a result [64, D], times scale, to rows of dst (stride in values) before `valid`,
// by way of a scratch tile of 64 rows in shared memory, of which it uses its own 16 rows. row0: the warp's first row.
template <int D, int ROWS> HD void store_warp_rows(bf16 *dst, i64 stride, int valid, bf16 *tile, const float (&o)[D / 2], const float (&scale)[2]) {
    const int row0 = (warp_id() & 3) * 16, g = lane_id() >> 2, q = lane_id() & 3;
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            bf16 *panel = tile + n / 8 * ROWS * PANEL + (row0 + g + 8 * h) * PANEL;
            *reinterpret_cast<u32 *>(panel + (n % 8 ^ g) * 8 + 2 * q) = pack_bf16(o[4 * n + 2 * h] * scale[h], o[4 * n + 2 * h + 1] * scale[h]);
        }
    __syncwarp();
    for (int i = lane_id(); i < 16 * (D / 8); i += 32) {
        const int r = i / (D / 8), n = i % (D / 8);
        if (row0 + r < valid)
            copy16(dst + (row0 + r) * stride + n * 8, tile + n / 8 * ROWS * PANEL + (row0 + r) * PANEL + (n % 8 ^ r % 8) * 8);
    }
}
