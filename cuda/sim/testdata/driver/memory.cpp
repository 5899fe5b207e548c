// Memory: poison, limits, bounds, frees, copies.
#include "check.h"
#include <cmath>

TEST(fresh_memory_is_poisoned) {
    Gpu g;
    uint64_t p = g.alloc(100);
    for (float x : g.download(p, 100)) CHECK(std::isnan(x));
    CHECK(p % 256 == 0);
    float *host = g.pinned(3);
    CHECK(std::isnan(host[0]) && std::isnan(host[2]));
    OK(cuMemFreeHost(host));
}

TEST(over_allocation) {
    setting("HARNESS_S_SIM_MEMORY", "1048576");
    Gpu g;
    size_t free = 0, total = 0;
    uint64_t p = g.alloc(100000), q;
    OK(cuMemGetInfo_v2(&free, &total));
    CHECK(total == 1048576 && free == 1048576 - 400000);
    CODE(2, cuMemAlloc_v2(&q, 700000));
    CHECK(says("700000 bytes wanted, 400000 of 1048576 in use"));
    OK(cuMemFree_v2(p));
    OK(cuMemAlloc_v2(&q, 700000)); // an error that does not stick
    CODE(1, cuMemAlloc_v2(&q, 0));
}

TEST(offsets_past_31_bits_cost_nothing) {
    setting("HARNESS_S_SIM_MEMORY", "40000000000");
    Gpu g;
    uint64_t p = g.alloc(9000000000ull);
    OK(g.store(g.stream, p, 8999999999ll, 7));
    OK(g.store(g.stream, p, 4294967296ll, 9));
    OK(cuStreamSynchronize(g.stream));
    CHECK(g.download(p + 8999999999ull * 4, 1)[0] == 7 && g.download(p + 4294967296ull * 4, 1)[0] == 9);
    CHECK(g.download(p, 1)[0] == 0); // not poisoned, and not wrapped around
    OK(cuMemFree_v2(p));
}

static void overrun(int64_t at, const char *what) {
    Gpu g;
    uint64_t p = g.alloc(64); // a whole number of 256 bytes: the next byte faults
    OK(g.store(g.stream, p, at, 1));
    CODE(700, cuStreamSynchronize(g.stream));
    CHECK(says("kernel store") && says("illegal address") && says(what));
}
TEST(kernel_past_the_end) { overrun(64, "is 0 bytes past the end of block"); }
TEST(kernel_far_past_the_end) { overrun(5000, "bytes past the end of block"); }

// Between a block's size and the next 256 bytes nothing faults; the free finds what was written there.
TEST(overrun_in_the_padding) {
    Gpu g;
    uint64_t p = g.alloc(10);
    OK(g.store(g.stream, p, 11, 1));
    OK(cuStreamSynchronize(g.stream));
    CODE(700, cuMemFree_v2(p));
    CHECK(says("which has 40 bytes"));
}

TEST(free_waits_for_queued_work) {
    Gpu g;
    uint64_t x = g.upload({3}), y = g.upload({0});
    OK(g.line(g.stream, y, x, 1, 2, 0));
    OK(cuMemFree_v2(x));
    CHECK(g.download(y, 1)[0] == 6);
    CODE(1, cuMemFree_v2(x));
    CHECK(says("free already"));
    CODE(1, cuMemFree_v2(y + 4));
    CODE(1, g.line(g.stream, y, x, 1, 2, 0));
    CHECK(says("freed block"));
    CODE(1, cuMemcpyDtoH_v2(&x, x, 4));
}

// Another device's free does not wait for this one's work, which then finds the memory gone.
TEST(use_after_free_by_late_work) {
    setting("HARNESS_S_SIM_DEVICES", "2");
    Gpu a(0), b(1);
    OK(cuCtxSetCurrent(a.context));
    uint64_t x = a.upload({3});
    OK(cuCtxSetCurrent(b.context));
    OK(cuCtxEnablePeerAccess(a.context, 0));
    uint64_t y = b.upload({0});
    OK(b.line(b.stream, y, x, 1, 2, 0));
    OK(cuCtxSetCurrent(a.context));
    OK(cuMemFree_v2(x));
    OK(cuCtxSetCurrent(b.context));
    CODE(700, cuStreamSynchronize(b.stream));
    CHECK(says("freed block"));
}

// A kernel that computes an address inside freed memory faults, and the message says what was there.
TEST(address_in_freed_memory) {
    Gpu g;
    uint64_t x = g.alloc(1024), y = g.alloc(1024);
    OK(cuMemFree_v2(x));
    OK(g.store(g.stream, y, ((int64_t)x - (int64_t)y) / 4, 1));
    CODE(700, cuStreamSynchronize(g.stream));
    CHECK(says("byte 0 of freed block"));
}

TEST(copies_want_pinned_memory) {
    Gpu g;
    uint64_t x = g.upload({1, 2, 3, 4});
    float stack[4];
    std::vector<float> heap(4);
    CODE(1, cuMemcpyHtoDAsync_v2(x, stack, 16, g.stream));
    CHECK(says("is not pinned host memory"));
    CODE(1, cuMemcpyDtoHAsync_v2(heap.data(), x, 16, g.stream));
    CODE(1, cuMemcpyDtoHAsync_v2((void *)x, x, 16, g.stream)); // device memory is not host memory
    CODE(1, cuMemcpyDtoDAsync_v2((uint64_t)stack, x, 16, g.stream));
    float *host = g.pinned(4);
    OK(cuMemcpyDtoHAsync_v2(host, x, 16, g.stream));
    CHECK(std::isnan(host[0])); // not yet
    OK(cuStreamSynchronize(g.stream));
    CHECK(host[0] == 1 && host[3] == 4);
    CODE(1, cuMemcpyDtoHAsync_v2(host, x, 20, g.stream));
    CODE(1, cuMemcpyDtoDAsync_v2(x, x + 8, 16, g.stream));
    CHECK(says("16 bytes at offset 8 leave block"));
    CODE(0, cuMemcpyDtoDAsync_v2(x, 0, 0, g.stream));
    OK(cuMemFreeHost(host));
    CODE(1, cuMemcpyDtoHAsync_v2(host, x, 16, g.stream));
}

TEST(fills) {
    Gpu g;
    uint64_t x = g.alloc(4);
    OK(cuMemsetD32Async(x, 0x3f800000, 4, g.stream));
    OK(cuMemsetD8Async(x + 15, 0x40, 1, g.stream));
    OK(cuStreamSynchronize(g.stream));
    auto v = g.download(x, 4);
    CHECK(v[0] == 1 && v[2] == 1 && v[3] == 4);
    CODE(1, cuMemsetD32Async(x + 1, 0, 1, g.stream));
    CODE(1, cuMemsetD32Async(x, 0, 5, g.stream));
}

TEST(addresses_are_not_used_again) {
    Gpu g;
    uint64_t last = 0;
    for (int i = 0; i < 200; i++) {
        uint64_t p = g.alloc(1 << 20);
        CHECK(p > last || last - p > (1ull << 32));
        last = p;
        OK(cuMemFree_v2(p));
    }
}
