// test.cuh: every kernel of the engine's tests takes these arguments.
#pragma once
#include "tile.cuh"

struct Args {
    const u32 *in;
    u32 *out;
    i64 words; // of out
    i32 p[4];
};
