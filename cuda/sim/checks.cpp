//go:build ignore

// checks.cpp: see checks.h.
#include "checks.h"
#ifdef HS_SIM_CHECKED
#include <algorithm>
#include <dlfcn.h>
#include <memory>
#include <stdio.h>
#include <stdlib.h>
#include <unordered_map>

namespace hs_sim {
namespace {

// Access is who last touched a unit of memory. The generation counts barriers of all blocks, one block after another: blocks
// do not overlap in this build.
struct Access {
    uint32_t generation, block, clock;
    uint16_t thread;
    const void *pc;
    uint32_t fence; // fences of the asynchronous proxy that the thread had made; ASYNC: that proxy's own access
};
constexpr uint32_t ASYNC = ~0u;

// Unit is what is known of 2 bytes: the last write and two reads that nothing orders, more readers are forgotten.
struct Unit {
    Access write, read[2];
    bool copying; // write is a background copy that is under way
};

constexpr size_t UNIT = 2, UNITS = PAGE / UNIT, MOST_PAGES = 8000;
struct Page { Unit units[UNITS]; };

// Clock of a thread: of[u] is the last time of thread u that it knows to be past. It starts anew at every barrier of the block.
// Bulk copies are accesses of their mbarrier, which stands behind the threads; its times are its phases.
struct Clock {
    uint32_t generation = 0;
    bool joined = false; // it knows of others
    std::vector<uint32_t> of;
};

std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages;
Clock clocks[MAX_THREADS];
uint32_t fences[MAX_THREADS]; // of the asynchronous proxy, in this block
uint32_t generation = 1, launch_start = 1, block_start = 1, block_number;

Unit &unit(uintptr_t p) {
    static uintptr_t last = 0;
    static Page *page = nullptr;
    uintptr_t number = p / PAGE;
    if (!page || number != last || pages.empty()) {
        auto &at = pages[number];
        if (!at) at.reset(new Page());
        last = number, page = at.get();
    }
    return page->units[p % PAGE / UNIT];
}

size_t clocks_of_block() { return running->threads + MBARRIERS; }

Clock &clock_of(unsigned thread) {
    Clock &c = clocks[thread];
    if (c.generation == generation) return c;
    if (c.joined || c.of.size() != clocks_of_block()) c.of.assign(clocks_of_block(), 0);
    c.generation = generation, c.joined = false, c.of[thread] = 1;
    return c;
}

void join(std::vector<uint32_t> &to, const std::vector<uint32_t> &from) {
    for (size_t i = 0; i < from.size(); i++) to[i] = std::max(to[i], from[i]);
}

Access now(const void *pc, bool async = false) {
    unsigned t = self->thread.x;
    return {generation, block_number, clock_of(t).of[t], (uint16_t)t, pc, async ? ASYNC : fences[t]};
}

bool happened(const Access &a, uint32_t since) { return a.generation && a.generation >= since; }

// ordered tells whether an access of this launch is before what the current thread does now.
bool ordered(const Access &a) {
    unsigned t = self->thread.x;
    if (a.generation < block_start) return false;
    if (a.generation < generation || a.thread == t) return true;
    return clock_of(t).of[a.thread] >= a.clock;
}

// line_of gives the places of the sources behind an address, the innermost first.
std::string line_of(const void *pc) {
    Dl_info info;
    if (!dladdr(pc, &info) || !info.dli_fname) return "?";
    char command[600], line[300];
    size_t offset = static_cast<const char *>(pc) - static_cast<const char *>(info.dli_fbase) - 1; // of the call, not its return
    snprintf(command, sizeof command, "addr2line -i -e '%s' 0x%zx 2>/dev/null", info.dli_fname, offset);
    FILE *f = popen(command, "r");
    std::string places, last;
    while (f && fgets(line, sizeof line, f)) {
        std::string s = line;
        s.erase(s.find_last_not_of("\n") + 1);
        s.erase(0, std::max(s.rfind("/cu/") + 1, s.rfind("/sim/") + 1)); // npos + 1 is 0
        s.erase(std::min(s.find(" ("), s.size())); // a discriminator
        if (s.find("hs_sim.h") != std::string::npos || s == last) continue;
        places += (places.empty() ? "" : " in ") + s;
        last = s;
    }
    if (f) pclose(f);
    return places.empty() ? info.dli_fname + std::string("+") + std::to_string(offset) : places;
}

std::string name_of(Block &b, uintptr_t p) {
    char s[200];
    const char *c = reinterpret_cast<const char *>(p);
    if (c >= b.dynamic_base && c < b.dynamic_end) snprintf(s, sizeof s, "dynamic shared memory + %zu", c - b.dynamic_base);
    else snprintf(s, sizeof s, "global memory at %p", static_cast<const void *>(c));
    for (const Shared &d : b.declarations)
        if (c >= b.static_base + d.offset && c < b.static_base + d.offset + d.bytes)
            snprintf(s, sizeof s, "shared memory %s + %zu", d.name, c - b.static_base - d.offset);
    return s;
}

[[noreturn]] void fail_race(uintptr_t p, bool write, const void *pc, const Access &other, bool other_wrote) {
    Block &b = *running;
    char who[60];
    if (other.block == block_number && other.thread >= b.threads) snprintf(who, sizeof who, "a bulk copy");
    else if (other.block == block_number) snprintf(who, sizeof who, "thread %u", other.thread);
    else snprintf(who, sizeof who, "thread %u of block number %u", other.thread, other.block);
    b.fail("race: it %s %s at %s; %s %s it at %s and no barrier is between", write ? "writes" : "reads", name_of(b, p).c_str(),
           line_of(pc).c_str(), who, other_wrote ? "wrote" : "read", line_of(other.pc).c_str());
}

std::string issuer(const Access &a) { return a.thread < running->threads ? " of thread " + std::to_string(a.thread) : ""; }

// check_proxy: async access of memory that was last written as threads write.
void check_proxy(const Unit &u, uintptr_t p, const void *pc) {
    if (u.write.fence == ASYNC || fences[u.write.thread] > u.write.fence) return;
    Block &b = *running;
    b.fail("race: wgmma or the TMA unit uses %s at %s, which thread %u wrote at %s without async_proxy_fence since", name_of(b, p).c_str(),
           line_of(pc).c_str(), u.write.thread, line_of(u.write.pc).c_str());
}

// check_unit looks at one unit and notes the access. scratch is memory of the block alone, which starts undefined.
void check_unit(uintptr_t p, bool write, const void *pc, bool scratch, bool async) {
    Unit &u = unit(p);
    uint32_t since = scratch ? block_start : launch_start;
    if (async && scratch && happened(u.write, since)) check_proxy(u, p, pc);
    if (u.copying && happened(u.write, since)) {
        Block &b = *running;
        b.fail("race: it %s %s at %s while the copy%s at %s is under way", write ? "writes" : "reads", name_of(b, p).c_str(),
               line_of(pc).c_str(), issuer(u.write).c_str(), line_of(u.write.pc).c_str());
    }
    if (happened(u.write, since) && !ordered(u.write)) fail_race(p, write, pc, u.write, true);
    if (!write) {
        if (scratch && !happened(u.write, since))
            running->fail("uninitialised: it reads %s at %s, where nothing was written", name_of(*running, p).c_str(), line_of(pc).c_str());
        for (Access &r : u.read)
            if (!happened(r, since) || ordered(r)) {
                r = now(pc, async);
                break;
            }
        return;
    }
    for (Access &r : u.read)
        if (happened(r, since) && !ordered(r)) fail_race(p, write, pc, r, false);
    u.write = now(pc, async);
    u.copying = false;
}

// in_variable: static memory is used inside a declared variable only.
bool in_variable(Block &b, const char *p, size_t bytes) {
    for (const Shared &d : b.declarations)
        if (p >= b.static_base + d.offset && p + bytes <= b.static_base + d.offset + d.bytes) return true;
    return false;
}

} // namespace

void check_launch() {
    if (pages.size() > MOST_PAGES) pages.clear();
    launch_start = ++generation;
}

void check_block(Block &b) {
    block_start = ++generation;
    std::fill(fences, fences + MAX_THREADS, 0);
    block_number = b.fibers[0].block.x + b.fibers[0].grid.x * (b.fibers[0].block.y + b.fibers[0].grid.y * b.fibers[0].block.z);
}

void check_barrier(Block &) { generation++; }

void check_warp_barrier(Warp &w, unsigned mask) {
    std::vector<uint32_t> all(clocks_of_block());
    for (unsigned l = 0; l < LANES; l++)
        if (mask >> l & 1) join(all, clock_of(w.fiber[l].thread.x).of);
    for (unsigned l = 0; l < LANES; l++) {
        if (!(mask >> l & 1)) continue;
        unsigned t = w.fiber[l].thread.x;
        Clock &c = clock_of(t);
        c.of = all, c.joined = true, c.of[t]++;
    }
}

void check_release(Order &o) {
    unsigned t = self->thread.x;
    Clock &c = clock_of(t);
    if (o.generation != generation) o.of.assign(clocks_of_block(), 0), o.generation = generation;
    join(o.of, c.of);
    c.of[t]++;
}

void check_acquire(const Order &o) {
    if (o.generation != generation) return; // a barrier of the block came after it
    Clock &c = clock_of(self->thread.x);
    join(c.of, o.of);
    c.joined = true;
}

static void check_bytes(const void *where, size_t bytes, bool write, const void *pc, bool async) {
    if (!running) return;
    Block &b = *running;
    const char *p = static_cast<const char *>(where);
    const Fiber &f = *b.current();
    if (p >= f.stack && p < f.stack + STACK) return;
    bool scratch = p >= b.memory && p < b.dynamic_end + PAGE;
    bool inside = p >= b.dynamic_base ? p + bytes <= b.dynamic_base + b.dynamic_bytes : in_variable(b, p, bytes);
    if (scratch && !inside)
        b.fail("outside: it %s %zu bytes beyond a shared variable at %s", write ? "writes" : "reads", bytes, line_of(pc).c_str());
    uintptr_t from = reinterpret_cast<uintptr_t>(p) / UNIT * UNIT, to = reinterpret_cast<uintptr_t>(p) + bytes;
    for (; from < to; from += UNIT) check_unit(from, write, pc, scratch, async);
}

void check_access(const void *where, size_t bytes, bool write, const void *pc) { check_bytes(where, bytes, write, pc, false); }
void check_async_access(const void *where, size_t bytes, bool write, const void *pc) { check_bytes(where, bytes, write, pc, true); }
void check_proxy_fence() { fences[self->thread.x]++; }

void check_copy_issued(const Copy &c, const void *pc) {
    if (c.src) check_access(c.src, 16, false, pc);
    check_access(c.dst, 16, true, pc);
    for (size_t i = 0; i < 16; i += UNIT) unit(reinterpret_cast<uintptr_t>(c.dst) + i).copying = true;
}

// check_copy_done: from here on it is a write of the thread that waited.
void check_copy_done(const Copy &c) {
    for (size_t i = 0; i < 16; i += UNIT) {
        Unit &u = unit(reinterpret_cast<uintptr_t>(c.dst) + i);
        u.copying = false;
        u.write = now(u.write.pc);
    }
}

// each_unit calls f for every unit that a bulk copy writes; a swizzle stays within it.
template <class F> static void each_unit(const Bulk &c, F f) {
    for (size_t i = 0; i < (size_t)c.rows * c.row_bytes; i += UNIT) f(unit(reinterpret_cast<uintptr_t>(c.dst) + i));
}

void check_bulk_issued(const Bulk &c, int mbarrier, uint32_t phase, const void *pc) {
    check_async_access(c.dst, (size_t)c.rows * c.row_bytes, true, pc);
    each_unit(c, [&](Unit &u) { u.copying = true, u.write.thread = running->threads + mbarrier, u.write.clock = phase; });
    for (int64_t y = std::max<int64_t>(c.y, 0); y < std::min<int64_t>(c.y + c.rows, c.src_rows); y++) {
        int64_t from = std::max<int64_t>(c.x, 0), to = std::min<int64_t>(c.x + c.row_bytes, c.src_width);
        if (from < to) check_async_access(c.src + y * c.src_stride + from, to - from, false, pc);
    }
}

void check_phase_done(Order &o, int mbarrier, uint32_t phase) {
    if (o.generation == generation && mbarrier < MBARRIERS) o.of[running->threads + mbarrier] = phase;
}

void check_bulk_done(const Bulk &c) {
    each_unit(c, [](Unit &u) { u.copying = false; });
}

} // namespace hs_sim

