// api.h: the functions of NVIDIA's libraries that this package uses, as tables of pointers filled by dlsym at run time.
// Declared here from their public documentation: nothing of CUDA is needed to build. Handles are uintptr_t, device
// addresses uint64_t, result codes and enumerations int. Each row is X(field, symbol, parameters); rows of the OPTIONAL
// lists may be missing in a library (the pointer is then NULL).
#ifndef HARNESS_S_API_H
#define HARNESS_S_API_H

#include <stddef.h>
#include <stdint.h>

// The driver, libcuda.so.1 (CUresult).
#define HS_DRIVER(X)                                                                                                           \
    X(init, "cuInit", (unsigned flags))                                                                                        \
    X(version, "cuDriverGetVersion", (int *version))                                                                           \
    X(error_name, "cuGetErrorName", (int code, const char **name))                                                             \
    X(error_text, "cuGetErrorString", (int code, const char **text))                                                           \
    X(device_count, "cuDeviceGetCount", (int *count))                                                                          \
    X(device_get, "cuDeviceGet", (int *device, int ordinal))                                                                   \
    X(device_name, "cuDeviceGetName", (char *name, int bytes, int device))                                                     \
    X(device_memory, "cuDeviceTotalMem_v2", (size_t * bytes, int device))                                                      \
    X(device_attribute, "cuDeviceGetAttribute", (int *value, int attribute, int device))                                       \
    X(device_peer, "cuDeviceCanAccessPeer", (int *yes, int device, int peer))                                                  \
    X(primary_retain, "cuDevicePrimaryCtxRetain", (uintptr_t * context, int device))                                           \
    X(primary_release, "cuDevicePrimaryCtxRelease_v2", (int device))                                                           \
    X(set_current, "cuCtxSetCurrent", (uintptr_t context))                                                                     \
    X(context_sync, "cuCtxSynchronize", (void))                                                                                \
    X(mem_info, "cuMemGetInfo_v2", (size_t * free, size_t *total))                                                             \
    X(mem_alloc, "cuMemAlloc_v2", (uint64_t * p, size_t bytes))                                                                \
    X(mem_free, "cuMemFree_v2", (uint64_t p))                                                                                  \
    X(host_alloc, "cuMemHostAlloc", (void **p, size_t bytes, unsigned flags))                                                 \
    X(host_free, "cuMemFreeHost", (void *p))                                                                                   \
    X(set8, "cuMemsetD8Async", (uint64_t p, unsigned char value, size_t n, uintptr_t stream))                                  \
    X(set32, "cuMemsetD32Async", (uint64_t p, unsigned value, size_t n, uintptr_t stream))                                     \
    X(copy_in, "cuMemcpyHtoDAsync_v2", (uint64_t dst, const void *src, size_t bytes, uintptr_t stream))                        \
    X(copy_out, "cuMemcpyDtoHAsync_v2", (void *dst, uint64_t src, size_t bytes, uintptr_t stream))                             \
    X(copy, "cuMemcpyDtoDAsync_v2", (uint64_t dst, uint64_t src, size_t bytes, uintptr_t stream))                              \
    X(stream_create, "cuStreamCreate", (uintptr_t * stream, unsigned flags))                                                   \
    X(stream_destroy, "cuStreamDestroy_v2", (uintptr_t stream))                                                                \
    X(stream_sync, "cuStreamSynchronize", (uintptr_t stream))                                                                  \
    X(stream_wait, "cuStreamWaitEvent", (uintptr_t stream, uintptr_t event, unsigned flags))                                   \
    X(event_create, "cuEventCreate", (uintptr_t * event, unsigned flags))                                                      \
    X(event_destroy, "cuEventDestroy_v2", (uintptr_t event))                                                                   \
    X(event_record, "cuEventRecord", (uintptr_t event, uintptr_t stream))                                                      \
    X(event_sync, "cuEventSynchronize", (uintptr_t event))                                                                     \
    X(event_elapsed, "cuEventElapsedTime", (float *ms, uintptr_t start, uintptr_t end))                                        \
    X(module_load, "cuModuleLoadDataEx", (uintptr_t * module, const void *image, unsigned n, int *options, void **values))     \
    X(module_unload, "cuModuleUnload", (uintptr_t module))                                                                     \
    X(module_function, "cuModuleGetFunction", (uintptr_t * function, uintptr_t module, const char *name))                      \
    X(function_get, "cuFuncGetAttribute", (int *value, int attribute, uintptr_t function))                                     \
    X(function_set, "cuFuncSetAttribute", (uintptr_t function, int attribute, int value))                                      \
    X(launch, "cuLaunchKernel",                                                                                                \
      (uintptr_t function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,      \
       uintptr_t stream, void **params, void **extra))                                                                         \
    X(tensor_map, "cuTensorMapEncodeTiled",                                                                                    \
      (void *map, int type, uint32_t rank, void *base, const uint64_t *dims, const uint64_t *strides, const uint32_t *box,     \
       const uint32_t *steps, int interleave, int swizzle, int promotion, int fill))

