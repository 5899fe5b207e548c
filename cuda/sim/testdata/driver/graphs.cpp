// Capture and replay.
#include "check.h"

TEST(captured_work_replays) {
    Gpu g;
    uint64_t x = g.upload({1}), y = g.upload({0});
    Handle graph, exec;
    OK(cuStreamBeginCapture_v2(g.stream, 2));
    OK(g.line(g.stream, x, x, 1, 2, 0));
    OK(g.line(g.stream, y, x, 1, 1, 1));
    OK(cuMemsetD32Async(x + 0, 0x40400000, 1, g.stream)); // x = 3
    CODE(900, cuStreamSynchronize(g.stream));
    CODE(901, g.line(g.stream, x, x, 1, 2, 0)); // the wait spoiled it
    CODE(901, cuStreamEndCapture(g.stream, &graph));
    OK(cuStreamBeginCapture_v2(g.stream, 2));
    OK(g.line(g.stream, x, x, 1, 2, 0));
    OK(g.line(g.stream, y, x, 1, 1, 1));
    OK(cuStreamEndCapture(g.stream, &graph));
    OK(cuStreamSynchronize(g.stream));
    CHECK(g.download(x, 1)[0] == 1); // recorded, not run
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    for (int i = 0; i < 3; i++) OK(cuGraphLaunch(exec, g.stream));
    OK(g.line(g.stream, x, x, 1, 1, 0.5f));
    OK(cuStreamSynchronize(g.stream));
    CHECK(g.download(x, 1)[0] == 8.5f && g.download(y, 1)[0] == 9);
    OK(cuGraphLaunch(exec, g.stream));
    OK(cuGraphExecDestroy(exec)); // queued replays still run
    OK(cuCtxSynchronize());
    CHECK(g.download(x, 1)[0] == 17);
}

// A fork and a join by events; without the join the capture fails; without an event the lanes run in any order.
static Handle capture_two_lanes(Gpu &g, uint64_t x, uint64_t y, bool join, bool order) {
    Handle side = g.new_stream(), fork = g.new_event(), done = g.new_event(), graph, exec;
    OK(cuStreamBeginCapture_v2(g.stream, 2));
    OK(cuEventRecord(fork, g.stream));
    OK(cuStreamWaitEvent(side, fork, 0));
    OK(g.line(g.stream, x, x, 1, 1, 1));
    if (order) {
        OK(cuEventRecord(fork, g.stream));
        OK(cuStreamWaitEvent(side, fork, 0));
    }
    OK(g.line(side, y, x, 1, 10, 0));
    OK(cuEventRecord(done, side));
    if (join) OK(cuStreamWaitEvent(g.stream, done, 0));
    OK(g.line(g.stream, x, x, 1, 1, 0));
    CODE(join ? 0 : 904, cuStreamEndCapture(g.stream, &graph));
    if (!join) return nullptr;
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuStreamSynchronize(side)); // no longer captured
    OK(cuStreamDestroy_v2(side));
    return exec;
}

TEST(lanes_keep_their_order) {
    Gpu g;
    uint64_t x = g.upload({0}), y = g.upload({0});
    capture_two_lanes(g, x, y, false, true);
    Handle ordered = capture_two_lanes(g, x, y, true, true), loose = capture_two_lanes(g, x, y, true, false);
    int early = 0;
    float n = 0;
    for (int i = 0; i < 40; i++) {
        OK(cuGraphLaunch(ordered, g.stream));
        OK(cuStreamSynchronize(g.stream));
        n++;
        CHECK(g.download(y, 1)[0] == 10 * n);
        OK(cuGraphLaunch(loose, g.stream));
        OK(cuStreamSynchronize(g.stream));
        n++;
        early += g.download(y, 1)[0] == 10 * (n - 1);
    }
    CHECK(early > 4 && early < 36);
}

TEST(replays_of_one_graph_do_not_overlap) {
    Gpu g;
    uint64_t x = g.upload({0}), y = g.upload({0});
    Handle exec = capture_two_lanes(g, x, y, true, true), other = g.new_stream();
    for (int i = 0; i < 20; i++) OK(cuGraphLaunch(exec, i % 2 ? g.stream : other));
    OK(cuCtxSynchronize());
    CHECK(g.download(x, 1)[0] == 20 && g.download(y, 1)[0] == 200);
}

TEST(captures_refuse_the_outside) {
    Gpu g;
    uint64_t x = g.upload({0}), p;
    Handle e = g.new_event(), side = g.new_stream(), graph;
    OK(g.line(side, x, x, 1, 1, 1));
    OK(cuEventRecord(e, side));
    OK(cuStreamBeginCapture_v2(g.stream, 2));
    CODE(905, cuStreamWaitEvent(g.stream, e, 0));
    CODE(901, cuStreamEndCapture(g.stream, &graph));
    OK(cuStreamBeginCapture_v2(g.stream, 0)); // the strict mode
    CODE(900, cuMemAlloc_v2(&p, 4));
    CODE(901, cuStreamEndCapture(g.stream, &graph));
    CODE(906, cuStreamBeginCapture_v2(nullptr, 2));
    OK(cuStreamBeginCapture_v2(g.stream, 2));
    OK(cuMemAlloc_v2(&p, 4)); // the relaxed mode
    OK(cuEventRecord(e, g.stream));
    CODE(907, cuEventSynchronize(e));
    OK(cuStreamEndCapture(g.stream, &graph));
    OK(cuGraphDestroy(graph));
}
