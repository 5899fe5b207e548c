// words.cu: whole buffers of 4-byte words.
#include "hs.cuh"

constexpr int WORDS_THREADS = 256;

struct FillWordsArgs {
    u32 *dst;
    i64 n;
    u32 value;
};

KERNEL(fill_words, FillWordsArgs, WORDS_THREADS) {
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < a.n; i += (i64)gridDim.x * blockDim.x) a.dst[i] = a.value;
}

struct AddWordsArgs {
    float *dst;
    const float *src;
    i64 n;
};

// dst += src in fp32.
KERNEL(add_words, AddWordsArgs, WORDS_THREADS) {
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < a.n; i += (i64)gridDim.x * blockDim.x) a.dst[i] += a.src[i];
}
