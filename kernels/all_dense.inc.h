/* Bodies of the dense, head and optimizer ops, one include a file. */

/* GEMM tile: HS_MR rows by HS_NV vectors of accumulators, sized by the register file. */
#if defined(HS_VEC_AVX512)
#define HS_MR 14
#define HS_NV 2
#elif defined(HS_VEC_AVX2)
#define HS_MR 6
#define HS_NV 2
#else
#define HS_MR 6
#define HS_NV 1
#endif

#include "dense.h"
#include "matmul.inc.h"
#include "dense.inc.h"
#include "head.inc.h"
#include "optim.inc.h"
