//go:build ignore

// engine.cpp: a launch is spread over the threads of a pool, the caller's among them.
#include "engine.h"
#include "checks.h"
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <numeric>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <thread>

namespace hs_sim {

Kernel *kernels = nullptr;

namespace {

// Launch is one run_grid under way.
struct Launch {
    const Kernel *kernel;
    Dim3 grid;
    unsigned threads;
    size_t dynamic_bytes;
    const void *args;
    uint64_t seed = 0, blocks = 0, start = 0, stride = 1; // block number i is (start + i·stride) mod blocks
    uint64_t next = 0, under_way = 0;     // of the pool's mutex
    std::string error;
    Stats stats;
};

uint64_t mix(uint64_t x) { // splitmix64
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

void add(Stats &to, const Stats &s) {
    to.blocks += s.blocks, to.switches += s.switches, to.shared_reads += s.shared_reads, to.conflict_ways += s.conflict_ways;
    to.max_ways = std::max(to.max_ways, s.max_ways);
    to.static_bytes = std::max(to.static_bytes, s.static_bytes);
    to.dynamic_bytes = std::max(to.dynamic_bytes, s.dynamic_bytes);
}

void run_block(Block &b, const Launch &l, uint64_t number) {
    uint64_t i = (l.start + number * l.stride) % l.blocks;
    Dim3 index = {unsigned(i % l.grid.x), unsigned(i / l.grid.x % l.grid.y), unsigned(i / l.grid.x / l.grid.y)};
    b.run(l.kernel, l.grid, index, l.threads, l.dynamic_bytes, l.args, l.seed ? mix(l.seed ^ mix(i)) : 0);
}

// Pool hands blocks out. Its threads live as long as the process: kernels may be under way when it ends.
struct Pool {
    std::mutex mutex;
    std::condition_variable work, done;
    std::deque<Launch *> launches; // that have blocks left
    std::vector<std::unique_ptr<Block>> idle;

    explicit Pool(unsigned threads) {
        sigset_t all, before; // signals are for the process's own threads, except those that a kernel causes
        sigfillset(&all);
        for (int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&all, s);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        for (unsigned i = 1; i < threads; i++) std::thread([this] { serve(); }).detach();
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    std::unique_ptr<Block> take() {
        if (idle.empty()) return std::make_unique<Block>();
        auto b = std::move(idle.back());
        idle.pop_back();
        return b;
    }

    // step runs one block of l with the mutex released.
    void step(std::unique_lock<std::mutex> &lock, Block &b, Launch &l) {
        uint64_t number = l.next++;
        l.under_way++;
        if (l.next == l.blocks) launches.erase(std::find(launches.begin(), launches.end(), &l));
        lock.unlock();
        run_block(b, l, number);
        lock.lock();
        add(l.stats, b.stats);
        if (b.error() && l.error.empty()) {
            l.error = b.error();
            if (l.next < l.blocks) launches.erase(std::find(launches.begin(), launches.end(), &l));
            l.next = l.blocks;
        }
        if (--l.under_way == 0 && l.next == l.blocks) done.notify_all();
    }

    void serve() {
        give_signal_stack();
        std::unique_lock<std::mutex> lock(mutex);
        std::unique_ptr<Block> b = take();
        for (;;) {
            work.wait(lock, [this] { return !launches.empty(); });
            step(lock, *b, *launches.front());
        }
    }

    void run(Launch &l) {
        give_signal_stack();
        std::unique_lock<std::mutex> lock(mutex);
        launches.push_back(&l);
        if (l.blocks > 1) work.notify_all();
        std::unique_ptr<Block> b = take();
        while (l.next < l.blocks) step(lock, *b, l);
        done.wait(lock, [&] { return l.under_way == 0; });
        add(const_cast<Kernel *>(l.kernel)->stats, l.stats);
        idle.push_back(std::move(b));
    }
};

Pool &pool() {
    static Pool *p = [] {
        const char *s = getenv("HARNESS_S_SIM_THREADS");
        int n = s ? atoi(s) : 0;
        return new Pool(CHECKED ? 1 : n > 0 ? std::min(n, 256) : 2);
    }();
    return *p;
}

// order makes a launch's blocks come in a random cyclic order: a start and a stride without a factor in common with their count.
void order(Launch &l) {
    l.start = 0, l.stride = 1;
    if (!l.seed) return;
    l.start = mix(l.seed) % l.blocks;
    l.stride = mix(l.seed + 1) % (l.blocks < (1ull << 32) ? l.blocks : 1ull << 32) | 1;
    while (std::gcd(l.stride, l.blocks) != 1) l.stride++;
}

} // namespace

const char *run_grid(const Kernel *k, unsigned gx, unsigned gy, unsigned gz, unsigned threads, size_t dynamic_bytes, const void *args,
                     uint64_t seed) {
    static thread_local std::string error;
    error.clear();
    if (!gx || !gy || !gz || !threads) error = std::string("kernel ") + k->name + ": a launch of no blocks or no threads";
    else if (threads > (unsigned)k->max_threads || threads > MAX_THREADS)
        error = std::string("kernel ") + k->name + ": launched with " + std::to_string(threads) + " threads a block, made for " + std::to_string(k->max_threads);
    else if (dynamic_bytes > SHARED_LIMIT)
        error = std::string("kernel ") + k->name + ": launched with " + std::to_string(dynamic_bytes) + " bytes of dynamic shared memory, at most " + std::to_string(SHARED_LIMIT);
    if (!error.empty()) return error.c_str();
    catch_faults();
    static std::mutex one; // launch at a time in the checked build
    std::unique_lock<std::mutex> lock(one, std::defer_lock);
    if (CHECKED) lock.lock(), check_launch();
    struct alignas(64) Line { char bytes[64]; }; // parameters lie as aligned as any of them asks
    std::vector<Line> parameters(k->args_size / 64 + 1);
    memcpy(parameters.data(), args, k->args_size);
    Launch l;
    l.kernel = k, l.grid = {gx, gy, gz}, l.threads = threads, l.dynamic_bytes = dynamic_bytes, l.args = parameters.data();
    l.seed = seed, l.blocks = (uint64_t)gx * gy * gz;
    order(l);
    pool().run(l);
    error = l.error;
    return error.empty() ? nullptr : error.c_str();
}

static const Kernel *find(const char *name) {
    const Kernel *k = kernels;
    while (k && strcmp(k->name, name)) k = k->next;
    return k;
}

bool stats(const char *kernel, Stats *out) {
    const Kernel *k = find(kernel);
    if (!k) return false;
    std::lock_guard<std::mutex> lock(pool().mutex);
    *out = k->stats;
    return true;
}

} // namespace hs_sim

const char *hs_sim_launch(const char *kernel, const unsigned grid[3], unsigned threads, size_t dynamic_bytes, const void *args,
                          size_t args_size, uint64_t seed) {
    const hs_sim::Kernel *k = hs_sim::find(kernel);
    if (!k) return "no such kernel";
    if (k->args_size != args_size) return "the kernel's arguments have another size";
    return hs_sim::run_grid(k, grid[0], grid[1], grid[2], threads, dynamic_bytes, args, seed);
}

int hs_sim_stats(const char *kernel, hs_sim::Stats *out) { return hs_sim::stats(kernel, out); }
