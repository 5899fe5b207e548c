//go:build ignore

// memory.cpp: see memory.h.
#include "memory.h"

#include <cstring>
#include <map>
#include <sys/mman.h>

namespace sim {

// Chunk is a range of addresses that blocks are cut from, in ascending order; none is used twice. It goes back to the system
// when it is used up and its last block is freed.
struct Chunk {
    char *base;
    size_t size, used;
    int live;
    Device *device;
};

static constexpr size_t PAGE = 4096, ALIGN = 256, GUARD = 64 << 10, CHUNK = (size_t)64 << 30, POISON_LIMIT = (size_t)256 << 20;

static std::map<uintptr_t, Block> &blocks() {
    static auto *b = new std::map<uintptr_t, Block>;
    return *b;
}
static std::map<const Device *, Chunk *> &current() {
    static auto *c = new std::map<const Device *, Chunk *>;
    return *c;
}
static uint64_t count;

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

static Chunk *reserve(Device *d, size_t bytes) {
    size_t size = std::max(CHUNK, round_up(bytes, PAGE));
    void *hint = nullptr;
#ifndef __SANITIZE_THREAD__ // which knows only some address ranges
    // Far from everything else, and a tebibyte a device: an address tells its device, and no number looks like one.
    hint = (void *)(0x500000000000ull + ((uint64_t)(d ? d->index : 63) << 40));
#endif
    void *p = mmap(hint, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? nullptr : new Chunk{(char *)p, size, GUARD, 0, d};
}

static void give_back(Chunk *c) {
    auto lo = blocks().lower_bound((uintptr_t)c->base), hi = blocks().lower_bound((uintptr_t)c->base + c->size);
    blocks().erase(lo, hi);
    munmap(c->base, c->size);
    delete c;
}

Block *allocate(Device *d, size_t bytes) {
    size_t rounded = round_up(bytes, ALIGN), pages = round_up(rounded, PAGE);
    Chunk *&c = current()[d];
    if (!c || c->size - c->used < pages + GUARD) {
        Chunk *old = c;
        c = reserve(d, pages + 2 * GUARD);
        if (old && !old->live) give_back(old);
        if (!c) return nullptr;
    }
    char *start = c->base + c->used;
    if (mprotect(start, pages, PROT_READ | PROT_WRITE)) return nullptr;
    c->used += pages + GUARD, c->live++;
    char *base = start + pages - rounded;
    if (bytes < POISON_LIMIT) memset(start, 0xff, pages);
    else memset(base + bytes, 0xff, rounded - bytes);
    Block b;
    b.base = (uintptr_t)base, b.bytes = bytes, b.device = d, b.live = true, b.number = ++count, b.chunk = c;
    return &(blocks()[b.base] = b);
}

std::string release(Block *b) {
    size_t rounded = round_up(b->bytes, ALIGN), pages = round_up(rounded, PAGE);
    std::string overrun;
    const unsigned char *p = (const unsigned char *)b->base;
    for (size_t i = b->bytes; i < rounded && overrun.empty(); i++)
        if (p[i] != 0xff)
            overrun = "byte " + std::to_string(i) + " of block " + std::to_string(b->number) + " was written, which has " +
                      std::to_string(b->bytes) + " bytes";
    char *start = (char *)b->base + rounded - pages;
    madvise(start, pages, MADV_DONTNEED);
    mprotect(start, pages, PROT_NONE);
    b->live = false;
    Chunk *c = b->chunk;
    if (--c->live == 0 && current()[c->device] != c) give_back(c);
    return overrun;
}

Block *find(uintptr_t p) {
    auto it = blocks().upper_bound(p);
    if (it == blocks().begin()) return nullptr;
    Block *b = &std::prev(it)->second;
    return p < b->base + std::max<size_t>(b->bytes, 1) ? b : nullptr;
}

static std::string hex(uintptr_t p) {
    char text[32];
    snprintf(text, sizeof text, "0x%llx", (unsigned long long)p);
    return text;
}

static std::string name(const Block &b) {
    std::string where = b.device ? "of device " + std::to_string(b.device->index) : std::string("of pinned host memory");
    return "block " + std::to_string(b.number) + " " + where + " (" + std::to_string(b.bytes) + " bytes)";
}

std::string holds(Device *d, uintptr_t p, size_t n, bool pinned) {
    if (n == 0) return "";
    const Block *b = find(p);
    if (!b) return hex(p) + (pinned ? " is not pinned host memory" : " is not device memory");
    if (!b->live) return hex(p) + " lies in freed " + name(*b);
    if (pinned && b->device) return hex(p) + " is device memory, not pinned host memory";
    if (!pinned && !b->device) return hex(p) + " is host memory, not device memory";
    if (n > b->bytes - (p - b->base)) return std::to_string(n) + " bytes at offset " + std::to_string(p - b->base) + " leave " + name(*b);
    if (b->device && b->device != d && !(d->peers >> b->device->index & 1))
        return hex(p) + " lies in " + name(*b) + "; device " + std::to_string(d->index) + " has no access to it";
    return "";
}

std::string describe_address(uintptr_t p) {
    std::lock_guard<std::mutex> lock(world().mu);
    auto it = blocks().upper_bound(p);
    if (it == blocks().begin()) return "";
    const Block &b = std::prev(it)->second;
    if (p >= (uintptr_t)b.chunk->base + b.chunk->size) return "";
    if (p < b.base + b.bytes) return hex(p) + " is byte " + std::to_string(p - b.base) + " of " + (b.live ? "" : "freed ") + name(b);
    return hex(p) + " is " + std::to_string(p - b.base - b.bytes) + " bytes past the end of " + (b.live ? "" : "freed ") + name(b);
}

size_t release_all(Device *d) {
    std::vector<Block *> live;
    for (auto &entry : blocks())
        if (entry.second.live && entry.second.device == d) live.push_back(&entry.second);
    size_t bytes = 0;
    for (Block *b : live) bytes += b->bytes, release(b);
    return bytes;
}

} // namespace sim
