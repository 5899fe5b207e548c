//go:build ignore

// stream.cpp: streams and events of the simulated driver.
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
    world().handles.erase(s);
    s->destroyed = true;
    if (!s->queue.empty()) return SUCCESS;
    auto &all = c.device->streams;
    all.erase(std::remove(all.begin(), all.end(), s), all.end());
    delete s;
    return SUCCESS;
}

SIM_API int cuStreamSynchronize(void *stream) {
    Call c;
    if (c.code) return c.code;
    Stream *s = c.stream(stream);
    if (!s) return c.code;
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
    return query(c, s->last);
}

SIM_API int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    Call c;
    if (c.code) return c.code;
    Stream *s = c.stream(stream);
    Event *e = s ? c.event(event) : nullptr;
    if (!e) return c.code;
    if (flags & ~1u) return fail(INVALID_VALUE, "cuStreamWaitEvent: flags 0x%x", flags);
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
    return enqueue(s, {"event record", nullptr, nullptr}, &e->latest);
}

SIM_API int cuEventSynchronize(void *event) {
    Call c;
    if (c.code) return c.code;
    Event *e = c.event(event);
    if (!e) return c.code;
    return e->latest ? wait_for(c.lock, c.device, {e->latest}) : SUCCESS;
}

SIM_API int cuEventQuery(void *event) {
    Call c;
    if (c.code) return c.code;
    Event *e = c.event(event);
    if (!e) return c.code;
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

} // namespace sim
