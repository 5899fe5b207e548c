// sched.h: the work queued on the simulated devices and who runs it when.
//
// Nothing runs when it is queued. A call that has to wait (a stream's or event's synchronisation, a free, a copy that
// waits) runs queued work itself, on its own thread, until what it waits for is done: always an operation at the head of a
// stream whose dependencies are done, drawn at random among those the wait needs and, now and then, among all. So work runs
// late, in an order that the program allowed but did not ask for, and whatever the program did not order shows.
//
// One lock guards everything in this file. It is released while an operation's body runs; a device runs one body at a time,
// different devices run in parallel when several host threads wait at once.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "abi.h"

namespace sim {

struct Device;
struct Stream;
struct Op;
struct Meeting;
using Ref = std::shared_ptr<Op>;
using Lock = std::unique_lock<std::mutex>;

// Outcome of a body: code 0, or a CUresult and what went wrong.
struct Outcome {
    int code = 0;
    std::string text;
};

// Work is what a caller wants to be done. Body runs without the lock. Arm, if set, is called with the lock when the operation enters a queue; it joins the operation to a Meeting.
struct Work {
    std::string what; // "kernel rmsnorm_f32", "copy to the device", ...
    std::function<Outcome()> body;
    std::function<int(const Ref &)> arm;
};

// Op is one operation in a stream's queue.
struct Op {
    std::string what;
    std::function<Outcome()> body;
    std::vector<Ref> after;           // operations of other streams that come first
    std::shared_ptr<Meeting> meeting; // a collective: runs when all its operations can
    Stream *stream = nullptr;         // null once done
    bool running = false, done = false, failed = false;
    double ended = 0; // seconds, when done
};

// Meeting ties together the operations of a collective's ranks: they run as one.
struct Meeting {
    std::string what;
    std::vector<Ref> ranks;        // null where the rank has not queued its part
    std::vector<Device *> devices; // null where the rank is in another process
    std::function<Outcome()> body;
    std::function<std::string()> waits_for; // null, or what ranks in other processes it waits for, "" for none
    bool broken = false;                    // a rank aborted: the others wait in vain
    bool aborted = false;                   // completes without running
};

struct Stream {
    Device *device = nullptr;
    int id = 0;
    unsigned flags = 0;
    bool destroyed = false;
    std::deque<Ref> queue;
    Ref last; // the newest operation, null before the first
};

struct Event {
    Device *device = nullptr;
    unsigned flags = 0;
    Ref latest; // the newest record, null before the first
};

enum class Kind { Stream, Event, Module, Function, Blas, Comm };
struct Handle {
    Kind kind;
    Device *device;          // whose context made it
    void (*destroy)(void *); // called when that context goes, if set
};

// World is the whole simulated machine.
struct World {
    std::mutex mu;
    std::condition_variable changed;
    std::vector<Device *> devices;
    std::unordered_map<void *, Handle> handles; // what callers hold
    uint64_t random = 0; // state of the generator
    double timeout_s = 120;
    double progress = 0; // when something last happened
    int next_id = 1;
    int running = 0; // bodies under way
    int polling = 0; // meetings that wait for other processes: nobody will signal those
};
World &world();

struct Device {
    int index = 0;
    int refs = 0;
    bool active = false; // its primary context is retained
    bool busy = false;   // a body runs
    int error = 0;       // sticky, with its text
    std::string error_text;
    std::vector<Stream *> streams; // null_stream first
    Stream null_stream;
    size_t memory = 0, used = 0;
    uint32_t peers = 0; // devices whose memory it may use
};

double now();
uint64_t draw();            // the next random number; lock held
uint64_t draw(uint64_t n);  // in [0, n)

// fail notes why a call is refused, for harness_sim_last_error, and returns its code.
int fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
void forget_refusal(); // at the start of a call

extern "C" const char *harness_sim_last_error(void);

// enqueue queues work behind a stream's other work. op receives the operation.
int enqueue(Stream *s, Work w, Ref *op = nullptr);
int enqueue_after(Stream *s, Work w, std::vector<Ref> after, Ref *op = nullptr);

// wait_for runs work until all of ops are done. A device error of `device` that appears meanwhile is returned.
int wait_for(Lock &lock, Device *device, const std::vector<Ref> &ops);
// wait_change waits for the world to change, at most so many seconds.
void wait_change(Lock &lock, double seconds);
// wait_device waits for everything queued on the device.
int wait_device(Lock &lock, Device *device);
// poke runs one operation that ops wait for, if any can run.
void poke(Lock &lock, const std::vector<Ref> &ops);
// make_device_fail makes every later call on the device return code; its queued work is dropped.
void make_device_fail(Device *d, int code, const std::string &text);
// abort_op makes an operation of a meeting complete without effect; the other ranks wait on, as they do on devices.
void abort_op(Lock &lock, const Ref &op);
// drop_device forgets queued work, without an error.
void drop_device(Device *d);

template <class T> void delete_as(void *p) { delete static_cast<T *>(p); }

template <class T> T *lookup(void *handle, Kind kind) {
    auto &handles = world().handles;
    auto it = handles.find(handle);
    return it != handles.end() && it->second.kind == kind ? static_cast<T *>(handle) : nullptr;
}

} // namespace sim
