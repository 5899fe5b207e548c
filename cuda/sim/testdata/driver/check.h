// check.h: the simulated driver's interface as a C++ program sees it, and small helpers for its tests. A test is a function
// named by TEST; the program runs the one named on its command line and ends with 1 after a failed CHECK.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

typedef void *Handle;
struct UniqueId { char bytes[128]; };
struct Algo { uint64_t data[8]; };
struct Choice { Algo algo; size_t workspace; int state; float waves; int reserved[4]; };

extern "C" {
int cuInit(unsigned), cuDeviceGetCount(int *), cuDeviceGetAttribute(int *, int, int), cuDeviceTotalMem_v2(size_t *, int);
int cuDevicePrimaryCtxRetain(Handle *, int), cuDevicePrimaryCtxRelease_v2(int), cuCtxSetCurrent(Handle), cuCtxSynchronize(void);
int cuCtxGetCurrent(Handle *), cuCtxEnablePeerAccess(Handle, unsigned);
int cuMemAlloc_v2(uint64_t *, size_t), cuMemFree_v2(uint64_t), cuMemGetInfo_v2(size_t *, size_t *);
int cuMemHostAlloc(void **, size_t, unsigned), cuMemFreeHost(void *);
int cuMemcpyHtoDAsync_v2(uint64_t, const void *, size_t, Handle), cuMemcpyDtoHAsync_v2(void *, uint64_t, size_t, Handle);
int cuMemcpyDtoDAsync_v2(uint64_t, uint64_t, size_t, Handle), cuMemcpyHtoD_v2(uint64_t, const void *, size_t), cuMemcpyDtoH_v2(void *, uint64_t, size_t);
int cuMemsetD8Async(uint64_t, unsigned char, size_t, Handle), cuMemsetD32Async(uint64_t, unsigned, size_t, Handle);
int cuStreamCreate(Handle *, unsigned), cuStreamDestroy_v2(Handle), cuStreamSynchronize(Handle), cuStreamQuery(Handle);
int cuStreamWaitEvent(Handle, Handle, unsigned);
int cuEventCreate(Handle *, unsigned), cuEventDestroy_v2(Handle), cuEventRecord(Handle, Handle), cuEventSynchronize(Handle), cuEventQuery(Handle);
int cuEventElapsedTime(float *, Handle, Handle);
int cuModuleLoadData(Handle *, const void *), cuModuleUnload(Handle), cuModuleGetFunction(Handle *, Handle, const char *);
int cuFuncGetAttribute(int *, int, Handle), cuFuncSetAttribute(Handle, int, int), cuFuncGetParamInfo(Handle, size_t, size_t *, size_t *);
int cuLaunchKernel(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void **, void **);
int cuGetErrorName(int, const char **);
const char *harness_sim_last_error(void);

int cublasLtCreate(Handle *), cublasLtDestroy(Handle), cublasLtMatmulDescCreate(Handle *, int, int), cublasLtMatmulDescDestroy(Handle);
int cublasLtMatmulDescSetAttribute(Handle, int, const void *, size_t);
int cublasLtMatrixLayoutCreate(Handle *, int, uint64_t, uint64_t, int64_t), cublasLtMatrixLayoutDestroy(Handle);
int cublasLtMatrixLayoutSetAttribute(Handle, int, const void *, size_t);
int cublasLtMatmulPreferenceCreate(Handle *), cublasLtMatmulPreferenceDestroy(Handle), cublasLtMatmulPreferenceSetAttribute(Handle, int, const void *, size_t);
int cublasLtMatmulAlgoGetHeuristic(Handle, Handle, Handle, Handle, Handle, Handle, Handle, int, Choice *, int *);
int cublasLtMatmulAlgoCheck(Handle, Handle, Handle, Handle, Handle, Handle, const Algo *, Choice *);
int cublasLtMatmulAlgoConfigGetAttribute(const Algo *, int, void *, size_t, size_t *);
int cublasLtMatmul(Handle, Handle, const float *, uint64_t, Handle, uint64_t, Handle, const float *, uint64_t, Handle, uint64_t, Handle, const Algo *,
                   uint64_t, size_t, Handle);

int ncclGetUniqueId(UniqueId *), ncclCommInitRank(Handle *, int, UniqueId, int), ncclCommDestroy(Handle), ncclCommAbort(Handle);
int ncclCommGetAsyncError(Handle, int *), ncclGroupStart(void), ncclGroupEnd(void);
int ncclReduceScatter(uint64_t, uint64_t, size_t, int, int, Handle, Handle), ncclAllGather(uint64_t, uint64_t, size_t, int, Handle, Handle);
int ncclAllReduce(uint64_t, uint64_t, size_t, int, int, Handle, Handle), ncclBroadcast(uint64_t, uint64_t, size_t, int, int, Handle, Handle);
}