// --- what gcc calls for -fsanitize=thread ---

using hs_sim::check_access;
#define HS_PC __builtin_return_address(0)
#define HS_ACCESS(name, bytes)                                                         \
    void __tsan_read##name(void *p) { check_access(p, bytes, false, HS_PC); }          \
    void __tsan_write##name(void *p) { check_access(p, bytes, true, HS_PC); }          \
    void __tsan_unaligned_read##name(void *p) { check_access(p, bytes, false, HS_PC); } \
    void __tsan_unaligned_write##name(void *p) { check_access(p, bytes, true, HS_PC); }
extern "C" {
HS_ACCESS(1, 1)
HS_ACCESS(2, 2)
HS_ACCESS(4, 4)
HS_ACCESS(8, 8)
HS_ACCESS(16, 16)
void __tsan_read_range(void *p, size_t n) { check_access(p, n, false, HS_PC); }
void __tsan_write_range(void *p, size_t n) { check_access(p, n, true, HS_PC); }
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}

// --- and for -fsanitize=alignment,bounds,shift-exponent,signed-integer-overflow ---

struct Place { const char *file; unsigned line, column; };
struct Mismatch { Place place; const void *type; unsigned char log_alignment, kind; };

[[noreturn]] static void undefined(const Place &p, const char *what) {
    if (!hs_sim::running) abort();
    hs_sim::running->fail("undefined: %s at %s:%u", what, p.file, p.line);
}
void __ubsan_handle_type_mismatch_v1(Mismatch *m, uintptr_t p) {
    if (p % (uintptr_t(1) << m->log_alignment)) undefined(m->place, "misaligned address");
}
void __ubsan_handle_out_of_bounds(Place *p, uintptr_t) { undefined(*p, "index outside its array"); }
void __ubsan_handle_shift_out_of_bounds(Place *p, uintptr_t, uintptr_t) { undefined(*p, "shift by too much"); }
void __ubsan_handle_add_overflow(Place *p, uintptr_t, uintptr_t) { undefined(*p, "overflow of a signed sum"); }
void __ubsan_handle_sub_overflow(Place *p, uintptr_t, uintptr_t) { undefined(*p, "overflow of a signed difference"); }
void __ubsan_handle_mul_overflow(Place *p, uintptr_t, uintptr_t) { undefined(*p, "overflow of a signed product"); }
void __ubsan_handle_negate_overflow(Place *p, uintptr_t) { undefined(*p, "overflow of a negation"); }
void __ubsan_handle_divrem_overflow(Place *p, uintptr_t, uintptr_t) { undefined(*p, "division by zero or overflow"); }
}
#endif
