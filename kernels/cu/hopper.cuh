// hopper.cuh: the instructions of sm_90a beyond ptx.cuh: mbarriers, copies by the TMA unit, named barriers, and products of
// a warpgroup (128 threads, starting at a multiple of 128). Kernels that use it are compiled for sm_90a alone.
#pragma once
#include "ptx.cuh"

// TensorMap is a CUtensorMap: made on the host by cuTensorMapEncodeTiled, passed in a kernel's arguments.
struct alignas(64) TensorMap { u64 opaque[16]; };

// How a wgmma operand's 16-byte pieces lie in shared memory: the number is the descriptor's. With a swizzle, rows of 128, 64
// or 32 bytes start at multiples of 1024, 512 or 256 bytes, and address bits 4.. are xored with bits 7..
enum Swizzle { SWIZZLE_NONE = 0, SWIZZLE_128 = 1, SWIZZLE_64 = 2, SWIZZLE_32 = 3 };

// wgmma_desc names an operand by its start (16-byte aligned) and two strides in bytes, multiples of 16. bf16:
//   rows along K, swizzled: `stride` from 8 rows to the next 8; `lead` unused (16). K advances by start + 32 bytes.
//   rows along K, not swizzled: 8x8 blocks of 128 bytes; `lead` from a block to the next along K, `stride` along M or N.
//   rows along M or N (TA, TB), swizzled: `lead` from a row's 128, 64 or 32 bytes to the next along M or N, `stride` from 8 k
//   to the next 8.
//   rows along M or N, not swizzled: `lead` from 8 k to the next, `stride` from 8 of M or N to the next.
HD u64 wgmma_desc(const void *start, u32 lead, u32 stride, Swizzle swizzle) {
    return (u64)((shared_addr(start) & 0x3ffff) >> 4) | (u64)(lead >> 4) << 16 | (u64)(stride >> 4) << 32 | (u64)swizzle << 62;
}

#ifdef HS_SIM
#include "hopper_sim.h"
#else

// An mbarrier is a u64 in shared memory. A phase ends when `arrivals` threads arrived and all expected bytes are there.
HD void mbar_init(u64 *bar, u32 arrivals) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_addr(bar)), "r"(arrivals) : "memory"); }
// mbar_fence makes initialised barriers visible to the TMA unit; a block barrier must follow for the other threads.
HD void mbar_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
HD void mbar_arrive(u64 *bar) { asm volatile("{ .reg .b64 s; mbarrier.arrive.shared::cta.b64 s, [%0]; }" ::"r"(shared_addr(bar)) : "memory"); }
// mbar_expect arrives and says how many bytes the phase waits for.
HD void mbar_expect(u64 *bar, u32 bytes) {
    asm volatile("{ .reg .b64 s; mbarrier.arrive.expect_tx.shared::cta.b64 s, [%0], %1; }" ::"r"(shared_addr(bar)), "r"(bytes) : "memory");
}
// mbar_wait returns when the phase of this parity has ended: 0, 1, 0, ... for the first, second, third one.
HD void mbar_wait(u64 *bar, u32 parity) {
    asm volatile("{\n .reg .pred p;\nagain_%=:\n mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n @!p bra again_%=;\n}"
                 ::"r"(shared_addr(bar)), "r"(parity) : "memory");
}

// bulk_load copies `bytes` (all three multiples of 16) from global to shared memory; they count at bar.
HD void bulk_load(void *dst, const void *src, u32 bytes, u64 *bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(shared_addr(dst)), "l"(src), "r"(bytes), "r"(shared_addr(bar)) : "memory");
}
// tensor_load copies the map's box from (column x, row y) on, zeros outside the tensor; all of its bytes count at bar.
HD void tensor_load(void *dst, const TensorMap *map, i32 x, i32 y, u64 *bar) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(shared_addr(dst)), "l"(map), "r"(x), "r"(y), "r"(shared_addr(bar)) : "memory");
}
// async_proxy_fence: what this thread wrote to shared memory is seen by wgmma and the TMA unit (a barrier must follow where
// another thread starts them).
HD void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Registers of a thread from here on, N a multiple of 8: all warps of a warpgroup say so together. What one warpgroup gives
// away others take; the kernel starts with what its launch bounds leave for every thread.
template <int N> HD void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> HD void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }

// Barriers of a part of the block, id 1 to 15; threads is a multiple of 32 and counts those that arrive and those that sync.
HD void bar_sync(u32 id, u32 threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
HD void bar_arrive(u32 id, u32 threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// wgmma_fence comes before the first wgmma after registers of d or a were written; wgmma_wait waits until at most N of the
// committed groups are under way. d may not be touched between wgmma and the wait that covers it.
HD void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
HD void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> HD void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }

#define HS_D8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define HS_D16(i) HS_D8(i), HS_D8(i + 8)
#define HS_D32(i) HS_D16(i), HS_D16(i + 16)
#define HS_D64(i) HS_D32(i), HS_D32(i + 32)
#define HS_D128(i) HS_D64(i), HS_D64(i + 64)
#define HS_D40(i) HS_D32(i), HS_D8(i + 32)
#define HS_R16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define HS_R32 HS_R16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define HS_R40 HS_R32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define HS_R64 HS_R32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define HS_R128 HS_R64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define HS_WGMMA(R, N, I0, I1, I2, I3, I4, I5, I6)                                                                          \
    template <bool TA, bool TB, bool ADD = true> HD void wgmma(float (&d)[R], u64 a, u64 b) {                                    \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" HS_R##R "}, %" #I0 ", %" #I1 ", %" #I2 ", 1, 1, %" #I3 ", %" #I4 ";" \
                     : HS_D##R(0) : "l"(a), "l"(b), "n"((int)ADD), "n"((int)TA), "n"((int)TB));                                  \
    }                                                                                                                            \
    template <bool TB, bool ADD = true> HD void wgmma(float (&d)[R], const u32 (&a)[4], u64 b) {                                 \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" HS_R##R "}, {%" #I0 ", %" #I1 ", %" #I2 ", %" #I3 "}, %" #I4 ", %" #I5 ", 1, 1, %" #I6 ";" \
                     : HS_D##R(0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"((int)ADD), "n"((int)TB));            \
    }
// wgmma starts d[64,N] += A[64,16] B[16,N], without ADD d = A B, N = 32, 64, 80, 128, 256. Thread t of the warpgroup (warp w, g = t%32/4, q = t%4) has
// of row 16w + g columns 8i+2q and +1 in d[4i] and d[4i+1], of row 16w + g + 8 in d[4i+2] and d[4i+3]. A comes from shared memory or, row by
// warp, from registers as in mma_bf16.
HS_WGMMA(16, 32, 16, 17, 18, 19, 20, 21, 22)
HS_WGMMA(32, 64, 32, 33, 34, 35, 36, 37, 38)
HS_WGMMA(40, 80, 40, 41, 42, 43, 44, 45, 46)
HS_WGMMA(64, 128, 64, 65, 66, 67, 68, 69, 70)
HS_WGMMA(128, 256, 128, 129, 130, 131, 132, 133, 134)

#endif
