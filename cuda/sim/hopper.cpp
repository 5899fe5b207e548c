//go:build ignore

// hopper.cpp: mbarriers, copies by the TMA unit and named barriers, as the PTX manual describes them ("Asynchronous
// operations", "mbarrier", "cp.async.bulk", "bar").
#include "checks.h"
#include "tensor_map.h"
#include <algorithm>
#include <stdio.h>

namespace hs_sim {

// swizzled is where the 16-byte pieces of a row go: bits 4.. of an address are xored with bits 7..
unsigned swizzled(unsigned address, unsigned span) { return span ? address ^ (address >> 3 & (span - 16)) : address; }

void Async::reset() {
    mbarriers.clear(), bulks.clear();
    for (NamedBarrier &n : named) n = {};
    for (WgmmaQueue &q : wgmma) q = {};
}

// --- mbarriers ---

static MBarrier *find(Block &b, const void *bar) {
    for (MBarrier &m : b.async.mbarriers)
        if (m.at == bar) return &m;
    return nullptr;
}

static MBarrier &mbarrier(const void *bar, Site site) {
    MBarrier *m = find(*running, bar);
    if (!m) running->fail("mbarrier at %s:%d: it was not initialised", site.file, site.line);
    return *m;
}

static void wake_all(Block &b, std::vector<Fiber *> &waiting) {
    for (Fiber *f : waiting) b.unpark(*f);
    waiting.clear();
}

static void end_phase_if_complete(Block &b, MBarrier &m) {
    if (m.pending || m.bytes) return;
    m.phase ^= 1, m.phases++, m.pending = m.expected;
    m.done = m.arriving, m.arriving = {};
    check_phase_done(m.done, &m - b.async.mbarriers.data(), m.phases);
    wake_all(b, m.waiting);
}

void mbar_init(void *bar, unsigned arrivals, Site site) {
    Block &b = *running;
    if (reinterpret_cast<uintptr_t>(bar) % 8 || !b.in_shared(bar, 8)) b.fail("mbarrier at %s:%d: it is not an aligned u64 in shared memory", site.file, site.line);
    if (!arrivals || arrivals >= 1u << 20) b.fail("mbarrier at %s:%d: %u arrivals", site.file, site.line, arrivals);
    if (find(b, bar)) b.fail("mbarrier at %s:%d: it is initialised a second time", site.file, site.line);
    b.async.mbarriers.push_back({bar, arrivals, arrivals, 0, 0, 0, self->thread.x, false, {}, {}, {}});
}

void mbar_fence() {
    for (MBarrier &m : running->async.mbarriers) m.visible |= m.initialiser == self->thread.x;
}

void async_proxy_fence() { check_proxy_fence(); }

void mbar_arrive(void *bar, unsigned expect_bytes, Site site) {
    MBarrier &m = mbarrier(bar, site);
    m.bytes += expect_bytes;
    if (m.bytes >= 1 << 20) running->fail("mbarrier at %s:%d: %lld bytes expected, at most 2^20 - 1", site.file, site.line, (long long)m.bytes);
    if (!m.pending) running->fail("mbarrier at %s:%d: more arrivals than the %u of a phase", site.file, site.line, m.expected);
    check_release(m.arriving);
    m.pending--;
    end_phase_if_complete(*running, m);
}

void mbar_wait(void *bar, unsigned parity, Site site) {
    Block &b = *running;
    for (;;) {
        MBarrier &m = mbarrier(bar, site);
        if (m.phase != (parity & 1)) return check_acquire(m.done);
        char what[120];
        snprintf(what, sizeof what, "the mbarrier (parity %u, %u arrivals and %lld bytes missing)", parity & 1, m.pending, (long long)m.bytes);
        m.waiting.push_back(b.current());
        b.park(what, site);
    }
}

// --- copies by the TMA unit ---

static void start(Bulk c, Site site, const void *pc) {
    Block &b = *running;
    size_t bytes = (size_t)c.rows * c.row_bytes;
    if (!b.in_shared(c.dst, bytes)) b.fail("bulk copy at %s:%d: its %zu bytes do not fit into the block's shared memory", site.file, site.line, bytes);
    c.dst_address = b.shared_address(c.dst);
    MBarrier &m = mbarrier(c.barrier, site);
    if (!m.visible) b.fail("mbarrier at %s:%d: no mbar_fence since it was initialised", site.file, site.line);
    if (&m - b.async.mbarriers.data() >= MBARRIERS) b.fail("mbarrier at %s:%d: more than %d in a block", site.file, site.line, MBARRIERS);
    check_bulk_issued(c, &m - b.async.mbarriers.data(), m.phases + 1, pc);
    check_release(m.arriving);
    b.async.bulks.push_back(c);
    if (b.seed && b.below(4) == 0) finish_one_bulk(b);
}

void bulk_load(void *dst, const void *src, unsigned bytes, void *bar, Site site) {
    if ((reinterpret_cast<uintptr_t>(dst) | reinterpret_cast<uintptr_t>(src) | bytes) % 16 || !bytes)
        running->fail("bulk copy at %s:%d: destination, source and %u bytes are not multiples of 16", site.file, site.line, bytes);
    start({static_cast<char *>(dst), 0, 1, bytes, 0, static_cast<const char *>(src), bytes, 0, 0, bytes, 1, bar}, site, __builtin_return_address(0));
}

void tensor_load(void *dst, const void *map, int x, int y, void *bar, Site site) {
    if (reinterpret_cast<uintptr_t>(map) % 64) running->fail("tensor copy at %s:%d: the map is not 64-byte aligned", site.file, site.line);
    TensorMapFields f;
    memcpy(&f, map, sizeof f);
    if (f.magic != TENSOR_MAP_MAGIC) running->fail("tensor copy at %s:%d: not a map that cuTensorMapEncodeTiled made", site.file, site.line);
    if (running->shared_address(dst) % 128) running->fail("tensor copy at %s:%d: the destination is not 128-byte aligned", site.file, site.line);
    start({static_cast<char *>(dst), 0, f.box_rows, f.box_width, f.swizzle, reinterpret_cast<const char *>(f.address), f.stride,
           (int64_t)x * f.element, y, f.width, f.rows, bar},
          site, __builtin_return_address(0));
}

// copy_row copies what of a row lies inside the source and zeros the rest.
static void copy_row(const Bulk &c, unsigned r, char *row) {
    memset(row, 0, c.row_bytes);
    int64_t y = c.y + r, from = std::max<int64_t>(c.x, 0), to = std::min<int64_t>(c.x + c.row_bytes, c.src_width);
    if (y < 0 || y >= (int64_t)c.src_rows || from >= to) return;
    memcpy(row + (from - c.x), c.src + y * c.src_stride + from, to - from);
}

static void finish(Block &b, const Bulk &c) {
    std::vector<char> row(c.row_bytes);
    for (unsigned r = 0; r < c.rows; r++) {
        copy_row(c, r, row.data());
        for (unsigned i = 0; i < c.row_bytes; i += 16) {
            unsigned at = c.dst_address + r * c.row_bytes + i;
            memcpy(c.dst + (swizzled(at, c.swizzle) - c.dst_address), row.data() + i, 16);
        }
    }
    check_bulk_done(c);
    MBarrier &m = *find(b, c.barrier);
    m.bytes -= (int64_t)c.rows * c.row_bytes;
    end_phase_if_complete(b, m);
}

bool finish_one_bulk(Block &b) {
    auto &all = b.async.bulks;
    if (all.empty()) return false;
    size_t i = b.seed ? b.below(all.size()) : 0;
    Bulk c = all[i];
    all.erase(all.begin() + i);
    finish(b, c);
    return true;
}

void check_nothing_under_way(Block &b) {
    if (!b.async.bulks.empty()) b.fail("the block ends while a bulk copy is under way");
    for (const WgmmaQueue &q : b.async.wgmma)
        if (!q.products.empty()) b.fail("the block ends while a wgmma is under way");
}

// --- named barriers ---

void named_barrier(unsigned id, unsigned threads, bool wait, Site site) {
    Block &b = *running;
    if (!id || id >= NAMED_BARRIERS || !threads || threads % LANES || threads > b.threads)
        b.fail("bar at %s:%d: barrier %u of %u threads; 1 to 15, of a multiple of 32 threads of the block's %u", site.file, site.line, id, threads, b.threads);
    NamedBarrier &n = b.async.named[id];
    if (n.arrived && n.threads != threads)
        b.fail("bar at %s:%d: barrier %u is for %u threads here and for %u elsewhere", site.file, site.line, id, threads, n.threads);
    n.threads = threads;
    check_release(n.arriving);
    if (wait) n.waiting.push_back(b.current());
    if (++n.arrived < threads) {
        if (!wait) return;
        char what[60];
        snprintf(what, sizeof what, "barrier %u of %u threads", id, threads);
        b.park(what, site);
    } else {
        n.arrived = 0;
        n.done = n.arriving, n.arriving = {};
        auto is_this = [&](Fiber *f) { return f == b.current(); };
        n.waiting.erase(std::remove_if(n.waiting.begin(), n.waiting.end(), is_this), n.waiting.end());
        wake_all(b, n.waiting);
    }
    if (wait) check_acquire(n.done);
}

} // namespace hs_sim
