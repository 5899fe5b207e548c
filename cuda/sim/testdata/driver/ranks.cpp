// Collectives over several devices from as many threads, of one process or two.
#include "check.h"
#include <sys/wait.h>
#include <unistd.h>

enum { F32 = 7, BF16 = 9 };

// Rank is one thread's device and communicator.
struct Rank {
    int index, size;
    Gpu g;
    Handle comm;
    Rank(int index, int size, UniqueId id, int device) : index(index), size(size), g(device) { OK(ncclCommInitRank(&comm, size,
        id, index)); }
};

// run_ranks runs ranks [first, first+here) of `size` in this process.
static void run_ranks(UniqueId id, int first, int here, int size, void (*body)(Rank &)) {
    setting("HARNESS_S_SIM_DEVICES", std::to_string(here));
    OK(cuInit(0));
    std::vector<std::thread> threads;
    for (int r = 0; r < here; r++)
        threads.emplace_back([=] {
            Rank rank(first + r, size, id, r);
            body(rank);
        });
    for (auto &t : threads) t.join();
}

static void on_ranks(int size, void (*body)(Rank &)) {
    UniqueId id;
    OK(ncclGetUniqueId(&id));
    run_ranks(id, 0, size, size, body);
}

// on_two_processes runs `mine` ranks here and `theirs` in a child.
static void on_two_processes(int mine, int theirs, void (*body)(Rank &), bool child_fails = false) {
    UniqueId id;
    OK(ncclGetUniqueId(&id));
    pid_t child = fork();
    if (child == 0) {
        run_ranks(id, mine, theirs, mine + theirs, body);
        _exit(failed() ? 1 : 0);
    }
    run_ranks(id, 0, mine, mine + theirs, body);
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && (WEXITSTATUS(status) != 0) == child_fails);
    CHECK(access((std::string("/dev/shm/") + id.bytes).c_str(), F_OK) != 0); // nothing is left behind
}

static uint16_t bf16(float f) {
    uint32_t b;
    memcpy(&b, &f, 4);
    return (b + 0x7fff + (b >> 16 & 1)) >> 16;
}
static std::vector<uint16_t> halves(const std::vector<float> &x) {
    std::vector<uint16_t> h;
    for (float v : x) h.push_back(bf16(v));
    if (h.size() % 2) h.push_back(0);
    return h;
}

// value is element i of rank r: sums depend on their order.
static float value(int r, int i) { return (i % 17 - 8) * (r == 1 ? 16777216.0f : r == 2 ? -16777216.0f : 1.0f) + r; }
static float in_rank_order(int size, int i) {
    float s = value(0, i);
    for (int r = 1; r < size; r++) s += value(r, i);
    return s;
}

static void all_kinds(Rank &r) {
    const int n = 1001;
    std::vector<float> all(n * r.size), mine(n);
    for (int i = 0; i < n * r.size; i++) all[i] = value(r.index, i);
    for (int i = 0; i < n; i++) mine[i] = value(r.index, i);
    for (int round = 0; round < 3; round++) {
        uint64_t x = r.g.upload(all), y = r.g.alloc(n), z = r.g.alloc(n * r.size), w = r.g.upload(mine), v = r.g.upload(mine);
        OK(ncclReduceScatter(x, y, n, F32, 0, r.comm, r.g.stream));
        OK(ncclAllGather(y, z, n, F32, r.comm, r.g.stream));
        OK(ncclAllReduce(w, w, n, F32, 0, r.comm, r.g.stream));
        OK(ncclBroadcast(v, v, n, F32, 2, r.comm, r.g.stream));
        OK(cuStreamSynchronize(r.g.stream));
        auto sums = r.g.download(z, n * r.size), reduced = r.g.download(w, n), sent = r.g.download(v, n);
        for (int i = 0; i < n * r.size; i++) CHECK(sums[i] == in_rank_order(r.size, i));
        for (int i = 0; i < n; i++) CHECK(reduced[i] == in_rank_order(r.size, i) && sent[i] == value(2, i));
        for (uint64_t p : {x, y, z, w, v}) OK(cuMemFree_v2(p));
    }
    OK(ncclCommDestroy(r.comm));
}
TEST(collectives_of_four) { on_ranks(4, all_kinds); }

