// tensor_map.h: what the simulator keeps in the 128 opaque bytes of a CUtensorMap.
#pragma once
#include <stdint.h>

namespace hs_sim {

struct TensorMapFields {
    uint64_t magic, address, width, rows, stride; // width in bytes, stride in bytes from row to row
    uint32_t element, box_width, box_rows, swizzle; // bytes an element, bytes and rows of the box, bytes of the swizzle's span
};
static_assert(sizeof(TensorMapFields) <= 128, "a CUtensorMap has 128 bytes");
constexpr uint64_t TENSOR_MAP_MAGIC = 0x70616d5f73685f21;

} // namespace hs_sim