#define HS_DRIVER_OPTIONAL(X) /* since 12.4 */                                                                                 \
    X(param_info, "cuFuncGetParamInfo", (uintptr_t function, size_t index, size_t *offset, size_t *bytes))

// cuBLASLt, libcublasLt.so (cublasStatus_t).
#define HS_BLAS(X)                                                                                                             \
    X(create, "cublasLtCreate", (uintptr_t * handle))                                                                          \
    X(destroy, "cublasLtDestroy", (uintptr_t handle))                                                                          \
    X(desc_create, "cublasLtMatmulDescCreate", (uintptr_t * desc, int compute, int scale))                                     \
    X(desc_destroy, "cublasLtMatmulDescDestroy", (uintptr_t desc))                                                             \
    X(desc_set, "cublasLtMatmulDescSetAttribute", (uintptr_t desc, int attribute, const void *value, size_t bytes))            \
    X(layout_create, "cublasLtMatrixLayoutCreate", (uintptr_t * layout, int type, uint64_t rows, uint64_t cols, int64_t ld))   \
    X(layout_destroy, "cublasLtMatrixLayoutDestroy", (uintptr_t layout))                                                       \
    X(pref_create, "cublasLtMatmulPreferenceCreate", (uintptr_t * preference))                                                 \
    X(pref_destroy, "cublasLtMatmulPreferenceDestroy", (uintptr_t preference))                                                 \
    X(pref_set, "cublasLtMatmulPreferenceSetAttribute", (uintptr_t preference, int attribute, const void *value, size_t bytes)) \
    X(heuristic, "cublasLtMatmulAlgoGetHeuristic",                                                                             \
      (uintptr_t handle, uintptr_t desc, uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t preference, int want,   \
       hs_heuristic *results, int *got))                                                                                       \
    X(check, "cublasLtMatmulAlgoCheck",                                                                                        \
      (uintptr_t handle, uintptr_t desc, uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, const hs_algo *algo,              \
       hs_heuristic *result))                                                                                                  \
    X(config_get, "cublasLtMatmulAlgoConfigGetAttribute",                                                                      \
      (const hs_algo *algo, int attribute, void *value, size_t bytes, size_t *written))                                        \
    X(matmul, "cublasLtMatmul",                                                                                                \
      (uintptr_t handle, uintptr_t desc, const void *alpha, uint64_t a, uintptr_t alayout, uint64_t b, uintptr_t blayout,      \
       const void *beta, uint64_t c, uintptr_t clayout, uint64_t d, uintptr_t dlayout, const hs_algo *algo,                    \
       uint64_t workspace, size_t workspace_bytes, uintptr_t stream))

// These two do not return a status.
#define HS_BLAS_VERSION "cublasLtGetVersion"         // size_t (void)
#define HS_BLAS_STATUS_NAME "cublasLtGetStatusName" // const char *(int status)

// cublasLtMatmulAlgo_t and cublasLtMatmulHeuristicResult_t.
typedef struct { uint64_t data[8]; } hs_algo;
typedef struct {
    hs_algo algo;
    size_t workspace;
    int state; // cublasStatus_t
    float waves;
    int reserved[4];
} hs_heuristic;

