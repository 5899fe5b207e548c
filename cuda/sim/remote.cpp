//go:build ignore

// remote.cpp: see remote.h.
#include "remote.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

namespace sim {

static constexpr size_t STAGE = 1 << 20; // bytes a rank hands over at a time

struct alignas(64) Remote::Slot {
    std::atomic<int32_t> pid;     // 0: has not joined
    std::atomic<uint32_t> left;   // takes part no more
    std::atomic<uint64_t> ready;  // collectives it has been ready for
    std::atomic<uint64_t> phase;  // barriers it has reached
    Collective what;              // of the latest it is ready for
};

struct Remote::File {
    std::atomic<int32_t> size;
    Slot slots[];
};

static_assert(std::atomic<uint64_t>::is_always_lock_free, "atomics between processes");

std::shared_ptr<Remote> Remote::open(const std::string &id, int size, std::string *why) {
    std::shared_ptr<Remote> r(new Remote);
    r->name = "/dev/shm/" + id, r->size = size;
    size_t slots = (sizeof(File) + size * sizeof(Slot) + 4095) / 4096 * 4096;
    r->bytes = slots + size * STAGE;
    int fd = ::open(r->name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)r->bytes)) {
        *why = r->name + ": " + strerror(errno);
        if (fd >= 0) close(fd);
        return nullptr;
    }
    void *p = mmap(nullptr, r->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (p == MAP_FAILED) {
        *why = r->name + ": " + strerror(errno);
        return nullptr;
    }
    r->file = static_cast<File *>(p);
    int32_t none = 0;
    if (!r->file->size.compare_exchange_strong(none, size) && none != size) {
        *why = "another process says " + std::to_string(none) + " ranks, this one " + std::to_string(size);
        r->linked = false; // theirs
        return nullptr;
    }
    return r;
}

Remote::~Remote() {
    unlink();
    if (file) munmap(file, bytes);
}

void Remote::unlink() {
    if (linked) ::unlink(name.c_str());
    linked = false;
}

bool Remote::own(int rank) const { return file->slots[rank].pid == getpid(); }
char *Remote::stage(int rank) const { return reinterpret_cast<char *>(file) + bytes - (size - rank) * STAGE; }

bool Remote::join(int rank) {
    int32_t none = 0;
    return file->slots[rank].pid.compare_exchange_strong(none, getpid());
}

bool Remote::has(int rank) const { return file->slots[rank].pid != 0; }

int Remote::joined() const {
    int n = 0;
    for (int r = 0; r < size; r++) n += has(r);
    return n;
}

bool Remote::all_here() const {
    for (int r = 0; r < size; r++)
        if (!own(r)) return false;
    return true;
}

void Remote::leave(int rank) { file->slots[rank].left = 1; }

void Remote::publish(int rank, uint64_t number, const Collective &what) {
    Slot &s = file->slots[rank];
    if (s.ready > number) return;
    s.what = what;
    s.ready = number + 1;
}

bool Remote::wanted(uint64_t number) const {
    for (int r = 0; r < size; r++)
        if (!own(r) && file->slots[r].ready > number) return true;
    return false;
}

std::string Remote::waits_for(uint64_t number, bool *gone) const {
    std::string waits;
    for (int r = 0; r < size; r++) {
        const Slot &s = file->slots[r];
        if (own(r) || s.ready > number) continue;
        bool left = s.left || (kill(s.pid, 0) && errno == ESRCH);
        *gone |= left;
        waits += (waits.empty() ? "rank " : ", rank ") + std::to_string(r) + " in process " + std::to_string(s.pid);
        waits += left ? " left" : " is not ready";
    }
    return waits;
}

// barrier returns when every rank has reached it.
std::string Remote::barrier(double timeout_s) {
    using clock = std::chrono::steady_clock;
    phase++;
    for (int r = 0; r < size; r++)
        if (own(r)) file->slots[r].phase = phase;
    auto deadline = clock::now() + std::chrono::duration<double>(timeout_s);
    for (int r = 0, spins = 0; r < size;) {
        const Slot &s = file->slots[r];
        if (s.phase >= phase) r++, spins = 0;
        else if (++spins < 100) std::this_thread::yield();
        else {
            std::this_thread::sleep_for(std::chrono::microseconds(50));
            bool gone = kill(s.pid, 0) && errno == ESRCH;
            if (s.phase < phase && (gone || clock::now() > deadline))
                return "rank " + std::to_string(r) + " in process " + std::to_string(s.pid) + (gone ? " ended" : " does not go on");
        }
    }
    return "";
}

// exchange does elements [lo, hi) of one block of each rank's buffer: block number `block` of what ReduceScatter sends, the
// only one otherwise.
std::string Remote::exchange(const Collective &c, const std::vector<Part> &parts, uint64_t lo, uint64_t hi, int block, double timeout_s) {
    uint64_t width = type_bytes(c.type), n = (hi - lo) * width, block_bytes = c.count * width;
    bool scatter = c.kind == Collect::ReduceScatter;
    for (int r = 0; r < size; r++)
        if (own(r) && (c.kind != Collect::Broadcast || r == c.root))
            memcpy(stage(r), (const char *)parts[r].send + (scatter ? block * block_bytes : 0) + lo * width, n);
    std::string bad = barrier(timeout_s);
    if (!bad.empty()) return bad;
    std::vector<const void *> from(size);
    for (int s = 0; s < size; s++) from[s] = stage(s);
    for (int r = 0; r < size; r++) {
        if (!own(r) || (scatter && r != block)) continue;
        char *to = (char *)parts[r].recv + lo * width;
        if (c.kind == Collect::Broadcast) memcpy(to, from[c.root], n);
        else if (c.kind == Collect::AllGather) for (int s = 0; s < size; s++) memcpy(to + s * block_bytes, from[s], n);
        else sum_ranks(c, from, to, hi - lo);
    }
    return barrier(timeout_s);
}

std::string Remote::perform(const Collective &c, const std::vector<Part> &parts, double timeout_s) {
    for (int r = 0; r < size; r++)
        if (!(file->slots[r].what == c)) return "rank " + std::to_string(r) + " calls " + file->slots[r].what.text()
            + ", this process " + c.text();
    uint64_t step = STAGE / type_bytes(c.type);
    int blocks = c.kind == Collect::ReduceScatter ? size : 1;
    for (int block = 0; block < blocks; block++)
        for (uint64_t lo = 0; lo < c.count; lo += step) {
            std::string bad = exchange(c, parts, lo, std::min(lo + step, c.count), block, timeout_s);
            if (!bad.empty()) return bad;
        }
    return barrier(timeout_s); // nobody announces the next collective before all have read this one's announcement
}

} // namespace sim