static void in_place(Rank &r) {
    const int n = 64;
    std::vector<float> all(n * r.size);
    for (int i = 0; i < n * r.size; i++) all[i] = value(r.index, i);
    uint64_t x = r.g.upload(all);
    uint64_t own = x + 4 * n * r.index;
    OK(ncclReduceScatter(x, own, n, F32, 0, r.comm, r.g.stream));
    OK(ncclAllGather(own, x, n, F32, r.comm, r.g.stream));
    OK(cuStreamSynchronize(r.g.stream));
    auto sums = r.g.download(x, n * r.size);
    for (int i = 0; i < n * r.size; i++) CHECK(sums[i] == in_rank_order(r.size, i));
    CODE(4, ncclAllGather(own + 4, x, n, F32, r.comm, r.g.stream)); // overlaps otherwise
    CODE(4, ncclAllReduce(x, x, n * r.size + 1, F32, 0, r.comm, r.g.stream));
    CODE(4, ncclAllReduce(x, x, n, 8, 0, r.comm, r.g.stream));
}
TEST(collectives_in_place) { on_ranks(4, in_place); }

static void bf16_sums(Rank &r) {
    const int n = 33;
    std::vector<float> x(n);
    for (int i = 0; i < n; i++) x[i] = 1 + r.index / 128.0f + i; // rounded once, not after each rank
    auto h = halves(x);
    uint64_t p;
    OK(cuMemAlloc_v2(&p, 2 * n));
    OK(cuMemcpyHtoD_v2(p, h.data(), 2 * n));
    OK(ncclAllReduce(p, p, n, BF16, 0, r.comm, r.g.stream));
    OK(cuStreamSynchronize(r.g.stream));
    std::vector<uint16_t> got(n);
    OK(cuMemcpyDtoH_v2(got.data(), p, 2 * n));
    for (int i = 0; i < n; i++) {
        float sum = 0;
        for (int q = 0; q < r.size; q++) {
            uint32_t b = (uint32_t)bf16(1 + q / 128.0f + i) << 16;
            float f;
            memcpy(&f, &b, 4);
            sum += f;
        }
        CHECK(got[i] == bf16(sum));
    }
}
TEST(collectives_of_bf16) { on_ranks(4, bf16_sums); }

// A collective keeps the order of its stream on every rank, and other streams run meanwhile.
static void ordered(Rank &r) {
    Handle side = r.g.new_stream(), e = r.g.new_event();
    uint64_t x = r.g.upload({1}), y = r.g.upload({0});
    for (int i = 0; i < 30; i++) {
        OK(r.g.line(r.g.stream, x, x, 1, 1, (float)r.index)); // x += rank
        OK(cuEventRecord(e, r.g.stream));
        OK(cuStreamWaitEvent(side, e, 0));
        OK(ncclAllReduce(x, x, 1, F32, 0, r.comm, side));
        OK(cuEventRecord(e, side));
        OK(r.g.line(r.g.stream, y, y, 1, 1, 1)); // overlaps
        OK(cuStreamWaitEvent(r.g.stream, e, 0));
        OK(r.g.line(r.g.stream, x, x, 1, 0.25f, 0));
    }
    OK(cuStreamSynchronize(r.g.stream));
    CHECK(r.g.download(x, 1)[0] == 1 + 30 * 1.5f && r.g.download(y, 1)[0] == 30);
}
TEST(collectives_between_streams) { on_ranks(4, ordered); }

static void disagree(Rank &r) {
    uint64_t x = r.g.upload(std::vector<float>(8));
    int code = ncclAllReduce(x, x, r.index ? 4 : 8, F32, 0, r.comm, r.g.stream);
    CHECK(code == 0 || (code == 4 && says("of 4 elements")) || (code == 4 && says("of 8 elements")));
    CODE(719, cuStreamSynchronize(r.g.stream));
    CHECK(says("of 4 elements") && says("of 8 elements"));
}
TEST(ranks_that_disagree) { on_ranks(2, disagree); }

// The other ranks of one that failed are told so soon, by name; an abort lets each of them go on.
static void one_fails(Rank &r) {
    uint64_t x = r.g.upload({1});
    if (r.index == 1) {
        OK(r.g.store(r.g.stream, x, 1 << 20, 1));
        CODE(700, cuStreamSynchronize(r.g.stream));
        return;
    }
    OK(ncclAllReduce(x, x, 1, F32, 0, r.comm, r.g.stream));
    OK(r.g.line(r.g.stream, x, x, 1, 3, 0));
    if (r.index == 0) {
        int code = 0;
        while (!code) OK(ncclCommGetAsyncError(r.comm, &code));
        CHECK(code == 6); // another rank's trouble
        OK(ncclCommAbort(r.comm));
        OK(cuStreamSynchronize(r.g.stream));
        CHECK(r.g.download(x, 1)[0] == 3);
        return;
    }
    CODE(702, cuStreamSynchronize(r.g.stream));
    CHECK(says("rank 1 is on device 1, which failed") && says("past the end of block"));
}
TEST(a_rank_that_fails) {
    setting("HARNESS_S_SIM_TIMEOUT", "0.3");
    on_ranks(3, one_fails);
}