// NCCL, libnccl.so.2 (ncclResult_t).
typedef struct { char bytes[128]; } hs_comm_id; // ncclUniqueId, passed by value
#define HS_NCCL(X)                                                                                                             \
    X(version, "ncclGetVersion", (int *version))                                                                               \
    X(unique_id, "ncclGetUniqueId", (hs_comm_id * id))                                                                         \
    X(init_rank, "ncclCommInitRank", (uintptr_t * comm, int world, hs_comm_id id, int rank))                                   \
    X(destroy, "ncclCommDestroy", (uintptr_t comm))                                                                            \
    X(abort, "ncclCommAbort", (uintptr_t comm))                                                                                \
    X(async_error, "ncclCommGetAsyncError", (uintptr_t comm, int *code))                                                       \
    X(reduce_scatter, "ncclReduceScatter",                                                                                     \
      (uint64_t src, uint64_t dst, size_t n, int type, int op, uintptr_t comm, uintptr_t stream))                              \
    X(all_gather, "ncclAllGather", (uint64_t src, uint64_t dst, size_t n, int type, uintptr_t comm, uintptr_t stream))         \
    X(all_reduce, "ncclAllReduce",                                                                                             \
      (uint64_t src, uint64_t dst, size_t n, int type, int op, uintptr_t comm, uintptr_t stream))                              \
    X(broadcast, "ncclBroadcast",                                                                                              \
      (uint64_t src, uint64_t dst, size_t n, int type, int root, uintptr_t comm, uintptr_t stream))

#define HS_NCCL_ERROR_TEXT "ncclGetErrorString" // const char *(int code)
#define HS_NCCL_LAST_ERROR "ncclGetLastError"   // const char *(uintptr_t comm), optional (since 2.13)

// A simulator may export `const char *harness_sim_last_error(void)`: what it saw go wrong, "" or NULL for nothing. The
// text is appended to an error of the driver.
#define HS_SIM_LAST_ERROR "harness_sim_last_error"

// The constants used, by their public names.
enum {
    HS_CUDA_ERROR_OUT_OF_MEMORY = 2,
    HS_CUDA_ERROR_NO_DEVICE = 100,
    HS_CUDA_ERROR_NOT_FOUND = 500,

    HS_ATTRIBUTE_CLOCK_RATE = 13,
    HS_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    HS_ATTRIBUTE_MEMORY_CLOCK_RATE = 36,
    HS_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH = 37,
    HS_ATTRIBUTE_L2_CACHE_SIZE = 38,
    HS_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    HS_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    HS_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81,
    HS_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,

    HS_FUNCTION_MAX_THREADS_PER_BLOCK = 0,
    HS_FUNCTION_SHARED_SIZE_BYTES = 1,
    HS_FUNCTION_LOCAL_SIZE_BYTES = 3,
    HS_FUNCTION_NUM_REGS = 4,
    HS_FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,

    HS_TENSOR_MAP_BFLOAT16 = 9,
    HS_TENSOR_MAP_SWIZZLE_128B = 3,
    HS_TENSOR_MAP_L2_256B = 3,

    HS_JIT_ERROR_LOG_BUFFER = 5,
    HS_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6,

    HS_STREAM_NON_BLOCKING = 1,
    HS_EVENT_DISABLE_TIMING = 2,
    HS_HOST_PORTABLE = 1,

    HS_CUDA_R_32F = 0,
    HS_CUDA_R_16BF = 14,
    HS_CUBLAS_COMPUTE_32F = 68, // never _FAST_TF32
    HS_DESC_TRANSA = 3,
    HS_DESC_TRANSB = 4,
    HS_PREF_MAX_WORKSPACE_BYTES = 1,
    HS_PREF_REDUCTION_SCHEME_MASK = 3,
    HS_PREF_MIN_ALIGNMENT_A_BYTES = 5, // B, C, D follow
    HS_ALGO_SPLITK_NUM = 2,
    HS_ALGO_REDUCTION_SCHEME = 3,

    HS_NCCL_FLOAT32 = 7,
    HS_NCCL_BFLOAT16 = 9,
    HS_NCCL_SUM = 0,
};

#endif
