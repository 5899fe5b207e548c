// run.cpp: launches one kernel of a simulator library, for the tests of the engine.
// With MAP="type,width,rows,stride bytes,box width,box rows,swizzle" in the environment the first 128 bytes of the input become a
// tensor map of what follows them.
//   run LIBRARY KERNEL GRID THREADS DYNAMIC_BYTES SEED REPEAT OUT_WORDS P0 P1 P2 P3 <input >output
// Every test kernel takes Args. Input and output are raw words; output is poisoned first. With REPEAT the launch is made
// for that many seeds from SEED on; output is that of the last one. A launch that fails prints why on stderr and exits 3. Otherwise
// stderr has the kernel's counters.
#include "../engine.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

struct Args {
    const unsigned *in;
    unsigned *out;
    long long words;
    int p[4];
};

static void make_map(void *library, unsigned *input, const char *text) {
    unsigned long long dims[2], stride;
    unsigned type, box[2], swizzle, steps[2] = {1, 1};
    auto encode = (int (*)(void *, int, unsigned, void *, const unsigned long long *, const unsigned long long *, const unsigned *,
                           const unsigned *, int, int, int, int))dlsym(library, "cuTensorMapEncodeTiled");
    if (!encode || sscanf(text, "%u,%llu,%llu,%llu,%u,%u,%u", &type, dims, dims + 1, &stride, box, box + 1, &swizzle) != 7) exit(4);
    int rc = encode(input, type, 2, input + 32, dims, &stride, box, steps, 0, swizzle, 0, 0);
    if (rc) fprintf(stderr, "cuTensorMapEncodeTiled: %d", rc), exit(3);
}

int main(int, char **v) {
    void *library = dlopen(v[1], RTLD_NOW);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 2;
    auto launch = (decltype(&hs_sim_launch))dlsym(library, "hs_sim_launch");
    auto stats = (decltype(&hs_sim_stats))dlsym(library, "hs_sim_stats");
    unsigned grid[3] = {(unsigned)atoi(v[3]), 1, 1};
    unsigned long long seed = strtoull(v[6], nullptr, 10);
    std::vector<unsigned> in, out;
    for (unsigned word; fread(&word, 4, 1, stdin) == 1;) in.push_back(word);
    unsigned *input = (unsigned *)aligned_alloc(64, (in.size() * 4 + 127) / 64 * 64);
    memcpy(input, in.data(), in.size() * 4);
    if (getenv("MAP")) make_map(library, input, getenv("MAP"));
    Args a = {input, nullptr, atoll(v[8]), {atoi(v[9]), atoi(v[10]), atoi(v[11]), atoi(v[12])}};
    for (int i = 0; i < atoi(v[7]); i++) {
        out.assign(a.words, ~0u);
        a.out = out.data();
        if (const char *error = launch(v[2], grid, atoi(v[4]), atoi(v[5]), &a, sizeof a, seed + i)) return fprintf(stderr, "%s", error), 3;
    }
    fwrite(out.data(), 4, out.size(), stdout);
    hs_sim::Stats s;
    stats(v[2], &s);
    fprintf(stderr, "%llu %llu %llu %u %u %u", (unsigned long long)s.blocks, (unsigned long long)s.shared_reads,
            (unsigned long long)s.conflict_ways, s.max_ways, s.static_bytes, s.dynamic_bytes);
}
