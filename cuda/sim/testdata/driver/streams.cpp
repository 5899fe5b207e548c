// Streams, events, errors.
#include "check.h"
#include <cmath>

// Nothing runs before something waits for it; pinned memory is read when the copy runs; arguments are copied at the launch.
TEST(runs_late) {
    Gpu g;
    uint64_t x = g.upload({1}), y = g.upload({0});
    float *host = g.pinned(1);
    host[0] = 5;
    OK(cuMemcpyHtoDAsync_v2(x, host, 4, g.stream));
    LineArgs a = {y, x, 1, 10, 0};
    OK(g.launch(g.function("line"), &a, sizeof a, g.stream));
    a.scale = 1000;
    host[0] = 7;
    CHECK(g.download(y, 1)[0] == 0); // the null stream does not wait for a non-blocking one
    OK(cuStreamSynchronize(g.stream));
    CHECK(g.download(y, 1)[0] == 70);
}

static float two_streams(Gpu &g, uint64_t x, bool event) {
    Handle other = g.new_stream(), e = g.new_event();
    OK(cuMemsetD32Async(x, 0, 1, g.stream));
    OK(cuStreamSynchronize(g.stream));
    OK(g.line(g.stream, x, x, 1, 1, 3)); // x = 3
    OK(cuEventRecord(e, g.stream));
    if (event) OK(cuStreamWaitEvent(other, e, 0));
    OK(g.line(other, x, x, 1, 10, 1)); // 31, or 13 the other way round
    OK(cuCtxSynchronize());
    float v = g.download(x, 1)[0];
    OK(cuStreamDestroy_v2(other));
    OK(cuEventDestroy_v2(e));
    return v;
}

TEST(events_order) {
    Gpu g;
    uint64_t x = g.upload({0});
    int wrong = 0;
    for (int i = 0; i < 50; i++) {
        CHECK(two_streams(g, x, true) == 31);
        wrong += two_streams(g, x, false) != 31;
    }
    CHECK(wrong > 5 && wrong < 45); // an order that was not asked for shows, and is not the only one
}

// The order comes from the seed alone.
static std::string orders(const char *seed) {
    setting("HARNESS_S_SIM_SEED", seed);
    Gpu g; // reads the seed
    uint64_t x = g.upload({0});
    std::string order;
    for (int i = 0; i < 64; i++) order += two_streams(g, x, false) == 31 ? 'a' : 'b';
    OK(cuDevicePrimaryCtxRelease_v2(0));
    return order;
}

TEST(seed_replays_an_order) {
    std::string first = orders("7");
    CHECK(orders("7") == first && orders("8") != first);
}

// An event that is recorded again means the newer record to those who wait afterwards, not to those who waited before.
TEST(event_recorded_again) {
    for (int i = 0; i < 20; i++) {
        Gpu g;
        uint64_t x = g.upload({1}), y = g.upload({0});
        Handle other = g.new_stream(), e = g.new_event();
        OK(g.line(g.stream, x, x, 1, 1, 1)); // 2
        OK(cuEventRecord(e, g.stream));
        OK(cuStreamWaitEvent(other, e, 0));
        OK(g.line(other, y, x, 1, 1, 0));
        OK(cuEventRecord(e, other));
        OK(cuStreamWaitEvent(g.stream, e, 0));
        OK(g.line(g.stream, x, x, 1, 1, 100));
        OK(cuStreamSynchronize(g.stream));
        CHECK(g.download(y, 1)[0] == 2);
        OK(cuDevicePrimaryCtxRelease_v2(0));
    }
}

TEST(blocking_streams_and_the_null_stream) {
    for (int i = 0; i < 20; i++) {
        Gpu g;
        Handle blocking;
        OK(cuStreamCreate(&blocking, 0));
        uint64_t x = g.upload({1});
        OK(g.line(blocking, x, x, 1, 2, 0));
        OK(g.line(nullptr, x, x, 1, 1, 1));
        OK(g.line(blocking, x, x, 1, 10, 0));
        OK(cuStreamSynchronize(blocking));
        CHECK(g.download(x, 1)[0] == 30);
        OK(cuDevicePrimaryCtxRelease_v2(0));
    }
}

