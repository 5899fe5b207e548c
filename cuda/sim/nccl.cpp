//go:build ignore

// nccl.cpp: the part of NCCL that this project uses. A collective is an operation on each rank's stream; it runs when it is
// at the head of all of them, and blocks those streams until then.
//
// Mistakes that hang or corrupt on devices are errors here: ranks that disagree about a collective make all their devices
// fail. A rank that never comes is reported after HARNESS_S_SIM_TIMEOUT.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <thread>
#include <unistd.h>

#include "call.h"
#include "collective.h"
#include "remote.h"

namespace sim {

enum NcclResult { NCCL_SUCCESS = 0, NCCL_CUDA_ERROR = 1, NCCL_SYSTEM_ERROR = 2, NCCL_INVALID_ARGUMENT = 4,
    NCCL_INVALID_USAGE = 5, NCCL_REMOTE_ERROR = 6 };

struct UniqueId { // ncclUniqueId, passed by value
    char bytes[128];
};

// Round is one collective of a clique, from the first rank's call to the last one's.
struct Round {
    Collective what;
    std::vector<Part> parts;
    std::vector<Device *> devices;
    std::shared_ptr<Meeting> meeting;
    int joined = 0;
};

// Clique is the ranks of one communicator.
struct Clique {
    std::string id;
    int size = 0;
    bool broken = false; // a rank left
    std::vector<struct Comm *> ranks; // null where not joined yet, or left
    std::vector<Device *> devices;
    std::map<uint64_t, std::shared_ptr<Round>> rounds; // by number, those that some rank here has not joined, or that are not done
    std::shared_ptr<Remote> remote;                    // while joining, and where some ranks are in other processes
    bool settled = false;                              // all have joined and remote says whether any is elsewhere
    uint64_t done = 0;                                 // collectives done, where remote is set
};

struct Comm {
    std::shared_ptr<Clique> clique;
    int rank = 0;
    Device *device = nullptr;
    uint64_t next = 0; // number of its next collective
    std::vector<std::weak_ptr<Op>> queued;
};

static std::map<std::string, std::shared_ptr<Clique>> &forming() {
    static auto *m = new std::map<std::string, std::shared_ptr<Clique>>;
    return *m;
}

// ---------------------------------------------------------------- groups

// Inside a group calls are kept back until its end.
static thread_local int group_depth;
static thread_local std::vector<std::function<int()>> group_calls, group_waits;

SIM_API int ncclGroupStart(void) {
    group_depth++;
    return NCCL_SUCCESS;
}

SIM_API int ncclGroupEnd(void) {
    if (group_depth == 0) return fail(NCCL_INVALID_USAGE, "ncclGroupEnd without ncclGroupStart");
    if (--group_depth) return NCCL_SUCCESS;
    std::vector<std::function<int()>> calls;
    calls.swap(group_calls);
    int first = NCCL_SUCCESS;
    auto all = [&](std::vector<std::function<int()>> &list) {
        for (auto &call : list)
            if (int code = call()) first = first ? first : code;
    };
    all(calls);
    calls.clear(), calls.swap(group_waits);
    all(calls);
    return first;
}

// ---------------------------------------------------------------- communicators

SIM_API int ncclGetVersion(int *version) {
    *version = 22703;
    return NCCL_SUCCESS;
}

SIM_API const char *ncclGetErrorString(int code) {
    static const char *text[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error",
        "invalid argument", "invalid usage", "remote process exited or there was a network error", "in progress"};
    return code >= 0 && code <= 7 ? text[code] : "unknown result code";
}

SIM_API const char *ncclGetLastError(void *) { return harness_sim_last_error(); }

SIM_API int ncclGetUniqueId(UniqueId *id) {
    memset(id, 0, sizeof *id);
    FILE *f = fopen("/dev/urandom", "rb");
    unsigned char random[16];
    if (!f || fread(random, 1, sizeof random, f) != sizeof random) {
        if (f) fclose(f);
        return fail(NCCL_SYSTEM_ERROR, "no random numbers");
    }
    fclose(f);
    int n = snprintf(id->bytes, sizeof id->bytes, "harness-s-sim-");
    for (unsigned char r : random) n += snprintf(id->bytes + n, sizeof id->bytes - n, "%02x", r);
    return NCCL_SUCCESS;
}

static void leave(Comm *c) {
    Clique &q = *c->clique;
    world().handles.erase(c);
    q.ranks[c->rank] = nullptr, q.broken = true;
    if (q.remote) q.remote->leave(c->rank);
    for (auto &round : q.rounds) round.second->meeting->broken = true;
    if (std::all_of(q.ranks.begin(), q.ranks.end(), [](const Comm *o) { return !o; })) {
        for (auto &round : q.rounds) round.second->meeting->body = nullptr; // which holds the round
        q.rounds.clear();
    }
    delete c;
}

static int make_clique(std::shared_ptr<Clique> &q, int size, const std::string &id) {
    std::string why;
    auto made = std::make_shared<Clique>();
    made->id = id, made->size = size, made->ranks.resize(size), made->devices.resize(size);
    made->remote = Remote::open(id, size, &why);
    if (!made->remote) return fail(NCCL_SYSTEM_ERROR, "%s", why.c_str());
    q = made;
    return NCCL_SUCCESS;
}

static int join(Comm *c, int size, const std::string &id, int rank) {
    std::shared_ptr<Clique> &q = forming()[id];
    if (!q)
        if (int code = make_clique(q, size, id)) return forming().erase(id), code;
    if (q->size != size) return fail(NCCL_INVALID_ARGUMENT, "rank %d says %d ranks, another one %d", rank, size, q->size);
    for (Comm *o : q->ranks)
        if (o && o->rank != rank && o->device == c->device)
            return fail(NCCL_INVALID_USAGE, "ranks %d and %d are both on device %d", o->rank, rank, c->device->index);
    if (!q->remote || !q->remote->join(rank)) return fail(NCCL_INVALID_ARGUMENT, "rank %d joined twice", rank);
    c->clique = q, c->rank = rank;
    q->ranks[rank] = c, q->devices[rank] = c->device;
    world().handles[c] = {Kind::Comm, c->device, [](void *p) { leave((Comm *)p); }};
    world().changed.notify_all();
    return NCCL_SUCCESS;
}

// help takes part in the collectives that other processes wait for, as a device would, while no thread here waits.
static void help(std::shared_ptr<Clique> q) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    Lock lock(world().mu);
    auto here = [&] { return std::any_of(q->ranks.begin(), q->ranks.end(), [](const Comm *c) { return c; }); };
    while (here()) {
        auto round = q->rounds.find(q->done);
        if (round != q->rounds.end() && q->remote->wanted(q->done)) {
            std::vector<Ref> ops;
            for (const Ref &op : round->second->meeting->ranks)
                if (op) ops.push_back(op);
            poke(lock, ops);
        }
        lock.unlock();
        usleep(300);
        lock.lock();
    }
    world().polling--;
}

