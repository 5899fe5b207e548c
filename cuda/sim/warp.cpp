//go:build ignore

// warp.cpp: the instructions of a whole warp and the background copies, as the PTX manual lays their operands out
// ("Warp-level matrix instructions", "Data movement: cp.async").
#include "checks.h"
#include <algorithm>

namespace hs_sim {

// --- shuffles ---

struct ShuffleOperands {
    uint64_t value;
    int source; // lane
};

static void run_shuffle(Block &b, Warp &w, unsigned mask) {
    uint64_t given[LANES];
    for (unsigned i = 0; i < LANES; i++)
        if (mask >> i & 1) given[i] = static_cast<ShuffleOperands *>(w.fiber[i].operands)->value;
    for (unsigned i = 0; i < LANES; i++) {
        if (!(mask >> i & 1)) continue;
        auto *o = static_cast<ShuffleOperands *>(w.fiber[i].operands);
        if (!(mask >> o->source & 1)) {
            Site s = w.fiber[i].site;
            b.fail("shuffle at %s:%d: lane %u reads lane %d, which is not in the mask %08x or not in the block", s.file, s.line, i, o->source,
                   w.fiber[i].mask);
        }
        o->value = given[o->source];
    }
}

static int source_lane(Shuffle kind, int lane, int arg) {
    switch (kind) {
    case SHUFFLE_INDEX: return arg & 31;
    case SHUFFLE_XOR: return (lane ^ arg) & 31;
    case SHUFFLE_UP: return lane - arg < 0 ? lane : lane - arg;
    default: return lane + arg > 31 ? lane : lane + arg;
    }
}

uint64_t shuffle(Shuffle kind, unsigned mask, uint64_t value, int arg, Site site) {
    static const Collective c = {"shuffle", run_shuffle};
    ShuffleOperands o = {value, source_lane(kind, running->lane(), arg)};
    running->collective(&c, mask, &o, site);
    return o.value;
}

static void run_barrier(Block &, Warp &w, unsigned mask) { check_warp_barrier(w, mask); }

void warp_barrier(unsigned mask, Site site) {
    static const Collective c = {"__syncwarp", run_barrier};
    running->collective(&c, mask, nullptr, site);
}

// whole_warp: instructions marked .aligned are executed by all 32 lanes.
static void whole_warp(Block &b, Warp &w, const char *name) {
    if (w.exists != ~0u) b.fail("%s needs a whole warp; the block has %u threads", name, b.threads);
}

// --- ldmatrix ---

struct LdmatrixOperands {
    unsigned *r; // [4]
    const unsigned short *row;
};

// count_conflicts: the 8 rows of a matrix are read together; each takes 4 of the 32 banks, so that two different rows in the
// same 16 bytes modulo 128 take turns.
static void count_conflicts(Block &b, const unsigned short *const rows[8]) {
    unsigned ways[8] = {}, most = 0;
    for (int i = 0; i < 8; i++) {
        bool again = std::find(rows, rows + i, rows[i]) != rows + i;
        if (!again) most = std::max(most, ++ways[reinterpret_cast<uintptr_t>(rows[i]) / 16 % 8]);
    }
    b.stats.shared_reads++;
    b.stats.conflict_ways += most - 1;
    b.stats.max_ways = std::max(b.stats.max_ways, most);
}

template <bool TRANS> static void run_ldmatrix(Block &b, Warp &w, unsigned) {
    whole_warp(b, w, "ldmatrix");
    const unsigned short *rows[LANES];
    for (unsigned i = 0; i < LANES; i++) rows[i] = static_cast<LdmatrixOperands *>(w.fiber[i].operands)->row;
    for (unsigned m = 0; m < 4; m++) count_conflicts(b, rows + 8 * m);
    for (unsigned l = 0; l < LANES; l++) {
        unsigned *r = static_cast<LdmatrixOperands *>(w.fiber[l].operands)->r;
        unsigned g = l / 4, q = l % 4;
        for (unsigned m = 0; m < 4; m++) {
            unsigned lo = TRANS ? rows[8 * m + 2 * q][g] : rows[8 * m + g][2 * q];
            unsigned hi = TRANS ? rows[8 * m + 2 * q + 1][g] : rows[8 * m + g][2 * q + 1];
            r[m] = lo | hi << 16;
        }
    }
}

void ldmatrix(unsigned (&r)[4], const void *row, bool trans, Site site) {
    static const Collective plain = {"ldmatrix", run_ldmatrix<false>}, transposed = {"ldmatrix.trans", run_ldmatrix<true>};
    if (reinterpret_cast<uintptr_t>(row) % 16) running->fail("ldmatrix at %s:%d: the address of a row is not 16-byte aligned", site.file, site.line);
    if (!running->in_shared(row, 16)) running->fail("ldmatrix at %s:%d: a row is not in the block's shared memory", site.file, site.line);
    check_access(row, 16, false, __builtin_return_address(0));
    LdmatrixOperands o = {r, static_cast<const unsigned short *>(row)};
    running->collective(trans ? &transposed : &plain, ~0u, &o, site);
}

// --- mma ---

struct MmaOperands {
    float *d;          // [4]
    const unsigned *a; // [4]
    const unsigned *b; // [2]
};

static float low(unsigned v) { return __builtin_bit_cast(float, v << 16); }
static float high(unsigned v) { return __builtin_bit_cast(float, v & 0xffff0000u); }

// mma.m16n8k16: products of bf16 are exact in fp32. A device adds them in an order of its own and may truncate; here they
// are added in ascending k.
static void run_mma(Block &b, Warp &w, unsigned) {
    whole_warp(b, w, "mma");
    typedef float Row __attribute__((vector_size(32)));
    alignas(32) float a[16][16], d[16][8];
    alignas(32) float k_n[16][8];
    for (unsigned l = 0; l < LANES; l++) {
        auto *o = static_cast<MmaOperands *>(w.fiber[l].operands);
        unsigned g = l / 4, q = l % 4;
        for (unsigned i = 0; i < 4; i++) {
            unsigned row = g + i % 2 * 8, k = 2 * q + i / 2 * 8;
            a[row][k] = low(o->a[i]), a[row][k + 1] = high(o->a[i]);
            d[g + i / 2 * 8][2 * q + i % 2] = o->d[i];
        }
        for (unsigned i = 0; i < 2; i++) k_n[2 * q + 8 * i][g] = low(o->b[i]), k_n[2 * q + 1 + 8 * i][g] = high(o->b[i]);
    }
    for (unsigned m = 0; m < 16; m++) {
        Row sum = *reinterpret_cast<Row *>(d[m]);
        for (unsigned k = 0; k < 16; k++) sum += a[m][k] * *reinterpret_cast<Row *>(k_n[k]);
        *reinterpret_cast<Row *>(d[m]) = sum;
    }
    for (unsigned l = 0; l < LANES; l++) {
        float *out = static_cast<MmaOperands *>(w.fiber[l].operands)->d;
        for (unsigned i = 0; i < 4; i++) out[i] = d[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2];
    }
}

void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], Site site) {
    static const Collective c = {"mma", run_mma};
    MmaOperands o = {d, a, b};
    running->collective(&c, ~0u, &o, site);
}

