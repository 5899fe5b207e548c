// async.h: what of a block is under way in the background or waits for it, beyond cp.async: the mbarriers, bulk copies,
// named barriers and warpgroup products of sm_90.
#pragma once
#include <memory>
#include <stddef.h>
#include <stdint.h>
#include <vector>

namespace hs_sim {

struct Block;
struct Fiber;

// Order is what a barrier knows of its threads' past, for the checked build.
struct Order {
    uint32_t generation = 0;
    std::vector<uint32_t> of; // clock of each thread
};

// MBarrier is an mbarrier object. The engine keeps its state here; the 8 bytes in shared memory only name it.
struct MBarrier {
    const void *at;
    unsigned expected, pending; // arrivals of a phase, and still missing ones
    int64_t bytes;              // expected and not yet there; below 0 where they came before they were expected
    unsigned phase;             // of the one under way, 0 or 1
    uint32_t phases;            // that have ended
    unsigned initialiser;       // thread
    bool visible;               // to the TMA unit
    std::vector<Fiber *> waiting;
    Order arriving, done;
};

// NamedBarrier is bar.sync or bar.arrive with a number.
struct NamedBarrier {
    unsigned threads = 0, arrived = 0;
    std::vector<Fiber *> waiting;
    Order arriving, done;
};

// Bulk is a copy by the TMA unit: rows of row_bytes from a strided source, zeros outside it, into packed, perhaps swizzled rows.
struct Bulk {
    char *dst;
    unsigned dst_address; // as a device would see it
    unsigned rows, row_bytes, swizzle; // bytes of the swizzle's span, 0: none
    const char *src;
    uint64_t src_stride;
    int64_t x, y;                // bytes and rows into the source, may be outside
    uint64_t src_width, src_rows; // bytes, rows
    const void *barrier;
};

// Accumulator is the result of wgmmas under way. The registers hold poison meanwhile.
struct Accumulator {
    float *registers[32]; // of the warp's lanes
    unsigned n;           // columns: n/2 registers a lane
    std::vector<float> value;
    unsigned uses;
};

struct Wgmma {
    std::shared_ptr<Accumulator> d;
    bool add, a_in_registers, trans_a, trans_b;
    uint32_t a[32][4];
    const uint32_t *registers[32]; // that a was read from, with a_in_registers
    const void *pc;
    uint64_t desc_a, desc_b;
    uint64_t group;
    bool done;
};

// WgmmaQueue is a warp's part of its warpgroup's products.
struct WgmmaQueue {
    std::vector<Wgmma> products;
    uint64_t groups = 0;
    bool fenced = false;
};

constexpr int NAMED_BARRIERS = 16, MBARRIERS = 64;

struct Async {
    std::vector<MBarrier> mbarriers;
    std::vector<Bulk> bulks;
    NamedBarrier named[NAMED_BARRIERS];
    WgmmaQueue wgmma[32];

    void reset();
};

// finish_one_bulk ends one of the copies under way; false where there is none.
bool finish_one_bulk(Block &b);
// check_nothing_under_way fails a block that ends before its background work.
void check_nothing_under_way(Block &b);

} // namespace hs_sim
