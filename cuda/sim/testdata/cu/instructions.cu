// instructions.cu: single instructions on registers that the test lays out itself.
#include "test.cuh"

// in [blocks, 32 lanes, 10]: a (4), b (2), d (4); out [blocks, 32, 4].
KERNEL(mma_raw, Args, 32) {
    const u32 *in = a.in + (i64)(blockIdx.x * 32 + threadIdx.x) * 10;
    u32 ra[4] = {in[0], in[1], in[2], in[3]}, rb[2] = {in[4], in[5]};
    float d[4];
    for (int i = 0; i < 4; i++) d[i] = bits_to_float(in[6 + i]);
    mma_bf16(d, ra, rb);
    for (int i = 0; i < 4; i++) a.out[(blockIdx.x * 32 + threadIdx.x) * 4 + i] = float_to_bits(d[i]);
}

// in: the row that each lane points to [32], then 32 rows of 4 words; out [32, 4]. p[0]: transposed, p[1]: words from row to row.
KERNEL(ldmatrix_raw, Args, 32) {
    DYNAMIC(u32, rows);
    u32 *at = &rows + threadIdx.x * a.p[1];
    for (int i = 0; i < 4; i++) at[i] = a.in[32 + threadIdx.x * 4 + i];
    __syncwarp();
    u32 r[4];
    const u32 *row = &rows + a.in[threadIdx.x] * a.p[1];
    if (a.p[0]) ldmatrix_x4_trans(r, row);
    else ldmatrix_x4(r, row);
    for (int i = 0; i < 4; i++) a.out[threadIdx.x * 4 + i] = r[i];
}

// in [threads]; out [5, threads]: xor p[0], index p[0], up p[0], down p[0], and the two halves of the warp apart.
KERNEL(shuffles, Args, 64) {
    u32 v = a.in[threadIdx.x];
    u32 *out = a.out + threadIdx.x;
    out[0] = __shfl_xor_sync(ALL_LANES, v, a.p[0]);
    out[blockDim.x] = __shfl_sync(ALL_LANES, v, a.p[0]);
    out[2 * blockDim.x] = __shfl_up_sync(ALL_LANES, v, a.p[0]);
    out[3 * blockDim.x] = __shfl_down_sync(ALL_LANES, v, a.p[0]);
    if (lane_id() < 16) out[4 * blockDim.x] = __shfl_sync(0xffffu, v, 3);
    else out[4 * blockDim.x] = __shfl_sync(0xffff0000u, (u64)v << 32, 19) >> 32;
}

// in [threads, 2]: fp32 bits, and what is done with them by p[0].
KERNEL(scalars, Args, 1024) {
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    float x = bits_to_float(a.in[i]);
    a.out[i] = a.p[0] == 0 ? (u32)to_bf16(x).bits : float_to_bits(exp2_fast(x));
}

// Groups of cp.async: p[0] copies a thread, each its own group, at most p[1] under way after the wait; then the thread reads
// the ones that must be there. out [p[0] - p[1], threads, 4]; copies from in [threads, 4] on are zero filled when odd.
KERNEL(copies, Args, 64) {
    DYNAMIC(u32, buffer);
    u32 *mine = &buffer + threadIdx.x * 4;
    for (int i = 0; i < a.p[0]; i++) {
        cp_async16(mine + i * blockDim.x * 4, a.in + threadIdx.x * 4, i % 2 == 0);
        cp_async_commit();
    }
    if (a.p[1] == 0) cp_async_wait<0>();
    else if (a.p[1] == 1) cp_async_wait<1>();
    else cp_async_wait<2>();
    for (int i = 0; i < a.p[0] - a.p[1]; i++)
        for (int j = 0; j < 4; j++) a.out[(i * blockDim.x + threadIdx.x) * 4 + j] = mine[i * blockDim.x * 4 + j];
    if (a.p[2]) // what must not be there yet: overwritten at the source, which only copies that are still under way see
        for (int j = 0; j < 4; j++) a.out[threadIdx.x * 4 + j] = mine[(a.p[0] - 1) * blockDim.x * 4 + j];
}

// A sum over the block through every part of the language; out [blocks].
KERNEL(sums, Args, 256) {
    SHARED_ARRAY(float, red, 32);
    float s = block_sum((float)a.in[blockIdx.x * blockDim.x + threadIdx.x], red);
    s += block_max((float)threadIdx.x, red);
    if (threadIdx.x == 0) a.out[blockIdx.x] = (u32)s;
}

// Shared memory of a template: one variable an instantiation. out [2, threads].
template <int N> HD u32 last_of(u32 v) {
    SHARED_ARRAY(u32, all, N);
    SHARED(u32, count);
    if (threadIdx.x < N) all[threadIdx.x] = v;
    if (threadIdx.x == 0) count = N;
    __syncthreads();
    return all[N - 1] + count;
}
KERNEL(instantiations, Args, 64) {
    u32 x = last_of<32>(threadIdx.x % 32), y = last_of<64>(threadIdx.x);
    a.out[threadIdx.x] = x, a.out[blockDim.x + threadIdx.x] = y;
}
