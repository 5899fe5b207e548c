// faults.cu: kernels that are wrong in one way each.
#include "test.cuh"

// A sum over the block without the barrier before the last read: right in ascending order if the last thread sums.
KERNEL(missing_barrier, Args, 128) {
    SHARED_ARRAY(u32, part, 128);
    part[threadIdx.x] = a.in[threadIdx.x];
    if (threadIdx.x == blockDim.x - 1) {
        u32 s = 0;
        for (int i = 0; i < (int)blockDim.x; i++) s += part[i];
        a.out[0] = s;
    }
}
// The same between the lanes of a warp: a shuffle orders no memory.
KERNEL(missing_syncwarp, Args, 32) {
    SHARED_ARRAY(u32, part, 32);
    part[threadIdx.x] = a.in[threadIdx.x];
    u32 v = __shfl_xor_sync(ALL_LANES, threadIdx.x, 1);
    a.out[threadIdx.x] = part[v];
}
KERNEL(with_syncwarp, Args, 32) {
    SHARED_ARRAY(u32, part, 32);
    part[threadIdx.x] = a.in[threadIdx.x];
    __syncwarp();
    a.out[threadIdx.x] = part[threadIdx.x ^ 1];
}
// Memory that is used again without a barrier between its last read and the next write.
KERNEL(reused_too_early, Args, 128) {
    SHARED(u32, value);
    for (int i = 0; i < 4; i++) {
        if ((int)threadIdx.x == i) value = i;
        __syncthreads();
        a.out[i * blockDim.x + threadIdx.x] = value;
    }
}
KERNEL(two_blocks_write, Args, 32) { a.out[threadIdx.x] = blockIdx.x; }
KERNEL(divergent_barrier, Args, 64) {
    if (threadIdx.x < 40) __syncthreads();
    else __syncthreads();
}
KERNEL(skipped_barrier, Args, 64) {
    if (threadIdx.x != 40) __syncthreads();
}
KERNEL(divergent_shuffle, Args, 32) {
    u32 v = 0;
    if (threadIdx.x < 8) v = __shfl_xor_sync(ALL_LANES, v, 1);
    else v = __shfl_xor_sync(ALL_LANES, v, 2);
    a.out[threadIdx.x] = v;
}
KERNEL(half_shuffle, Args, 64) {
    u32 v = 0;
    if (threadIdx.x < 16) v = __shfl_xor_sync(ALL_LANES, v, 1);
    __syncthreads();
    a.out[threadIdx.x] = v;
}
KERNEL(ended_lane, Args, 32) {
    if (threadIdx.x == 5) return;
    a.out[threadIdx.x] = __shfl_xor_sync(ALL_LANES, threadIdx.x, 1);
}
KERNEL(lane_not_in_mask, Args, 32) { a.out[threadIdx.x] = __shfl_xor_sync(0xffffu, threadIdx.x, 1); }
KERNEL(reads_other_half, Args, 32) {
    if (threadIdx.x < 16) a.out[threadIdx.x] = __shfl_sync(0xffffu, threadIdx.x, 20);
}
KERNEL(misaligned_ldmatrix, Args, 32) {
    SHARED_ARRAY(u32, m, 256);
    for (int i = 0; i < 8; i++) m[threadIdx.x * 8 + i] = 0;
    __syncthreads();
    u32 r[4];
    ldmatrix_x4(r, m + threadIdx.x * 6);
    a.out[threadIdx.x] = r[0];
}
KERNEL(ldmatrix_of_global, Args, 32) {
    u32 r[4];
    ldmatrix_x4(r, (const void *)((u64)a.in & ~15ull));
    a.out[threadIdx.x] = r[0];
}
KERNEL(part_of_a_warp, Args, 32) {
    SHARED_ARRAY(Vec16, m, 32);
    u32 r[4];
    ldmatrix_x4(r, m + threadIdx.x);
    a.out[threadIdx.x] = r[0];
}
KERNEL(misaligned_load, Args, 32) { a.out[threadIdx.x] = ld16((const char *)a.in + 4).w[0]; }
KERNEL(misaligned_copy, Args, 32) {
    SHARED_ARRAY(Vec16, m, 33);
    cp_async16(m + threadIdx.x, (const char *)a.in + 8);
}
KERNEL(copy_to_global, Args, 32) { cp_async16((void *)((u64)a.out & ~15ull), (const void *)((u64)a.in & ~15ull)); }
KERNEL(read_before_wait, Args, 32) {
    SHARED_ARRAY(Vec16, m, 32);
    cp_async16(m + threadIdx.x, a.in + threadIdx.x * 4);
    cp_async_commit();
    a.out[threadIdx.x] = m[threadIdx.x].w[0];
    cp_async_wait<0>();
}
// Waits for its own copy and reads its neighbour's.
KERNEL(wait_without_barrier, Args, 128) {
    SHARED_ARRAY(Vec16, m, 128);
    cp_async16(m + threadIdx.x, a.in + threadIdx.x * 4);
    cp_async_commit();
    cp_async_wait<0>();
    a.out[threadIdx.x] = m[threadIdx.x ^ 64].w[0];
}
KERNEL(uninitialised, Args, 32) {
    SHARED_ARRAY(float, m, 32);
    a.out[threadIdx.x] = float_to_bits(m[threadIdx.x] + 1);
}
KERNEL(past_dynamic, Args, 32) {
    DYNAMIC(u32, m);
    if (a.p[1]) (&m)[a.p[0]] = 1;
    else a.out[0] = (&m)[a.p[0]];
}
KERNEL(too_little_dynamic, Args, 32) {
    struct Large { u32 x[100]; };
    DYNAMIC(Large, m);
    a.out[0] = m.x[0];
}
KERNEL(too_much_static, Args, 32) {
    SHARED_ARRAY(u32, m, 13000);
    m[threadIdx.x] = 0;
}
KERNEL(null_pointer, Args, 32) { a.out[0] = *(const u32 *)(u64)(a.p[0] + 4096 * threadIdx.x); }
KERNEL(division, Args, 32) { a.out[0] = 7 / a.p[0]; }
HD int deep(int n, const Args &a) {
    volatile int room[1000];
    room[n % 1000] = n;
    return n == 0 ? 0 : deep(n - 1, a) + room[n % 1000];
}
KERNEL(deep_stack, Args, 32) { a.out[0] = deep(a.p[0], a); }
KERNEL(past_array, Args, 32) {
    float x[4] = {};
    x[a.p[0] & 7] = 1;
    a.out[threadIdx.x] = float_to_bits(x[threadIdx.x & 3]);
}
KERNEL(int_offset, Args, 32) { a.out[threadIdx.x] = (u32)(a.p[0] * a.p[1] > 0); }
// The order in which threads run after a barrier.
KERNEL(arrival, Args, 64) {
    SHARED(u32, next);
    next = 0;
    __syncthreads();
    a.out[threadIdx.x] = next++;
}
