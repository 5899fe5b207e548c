//go:build ignore

// block.cpp: the fibers of a block: how they start, wait, are chosen and end.
#include "checks.h"
#include <algorithm>
#include <new>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#if !defined(__x86_64__)
#error "the simulator switches stacks in x86-64 assembly; other processors need their own hs_sim_switch and fault.cpp"
#endif

// hs_sim_switch(save, to) stores the stack pointer and goes on at another one; hs_sim_resume(to) forgets where it was.
// What the System V calling convention lets a callee clobber needs no saving.
asm(R"(
.text
.globl hs_sim_switch, hs_sim_resume
.hidden hs_sim_switch, hs_sim_resume
.type hs_sim_switch, @function
.type hs_sim_resume, @function
hs_sim_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rdi
hs_sim_resume:
    mov %rdi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
)");
extern "C" void hs_sim_switch(void **save, void *to);
extern "C" [[noreturn]] void hs_sim_resume(void *to);

namespace hs_sim {

thread_local Thread *self __attribute__((tls_model("initial-exec"))) = nullptr;
thread_local Block *running __attribute__((tls_model("initial-exec"))) = nullptr;

static constexpr size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// Dynamic memory is 128-byte aligned by contract, so that much may lie between its last byte and the page behind it.
static constexpr size_t DYNAMIC_ALIGN = 128, REDZONE = 64;
static constexpr size_t STATIC_MAP = 2 * STATIC_LIMIT, DYNAMIC_MAP = round_up(SHARED_LIMIT + DYNAMIC_ALIGN, PAGE);
static constexpr unsigned char POISON = 0xff; // NaN in fp32 and bf16

static char *map(size_t bytes) {
    void *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    return static_cast<char *>(p);
}

Block::Block() {
    memory = map(3 * PAGE + STATIC_MAP + DYNAMIC_MAP);
    static_base = memory + PAGE;
    dynamic_end = static_base + STATIC_MAP + PAGE + DYNAMIC_MAP;
    mprotect(memory, PAGE, PROT_NONE);
    mprotect(static_base + STATIC_MAP, PAGE, PROT_NONE);
    mprotect(dynamic_end, PAGE, PROT_NONE);
    for (Fiber &f : fibers) f.stack = nullptr;
}

Block::~Block() {
    munmap(memory, 3 * PAGE + STATIC_MAP + DYNAMIC_MAP);
    for (Fiber &f : fibers)
        if (f.stack) munmap(f.stack, STACK);
}

void Block::make_stacks() {
    for (unsigned i = 0; i < threads && i < MAX_THREADS; i++) {
        if (fibers[i].stack) continue;
        fibers[i].stack = map(STACK);
        mprotect(fibers[i].stack, PAGE, PROT_NONE);
    }
}

// prepare puts every fiber at the start of the kernel and poisons shared memory.
void Block::prepare(Dim3 grid, Dim3 index) {
    warp_count = (threads + LANES - 1) / LANES;
    arrived = exited = current_warp = ready_warps = 0;
    for (unsigned i = 0; i < threads; i++) {
        Fiber &f = fibers[i];
        f.thread = {i, 0, 0}, f.block = index, f.threads = {threads, 1, 1}, f.grid = grid;
        f.waits_for = nullptr, f.site = {nullptr, 0}, f.parked.clear();
        f.copies.clear(), f.groups = 0;
        // Tops differ by whole cache lines, or all stacks would fall into the same sets of the cache.
        void **top = reinterpret_cast<void **>(f.stack + STACK - i * 320 % 8192);
        *--top = nullptr; // return address of enter: never used, keeps the alignment of a call
        *--top = reinterpret_cast<void *>(&Block::enter);
        for (int r = 0; r < 6; r++) *--top = nullptr;
        f.sp = top;
    }
    for (unsigned i = 0; i < warp_count; i++) {
        unsigned lanes = std::min(threads - i * LANES, LANES), all = lanes == LANES ? ~0u : (1u << lanes) - 1;
        warps[i] = {&fibers[i * LANES], all, 0, 0, 0, 0, 0};
        wake(warps[i], all);
    }
    declarations.clear(), async.reset();
    static_used = static_bytes = 0;
    dynamic_base = dynamic_end - round_up(dynamic_bytes, DYNAMIC_ALIGN);
    memset(dynamic_base, POISON, dynamic_end - dynamic_base);
    check_block(*this);
}

void Block::run(const Kernel *k, Dim3 grid, Dim3 index, unsigned n, size_t dynamic, const void *a, uint64_t s) {
    kernel = k, args = a, seed = s, threads = n, dynamic_bytes = dynamic;
    rng = s | 1;
    failed = false, stats = {};
    make_stacks();
    prepare(grid, index);
    if (seed) current_warp = below(warp_count);
    running = this;
    self = pick();
    hs_sim_switch(&host_sp, current()->sp);
    running = nullptr, self = nullptr;
    stats.blocks = 1, stats.static_bytes = static_bytes, stats.dynamic_bytes = dynamic_bytes;
    for (char *p = dynamic_base + dynamic_bytes; !failed && p < dynamic_end; p++)
        if (*p != (char)POISON) {
            failed = true;
            message = std::string("kernel ") + k->name + ": wrote past the end of its " + std::to_string(dynamic_bytes) + " bytes of dynamic shared memory";
        }
}

void Block::enter() {
    Block &b = *running;
    b.kernel->fn(b.args);
    Warp &w = b.warp();
    w.exited |= 1u << b.lane();
    b.exited++;
    finish_copies(*b.current());
    if (b.exited == b.threads) check_nothing_under_way(b);
    b.leave();
}

void Block::leave() {
    Fiber *next = pick();
    if (!next && exited < threads) stop_at_deadlock();
    if (!next) hs_sim_resume(host_sp);
    self = next;
    stats.switches++;
    hs_sim_resume(next->sp);
}

void Block::fail(const char *format, ...) {
    char what[600], where[200];
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    snprintf(where, sizeof where, "kernel %s, block (%u,%u,%u), thread %u: ", kernel->name, self->block.x, self->block.y, self->block.z,
             self->thread.x);
    message = std::string(where) + what;
    failed = true;
    hs_sim_resume(host_sp);
}

void Block::wake(Warp &w, unsigned lanes) {
    w.ready |= lanes;
    ready_warps |= 1u << (&w - warps);
}

// nth_bit is the place of the n-th set bit, from 0.
static unsigned nth_bit(unsigned set, unsigned n) {
#ifdef __BMI2__
    return __builtin_ctz(__builtin_ia32_pdep_si(1u << n, set));
#else
    for (; n; n--) set &= set - 1;
    return __builtin_ctz(set);
#endif
}

unsigned Block::pick_bit(unsigned set, uint32_t r) { return nth_bit(set, (uint64_t)r * __builtin_popcount(set) >> 32); }

// pick takes the fiber to run next, null where none can. It stays with a warp for a while: its stacks are in the cache.
// Without a seed it is the lowest lane of the lowest warp.
Fiber *Block::pick() {
    while (!ready_warps)
        if (!finish_one_bulk(*this)) return nullptr;
    uint32_t r = seed ? random() : 0;
    if (!warps[current_warp].ready || (seed && r % 16 == 0)) current_warp = pick_bit(ready_warps, seed ? random() : 0);
    Warp &w = warps[current_warp];
    unsigned lane = pick_bit(w.ready, r);
    w.ready &= ~(1u << lane);
    if (!w.ready) ready_warps &= ~(1u << current_warp);
    return w.fiber + lane;
}

// pass_on lets another fiber run; it returns when the caller, which waits somewhere or is ready, is chosen again.
void Block::pass_on() {
    Fiber *f = current();
    if (!f->copies.empty()) finish_some_copies(*this, *f);
    if (!async.bulks.empty() && seed && random() % 4 == 0) finish_one_bulk(*this);
    Fiber *next = pick();
    if (!next) stop_at_deadlock();
    if (next == f) return;
    self = next;
    stats.switches++;
    hs_sim_switch(&f->sp, next->sp);
}

static bool same(const Site &a, const Site &b) { return a.line == b.line && (a.file == b.file || !strcmp(a.file, b.file)); }

void Block::barrier(Site site) {
    current()->site = site;
    warp().at_barrier |= 1u << lane();
    if (++arrived < threads) return pass_on();
    for (unsigned i = 0; i < threads; i++)
        if (!same(fibers[i].site, site))
            fail("divergent barrier: it is at the __syncthreads of %s:%d while thread %u is at that of %s:%d", site.file, site.line, i,
                 fibers[i].site.file, fibers[i].site.line);
    arrived = 0;
    check_barrier(*this);
    for (unsigned i = 0; i < warp_count; i++) warps[i].at_barrier = 0, wake(warps[i], warps[i].exists);
    pass_on();
}

void Block::park(const char *what, Site site) {
    Fiber *f = current();
    f->parked = what, f->site = site;
    warp().parked |= 1u << lane();
    pass_on();
}

void Block::unpark(Fiber &f) {
    Warp &w = warps[f.thread.x / LANES];
    unsigned bit = 1u << f.thread.x % LANES;
    w.parked &= ~bit;
    wake(w, bit);
}

void Block::collective(const Collective *c, unsigned mask, void *operands, Site site) {
    Warp &w = warp();
    unsigned bit = 1u << lane();
    if (!(mask & bit)) fail("%s at %s:%d: lane %u is not in the mask %08x that it gives", c->name, site.file, site.line, lane(), mask);
    Fiber *f = current();
    f->waits_for = c, f->mask = mask, f->operands = operands, f->site = site;
    w.in_collective |= bit;
    unsigned need = mask & w.exists;
    if ((w.in_collective & need) != need) return pass_on();
    for (unsigned i = 0; i < LANES; i++) {
        Fiber &o = w.fiber[i];
        if (need >> i & 1 && (o.waits_for != c || o.mask != mask || !same(o.site, site)))
            fail("divergent warp: it is at %s with mask %08x at %s:%d while thread %u is at %s with mask %08x at %s:%d", c->name, mask,
                 site.file, site.line, o.thread.x, o.waits_for->name, o.mask, o.site.file, o.site.line);
    }
    c->run(*this, w, need);
    w.in_collective &= ~need;
    wake(w, need);
    pass_on();
}

static std::string place(const Fiber &f, const Warp &w) {
    char s[300];
    unsigned bit = 1u << f.thread.x % LANES;
    if (w.exited & bit) snprintf(s, sizeof s, "thread %u has ended", f.thread.x);
    else if (w.at_barrier & bit) snprintf(s, sizeof s, "thread %u waits at the __syncthreads of %s:%d", f.thread.x, f.site.file, f.site.line);
    else if (w.parked & bit) snprintf(s, sizeof s, "thread %u waits for %s at %s:%d", f.thread.x, f.parked.c_str(), f.site.file, f.site.line);
    else snprintf(s, sizeof s, "thread %u waits for its warp at %s with mask %08x at %s:%d", f.thread.x, f.waits_for->name, f.mask, f.site.file, f.site.line);
    return s;
}

// stop_at_deadlock: no fiber can go on. It names a thread that waits and one that it waits for.
void Block::stop_at_deadlock() {
    for (unsigned i = 0; i < threads; i++) {
        Warp &w = warps[i / LANES];
        if (!(w.in_collective >> i % LANES & 1)) continue;
        unsigned missing = fibers[i].mask & w.exists & ~w.in_collective;
        if (missing) fail("divergent warp: %s; %s", place(fibers[i], w).c_str(), place(w.fiber[__builtin_ctz(missing)], w).c_str());
    }
    for (unsigned i = 0; i < threads; i++)
        if (warps[i / LANES].parked >> i % LANES & 1) fail("deadlock: %s", place(fibers[i], warps[i / LANES]).c_str());
    unsigned waiting = 0, absent = 0;
    for (unsigned i = 0; i < threads; i++) (warps[i / LANES].at_barrier >> i % LANES & 1 ? waiting : absent) = i;
    fail("missing barrier: %s; %s", place(fibers[waiting], warps[waiting / LANES]).c_str(), place(fibers[absent], warps[absent / LANES]).c_str());
}

bool Block::in_shared(const void *p, size_t bytes) const {
    const char *c = static_cast<const char *>(p);
    return (c >= static_base && c + bytes <= static_base + static_used) || (c >= dynamic_base && c + bytes <= dynamic_base + dynamic_bytes);
}

void *Block::shared(const void *declaration, size_t bytes, size_t align, const char *name) {
    for (const Shared &d : declarations)
        if (d.declaration == declaration) return static_base + d.offset;
    size_t offset = round_up(static_used, std::max<size_t>(align, 16));
    static_bytes = round_up(static_bytes, align) + bytes;
    if (static_bytes > STATIC_LIMIT || static_bytes + dynamic_bytes > SHARED_LIMIT || offset + bytes + REDZONE > STATIC_MAP)
        fail("shared memory: %zu static bytes with %s and %zu dynamic ones; at most %zu static, %zu together", static_bytes, name, dynamic_bytes,
             STATIC_LIMIT, SHARED_LIMIT);
    memset(static_base + offset, POISON, bytes + REDZONE);
    static_used = offset + bytes + REDZONE;
    declarations.push_back({declaration, offset, bytes, name});
    return static_base + offset;
}

void *Block::dynamic(size_t bytes) {
    if (bytes > dynamic_bytes) fail("it declares %zu bytes of dynamic shared memory and was launched with %zu", bytes, dynamic_bytes);
    return dynamic_base;
}

// shared_address gives the 32-bit address that a device would: 1 KB is the system's, then, unlike a device, dynamic
// memory before static memory. It is the same as the host's modulo 1024, for code that aligns addresses itself.
unsigned Block::shared_start() const { return 1024 + reinterpret_cast<uintptr_t>(dynamic_base) % 1024; }

unsigned Block::shared_address(const void *p) {
    const char *c = static_cast<const char *>(p);
    if (!in_shared(p, 0)) fail("an address that is not in shared memory is converted to one that is");
    if (c >= dynamic_base) return shared_start() + (c - dynamic_base);
    return round_up(shared_start() + dynamic_bytes, 1024) + (c - static_base);
}

void *Block::shared_pointer(unsigned address, size_t bytes) const {
    unsigned statics = round_up(shared_start() + dynamic_bytes, 1024);
    char *p = address < statics ? dynamic_base + (int64_t(address) - shared_start()) : static_base + (address - statics);
    return in_shared(p, bytes) ? p : nullptr;
}

void *shared(const void *declaration, size_t bytes, size_t align, const char *name) { return running->shared(declaration, bytes, align, name); }
void *dynamic(size_t bytes) { return running->dynamic(bytes); }
unsigned shared_address(const void *p) { return running->shared_address(p); }
void block_barrier(Site site) { running->barrier(site); }
void aligned(const void *p, unsigned bytes, Site site) {
    running->fail("misaligned: address %p at %s:%d is not a multiple of %u", p, site.file, site.line, bytes);
}

} // namespace hs_sim
