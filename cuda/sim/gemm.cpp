//go:build ignore

// gemm.cpp: see gemm.h. Packed tiles; vectors of what the compiler was told of, and of AVX-512 where the machine has it.
#include "gemm.h"

#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

namespace sim {

static inline uint16_t round_bf16(float f) { // to nearest, ties to even; NaN stays NaN
    uint32_t b;
    __builtin_memcpy(&b, &f, 4);
    return f != f ? 0x7fff : (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

namespace narrow {
#define VW 8
#define MR 6
#include "gemm_body.h"
#undef VW
#undef MR
} // namespace narrow

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HAVE_WIDE 1
#pragma GCC push_options
#pragma GCC target("avx512f,fma")
namespace wide {
#define VW 16
#define MR 12
#include "gemm_body.h"
#undef VW
#undef MR
} // namespace wide
#pragma GCC pop_options
#endif

static bool is_wide() {
#ifdef HAVE_WIDE
    static const bool yes = __builtin_cpu_supports("avx512f") && !getenv("HARNESS_S_SIM_NARROW");
    return yes;
#else
    return false;
#endif
}

static void serial(const Product &p) {
    if (p.M <= 0 || p.N <= 0) return;
#ifdef HAVE_WIDE
    if (is_wide()) {
        std::unique_ptr<float[]> room(new float[wide::room_floats(p)]);
        return wide::product(p, room.get());
    }
#endif
    std::unique_ptr<float[]> room(new float[narrow::room_floats(p)]);
    narrow::product(p, room.get());
}

// part gives rows (or columns) [lo, hi) of the product.
static Product part(Product p, bool by_rows, int64_t lo, int64_t hi) {
    int64_t size = p.bf16 ? 2 : 4;
    Operand &o = by_rows ? p.A : p.B;
    o.p = (const char *)o.p + lo * (by_rows ? o.row : o.col) * (o.bf16 ? 2 : 4);
    p.D = (char *)p.D + lo * (by_rows ? p.ldd : 1) * size;
    p.C = (const char *)p.C + lo * (by_rows ? p.ldc : 1) * size;
    (by_rows ? p.M : p.N) = hi - lo;
    return p;
}

void multiply(const Product &p, int threads) {
    constexpr int64_t STEP = 96, WORTH = 1 << 22; // rows or columns a thread takes together; multiplications that pay for a thread
    bool by_rows = p.M >= p.N;
    int64_t length = by_rows ? p.M : p.N, steps = (length + STEP - 1) / STEP;
    int64_t n = threads < steps ? threads : steps;
    if (p.M * p.N * p.K / WORTH < n) n = p.M * p.N * p.K / WORTH;
    if (n <= 1) return serial(p);
    std::vector<std::thread> others;
    for (int64_t t = 0; t < n; t++) {
        int64_t lo = steps * t / n * STEP, hi = steps * (t + 1) / n * STEP;
        Product q = part(p, by_rows, lo, hi < length ? hi : length);
        if (t + 1 < n) others.emplace_back([q] { serial(q); });
        else serial(q);
    }
    for (std::thread &t : others) t.join();
}

} // namespace sim
