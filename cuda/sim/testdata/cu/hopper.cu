// hopper.cu: the instructions of hopper.cuh, on operands that the test lays out itself.
#include "hopper.cuh"
#include "test.cuh"

// in: mode, lead, stride and byte offset of A, the same of B, then a picture of shared memory in words, 1024-byte aligned
// there. p: columns, TA, TB, and 1 where A comes from registers (64 rows of 16, the first words of the picture). d starts as the number of
// the register. out [128, columns/2].
HD u8 *aligned_start(u8 *memory) { return memory + ((1024 - (shared_addr(memory) & 1023)) & 1023); }

template <bool TA, bool TB, int R> HD void product64(const Args &a, u8 *picture) {
    const u32 *h = a.in;
    float d[R];
    for (int i = 0; i < R; i++) d[i] = i;
    u64 desc_b = wgmma_desc(picture + h[7], h[5], h[6], (Swizzle)h[4]);
    wgmma_fence();
    if (a.p[3]) {
        const u32 *A = a.in + 8;
        int row = threadIdx.x / 32 * 16 + lane_id() / 4, q = lane_id() % 4;
        u32 r[4] = {A[row * 8 + q], A[(row + 8) * 8 + q], A[row * 8 + q + 4], A[(row + 8) * 8 + q + 4]};
        wgmma<TB>(d, r, desc_b);
    } else {
        wgmma<TA, TB>(d, wgmma_desc(picture + h[3], h[1], h[2], (Swizzle)h[0]), desc_b);
    }
    wgmma_commit();
    wgmma_wait<0>();
    for (int i = 0; i < R; i++) a.out[threadIdx.x * R + i] = float_to_bits(d[i]);
}
template <int R> HD void product64_of(const Args &a, u8 *picture) {
    if (a.p[1] && a.p[2]) product64<true, true, R>(a, picture);
    else if (a.p[1]) product64<true, false, R>(a, picture);
    else if (a.p[2]) product64<false, true, R>(a, picture);
    else product64<false, false, R>(a, picture);
}
KERNEL(wgmma_raw, Args, 128) {
    DYNAMIC(u8, memory);
    u8 *picture = aligned_start(&memory);
    int words = a.words - 128 * a.p[0] / 2; // the test makes out longer by the picture's words
    for (int i = threadIdx.x; i < words; i += blockDim.x) reinterpret_cast<u32 *>(picture)[i] = a.in[8 + i];
    async_proxy_fence();
    __syncthreads();
    if (a.p[0] == 32) product64_of<16>(a, picture);
    else if (a.p[0] == 64) product64_of<32>(a, picture);
    else if (a.p[0] == 128) product64_of<64>(a, picture);
    else product64_of<128>(a, picture);
}

// Two accumulators and groups in flight: d0 += A B twice, d1 += A B once; A, B [64,16] of ones and p[1], no swizzle.
// out: d0[0], d1[0] of each thread. p[0]: 1 no fence, 2 touches d0 early, 3 reads d0 early, 4 never waits, 5 no fence of the
// asynchronous proxy, 6 writes B before the wait, 7 touches A's registers early; with p[1] d1's A comes from registers.
KERNEL(wgmma_groups, Args, 128) {
    DYNAMIC(u8, memory);
    u32 *m = reinterpret_cast<u32 *>(&memory);
    for (int i = threadIdx.x; i < 512; i += blockDim.x) m[i] = 0x3f803f80, m[512 + i] = 0x40004000; // 1, 2
    if (a.p[0] != 5) async_proxy_fence();
    __syncthreads();
    u64 A = wgmma_desc(m, 128, 256, SWIZZLE_NONE), B = wgmma_desc(m + 512, 128, 256, SWIZZLE_NONE);
    float d0[32], d1[32], seen = 0;
    for (int i = 0; i < 32; i++) d0[i] = 1, d1[i] = 2;
    if (a.p[0] != 1) wgmma_fence();
    wgmma<false, false>(d0, A, B);
    wgmma<false, false>(d0, A, B);
    wgmma_commit();
    u32 ones[4] = {0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80};
    if (a.p[1]) wgmma<false>(d1, ones, B);
    else wgmma<false, false>(d1, A, B);
    wgmma_commit();
    if (a.p[0] == 6) m[512 + threadIdx.x] = 0x40004000;
    if (a.p[0] == 7) ones[1] = 0;
    if (a.p[0] == 2) d0[3] = 5;
    if (a.p[0] == 3) seen = d0[0];
    wgmma_wait<1>();
    if (a.p[0] != 3) seen = d0[0];
    if (a.p[0] != 4) wgmma_wait<0>();
    a.out[threadIdx.x] = float_to_bits(seen), a.out[blockDim.x + threadIdx.x] = float_to_bits(d1[0]);
}

