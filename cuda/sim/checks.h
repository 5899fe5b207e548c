// checks.h: the checked build. The kernels are compiled with gcc's thread sanitizer, whose calls for every access come here
// instead of to its library: a block's threads are ordered by barriers and by __syncwarp alone, so that what happened
// before what is known exactly and at little cost. Undefined behaviour that gcc can instrument is found on the way.
//
// Two accesses of which one is a write are a race unless a barrier of the block lies between them, a __syncwarp of lanes of
// one warp does, or a named barrier or mbarrier does, or one thread made both. Shuffles, mma and ldmatrix order no memory. Blocks of a launch are never ordered.
// What a thread wrote to shared memory and did not fence since, wgmma and the TMA unit must not touch.
// A cp.async writes from its issue to the wait that covers it. Memory is looked at in units of 2 bytes.
#pragma once
#include "fiber.h"

namespace hs_sim {

#ifdef HS_SIM_CHECKED
constexpr bool CHECKED = true;
void check_launch();
void check_block(Block &b);
void check_barrier(Block &b);
void check_warp_barrier(Warp &w, unsigned mask);
void check_access(const void *p, size_t bytes, bool write, const void *pc);
void check_async_access(const void *p, size_t bytes, bool write, const void *pc); // by wgmma or the TMA unit
void check_proxy_fence();
void check_copy_issued(const Copy &c, const void *pc);
void check_copy_done(const Copy &c);
void check_release(Order &o); // what the current thread did is before what acquires o
void check_acquire(const Order &o);
void check_bulk_issued(const Bulk &c, int mbarrier, uint32_t phase, const void *pc); // which the copy counts at
void check_phase_done(Order &o, int mbarrier, uint32_t phase);
void check_bulk_done(const Bulk &c);
#else
constexpr bool CHECKED = false;
inline void check_launch() {}
inline void check_block(Block &) {}
inline void check_barrier(Block &) {}
inline void check_warp_barrier(Warp &, unsigned) {}
inline void check_access(const void *, size_t, bool, const void *) {}
inline void check_async_access(const void *, size_t, bool, const void *) {}
inline void check_proxy_fence() {}
inline void check_copy_issued(const Copy &, const void *) {}
inline void check_copy_done(const Copy &) {}
inline void check_release(Order &) {}
inline void check_acquire(const Order &) {}
inline void check_bulk_issued(const Bulk &, int, uint32_t, const void *) {}
inline void check_phase_done(Order &, int, uint32_t) {}
inline void check_bulk_done(const Bulk &) {}
#endif

} // namespace hs_sim
