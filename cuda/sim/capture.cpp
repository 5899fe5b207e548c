//go:build ignore

// capture.cpp: see capture.h.
#include "capture.h"

#include <algorithm>

namespace sim {

static std::vector<Capture *> &captures() {
    static auto *c = new std::vector<Capture *>;
    return *c;
}

static int join(Capture *c, Stream *s) {
    s->capture = c, s->lane = (int)c->lanes.size();
    c->lanes.push_back(s), c->newest.push_back(-1), c->pending.emplace_back();
    c->graph->lanes.push_back(s->device);
    return SUCCESS;
}

int begin_capture(Stream *s, int mode) {
    if (s->capture) return fail(ILLEGAL_STATE, "stream %d is capturing already", s->id);
    if (s == &s->device->null_stream) return fail(CAPTURE_IMPLICIT, "the null stream cannot be captured");
    if (mode < CAPTURE_GLOBAL || mode > CAPTURE_RELAXED) return fail(INVALID_VALUE, "capture mode %d is unknown", mode);
    Capture *c = new Capture{};
    c->id = world().next_id++, c->mode = mode, c->thread = std::this_thread::get_id(), c->graph = new Graph;
    captures().push_back(c);
    return join(c, s);
}

int capture_work(Stream *s, Work w, std::vector<Ref> after) {
    Capture *c = s->capture;
    if (c->invalid) return fail(CAPTURE_INVALIDATED, "the capture of stream %d was invalidated before", s->id);
    if (!after.empty()) {
        c->invalid = true;
        return fail(CAPTURE_ISOLATION, "%s would make the capture depend on work outside of it", w.what.c_str());
    }
    Node n{std::move(w), s->lane, std::move(c->pending[s->lane])};
    c->pending[s->lane].clear();
    c->newest[s->lane] = (int)c->graph->nodes.size();
    c->graph->nodes.push_back(std::move(n));
    return SUCCESS;
}

int capture_record(Stream *s, Event *e) {
    if (int code = capture_work(s, {"event record", nullptr, nullptr}, {})) return code;
    e->capture = s->capture, e->capture_id = s->capture->id;
    e->lane = s->lane, e->node = s->capture->newest[s->lane];
    return SUCCESS;
}

int capture_wait(Stream *s, Event *e) {
    auto alive = std::find(captures().begin(), captures().end(), e->capture);
    if (alive == captures().end() || (*alive)->id != e->capture_id)
        return fail(CAPTURED_EVENT, "the event was recorded in a capture that has ended");
    if (!s->capture) {
        if (!s->queue.empty() && s == &s->device->null_stream) return fail(CAPTURE_IMPLICIT, "the null stream cannot be captured");
        join(e->capture, s);
    }
    if (s->capture != e->capture) return fail(CAPTURE_MERGE, "the event belongs to another capture");
    s->capture->pending[s->lane].push_back(e->node);
    return SUCCESS;
}

// joined tells whether every node comes before what lane 0 recorded last.
static bool joined(const Capture &c) {
    std::vector<int> previous(c.graph->nodes.size(), -1), newest(c.lanes.size(), -1), todo = c.pending[0];
    for (size_t i = 0; i < c.graph->nodes.size(); i++) {
        int lane = c.graph->nodes[i].lane;
        previous[i] = newest[lane], newest[lane] = (int)i;
    }
    std::vector<bool> seen(c.graph->nodes.size());
    todo.push_back(c.newest[0]);
    while (!todo.empty()) {
        int i = todo.back();
        todo.pop_back();
        if (i < 0 || seen[i]) continue;
        seen[i] = true;
        todo.push_back(previous[i]);
        const auto &after = c.graph->nodes[i].after;
        todo.insert(todo.end(), after.begin(), after.end());
    }
    return std::all_of(seen.begin(), seen.end(), [](bool b) { return b; });
}

int end_capture(Stream *s, Graph **out) {
    Capture *c = s->capture;
    *out = nullptr;
    if (!c) return fail(ILLEGAL_STATE, "stream %d is not capturing", s->id);
    if (s->lane != 0) return fail(CAPTURE_UNMATCHED, "a capture ends on the stream it was begun on");
    if (c->mode != CAPTURE_RELAXED && c->thread != std::this_thread::get_id())
        return fail(CAPTURE_WRONG_THREAD, "a capture ends on the thread that began it");
    int code = SUCCESS;
    if (c->invalid) code = fail(CAPTURE_INVALIDATED, "the capture was invalidated by an earlier call");
    else if (!joined(*c)) code = fail(CAPTURE_UNJOINED, "a captured stream has work that the first stream did not wait for");
    for (Stream *lane : c->lanes) lane->capture = nullptr;
    captures().erase(std::find(captures().begin(), captures().end(), c));
    if (code) delete c->graph;
    else *out = c->graph;
    delete c;
    return code;
}

int forbid_while_capturing(const char *call) {
    for (Capture *c : captures()) {
        bool own = c->thread == std::this_thread::get_id();
        if (c->mode == CAPTURE_RELAXED || (c->mode == CAPTURE_THREAD_LOCAL && !own)) continue;
        c->invalid = true;
        return fail(CAPTURE_UNSUPPORTED, "%s is not allowed while a stream is captured", call);
    }
    return SUCCESS;
}

GraphExec *make_exec(const Graph &g) {
    GraphExec *x = new GraphExec{g, {}, nullptr};
    for (Device *d : g.lanes) {
        Stream *s = new Stream;
        s->device = d, s->id = world().next_id++, s->flags = STREAM_NON_BLOCKING, s->hidden = true;
        d->streams.push_back(s), x->lanes.push_back(s);
    }
    return x;
}

int launch_graph(GraphExec *x, Stream *s) {
    Ref begin, end;
    std::vector<Ref> first, made(x->graph.nodes.size()), newest(x->lanes.size());
    if (x->last && !x->last->done) first.push_back(x->last); // replays of one graph do not overlap
    if (int code = enqueue_after(s, {"graph begin", nullptr, nullptr}, first, &begin)) return code;
    for (size_t i = 0; i < x->graph.nodes.size(); i++) {
        const Node &n = x->graph.nodes[i];
        std::vector<Ref> after;
        if (!newest[n.lane]) after.push_back(begin);
        for (int a : n.after) after.push_back(made[a]);
        if (int code = enqueue_after(x->lanes[n.lane], n.work, after, &made[i])) return code;
        newest[n.lane] = made[i];
    }
    std::vector<Ref> all;
    for (const Ref &op : newest)
        if (op) all.push_back(op);
    if (int code = enqueue_after(s, {"graph end", nullptr, nullptr}, all, &end)) return code;
    x->last = end;
    return SUCCESS;
}

// The streams of a destroyed graph go when their work is done.
void destroy_exec(GraphExec *x) {
    for (Stream *s : x->lanes) {
        s->destroyed = true;
        if (!s->queue.empty()) continue;
        auto &all = s->device->streams;
        all.erase(std::remove(all.begin(), all.end(), s), all.end());
        delete s;
    }
    delete x;
}

} // namespace sim
