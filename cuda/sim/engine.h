// engine.h: what the simulated driver sees of the engine: the kernels that were compiled in, and a call that runs one.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace hs_sim {

// Stats are sums over the blocks of every launch of a kernel since the library was loaded.
struct Stats {
    uint64_t blocks = 0;
    uint64_t switches = 0;        // from one fiber to another
    uint64_t shared_reads = 0;    // 8-row phases of ldmatrix
    uint64_t conflict_ways = 0;   // ways beyond the first, over those phases: 0 is free of bank conflicts
    unsigned max_ways = 0;        // of the worst phase; 1 is free of conflicts, 8 the worst
    unsigned static_bytes = 0;    // most static shared memory of a block
    unsigned dynamic_bytes = 0;   // most dynamic shared memory of a block
};

// Kernel is one entry of the registry, made by the KERNEL macro of hs_sim.h.
struct Kernel {
    const char *name;
    void (*fn)(const void *args);
    size_t args_size;
    int max_threads;
    Kernel *next;
    Stats stats;
};
extern Kernel *kernels;

// Shared memory of a block: static memory a kernel may declare, and all of it, on the largest devices (sm_90, sm_100).
constexpr size_t STATIC_LIMIT = 48 << 10, SHARED_LIMIT = 227 << 10;

// run_grid runs every block of a launch and returns when all are done: null, or what went wrong, valid until the calling
// thread's next run_grid. seed 0 runs blocks and threads in ascending order and finishes every background copy as late
// as it may; another seed gives a random order, the same each time. Any thread may call it, several at once.
const char *run_grid(const Kernel *k, unsigned gx, unsigned gy, unsigned gz, unsigned threads, size_t dynamic_bytes, const void *args,
                     uint64_t seed);

// stats gives a kernel's sums so far; false where no kernel has that name.
bool stats(const char *kernel, Stats *out);

} // namespace hs_sim

// The same by name, for programs that load the library: null, "no such kernel", or what went wrong.
extern "C" __attribute__((visibility("default"))) const char *hs_sim_launch(const char *kernel, const unsigned grid[3], unsigned threads,
                                                                            size_t dynamic_bytes, const void *args, size_t args_size, uint64_t seed);
extern "C" __attribute__((visibility("default"))) int hs_sim_stats(const char *kernel, hs_sim::Stats *out);