TEST(queries_make_progress) {
    Gpu g;
    uint64_t x = g.upload({1});
    Handle e = g.new_event();
    CODE(0, cuEventQuery(e)); // never recorded
    OK(g.line(g.stream, x, x, 1, 2, 0));
    OK(cuEventRecord(e, g.stream));
    int polls = 0;
    while (cuEventQuery(e) == 600 && polls < 1000) polls++;
    CHECK(polls > 0 && polls < 1000);
    CODE(0, cuStreamQuery(g.stream));
}

TEST(destroyed_stream_still_runs) {
    Gpu g;
    uint64_t x = g.upload({1});
    Handle s = g.new_stream();
    OK(g.line(s, x, x, 1, 2, 0));
    OK(cuStreamDestroy_v2(s));
    CODE(400, cuStreamSynchronize(s));
    OK(cuCtxSynchronize());
    CHECK(g.download(x, 1)[0] == 2);
}

TEST(timing) {
    Gpu g;
    Handle a = g.new_event(0), b = g.new_event(0), untimed = g.new_event();
    float ms = -1;
    CODE(400, cuEventElapsedTime(&ms, a, b)); // never recorded
    OK(cuEventRecord(a, g.stream));
    OK(cuEventRecord(untimed, g.stream));
    OK(cuEventRecord(b, g.stream));
    CODE(600, cuEventElapsedTime(&ms, a, b));
    OK(cuEventSynchronize(b));
    OK(cuEventElapsedTime(&ms, a, b));
    CHECK(ms > 0);
    CODE(400, cuEventElapsedTime(&ms, a, untimed));
}

TEST(contexts) {
    setting("HARNESS_S_SIM_DEVICES", "2");
    uint64_t p;
    CODE(3, cuMemAlloc_v2(&p, 4)); // before cuInit
    OK(cuInit(0));
    CODE(201, cuMemAlloc_v2(&p, 4));
    Gpu a(0), b(1); // b is current
    OK(cuMemAlloc_v2(&p, 4));
    std::thread([] { uint64_t q; CODE(201, cuMemAlloc_v2(&q, 4)); }).join();
    CODE(400, cuStreamSynchronize(a.stream));
    OK(cuCtxSetCurrent(a.context));
    Handle f = a.function("line");
    OK(cuCtxSetCurrent(b.context));
    LineArgs line = {p, p, 1, 1, 0};
    CODE(400, a.launch(f, &line, sizeof line, b.stream));
    CHECK(says("loaded on device 0"));
    OK(cuCtxSetCurrent(a.context));
    CODE(1, cuMemFree_v2(p));
    CODE(1, cuMemsetD32Async(p, 0, 1, a.stream));
    CHECK(says("device 0 has no access"));
    CODE(1, a.line(a.stream, p, p, 1, 1, 0));
    CHECK(says("parameter at byte 0"));
    OK(cuCtxEnablePeerAccess(b.context, 0));
    OK(cuMemsetD32Async(p, 0, 1, a.stream));
    OK(cuCtxSynchronize());
    OK(cuDevicePrimaryCtxRelease_v2(0));
    CODE(201, cuCtxSynchronize());
    CODE(201, cuCtxSetCurrent(a.context));
}

TEST(kernel_errors_stick) {
    Gpu g;
    uint64_t x = g.upload({1, 2});
    OK(g.launch(g.function("lonely_barrier"), &x, 8, g.stream, 64));
    OK(g.line(g.stream, x, x, 2, 2, 0)); // dropped
    CODE(719, cuStreamSynchronize(g.stream));
    CHECK(says("lonely_barrier") && says("barrier"));
    uint64_t p;
    CODE(719, cuMemAlloc_v2(&p, 4));
    CODE(719, cuStreamSynchronize(g.stream));
    CODE(719, g.launch(nullptr, &x, 8, g.stream));
    CHECK(says("lonely_barrier"));
    OK(cuDevicePrimaryCtxRelease_v2(0)); // the next context starts afresh
    Gpu again;
    CHECK(again.download(again.upload({4}), 1)[0] == 4);
}

