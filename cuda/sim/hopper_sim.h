// hopper_sim.h: the names of hopper.cuh on the simulator.
//
// Not modelled: clusters, multicast, bulk stores, register budgets, matrix base offsets other than 0, and swizzled boxes
// narrower than their span. The order between the generic and the asynchronous proxy is looked at in the checked build: what
// a thread wrote must be followed by its fence before wgmma or the TMA unit touch it.
#pragma once
#include "device.h"

namespace hs_sim {
void mbar_init(void *bar, unsigned arrivals, Site site);
void mbar_fence();
void async_proxy_fence();
void mbar_arrive(void *bar, unsigned expect_bytes, Site site);
void mbar_wait(void *bar, unsigned parity, Site site);
void bulk_load(void *dst, const void *src, unsigned bytes, void *bar, Site site);
void tensor_load(void *dst, const void *map, int x, int y, void *bar, Site site);
void named_barrier(unsigned id, unsigned threads, bool wait, Site site);
void wgmma_fence(Site site);
void wgmma_commit(Site site);
void wgmma_wait(unsigned groups, Site site);
// a is null where desc_a names A.
void wgmma(float *d, unsigned n, bool add, const unsigned *a, uint64_t desc_a, uint64_t desc_b, bool trans_a, bool trans_b, Site site);
} // namespace hs_sim

HD void mbar_init(u64 *bar, u32 arrivals, HS_SITE) { hs_sim::mbar_init(bar, arrivals, site); }
HD void mbar_fence() { hs_sim::mbar_fence(); }
HD void mbar_arrive(u64 *bar, HS_SITE) { hs_sim::mbar_arrive(bar, 0, site); }
HD void mbar_expect(u64 *bar, u32 bytes, HS_SITE) { hs_sim::mbar_arrive(bar, bytes, site); }
HD void mbar_wait(u64 *bar, u32 parity, HS_SITE) { hs_sim::mbar_wait(bar, parity, site); }
HD void bulk_load(void *dst, const void *src, u32 bytes, u64 *bar, HS_SITE) { hs_sim::bulk_load(dst, src, bytes, bar, site); }
HD void tensor_load(void *dst, const TensorMap *map, i32 x, i32 y, u64 *bar, HS_SITE) { hs_sim::tensor_load(dst, map, x, y, bar, site); }
HD void async_proxy_fence() { hs_sim::async_proxy_fence(); }
template <int N> HD void fewer_registers() {}
template <int N> HD void more_registers() {}
HD void bar_sync(u32 id, u32 threads, HS_SITE) { hs_sim::named_barrier(id, threads, true, site); }
HD void bar_arrive(u32 id, u32 threads, HS_SITE) { hs_sim::named_barrier(id, threads, false, site); }
HD void wgmma_fence(HS_SITE) { hs_sim::wgmma_fence(site); }
HD void wgmma_commit(HS_SITE) { hs_sim::wgmma_commit(site); }
template <int N> HD void wgmma_wait(HS_SITE) { hs_sim::wgmma_wait(N, site); }
template <bool TA, bool TB, bool ADD = true, int R> HD void wgmma(float (&d)[R], u64 a, u64 b, HS_SITE) {
    hs_sim::wgmma(d, 2 * R, ADD, nullptr, a, b, TA, TB, site);
}
template <bool TB, bool ADD = true, int R> HD void wgmma(float (&d)[R], const u32 (&a)[4], u64 b, HS_SITE) {
    hs_sim::wgmma(d, 2 * R, ADD, a, 0, b, false, TB, site);
}
