//go:build ignore

// collective.cpp: see collective.h.
#include "collective.h"

#include <algorithm>
#include <cstring>

namespace sim {

std::string Collective::text() const {
    static const char *names[] = {"reduce-scatter", "all-gather", "all-reduce", "broadcast"};
    std::string s = std::string(names[(int)kind]) + " of " + std::to_string(count) + " elements of type " + std::to_string(type);
    if (kind == Collect::Broadcast) return s + " from rank " + std::to_string(root);
    return kind == Collect::AllGather ? s : s + " by operation " + std::to_string(op);
}

uint64_t type_bytes(int type) {
    static const int bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return type >= 0 && type <= NCCL_BF16 ? bytes[type] : 0;
}

uint64_t send_bytes(const Collective &c, int ranks, int rank) {
    if (c.kind == Collect::Broadcast && rank != c.root) return 0;
    return c.count * type_bytes(c.type) * (c.kind == Collect::ReduceScatter ? ranks : 1);
}
uint64_t recv_bytes(const Collective &c, int ranks) {
    return c.count * type_bytes(c.type) * (c.kind == Collect::AllGather ? ranks : 1);
}

static bool overlap(uint64_t a, uint64_t an, uint64_t b, uint64_t bn) { return an && bn && a < b + bn && b < a + an; }

std::string check(const Collective &c, int ranks, int rank, const Part &part) {
    bool reduces = c.kind == Collect::ReduceScatter || c.kind == Collect::AllReduce;
    uint64_t size = type_bytes(c.type), own = c.count * size * rank;
    if (!size) return "unknown type";
    if (c.count > (uint64_t)1 << 50) return "too many elements";
    if (reduces && c.type != NCCL_F32 && c.type != NCCL_BF16) return "the simulator reduces fp32 (7) and bf16 (9)";
    if (reduces && c.op != NCCL_SUM) return "the simulator reduces by sums (0)";
    if (c.kind == Collect::Broadcast && (c.root < 0 || c.root >= ranks)) return "the root is not a rank";
    uint64_t sends = send_bytes(c, ranks, rank), receives = recv_bytes(c, ranks);
    if ((sends && part.send % size) || part.recv % size) return "a buffer is not aligned to its elements";
    if (!overlap(part.send, sends, part.recv, receives)) return "";
    uint64_t in_place = c.kind == Collect::AllGather ? part.recv + own : c.kind == Collect::ReduceScatter ? part.recv - own : part.recv;
    return part.send == in_place ? "" : "the buffers overlap, and not as an operation in place has them";
}

static float widen(uint16_t b) {
    uint32_t bits = (uint32_t)b << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
static uint16_t narrow(float f) {
    uint32_t b;
    memcpy(&b, &f, 4);
    return f != f ? 0x7fff : (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

void sum_ranks(const Collective &c, const std::vector<const void *> &from, void *to, uint64_t n) {
    constexpr uint64_t RUN = 4096;
    float sum[RUN];
    for (uint64_t at = 0; at < n; at += RUN) {
        uint64_t m = std::min(RUN, n - at);
        for (size_t r = 0; r < from.size(); r++) {
            if (c.type == NCCL_F32) {
                const float *p = (const float *)from[r] + at;
                for (uint64_t i = 0; i < m; i++) sum[i] = r ? sum[i] + p[i] : p[i];
            } else {
                const uint16_t *p = (const uint16_t *)from[r] + at;
                for (uint64_t i = 0; i < m; i++) sum[i] = r ? sum[i] + widen(p[i]) : widen(p[i]);
            }
        }
        if (c.type == NCCL_F32) memcpy((float *)to + at, sum, m * 4);
        else for (uint64_t i = 0; i < m; i++) ((uint16_t *)to)[at + i] = narrow(sum[i]);
    }
}

void perform(const Collective &c, const std::vector<Part> &parts) {
    uint64_t bytes = c.count * type_bytes(c.type);
    std::vector<const void *> from(parts.size());
    switch (c.kind) {
    case Collect::ReduceScatter:
        for (size_t r = 0; r < parts.size(); r++) {
            for (size_t s = 0; s < parts.size(); s++) from[s] = (const char *)parts[s].send + r * bytes;
            sum_ranks(c, from, (void *)parts[r].recv, c.count);
        }
        break;
    case Collect::AllReduce: // into rank 0, whose own terms are read before they are written
        for (size_t s = 0; s < parts.size(); s++) from[s] = (const void *)parts[s].send;
        sum_ranks(c, from, (void *)parts[0].recv, c.count);
        for (size_t r = 1; r < parts.size(); r++) memcpy((void *)parts[r].recv, (const void *)parts[0].recv, bytes);
        break;
    case Collect::AllGather:
        for (const Part &to : parts)
            for (size_t s = 0; s < parts.size(); s++) memmove((char *)to.recv + s * bytes, (const void *)parts[s].send, bytes);
        break;
    case Collect::Broadcast:
        for (const Part &to : parts) memmove((void *)to.recv, (const void *)parts[c.root].send, bytes);
        break;
    }
}

} // namespace sim