TEST(another_device_goes_on) {
    setting("HARNESS_S_SIM_DEVICES", "2");
    Gpu a(0), b(1);
    uint64_t y = b.upload({1});
    OK(cuCtxSetCurrent(a.context));
    uint64_t x = a.upload({1});
    OK(a.store(a.stream, x, 1 << 20, 1));
    CODE(700, cuStreamSynchronize(a.stream));
    OK(cuCtxSetCurrent(b.context));
    OK(b.line(b.stream, y, y, 1, 2, 0));
    OK(cuStreamSynchronize(b.stream));
    CHECK(b.download(y, 1)[0] == 2);
}

TEST(wrong_launches) {
    Gpu g;
    uint64_t x = g.upload({1});
    LineArgs a = {x, x, 1, 1, 0};
    Handle f = g.function("line"), none = nullptr;
    CODE(1, g.launch(f, &a, sizeof a - 8, g.stream));
    CHECK(says("24 bytes of parameters, it takes 32"));
    CODE(1, g.launch(f, &a, sizeof a, g.stream, 65)); // declared for 64
    CODE(1, g.launch(f, &a, sizeof a, g.stream, 32, 49153));
    CODE(1, cuLaunchKernel(f, 1, 65536, 1, 32, 1, 1, 0, g.stream, nullptr, nullptr));
    CODE(1, cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, g.stream, nullptr, nullptr));
    CODE(400, g.launch(g.module, &a, sizeof a, g.stream));
    void *params[] = {&a};
    OK(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, g.stream, params, nullptr));
    size_t offset, bytes;
    OK(cuFuncGetParamInfo(f, 0, &offset, &bytes));
    CHECK(offset == 0 && bytes == sizeof a);
    CODE(1, cuFuncGetParamInfo(f, 1, &offset, &bytes));
    CODE(500, cuModuleGetFunction(&none, g.module, "absent"));
    CODE(200, cuModuleLoadData(&none, "noise, of some length"));
    OK(cuModuleUnload(g.module));
    CODE(400, g.launch(f, &a, sizeof a, g.stream));
}

TEST(shared_memory_limits) {
    for (auto c : {std::pair<const char *, int>{"8.0", 166912}, {"8.6", 101376}, {"9.0", 232448}, {"12.0", 101376}}) {
        setting("HARNESS_S_SIM_CC", c.first);
        Gpu g;
        int optin = 0, major = 0;
        OK(cuDeviceGetAttribute(&optin, 97, 0));
        OK(cuDeviceGetAttribute(&major, 75, 0));
        CHECK(optin == c.second && major == atoi(c.first));
        Handle f = g.function("fill_shared");
        uint64_t x = g.upload({1});
        CODE(1, g.launch(f, &x, 8, g.stream, 32, 60000));
        CODE(1, cuFuncSetAttribute(f, 8, c.second + 1));
        OK(cuFuncSetAttribute(f, 8, c.second));
        OK(g.launch(f, &x, 8, g.stream, 32, c.second));
        OK(cuStreamSynchronize(g.stream));
        OK(cuDevicePrimaryCtxRelease_v2(0));
    }
}

// A wait that nothing can end is an error that lists what each stream waits for.
TEST(deadlock_is_reported) {
    setting("HARNESS_S_SIM_DEVICES", "2");
    setting("HARNESS_S_SIM_TIMEOUT", "0.2");
    Gpu a(0), b(1);
    UniqueId id;
    OK(ncclGetUniqueId(&id));
    Handle comm[2];
    OK(cuCtxSetCurrent(a.context));
    uint64_t x = a.upload({1});
    OK(ncclGroupStart());
    OK(ncclCommInitRank(&comm[0], 2, id, 0));
    OK(cuCtxSetCurrent(b.context));
    OK(ncclCommInitRank(&comm[1], 2, id, 1));
    OK(ncclGroupEnd());
    OK(cuCtxSetCurrent(a.context));
    OK(ncclAllReduce(x, x, 1, 7, 0, comm[0], a.stream));
    CODE(702, cuStreamSynchronize(a.stream));
    CHECK(says("all-reduce") && says("rank 1 has not queued its part"));
}
