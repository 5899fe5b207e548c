// device.h: what the kernel language needs of the engine. Each CUDA thread is a fiber of its block; see fiber.h.
#pragma once
#include "engine.h"
#include <string.h>
#include <type_traits>

namespace hs_sim {

struct Dim3 { unsigned x, y, z; };

// Thread is what kernel code sees of the fiber it runs on.
struct Thread {
    Dim3 thread, block, threads, grid;
};
extern thread_local Thread *self __attribute__((tls_model("initial-exec")));

// Site is where in the sources an instruction stands. As a default argument it is the caller's place.
struct Site { const char *file; int line; };
#define HS_SITE hs_sim::Site site = {__builtin_FILE(), __builtin_LINE()}

// Offsets of shared memory. A declaration is told from others by the address of a static of its own, which exists once
// per site and template instantiation.
void *shared(const void *declaration, size_t bytes, size_t align, const char *name);
void *dynamic(size_t bytes);
unsigned shared_address(const void *p);

void aligned(const void *p, unsigned bytes, Site site);
void block_barrier(Site site);
void warp_barrier(unsigned mask, Site site);

enum Shuffle { SHUFFLE_INDEX, SHUFFLE_XOR, SHUFFLE_UP, SHUFFLE_DOWN };
uint64_t shuffle(Shuffle kind, unsigned mask, uint64_t value, int arg, Site site);

template <class T> T shuffle_as(Shuffle kind, unsigned mask, T value, int arg, Site site) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(T));
    bits = shuffle(kind, mask, bits, arg, site);
    memcpy(&value, &bits, sizeof(T));
    return value;
}

void ldmatrix(unsigned (&r)[4], const void *row, bool trans, Site site);
void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], Site site);
void async_copy(void *dst, const void *src, bool valid, Site site);
void async_commit();
void async_wait(unsigned n);

// Register puts a kernel into the registry when the library is loaded.
struct Register {
    explicit Register(Kernel *k) { k->next = kernels, kernels = k; }
};

} // namespace hs_sim
