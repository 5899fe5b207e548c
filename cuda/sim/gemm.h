// gemm.h: matrix products on the host.
#pragma once

#include <cstdint>

namespace sim {

// Operand is a matrix of fp32 or bf16: element (i, j) is at i·row + j·col; one of the two is 1.
struct Operand {
    const void *p;
    int64_t row, col;
    bool bf16;
};

// Product is D[M, N] = alpha A[M, K] B[K, N] + beta C, with D and C row-major (N contiguous), of one type.
struct Product {
    int64_t M, N, K;
    Operand A, B;
    void *D;
    const void *C; // not read where beta is 0
    int64_t ldd, ldc;
    bool bf16; // of C and D
    float alpha, beta;
    // Terms are added in ascending k by fused multiply-adds. With interval > 0 a new sum starts every so many terms and the
    // sums are added in ascending order: another rounding, as another algorithm of a real library has.
    int64_t interval;
};

void multiply(const Product &p, int threads);

} // namespace sim