struct Test {
    const char *name;
    void (*run)();
    Test *next;
    static Test *&all() { static Test *t; return t; }
    Test(const char *name, void (*run)()) : name(name), run(run), next(all()) { all() = this; }
};
#define TEST(name)                             \
    static void name();                        \
    static Test name##_test(#name, name);      \
    static void name()

inline bool &failed() { static bool f; return f; }
#define CHECK(cond)                                                                                          \
    do {                                                                                                     \
        if (!(cond)) failed() = true, fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #cond, harness_sim_last_error()); \
    } while (0)
// NEED is a CHECK without which the test cannot go on; OK that a call succeeds; CODE that it fails with this code.
#define NEED(cond)                    \
    do {                              \
        CHECK(cond);                  \
        if (failed()) exit(1);        \
    } while (0)
#define OK(call)                                                                                              \
    do {                                                                                                      \
        int code_ = (call);                                                                                   \
        if (code_) fprintf(stderr, "%s:%d: %s gives %d (%s)\n", __FILE__, __LINE__, #call, code_, harness_sim_last_error()), exit(1); \
    } while (0)
#define CODE(want, call)                                                                                      \
    do {                                                                                                      \
        int code_ = (call);                                                                                   \
        if (code_ != (want)) failed() = true, fprintf(stderr, "%s:%d: %s gives %d, want %d (%s)\n", __FILE__, __LINE__, #call, code_, want, harness_sim_last_error()); \
    } while (0)
inline bool says(const char *part) { return strstr(harness_sim_last_error(), part) != nullptr; }

struct LineArgs { uint64_t y, x; int64_t n; float scale, add; };
struct StoreArgs { uint64_t p; int64_t at; float value; int pad; };

inline void setting(const char *name, const std::string &value) { setenv(name, value.c_str(), 1); }

// Gpu is one device with its context current on the thread that made it.
struct Gpu {
    Handle context, module, stream;
    explicit Gpu(int index = 0) {
        OK(cuInit(0));
        OK(cuDevicePrimaryCtxRetain(&context, index));
        OK(cuCtxSetCurrent(context));
        OK(cuModuleLoadData(&module, "HSSIM"));
        stream = new_stream();
    }
    Handle new_stream() { Handle s; OK(cuStreamCreate(&s, 1)); return s; }
    Handle new_event(unsigned flags = 2) { Handle e; OK(cuEventCreate(&e, flags)); return e; }
    Handle function(const char *name) { Handle f; OK(cuModuleGetFunction(&f, module, name)); return f; }
    uint64_t alloc(size_t floats) { uint64_t p; OK(cuMemAlloc_v2(&p, floats * 4)); return p; }
    uint64_t upload(const std::vector<float> &x) {
        uint64_t p = alloc(x.size());
        OK(cuMemcpyHtoD_v2(p, x.data(), x.size() * 4));
        return p;
    }
    std::vector<float> download(uint64_t p, size_t n) {
        std::vector<float> x(n);
        OK(cuMemcpyDtoH_v2(x.data(), p, n * 4));
        return x;
    }
    float *pinned(size_t floats) { void *p; OK(cuMemHostAlloc(&p, floats * 4, 0)); return (float *)p; }
    int launch(Handle f, const void *args, size_t bytes, Handle on, unsigned threads = 32, unsigned shared = 0) {
        void *extra[] = {(void *)1, (void *)args, (void *)2, &bytes, nullptr};
        return cuLaunchKernel(f, 1, 1, 1, threads, 1, 1, shared, on, nullptr, extra);
    }
    int line(Handle on, uint64_t y, uint64_t x, int64_t n, float scale, float add) {
        LineArgs a = {y, x, n, scale, add};
        return launch(function("line"), &a, sizeof a, on);
    }
    int store(Handle on, uint64_t p, int64_t at, float value) {
        StoreArgs a = {p, at, value, 0};
        return launch(function("store"), &a, sizeof a, on);
    }
};
