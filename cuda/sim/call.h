// call.h: what the functions of the driver interface begin with.
#pragma once

#include "memory.h"
#include "sched.h"

namespace sim {

Device *current_device(); // of the calling thread's context, or null

// Call holds the lock for the time of one driver call on the calling thread's current context. code is not 0 where the
// call must end at once: no context, or the device has failed.
struct Call {
    Lock lock;
    Device *device = nullptr;
    int code = 0;
    Call();
    // stream and event check a handle; null, with code set, where it is not one of this context.
    Stream *stream(void *handle);
    Event *event(void *handle);
};

// Machine is the configuration from the environment.
struct Machine {
    int devices = 1;
    int major = 9, minor = 0;
    int shared_optin = 232448;
    size_t memory = (size_t)4 << 30;
    bool initialized = false;
};
Machine &machine();

} // namespace sim
