// ptx.cuh: the device instructions behind tile.cuh. The simulator models each of them lane by lane (hs_sim.h has the
// same names), so that a wrong fragment, address or alignment fails there.
#pragma once
#include "hs.cuh"

#ifndef HS_SIM

HD u32 shared_addr(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// cp_async16 copies 16 bytes from global to shared memory in the background; zeros where valid is false (src is not read).
HD void cp_async16(void *dst, const void *src, bool valid = true) {
    int n = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_addr(dst)), "l"(src), "r"(n) : "memory");
}
HD void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// cp_async_wait waits until at most N of this thread's groups are under way; a barrier must follow before others read.
template <int N> HD void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// ldmatrix_x4 loads four 8x8 matrices of 16-bit values; lane l gives the address of row l%8 of matrix l/8 (16-byte aligned).
// Lane l receives of matrix i, in r[i], the values (row l/4, columns 2(l%4) and 2(l%4)+1); of its transpose with _trans.
HD void ldmatrix_x4(u32 (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_addr(row)) : "memory");
}
HD void ldmatrix_x4_trans(u32 (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_addr(row)) : "memory");
}

// mma_bf16: d[16,8] += a[16,16] b[16,8], bf16 products summed in fp32. With g = lane/4, q = lane%4:
// a: 0 (g, 2q..) 1 (g+8, 2q..) 2 (g, 2q+8..) 3 (g+8, 2q+8..); b: 0 (k 2q.., n g) 1 (k 2q+8.., n g); d: 0,1 (g, 2q..) 2,3 (g+8, 2q..).
HD void mma_bf16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#endif
