//go:build ignore

// stream.cpp: streams, events and graphs of the simulated driver.
#include <algorithm>
#include <cmath>

#include "call.h"

namespace sim {

// ---------------------------------------------------------------- streams

SIM_API int cuStreamCreate(void **stream, unsigned flags) {
    Call c;
    *stream = nullptr;
    if (c.code) return c.code;
    if (flags & ~1u) return fail(INVALID_VALUE, "cuStreamCreate: flags 0x%x", flags);
    Stream *s = new Stream;
    s->device = c.device, s->id = world().next_id++, s->flags = flags;
    c.device->streams.push_back(s);
    world().handles[s] = {Kind::Stream, c.device, nullptr};
    *stream = s;
    return SUCCESS;
}

SIM_API int cuStreamCreateWithPriority(void **stream, unsigned flags, int) { return cuStreamCreate(stream, flags); }

// A destroyed stream's queued work still runs; the stream goes with its last operation.
SIM_API int cuStreamDestroy_v2(void *stream) {
    Call c;
    if (c.code) return c.code;
    Stream *s = lookup<Stream>(stream, Kind::Stream);
    if (!s || !c.stream(stream)) return s ? c.code : fail(INVALID_HANDLE, "%p is not a stream that can be destroyed", stream);
    if (s->capture) return fail(ILLEGAL_STATE, "stream %d is capturing", s->id);
    world().handles.erase(s);
    s->destroyed = true;
    if (!s->queue.empty()) return SUCCESS;
    auto &all = c.device->streams;
    all.erase(std::remove(all.begin(), all.end(), s), all.end());
    delete s;
    return SUCCESS;
}

// Waiting for a stream that is captured spoils the capture.
static int not_capturing(Stream *s, const char *call) {
    if (!s->capture) return SUCCESS;
    s->capture->invalid = true;
    return fail(CAPTURE_UNSUPPORTED, "%s: stream %d is capturing", call, s->id);
}

SIM_API int cuStreamSynchronize(void *stream) {
    Call c;
    if (c.code) return c.code;
    Stream *s = c.stream(stream);
    if (!s) return c.code;
    if (int code = not_capturing(s, "cuStreamSynchronize")) return code;
    return s->last ? wait_for(c.lock, c.device, {s->last}) : SUCCESS;
}

static int query(Call &c, const Ref &op) {
    if (op && !op->done) poke(c.lock, {op});
    if (c.device->error) return fail(c.device->error, "%s", c.device->error_text.c_str());
    return !op || op->done ? SUCCESS : NOT_READY;
}

SIM_API int cuStreamQuery(void *stream) {
    Call c;
    if (c.code) return c.code;
    Stream *s = c.stream(stream);
    if (!s) return c.code;
    if (int code = not_capturing(s, "cuStreamQuery")) return code;
    return query(c, s->last);
}

SIM_API int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    Call c;
    if (c.code) return c.code;
    Stream *s = c.stream(stream);
    Event *e = s ? c.event(event) : nullptr;
    if (!e) return c.code;
    if (flags & ~1u) return fail(INVALID_VALUE, "cuStreamWaitEvent: flags 0x%x", flags);
    if (e->capture) return capture_wait(s, e);
    if (!e->latest || e->latest->done) return SUCCESS;
    return enqueue_after(s, {"wait for an event", nullptr, nullptr}, {e->latest});
}

// ---------------------------------------------------------------- events

SIM_API int cuEventCreate(void **event, unsigned flags) {
    Call c;
    *event = nullptr;
    if (c.code) return c.code;
    if (flags & ~3u) return fail(INVALID_VALUE, "cuEventCreate: flags 0x%x (events between processes are not simulated)", flags);
    Event *e = new Event;
    e->device = c.device, e->flags = flags;
    world().handles[e] = {Kind::Event, c.device, delete_as<Event>};
    *event = e;
    return SUCCESS;
}

SIM_API int cuEventDestroy_v2(void *event) {
    Call c;
    if (c.code) return c.code;
    Event *e = c.event(event);
    if (!e) return c.code;
    world().handles.erase(e);
    delete e;
    return SUCCESS;
}

SIM_API int cuEventRecord(void *event, void *stream) {
    Call c;
    if (c.code) return c.code;
    Stream *s = c.stream(stream);
    Event *e = s ? c.event(event) : nullptr;
    if (!e) return c.code;
    if (e->device != c.device)
        return fail(INVALID_HANDLE, "the event belongs to device %d, the stream to device %d", e->device->index, c.device->index);
    if (s->capture) return capture_record(s, e);
    e->capture = nullptr;
    return enqueue(s, {"event record", nullptr, nullptr}, &e->latest);
}

