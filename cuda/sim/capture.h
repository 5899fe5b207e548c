// capture.h: streams whose work is recorded instead of queued, and graphs made from them. All functions need the lock.
#pragma once

#include <thread>

#include "sched.h"

namespace sim {

// Node is one recorded operation. It comes after the node before it on its lane and after the nodes in `after`.
struct Node {
    Work work;
    int lane;
    std::vector<int> after;
};

struct Graph {
    std::vector<Device *> lanes; // the device of each captured stream
    std::vector<Node> nodes;     // in the order they were recorded
};

// Capture is a recording under way. Lane 0 is the stream it was begun on; other streams join by waiting for an event
// recorded on a lane.
struct Capture {
    uint64_t id;
    int mode;
    std::thread::id thread;
    Graph *graph;
    std::vector<Stream *> lanes;
    std::vector<int> newest;               // the newest node of each lane, -1 before the first
    std::vector<std::vector<int>> pending; // nodes that the next node of a lane comes after
    bool invalid = false;
};

// GraphExec replays a graph on streams of its own, so that its lanes run as freely as the streams they were captured from.
struct GraphExec {
    Graph graph;
    std::vector<Stream *> lanes;
    Ref last; // the end of the latest replay
};

int begin_capture(Stream *s, int mode);
int end_capture(Stream *s, Graph **out);
int capture_work(Stream *s, Work w, std::vector<Ref> after);
int capture_record(Stream *s, Event *e);
int capture_wait(Stream *s, Event *e);
// forbid_while_capturing refuses calls that a capture does not allow (allocation, synchronisation) and invalidates it.
int forbid_while_capturing(const char *call);

GraphExec *make_exec(const Graph &g);
int launch_graph(GraphExec *x, Stream *s);
void destroy_exec(GraphExec *x);

} // namespace sim