// --- cp.async ---

static void finish(Copy &c) {
    if (c.done) return;
    c.done = true;
    if (c.src) memcpy(c.dst, c.src, 16);
    else memset(c.dst, 0, 16);
}

// A copy is over at a random moment between its issue and the wait that covers it: often at the wait, so that what is read
// before is poison or old; sometimes at once, so that what is overwritten too early is seen; else at a switch between.
void async_copy(void *dst, const void *src, bool valid, Site site) {
    Block &b = *running;
    if (reinterpret_cast<uintptr_t>(dst) % 16 || reinterpret_cast<uintptr_t>(src) % 16)
        b.fail("cp.async at %s:%d: %s is not 16-byte aligned", site.file, site.line, reinterpret_cast<uintptr_t>(dst) % 16 ? "the destination" : "the source");
    if (!b.in_shared(dst, 16)) b.fail("cp.async at %s:%d: the destination is not in the block's shared memory", site.file, site.line);
    Copy c = {dst, valid ? src : nullptr, b.current()->groups, false};
    check_copy_issued(c, __builtin_return_address(0));
    if (b.seed && b.below(4) == 0) finish(c);
    b.current()->copies.push_back(c);
}

void async_commit() { running->current()->groups++; }

template <class Covered> static void wait_for(Fiber &f, Covered covered) {
    for (Copy &c : f.copies)
        if (covered(c)) finish(c), check_copy_done(c);
    f.copies.erase(std::remove_if(f.copies.begin(), f.copies.end(), covered), f.copies.end());
}

// async_wait leaves the last n committed groups under way, and copies that were never committed.
void async_wait(unsigned n) {
    Fiber &f = *running->current();
    wait_for(f, [&](const Copy &c) { return c.group + n < f.groups; });
}

void finish_some_copies(Block &b, Fiber &f) {
    if (b.seed && b.random() % 4 == 0) finish(f.copies[b.below(f.copies.size())]);
}

void finish_copies(Fiber &f) {
    wait_for(f, [](const Copy &) { return true; });
}

} // namespace hs_sim