// settle is called once all have joined: the file is needed only where a rank is elsewhere.
static void settle(const std::shared_ptr<Clique> &q) {
    if (q->settled) return;
    q->settled = true;
    forming().erase(q->id); // an id serves once
    q->remote->unlink();
    if (q->remote->all_here()) {
        q->remote.reset();
        return;
    }
    world().polling++;
    std::thread(help, q).detach();
}

static std::string missing(const Clique &q) {
    std::string text;
    for (int r = 0; r < q.size; r++)
        if (!q.remote->has(r)) text += (text.empty() ? "" : ", ") + std::to_string(r);
    return text;
}

static int await_all(void **comm) {
    Lock lock(world().mu);
    Comm *c = lookup<Comm>(*comm, Kind::Comm);
    if (!c) return fail(NCCL_INVALID_ARGUMENT, "the communicator was overwritten before its group ended");
    std::shared_ptr<Clique> q = c->clique;
    double deadline = now() + world().timeout_s;
    while (!q->settled && q->remote->joined() < q->size && now() < deadline) world().changed.wait_for(lock, std::chrono::milliseconds(1));
    if (q->settled || q->remote->joined() == q->size) return settle(q), NCCL_SUCCESS;
    int code = fail(NCCL_SYSTEM_ERROR, "rank %d of %d waited %g s; missing are %s", c->rank, q->size, world().timeout_s,
        missing(*q).c_str());
    if (forming().count(q->id) && forming()[q->id] == q) forming().erase(q->id);
    q->remote->unlink();
    leave(c);
    *comm = nullptr;
    return code;
}

