/* The workers for any machine, in portable C with GCC's vector extensions. */
#define _GNU_SOURCE
#define HS_ISA_NAME "base"
#define HS_TABLE hs_table_base
#define FN(name) hs_base_##name
#include "isa_body.h"
