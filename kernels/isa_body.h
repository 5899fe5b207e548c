/* Compiled once per ISA: the including file defines FN(name), HS_ISA_NAME, HS_TABLE and HS_VEC_*, and switches the
 * compiler's target on before it includes this. */
#include "internal.h"
#include "vec.h"

/* HS_WORKER starts the definition of a worker; see hs_fn. */
#define HS_WORKER(name)                                                                                      \
    static void FN(name)(const void *args_, int64_t lo, int64_t hi, __attribute__((unused)) int tid,         \
                         __attribute__((unused)) float *scratch)

#include "all_dense.inc.h"
#include "all_mixer.inc.h"

const hs_table HS_TABLE = {
    .isa = HS_ISA_NAME,
    .vw = VW,
    .mr = HS_MR,
    .nr = HS_NV * VW,
#define HS_OP(name) .name = FN(name),
#include "table_dense.def"
#include "table_mixer.def"
#undef HS_OP
};
