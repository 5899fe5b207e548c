// fiber.h: one block under way. Each thread of the block is a fiber with a stack of its own; one fiber runs at a time, and
// only a barrier or an instruction of the whole warp passes control on. Which fiber is next is random by seed.
//
// An instruction of the warp (shuffle, mma, ldmatrix, __syncwarp) is a Collective: each lane leaves a pointer to its
// operands and waits; the last one to arrive computes for all. That costs one switch a lane.
#pragma once
#include "async.h"
#include "device.h"
#include <stdint.h>
#include <string>
#include <vector>

namespace hs_sim {

constexpr unsigned LANES = 32, MAX_THREADS = 1024, MAX_WARPS = MAX_THREADS / LANES;
constexpr size_t STACK = 128 << 10, PAGE = 4096;

struct Block;

// Copy is one cp.async on its way. group counts this thread's committed groups from 0.
struct Copy {
    void *dst;
    const void *src; // null: zeros
    uint64_t group;
    bool done; // early; it stays listed until a wait covers it
};

// Collective is an instruction that all lanes of a mask execute together. run computes it for the lanes in mask, whose
// operands lie in their fibers.
struct Collective {
    const char *name;
    void (*run)(Block &b, struct Warp &w, unsigned mask);
};

struct Fiber : Thread {
    void *sp;
    char *stack;
    const Collective *waits_for; // null: not waiting for its warp
    unsigned mask;
    void *operands;
    const void *pc;     // of an instruction whose accesses are noted later
    Site site;          // where it waits
    std::string parked; // for what, outside its warp and the block's barrier
    std::vector<Copy> copies;
    uint64_t groups; // committed
};

struct Warp {
    Fiber *fiber; // lane 0
    unsigned exists, ready, in_collective, at_barrier, parked, exited;
};

// Shared is one static declaration's place in this block.
struct Shared {
    const void *declaration;
    size_t offset, bytes;
    const char *name;
};

// Block runs blocks, one after another, on the OS thread that holds it.
struct Block {
    Block();
    ~Block();
    Block(const Block &) = delete;

    // run runs one block to its end; error() tells how it ended.
    void run(const Kernel *k, Dim3 grid, Dim3 index, unsigned threads, size_t dynamic_bytes, const void *args, uint64_t seed);
    const char *error() const { return failed ? message.c_str() : nullptr; }

    Fiber *current() { return static_cast<Fiber *>(self); }
    unsigned lane() { return self->thread.x % LANES; }
    Warp &warp() { return warps[self->thread.x / LANES]; }

    // fail ends the block. The calling fiber never returns.
    [[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 2, 3)));
    void collective(const Collective *c, unsigned mask, void *operands, Site site);
    void barrier(Site site);
    // park stops the current fiber until unpark; what says what it waits for.
    void park(const char *what, Site site);
    void unpark(Fiber &f);

    bool in_shared(const void *p, size_t bytes) const;
    void *shared(const void *declaration, size_t bytes, size_t align, const char *name);
    void *dynamic(size_t bytes);
    unsigned shared_address(const void *p);
    void *shared_pointer(unsigned address, size_t bytes) const; // null outside

    uint32_t random() { // xorshift64*
        rng ^= rng >> 12, rng ^= rng << 25, rng ^= rng >> 27;
        return (uint32_t)(rng * 0x2545F4914F6CDD1Dull >> 32);
    }
    unsigned below(unsigned n) { return (uint64_t)random() * n >> 32; }

    const Kernel *kernel = nullptr;
    const void *args = nullptr;
    uint64_t seed = 0, rng = 0;
    unsigned threads = 0, warp_count = 0, arrived = 0, exited = 0, current_warp = 0, ready_warps = 0;
    Fiber fibers[MAX_THREADS];
    Warp warps[MAX_WARPS];
    void *host_sp = nullptr; // of the OS thread, while a fiber runs
    Stats stats;
    bool failed = false;
    std::string message;

    // Static memory is handed out from the start of its mapping, dynamic memory ends at the end of its own; inaccessible
    // pages lie around both.
    char *memory = nullptr, *static_base = nullptr, *dynamic_end = nullptr, *dynamic_base = nullptr;
    size_t static_used = 0, static_bytes = 0, dynamic_bytes = 0;
    std::vector<Shared> declarations;
    Async async;

  private:
    static void enter();
    void prepare(Dim3 grid, Dim3 index);
    void make_stacks();
    void wake(Warp &w, unsigned lanes);
    unsigned pick_bit(unsigned set, uint32_t r);
    Fiber *pick();
    void pass_on();
    void stop_at_deadlock();
    [[noreturn]] void leave();
    unsigned shared_start() const;
};

// running is the block that this OS thread is in, null outside run.
extern thread_local Block *running __attribute__((tls_model("initial-exec")));

// finish_some_copies makes the background copies of a fiber that has some go on a little, at random.
void finish_some_copies(Block &b, Fiber &f);
void finish_copies(Fiber &f);

// catch_faults installs handlers that turn a bad access of a kernel into an error of its block; a fault elsewhere goes to the
// handler that was there before.
void catch_faults();
// A thread's stack for signal handlers; needed because a fiber's stack may be what overflowed.
void give_signal_stack();

} // namespace hs_sim
