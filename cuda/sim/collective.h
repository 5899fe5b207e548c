// collective.h: what a collective computes, apart from who waits for whom.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sim {

enum class Collect { ReduceScatter, AllGather, AllReduce, Broadcast };
enum { NCCL_INT8 = 0, NCCL_UINT8 = 1, NCCL_INT32 = 2, NCCL_UINT32 = 3, NCCL_INT64 = 4, NCCL_UINT64 = 5, NCCL_F16 = 6,
    NCCL_F32 = 7, NCCL_F64 = 8, NCCL_BF16 = 9 };
enum { NCCL_SUM = 0, NCCL_PROD = 1, NCCL_MAX = 2, NCCL_MIN = 3, NCCL_AVG = 4 };

// Collective is what all ranks must agree on. count is that of the call: elements a rank receives (ReduceScatter), sends
// (AllGather), or both.
struct Collective {
    Collect kind;
    uint64_t count;
    int type, op, root;
    bool operator==(const Collective &o) const {
        return kind == o.kind && count == o.count && type == o.type && op == o.op && root == o.root;
    }
    std::string text() const;
};

// Part is one rank's buffers.
struct Part {
    uint64_t send = 0, recv = 0;
};

uint64_t type_bytes(int type); // 0 for an unknown type
// send_bytes and recv_bytes are what a rank reads and writes; a rank that is not a broadcast's root reads nothing.
uint64_t send_bytes(const Collective &c, int ranks, int rank);
uint64_t recv_bytes(const Collective &c, int ranks);
// check returns why NCCL would refuse the call of this rank, or "".
std::string check(const Collective &c, int ranks, int rank, const Part &part);

// sum_ranks adds n elements of each source in the order of the sources, in fp32 (fp64 for fp64), and rounds once. to may be
// one of them.
void sum_ranks(const Collective &c, const std::vector<const void *> &from, void *to, uint64_t n);
// perform does the whole collective; all buffers can be reached.
void perform(const Collective &c, const std::vector<Part> &parts);

} // namespace sim