SIM_API int ncclCommInitRank(void **comm, int size, UniqueId id, int rank) {
    *comm = nullptr;
    {
        Call c;
        if (c.code) return NCCL_CUDA_ERROR;
        if (strncmp(id.bytes, "harness-s-sim-", 14) || !memchr(id.bytes, 0, sizeof id.bytes))
            return fail(NCCL_INVALID_ARGUMENT, "not an id of this library");
        if (size < 1 || rank < 0 || rank >= size) return fail(NCCL_INVALID_ARGUMENT, "rank %d of %d", rank, size);
        Comm *made = new Comm;
        made->device = c.device;
        if (int code = join(made, size, id.bytes, rank)) {
            delete made;
            return code;
        }
        *comm = made;
    }
    if (group_depth) return group_waits.push_back([comm] { return await_all(comm); }), NCCL_SUCCESS;
    return await_all(comm);
}

static std::vector<Ref> unfinished(const Comm *c) {
    std::vector<Ref> ops;
    for (const auto &weak : c->queued)
        if (Ref op = weak.lock())
            if (!op->done) ops.push_back(op);
    return ops;
}

SIM_API int ncclCommDestroy(void *comm) {
    Lock lock(world().mu);
    forget_refusal();
    Comm *c = lookup<Comm>(comm, Kind::Comm);
    if (!c) return fail(NCCL_INVALID_ARGUMENT, "%p is not a communicator", comm);
    int code = wait_for(lock, c->device, unfinished(c));
    leave(c);
    return code ? NCCL_CUDA_ERROR : NCCL_SUCCESS;
}

SIM_API int ncclCommFinalize(void *) { return NCCL_SUCCESS; }

// An aborted rank's collectives complete without effect. The other ranks wait on until they abort too.
SIM_API int ncclCommAbort(void *comm) {
    Lock lock(world().mu);
    forget_refusal();
    Comm *c = lookup<Comm>(comm, Kind::Comm);
    if (!c) return fail(NCCL_INVALID_ARGUMENT, "%p is not a communicator", comm);
    for (const Ref &op : unfinished(c)) abort_op(lock, op);
    leave(c);
    return NCCL_SUCCESS;
}

SIM_API int ncclCommGetAsyncError(void *comm, int *code) {
    Lock lock(world().mu);
    Comm *c = lookup<Comm>(comm, Kind::Comm);
    if (!c) return fail(NCCL_INVALID_ARGUMENT, "%p is not a communicator", comm);
    bool gone = false; // a rank elsewhere may leave as soon as nothing waits for it
    const Clique &q = *c->clique;
    if (q.remote && q.rounds.count(q.done)) q.remote->waits_for(q.done, &gone);
    *code = c->device->error ? NCCL_CUDA_ERROR : gone ? NCCL_REMOTE_ERROR : NCCL_SUCCESS;
    for (const Comm *o : q.ranks)
        if (!*code && o && o->device->error) *code = NCCL_REMOTE_ERROR;
    return NCCL_SUCCESS;
}

// ---------------------------------------------------------------- collectives

static std::string reachable(const Round &round) {
    int size = (int)round.parts.size();
    for (int r = 0; r < size; r++) {
        if (!round.devices[r]) continue;
        std::string bad = holds(round.devices[r], round.parts[r].send, send_bytes(round.what, size, r));
        if (bad.empty()) bad = holds(round.devices[r], round.parts[r].recv, recv_bytes(round.what, size));
        if (!bad.empty()) return "rank " + std::to_string(r) + ": " + bad;
    }
    return "";
}

static Outcome run_round(Round &round, Clique &q, uint64_t number) {
    std::string bad;
    double timeout_s;
    {
        Lock lock(world().mu);
        bad = reachable(round);
        timeout_s = world().timeout_s;
    }
    if (!bad.empty()) return {ILLEGAL_ADDRESS, bad};
    if (!q.remote) return perform(round.what, round.parts), Outcome{};
    bad = q.remote->perform(round.what, round.parts, timeout_s);
    Lock lock(world().mu);
    q.rounds.erase(number), q.done = number + 1;
    return bad.empty() ? Outcome{} : Outcome{LAUNCH_FAILED, bad};
}

// other_processes announces the round, whose ranks here can all run, and says which ranks elsewhere are not ready.
// Collectives of several processes run in the order of their numbers.
static std::string other_processes(const Clique &q, Round &round, uint64_t number) {
    if (q.done != number) return "collective " + std::to_string(q.done) + " comes first";
    for (int r = 0; r < q.size; r++)
        if (round.devices[r]) q.remote->publish(r, number, round.what);
    bool gone = false;
    std::string waits = q.remote->waits_for(number, &gone);
    if (gone) round.meeting->broken = true;
    return waits;
}