// A ring of p[1] stages of 256 bytes: thread 0 of warp 0 loads p[2] of them in turn, warps 1 and 2 each add all up.
// p[0]: 1 the loader does not wait for a free stage, 2 a reader does not wait for a full one. out [2].
KERNEL(ring, Args, 96) {
    SHARED_ARRAY(u64, full, 8);
    SHARED_ARRAY(u64, empty, 8);
    DYNAMIC(u32, stages);
    if (threadIdx.x == 0) {
        for (int i = 0; i < a.p[1]; i++) mbar_init(full + i, 1), mbar_init(empty + i, 2);
        mbar_fence();
    }
    __syncthreads();
    if (warp_id() == 0) {
        for (int i = 0; lane_id() == 0 && i < a.p[2]; i++) {
            int s = i % a.p[1], round = i / a.p[1];
            if (a.p[0] != 1) mbar_wait(empty + s, (round & 1) ^ 1);
            mbar_expect(full + s, 256);
            bulk_load(&stages + s * 64, a.in + i * 64, 256, full + s);
        }
        return;
    }
    u32 sum = 0;
    for (int i = 0; i < a.p[2]; i++) {
        int s = i % a.p[1], round = i / a.p[1];
        if (a.p[0] != 2) mbar_wait(full + s, round & 1);
        sum += (&stages)[s * 64 + 2 * lane_id()] + (&stages)[s * 64 + 2 * lane_id() + 1];
        __syncwarp();
        if (lane_id() == 0) mbar_arrive(empty + s);
    }
    for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(ALL_LANES, sum, o);
    if (lane_id() == 0) a.out[warp_id() - 1] = sum;
    for (int i = max(0, a.p[2] - a.p[1]); a.p[0] == 2 && i < a.p[2]; i++) mbar_wait(full + i % a.p[1], i / a.p[1] & 1);
}

// The box at (p[0], p[1]) of the map at the start of in; p[2] bytes. out: what lies in shared memory then.
KERNEL(tensor_box, Args, 32) {
    DYNAMIC(u8, memory);
    SHARED(u64, bar);
    u8 *box = aligned_start(&memory);
    if (threadIdx.x == 0) {
        mbar_init(&bar, 1), mbar_fence();
        mbar_expect(&bar, a.p[2]);
        tensor_load(box, reinterpret_cast<const TensorMap *>(a.in), a.p[0], a.p[1], &bar);
    }
    __syncthreads();
    mbar_wait(&bar, 0);
    for (int i = threadIdx.x; i < a.p[2] / 4; i += 32) a.out[i] = reinterpret_cast<u32 *>(box)[i];
}

// Warps 0 and 1 write, 2 and 3 read what they wrote, by numbered barriers. p[0]: 1 the readers do not wait, 2 the count is
// wrong for one, 3 nobody arrives. out [64].
KERNEL(numbered, Args, 128) {
    SHARED_ARRAY(u32, m, 64);
    if (warp_id() < 2) {
        m[threadIdx.x] = threadIdx.x * 3;
        if (a.p[0] != 3) bar_arrive(1, 128);
        bar_sync(2, 64);
    } else {
        if (a.p[0] != 1) bar_sync(1, a.p[0] == 2 && warp_id() == 2 ? 96 : 128);
        a.out[threadIdx.x - 64] = m[127 - threadIdx.x];
    }
}

// One fault each, by p[0].
KERNEL(mbarrier_faults, Args, 64) {
    SHARED_ARRAY(u64, bar, 2);
    DYNAMIC(u32, m);
    if (threadIdx.x == 0 && a.p[0] != 1) mbar_init(bar, 1);
    if (a.p[0] != 9) mbar_fence();
    __syncthreads();
    if (a.p[0] == 1) mbar_arrive(bar);
    if (a.p[0] == 2 && threadIdx.x == 0) mbar_expect(bar, 16), bulk_load(&m, a.in, 32, bar), mbar_wait(bar, 0);
    if (a.p[0] == 3) mbar_wait(bar, 0);
    if (a.p[0] == 4 && threadIdx.x == 0) bulk_load(&m, a.in + 1, 32, bar);
    if (a.p[0] == 5 && threadIdx.x == 0) mbar_expect(bar, 32), bulk_load(&m, a.in, 32, bar);
    if (a.p[0] == 6 && threadIdx.x == 0) bulk_load(&m + 1020, a.in, 32, bar);
    if (a.p[0] == 7 && threadIdx.x == 0) mbar_expect(bar, 32), mbar_arrive(bar);
    if (a.p[0] == 8 && threadIdx.x == 0) mbar_init(bar, 2);
    if (a.p[0] == 9 && threadIdx.x == 0) mbar_expect(bar, 32), bulk_load(&m, a.in, 32, bar), mbar_wait(bar, 0);
}
