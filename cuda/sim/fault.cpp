//go:build ignore

// fault.cpp: a kernel's bad access becomes an error of its block, as on a device, not the end of the process.
#include "fiber.h"
#include <memory>
#include <mutex>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

extern "C" void hs_sim_resume(void *to);

namespace hs_sim {

static struct sigaction previous[65];

static std::string describe(const Block &b, int signal, const char *address) {
    if (signal == SIGFPE) return "integer division by zero";
    const Fiber *f = static_cast<Fiber *>(self);
    if (address >= f->stack && address < f->stack + PAGE) return "its stack of " + std::to_string(STACK) + " bytes is full";
    if (address >= b.dynamic_end && address < b.dynamic_end + PAGE)
        return "access past the end of its " + std::to_string(b.dynamic_bytes) + " bytes of dynamic shared memory";
    if (address >= b.memory && address < b.dynamic_end) return "access outside its shared memory";
    char s[80];
    snprintf(s, sizeof s, "illegal address %p", static_cast<const void *>(address));
    return s;
}

static void pass_to_previous(int signal, siginfo_t *info, void *context) {
    struct sigaction &p = previous[signal];
    if (p.sa_flags & SA_SIGINFO) return p.sa_sigaction(signal, info, context);
    if (p.sa_handler != SIG_DFL && p.sa_handler != SIG_IGN) return p.sa_handler(signal);
    sigaction(signal, &p, nullptr); // the instruction runs again and meets the default action
}

// The handler writes the error and goes on, after it returns, where run_grid's thread had entered the fiber.
static void on_fault(int signal, siginfo_t *info, void *context) {
    Block *b = running;
    if (!b) return pass_to_previous(signal, info, context);
    char where[200];
    snprintf(where, sizeof where, "kernel %s, block (%u,%u,%u), thread %u: ", b->kernel->name, self->block.x, self->block.y, self->block.z,
             self->thread.x);
    b->message = where + describe(*b, signal, static_cast<const char *>(info->si_addr));
    b->failed = true;
    auto *u = static_cast<ucontext_t *>(context);
    u->uc_mcontext.gregs[REG_RDI] = reinterpret_cast<greg_t>(b->host_sp);
    u->uc_mcontext.gregs[REG_RIP] = reinterpret_cast<greg_t>(&hs_sim_resume);
}

void catch_faults() {
    static std::once_flag once;
    std::call_once(once, [] {
        struct sigaction a = {};
        a.sa_sigaction = on_fault;
        a.sa_flags = SA_SIGINFO | SA_ONSTACK;
        for (int s : {SIGSEGV, SIGBUS, SIGFPE}) sigaction(s, &a, &previous[s]);
    });
}

void give_signal_stack() {
    stack_t have, give = {};
    sigaltstack(nullptr, &have);
    if (!(have.ss_flags & SS_DISABLE)) return;
    static thread_local std::unique_ptr<char[]> stack; // as long as the thread
    stack.reset(new char[64 << 10]);
    give.ss_sp = stack.get(), give.ss_size = 64 << 10;
    sigaltstack(&give, nullptr);
}

} // namespace hs_sim
