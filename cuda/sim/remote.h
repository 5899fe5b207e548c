// remote.h: ranks of one communicator in several processes of one machine. They meet in a file of shared memory named by
// the communicator's id; it is unlinked as soon as all have joined, so that nothing is left behind.
//
// A process runs its part of a collective when its ranks are ready and it has seen that all others are. It then waits for
// them inside, so a process must take part even while none of its threads waits for anything: nccl.cpp has a thread for
// that.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collective.h"

namespace sim {

class Remote {
  public:
    // open maps the file, which the first one makes; null and why it cannot.
    static std::shared_ptr<Remote> open(const std::string &id, int size, std::string *why);
    ~Remote();

    bool join(int rank); // false: taken
    bool has(int rank) const;
    int joined() const;
    bool all_here() const; // every rank is of this process
    void unlink();
    void leave(int rank); // this process's rank takes part no more

    // publish tells the others that a rank of this process can run its collective of that number.
    void publish(int rank, uint64_t number, const Collective &what);
    // wanted tells whether another rank is ready for that collective.
    bool wanted(uint64_t number) const;
    // waits_for is "" when all ranks are ready, else which one elsewhere is not; gone is set where it never will be.
    std::string waits_for(uint64_t number, bool *gone) const;
    // perform does this process's part; parts of ranks elsewhere are not looked at. "" or what went wrong.
    std::string perform(const Collective &what, const std::vector<Part> &parts, double timeout_s);

  private:
    struct Slot;
    struct File;
    Remote() = default;
    bool own(int rank) const;
    char *stage(int rank) const;
    std::string barrier(double timeout_s);
    std::string exchange(const Collective &what, const std::vector<Part> &parts, uint64_t lo, uint64_t hi, int block, double timeout_s);

    std::string name;
    int size = 0;
    bool linked = true;
    size_t bytes = 0;
    File *file = nullptr;
    uint64_t phase = 0; // barriers passed
};

} // namespace sim