static std::shared_ptr<Round> make_round(const std::shared_ptr<Clique> &q, uint64_t number, const Collective &what) {
    auto round = std::make_shared<Round>();
    round->what = what, round->parts.resize(q->size), round->devices = q->devices;
    auto m = round->meeting = std::make_shared<Meeting>();
    m->what = what.text(), m->ranks.resize(q->size);
    m->devices = q->devices, m->broken = q->broken;
    m->body = [=] { return run_round(*round, *q, number); }; // a circle, opened when the meeting runs
    Round *r = round.get();
    if (q->remote) m->waits_for = [=] { return other_processes(*q, *r, number); };
    return round;
}

// arm joins the operation of one rank to the clique's round of that number.
static int arm(Comm *c, const Collective &what, const Part &part, const Ref &op) {
    Clique &q = *c->clique;
    std::shared_ptr<Round> &round = q.rounds[c->next];
    if (!round) round = make_round(c->clique, c->next, what);
    if (!(round->what == what)) {
        std::string text = "collective " + std::to_string(c->next) + ": rank " + std::to_string(c->rank) + " calls "
            + what.text() + ", another one " + round->what.text();
        for (Comm *o : q.ranks)
            if (o) make_device_fail(o->device, LAUNCH_FAILED, text);
        return fail(NCCL_INVALID_ARGUMENT, "%s", text.c_str());
    }
    round->parts[c->rank] = part;
    round->meeting->ranks[c->rank] = op;
    op->meeting = round->meeting;
    auto &queued = c->queued;
    queued.erase(std::remove_if(queued.begin(), queued.end(), [](const std::weak_ptr<Op> &w) { return w.expired(); }), queued.end());
    queued.push_back(op);
    uint64_t number = c->next++;
    if (++round->joined == q.size) q.rounds.erase(number); // where a rank is elsewhere the round stays until it is done
    return SUCCESS;
}

static int start(const Collective &what, const Part &part, void *comm, void *stream) {
    Lock lock(world().mu);
    forget_refusal();
    Comm *c = lookup<Comm>(comm, Kind::Comm);
    if (!c) return fail(NCCL_INVALID_ARGUMENT, "%p is not a communicator", comm);
    Device *d = c->device;
    if (d->error) return fail(NCCL_CUDA_ERROR, "%s", d->error_text.c_str());
    Stream *s = stream ? lookup<Stream>(stream, Kind::Stream) : &d->null_stream;
    if (!s || s->device != d) return fail(NCCL_INVALID_ARGUMENT, "%p is not a stream of device %d", stream, d->index);
    std::string bad = check(what, c->clique->size, c->rank, part);
    if (bad.empty()) bad = holds(d, part.send, send_bytes(what, c->clique->size, c->rank));
    if (bad.empty()) bad = holds(d, part.recv, recv_bytes(what, c->clique->size));
    if (!bad.empty()) return fail(NCCL_INVALID_ARGUMENT, "%s: %s", what.text().c_str(), bad.c_str());
    Work w;
    w.what = what.text();
    w.arm = [=](const Ref &op) { return arm(c, what, part, op); };
    int code = enqueue(s, std::move(w));
    return !code ? NCCL_SUCCESS : code == NCCL_INVALID_ARGUMENT ? code : NCCL_CUDA_ERROR;
}

static int collective(Collect kind, uint64_t send, uint64_t recv, size_t count, int type, int op, int root, void *comm, void *stream) {
    Collective what{kind, count, type, op, root};
    Part part{send, recv};
    if (group_depth) return group_calls.push_back([=] { return start(what, part, comm, stream); }), NCCL_SUCCESS;
    return start(what, part, comm, stream);
}

SIM_API int ncclReduceScatter(uint64_t send, uint64_t recv, size_t count, int type, int op, void *comm, void *stream) {
    return collective(Collect::ReduceScatter, send, recv, count, type, op, 0, comm, stream);
}
SIM_API int ncclAllGather(uint64_t send, uint64_t recv, size_t count, int type, void *comm, void *stream) {
    return collective(Collect::AllGather, send, recv, count, type, 0, 0, comm, stream);
}
SIM_API int ncclAllReduce(uint64_t send, uint64_t recv, size_t count, int type, int op, void *comm, void *stream) {
    return collective(Collect::AllReduce, send, recv, count, type, op, 0, comm, stream);
}
SIM_API int ncclBroadcast(uint64_t send, uint64_t recv, size_t count, int type, int root, void *comm, void *stream) {
    return collective(Collect::Broadcast, send, recv, count, type, 0, root, comm, stream);
}

} // namespace sim