TEST(a_rank_that_never_joins) {
    setting("HARNESS_S_SIM_TIMEOUT", "0.2");
    setting("HARNESS_S_SIM_DEVICES", "2");
    Gpu g;
    UniqueId id;
    OK(ncclGetUniqueId(&id));
    Handle comm;
    CODE(2, ncclCommInitRank(&comm, 2, id, 0));
    CHECK(says("missing are 1"));
    CODE(4, ncclCommInitRank(&comm, 2, id, 2));
    OK(ncclGroupStart());
    OK(ncclCommInitRank(&comm, 2, id, 0));
    Handle same;
    CODE(5, ncclCommInitRank(&same, 2, id, 1)); // the same device
    UniqueId noise = {};
    CODE(4, ncclCommInitRank(&same, 1, noise, 0));
    CODE(2, ncclGroupEnd());
    CODE(5, ncclGroupEnd());
}

TEST(collectives_of_two_processes) { on_two_processes(2, 2, all_kinds); }
TEST(collectives_in_place_of_two_processes) { on_two_processes(1, 3, in_place); }
TEST(bf16_of_two_processes) { on_two_processes(2, 1, bf16_sums); }
TEST(streams_of_two_processes) { on_two_processes(2, 2, ordered); }

// More than one piece of shared memory.
static void long_sum(Rank &r) {
    const int n = 700001;
    uint64_t x = r.g.upload(std::vector<float>(n, (float)r.index + 1)), y = r.g.alloc(n * r.size);
    OK(ncclAllGather(x, y, n, F32, r.comm, r.g.stream));
    OK(ncclReduceScatter(y, x, n, F32, 0, r.comm, r.g.stream));
    OK(cuStreamSynchronize(r.g.stream));
    auto v = r.g.download(x, n);
    for (int i = 0; i < n; i += 999) CHECK(v[i] == (float)r.size * (r.index + 1));
    CHECK(v[n - 1] == (float)r.size * (r.index + 1));
}
TEST(long_buffers_of_two_processes) { on_two_processes(1, 2, long_sum); }

// A device goes on while its host waits for something else: here for a word of the other host, which waits for the device.
static int words[2];
static void host_is_elsewhere(Rank &r) {
    uint64_t x = r.g.upload({(float)r.index + 1});
    OK(r.g.line(r.g.stream, x, x, 1, 2, 0));
    OK(ncclAllReduce(x, x, 1, F32, 0, r.comm, r.g.stream));
    char word = 'x';
    if (r.index == 1) CHECK(read(words[0], &word, 1) == 1);
    OK(cuStreamSynchronize(r.g.stream));
    if (r.index == 0) CHECK(write(words[1], &word, 1) == 1);
    CHECK(r.g.download(x, 1)[0] == 6);
}
TEST(a_host_that_is_elsewhere) {
    NEED(pipe(words) == 0);
    on_two_processes(1, 1, host_is_elsewhere);
}

static void processes_disagree(Rank &r) {
    uint64_t x = r.g.upload(std::vector<float>(8));
    OK(ncclAllReduce(x, x, r.index ? 4 : 8, F32, 0, r.comm, r.g.stream));
    CODE(719, cuStreamSynchronize(r.g.stream));
    CHECK(says("of 4 elements") && says("of 8 elements"));
}
TEST(processes_that_disagree) { on_two_processes(1, 1, processes_disagree); }

static void one_leaves(Rank &r) {
    uint64_t x = r.g.upload({1});
    if (r.index == 1) {
        OK(ncclCommAbort(r.comm));
        return;
    }
    OK(ncclAllReduce(x, x, 1, F32, 0, r.comm, r.g.stream));
    int code = 0;
    while (!code) OK(ncclCommGetAsyncError(r.comm, &code));
    CHECK(code == 6);
    CODE(702, cuStreamSynchronize(r.g.stream));
    CHECK(says("rank 1 in process") && says("left"));
}
TEST(a_process_that_leaves) {
    setting("HARNESS_S_SIM_TIMEOUT", "0.3");
    on_two_processes(1, 1, one_leaves);
}

static void one_ends(Rank &r) {
    if (r.index == 1) _exit(3);
    uint64_t x = r.g.upload({1});
    OK(ncclAllReduce(x, x, 1, F32, 0, r.comm, r.g.stream));
    CODE(702, cuStreamSynchronize(r.g.stream));
    CHECK(says("rank 1 in process"));
}
TEST(a_process_that_ends) {
    setting("HARNESS_S_SIM_TIMEOUT", "0.3");
    on_two_processes(1, 1, one_ends, true);
}
