//go:build ignore

// tensor_map.cpp: cuTensorMapEncodeTiled for two dimensions, with the rules that the driver checks.
#include "tensor_map.h"
#include <string.h>

namespace {

using namespace hs_sim;

constexpr int SUCCESS = 0, INVALID_VALUE = 1, NOT_SUPPORTED = 801;

// Sizes of CUtensorMapDataType: uint8, uint16, uint32, int32, uint64, int64, float16, float32, float64, bfloat16.
constexpr uint32_t SIZES[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};
// Spans of CUtensorMapSwizzle: none, 32, 64, 128 bytes.
constexpr uint32_t SPANS[] = {0, 32, 64, 128};

} // namespace

extern "C" __attribute__((visibility("default"))) int cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address,
                                                                             const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
                                                                             const uint32_t *element_strides, int interleave, int swizzle, int, int fill) {
    if (!map || reinterpret_cast<uintptr_t>(map) % 64 || reinterpret_cast<uintptr_t>(address) % 16) return INVALID_VALUE;
    if (rank != 2 || interleave || fill || type < 0 || type > 9 || element_strides[0] != 1 || element_strides[1] != 1) return NOT_SUPPORTED;
    if (swizzle < 0 || swizzle > 3) return INVALID_VALUE;
    uint32_t size = SIZES[type], span = SPANS[swizzle], width = box[0] * size;
    bool fits = dims[0] && dims[1] && dims[0] <= 1ull << 32 && dims[1] <= 1ull << 32 && strides[0] % 16 == 0 && strides[0] < 1ull << 40 &&
                strides[0] >= dims[0] * size && box[0] && box[0] <= 256 && box[1] && box[1] <= 256 && width % 16 == 0 && (!span || width <= span);
    if (!fits) return INVALID_VALUE;
    if (span && width != span) return NOT_SUPPORTED;
    TensorMapFields f = {TENSOR_MAP_MAGIC, reinterpret_cast<uint64_t>(address), dims[0] * size, dims[1], strides[0], size, width, box[1], span};
    memset(map, 0, 128);
    memcpy(map, &f, sizeof f);
    return SUCCESS;
}
