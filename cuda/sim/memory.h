// memory.h: device memory and pinned host memory. Functions without another remark need the scheduler's lock.
//
// A block ends at a page that cannot be touched, so that an access past it faults, and starts as full of NaN (0xFF bytes).
// A freed block becomes untouchable and its addresses are not used again for a long time: late work that still uses it
// faults. Pages cost nothing until touched; blocks of 256 MiB and more are not poisoned and so may be much larger than the
// machine's memory.
#pragma once

#include "sched.h"

namespace sim {

struct Block {
    uintptr_t base = 0;
    size_t bytes = 0;
    Device *device = nullptr; // null: pinned host memory
    bool live = false;
    uint64_t number = 0;
    struct Chunk *chunk = nullptr;
};

// allocate returns null where the addresses ran out; whether the device has room is the caller's affair.
Block *allocate(Device *d, size_t bytes);
// release returns what was overwritten past the end of the block, or "".
std::string release(Block *b);
// find gives the block, live or freed, that holds the address, or null.
Block *find(uintptr_t p);
// holds checks that [p, p+n) lies in one live block of device memory (or of pinned memory, where pinned) that d may use;
// "" or why not.
std::string holds(Device *d, uintptr_t p, size_t n, bool pinned = false);
// describe says what lies at an address; takes the lock itself.
std::string describe_address(uintptr_t p);
// release_all frees what a device still has and returns the bytes.
size_t release_all(Device *d);

} // namespace sim
