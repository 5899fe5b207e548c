//go:build ignore

// sched.cpp: see sched.h.
#include "sched.h"

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <exception>
#include <unordered_set>


namespace sim {

World &world() {
    static World *w = new World; // lives until the process ends: threads may still be inside
    return *w;
}

double now() {
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

// splitmix64
uint64_t draw() {
    uint64_t z = world().random += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}
uint64_t draw(uint64_t n) { return (unsigned __int128)draw() * n >> 64; }

// ---------------------------------------------------------------- what went wrong

// The latest refusal of this thread's latest call ("" if that call went well), and of any thread: a caller that asks may
// have moved to another thread meanwhile.
static thread_local std::string refusal;
static std::mutex any_mu;
static std::string &any_refusal() {
    static auto *s = new std::string;
    return *s;
}

int fail(int code, const char *format, ...) {
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    refusal = text;
    std::lock_guard<std::mutex> lock(any_mu);
    any_refusal() = text;
    return code;
}

void forget_refusal() { refusal.clear(); }

// harness_sim_last_error says why a call was refused; valid until the calling thread's next call.
SIM_API const char *harness_sim_last_error(void) {
    static thread_local std::string answer;
    std::lock_guard<std::mutex> lock(any_mu);
    answer = refusal.empty() ? any_refusal() : refusal;
    return answer.c_str();
}

// ---------------------------------------------------------------- queues

static bool is_head(const Op &op) { return op.stream && op.stream->queue.front().get() == &op; }

static bool deps_done(const Op &op) {
    return std::all_of(op.after.begin(), op.after.end(), [](const Ref &d) { return d->done; });
}

static bool free_to_run(const Op &op) {
    return !op.done && !op.running && is_head(op) && !op.stream->device->busy && deps_done(op);
}

static bool runnable(const Op &op) {
    if (!free_to_run(op)) return false;
    if (!op.meeting) return true;
    const Meeting &m = *op.meeting;
    if (m.aborted) return false; // complete_aborted's
    for (size_t r = 0; r < m.ranks.size(); r++)
        if (m.devices[r] && (!m.ranks[r] || !free_to_run(*m.ranks[r]))) return false;
    return !m.waits_for || m.waits_for().empty();
}

static void finish(const Ref &op, bool failed) {
    Stream *s = op->stream;
    op->done = true, op->failed = failed, op->running = false;
    op->ended = std::max(now(), world().progress + 1e-9); // no two operations end at the same time
    op->body = nullptr, op->stream = nullptr, op->after.clear();
    if (op->meeting) op->meeting.reset();
    if (s && !s->queue.empty() && s->queue.front() == op) s->queue.pop_front();
    world().progress = op->ended;
    world().changed.notify_all();
    if (s && s->destroyed && s->queue.empty()) {
        auto &all = s->device->streams;
        all.erase(std::remove(all.begin(), all.end(), s), all.end());
        delete s;
    }
}

void drop_device(Device *d) {
    std::vector<Stream *> streams = d->streams;
    for (Stream *s : streams) {
        std::deque<Ref> queue = s->queue;
        for (const Ref &op : queue)
            if (!op->running) {
                s->queue.erase(std::find(s->queue.begin(), s->queue.end(), op));
                // a stream that is being destroyed goes with its last operation
                finish(op, true);
            }
    }
}

void make_device_fail(Device *d, int code, const std::string &text) {
    if (d->error) return;
    d->error = code, d->error_text = text;
    fprintf(stderr, "harness-sim: device %d: %s\n", d->index, text.c_str());
    drop_device(d);
}

void abort_op(Lock &lock, const Ref &op) {
    while (op->running) wait_change(lock, 1);
    if (op->done || !op->meeting) return;
    for (Ref &r : op->meeting->ranks)
        if (r == op) r.reset();
    op->meeting->broken = true;
    op->meeting = std::make_shared<Meeting>();
    op->meeting->aborted = true;
    world().changed.notify_all();
}

static Outcome call(const std::function<Outcome()> &body) {
    try {
        return body ? body() : Outcome{};
    } catch (const std::exception &e) {
        return {LAUNCH_FAILED, e.what()};
    }
}

// run runs op, and with it the other ranks of its meeting, without the lock.
static void run(Lock &lock, const Ref &op) {
    std::shared_ptr<Meeting> m = op->meeting;
    std::vector<Ref> ops;
    for (const Ref &r : m ? m->ranks : std::vector<Ref>{op})
        if (r) ops.push_back(r);
    std::vector<Device *> devices;
    for (const Ref &o : ops) o->running = true, devices.push_back(o->stream->device), devices.back()->busy = true;
    std::function<Outcome()> body = std::move(m ? m->body : op->body);
    world().running++;
    lock.unlock();
    Outcome outcome = call(body);
    lock.lock();
    world().running--;
    for (Device *d : devices) d->busy = false;
    std::string what = op->what;
    for (const Ref &o : ops) finish(o, outcome.code != 0);
    if (outcome.code)
        for (Device *d : devices) make_device_fail(d, outcome.code, what + ": " + outcome.text);
}

int enqueue_after(Stream *s, Work w, std::vector<Ref> after, Ref *out) {
    Ref op = std::make_shared<Op>();
    op->what = std::move(w.what), op->body = std::move(w.body), op->stream = s, op->after = std::move(after);
    Device *d = s->device;
    if (s == &d->null_stream) { // the legacy stream waits for blocking streams, and they for it
        for (Stream *o : d->streams)
            if (o != s && !(o->flags & STREAM_NON_BLOCKING) && o->last && !o->last->done) op->after.push_back(o->last);
    } else if (!(s->flags & STREAM_NON_BLOCKING) && d->null_stream.last && !d->null_stream.last->done) {
        op->after.push_back(d->null_stream.last);
    }
    if (w.arm)
        if (int code = w.arm(op)) return code;
    s->queue.push_back(op), s->last = op;
    world().progress = std::max(world().progress, now());
    world().changed.notify_all();
    if (out) *out = op;
    return SUCCESS;
}

int enqueue(Stream *s, Work w, Ref *op) { return enqueue_after(s, std::move(w), {}, op); }

// ---------------------------------------------------------------- waiting

// Search walks from an operation to everything it waits for and collects the heads that can run now.
struct Search {
    std::unordered_set<const Stream *> seen;
    std::vector<Ref> heads;
    bool dead = false; // a rank's device has failed: it will never come

    void visit(const Ref &op) {
        if (!op || op->done || !seen.insert(op->stream).second) return;
        const Ref head = op->stream->queue.front();
        if (head->running) return;
        if (runnable(*head)) return heads.push_back(head);
        for (const Ref &d : head->after) visit(d);
        if (head->meeting) visit_ranks(*head->meeting);
    }
    void visit_ranks(const Meeting &m) {
        dead |= m.broken;
        for (size_t r = 0; r < m.ranks.size(); r++) {
            visit(m.ranks[r]);
            dead |= m.devices[r] && m.devices[r]->error;
        }
    }
};

static std::vector<Ref> all_runnable() {
    std::vector<Ref> heads;
    for (Device *d : world().devices)
        for (Stream *s : d->streams)
            if (!s->queue.empty() && runnable(*s->queue.front())) heads.push_back(s->queue.front());
    return heads;
}

// complete_aborted completes operations whose meeting was aborted, as soon as they reach the head of their stream.
static bool complete_aborted() {
    for (Device *d : world().devices)
        for (Stream *s : d->streams) {
            if (s->queue.empty()) continue;
            Ref head = s->queue.front();
            if (head->meeting && head->meeting->aborted && !head->running && deps_done(*head)) return finish(head, true), true;
        }
    return false;
}

static std::string describe(const Stream *s) {
    std::string name = s == &s->device->null_stream ? "the null stream" : "stream " + std::to_string(s->id);
    return name + " of device " + std::to_string(s->device->index);
}

// explain lists what the head of each stream with queued work waits for.
static std::string explain() {
    std::string text;
    for (Device *d : world().devices)
        for (Stream *s : d->streams) {
            if (s->queue.empty()) continue;
            const Op &head = *s->queue.front();
            text += "; " + describe(s) + ": " + head.what + " (" + std::to_string(s->queue.size()) + " queued)";
            for (const Ref &a : head.after)
                if (!a->done) text += " waits for " + a->what + " on " + describe(a->stream);
            if (!head.meeting) continue;
            for (size_t r = 0; r < head.meeting->ranks.size(); r++) {
                const Ref &rank = head.meeting->ranks[r];
                const Device *of = head.meeting->devices[r];
                if (!of) continue;
                if (of->error) text += ", rank " + std::to_string(r) + " is on device " + std::to_string(of->index)
                    + ", which failed: " + of->error_text;
                else if (!rank) text += ", rank " + std::to_string(r) + (head.meeting->broken ? " aborted or" : "")
                    + " has not queued its part";
                else if (!is_head(*rank)) text += ", rank " + std::to_string(r) + " is behind other work on " + describe(rank->stream);
            }
            if (head.meeting->waits_for) text += ", " + head.meeting->waits_for();
        }
    return text.empty() ? "; nothing is queued" : text;
}

// step runs one operation that ops wait for, or now and then any other; false where none can run.
static bool step(Lock &lock, const std::vector<Ref> &ops, bool *dead) {
    if (complete_aborted()) return true;
    Search search;
    for (const Ref &op : ops) search.visit(op);
    *dead = search.dead;
    std::vector<Ref> heads = search.heads;
    if (heads.empty() || draw(4) == 0) {
        std::vector<Ref> all = all_runnable();
        if (!all.empty()) heads = std::move(all);
    }
    if (heads.empty()) return false;
    run(lock, heads[draw(heads.size())]);
    return true;
}

void poke(Lock &lock, const std::vector<Ref> &ops) {
    bool dead;
    step(lock, ops, &dead);
}

// Nobody signals what other processes do: look again soon.
void wait_change(Lock &lock, double seconds) {
    double most = world().polling ? 0.0005 : 3600;
    world().changed.wait_for(lock, std::chrono::duration<double>(std::min(seconds, most)));
}

int wait_for(Lock &lock, Device *device, const std::vector<Ref> &ops) {
    World &w = world();
    double since = now();
    auto undone = [&] { return std::any_of(ops.begin(), ops.end(), [](const Ref &o) { return o && !o->done; }); };
    while (undone()) {
        bool dead = false;
        if (step(lock, ops, &dead)) continue;
        double limit = dead ? std::min(w.timeout_s, 5.0) : w.timeout_s;
        double left = std::max(since, w.progress) + limit - now();
        if (left <= 0 && !w.running) {
            make_device_fail(device, LAUNCH_TIMEOUT, "nothing could run for " + std::to_string((int)limit) + " s" + explain());
            break;
        }
        wait_change(lock, std::max(left, 0.01));
    }
    return device->error ? fail(device->error, "%s", device->error_text.c_str()) : SUCCESS;
}

int wait_device(Lock &lock, Device *device) {
    std::vector<Ref> ops;
    for (Stream *s : device->streams)
        if (s->last && !s->last->done) ops.push_back(s->last);
    return wait_for(lock, device, ops);
}

} // namespace sim