SIM_API int cuEventSynchronize(void *event) {
    Call c;
    if (c.code) return c.code;
    Event *e = c.event(event);
    if (!e) return c.code;
    if (e->capture) return fail(CAPTURED_EVENT, "the event was last recorded in a capture");
    return e->latest ? wait_for(c.lock, c.device, {e->latest}) : SUCCESS;
}

SIM_API int cuEventQuery(void *event) {
    Call c;
    if (c.code) return c.code;
    Event *e = c.event(event);
    if (!e) return c.code;
    if (e->capture) return fail(CAPTURED_EVENT, "the event was last recorded in a capture");
    return query(c, e->latest);
}

SIM_API int cuEventElapsedTime(float *ms, void *start, void *end) {
    Call c;
    if (c.code) return c.code;
    Event *a = c.event(start), *b = a ? c.event(end) : nullptr;
    if (!b) return c.code;
    if ((a->flags | b->flags) & EVENT_DISABLE_TIMING) return fail(INVALID_HANDLE, "the events were made without timing");
    if (!a->latest || !b->latest) return fail(INVALID_HANDLE, "an event was never recorded");
    if (!a->latest->done || !b->latest->done) return fail(NOT_READY, "an event has not happened yet");
    *ms = (float)((b->latest->ended - a->latest->ended) * 1e3);
    return SUCCESS;
}

SIM_API int cuEventElapsedTime_v2(float *ms, void *start, void *end) { return cuEventElapsedTime(ms, start, end); }

// ---------------------------------------------------------------- capture and graphs

SIM_API int cuStreamBeginCapture_v2(void *stream, int mode) {
    Call c;
    if (c.code) return c.code;
    Stream *s = c.stream(stream);
    return s ? begin_capture(s, mode) : c.code;
}

SIM_API int cuStreamEndCapture(void *stream, void **graph) {
    Call c;
    *graph = nullptr;
    if (c.code) return c.code;
    Stream *s = c.stream(stream);
    Graph *g = nullptr;
    if (!s) return c.code;
    if (int code = end_capture(s, &g)) return code;
    world().handles[g] = {Kind::Graph, c.device, delete_as<Graph>};
    *graph = g;
    return SUCCESS;
}

SIM_API int cuStreamIsCapturing(void *stream, int *status) {
    Call c;
    if (c.code) return c.code;
    Stream *s = c.stream(stream);
    if (!s) return c.code;
    *status = !s->capture ? 0 : s->capture->invalid ? 2 : 1;
    return SUCCESS;
}

SIM_API int cuGraphDestroy(void *graph) {
    Call c;
    if (c.code) return c.code;
    Graph *g = lookup<Graph>(graph, Kind::Graph);
    if (!g) return fail(INVALID_HANDLE, "%p is not a graph", graph);
    world().handles.erase(g);
    delete g;
    return SUCCESS;
}

SIM_API int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags) {
    Call c;
    *exec = nullptr;
    if (c.code) return c.code;
    Graph *g = lookup<Graph>(graph, Kind::Graph);
    if (!g) return fail(INVALID_HANDLE, "%p is not a graph", graph);
    if (flags) return fail(NOT_SUPPORTED, "graph flags 0x%llx", flags);
    GraphExec *x = make_exec(*g);
    world().handles[x] = {Kind::GraphExec, c.device, [](void *p) { destroy_exec((GraphExec *)p); }};
    *exec = x;
    return SUCCESS;
}

SIM_API int cuGraphLaunch(void *exec, void *stream) {
    Call c;
    if (c.code) return c.code;
    GraphExec *x = lookup<GraphExec>(exec, Kind::GraphExec);
    Stream *s = c.stream(stream);
    if (!x || !s) return x ? c.code : fail(INVALID_HANDLE, "%p is not an executable graph", exec);
    if (s->capture) return fail(CAPTURE_UNSUPPORTED, "a graph inside a graph is not simulated");
    return launch_graph(x, s);
}

SIM_API int cuGraphExecDestroy(void *exec) {
    Call c;
    if (c.code) return c.code;
    GraphExec *x = lookup<GraphExec>(exec, Kind::GraphExec);
    if (!x) return fail(INVALID_HANDLE, "%p is not an executable graph", exec);
    world().handles.erase(x);
    destroy_exec(x);
    return SUCCESS;
}

} // namespace sim
