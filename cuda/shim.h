// shim.h: what Go calls. Every function makes the device's context current on the calling thread when it is not, so that
// goroutines may move between threads. No function keeps a pointer to the caller's memory or calls back.
// Results are the library's own codes, 0 for success.
#ifndef HARNESS_S_SHIM_H
#define HARNESS_S_SHIM_H

#include "api.h"

typedef struct hs_driver hs_driver; // one loaded driver library
typedef struct hs_device hs_device; // one device's primary context
typedef struct hs_blas hs_blas;     // one loaded cuBLASLt
typedef struct hs_nccl hs_nccl;     // one loaded NCCL
typedef struct hs_plan hs_plan;     // a matrix product's descriptors

// The open functions return NULL with *why (free) when the library cannot be loaded or lacks a function. Libraries are
// never unloaded: threads and contexts of theirs may outlive every handle. *file (free) is the file that was loaded.
hs_driver *hs_driver_open(const char *path, char **file, char **why);
int hs_driver_init(hs_driver *r);
int hs_driver_version(hs_driver *r, int *version);
int hs_driver_devices(hs_driver *r, int *n);
const char *hs_driver_error_name(hs_driver *r, int code);
const char *hs_driver_error_text(hs_driver *r, int code);
const char *hs_driver_trouble(hs_driver *r); // a simulator's own words on its last error, or NULL

// hs_device_describe reads name, memory and n attributes without making a context.
int hs_device_describe(hs_driver *r, int ordinal, char *name, int name_bytes, size_t *memory, const int *attributes, int *values, int n);
int hs_device_peer(hs_driver *r, int ordinal, int other, int *yes);
int hs_device_open(hs_driver *r, int ordinal, hs_device **d);
int hs_device_close(hs_device *d);

int hs_sync(hs_device *d);
int hs_mem_info(hs_device *d, size_t *free, size_t *total);
int hs_mem_alloc(hs_device *d, size_t bytes, uint64_t *p);
int hs_mem_free(hs_device *d, uint64_t p);
int hs_host_alloc(hs_device *d, size_t bytes, void **p);
int hs_host_free(hs_device *d, void *p);
int hs_zero(hs_device *d, uint64_t p, size_t bytes, uintptr_t stream);
int hs_copy_in(hs_device *d, uint64_t dst, const void *pinned, size_t bytes, uintptr_t stream);
int hs_copy_out(hs_device *d, void *pinned, uint64_t src, size_t bytes, uintptr_t stream);
int hs_copy(hs_device *d, uint64_t dst, uint64_t src, size_t bytes, uintptr_t stream);

int hs_stream_create(hs_device *d, uintptr_t *stream);
int hs_stream_destroy(hs_device *d, uintptr_t stream);
int hs_stream_sync(hs_device *d, uintptr_t stream);
int hs_stream_wait(hs_device *d, uintptr_t stream, uintptr_t event);
int hs_event_create(hs_device *d, int timing, uintptr_t *event);
int hs_event_destroy(hs_device *d, uintptr_t event);
int hs_event_record(hs_device *d, uintptr_t event, uintptr_t stream);
int hs_event_sync(hs_device *d, uintptr_t event);
int hs_event_elapsed(hs_device *d, uintptr_t start, uintptr_t end, float *ms);

// log receives the driver's messages when a module does not load.
int hs_module_load(hs_device *d, const void *image, char *log, size_t log_bytes, uintptr_t *module);
int hs_module_unload(hs_device *d, uintptr_t module);
int hs_module_function(hs_device *d, uintptr_t module, const char *name, uintptr_t *function);
int hs_function_get(hs_device *d, uintptr_t function, int attribute, int *value);
int hs_function_set(hs_device *d, uintptr_t function, int attribute, int value);
// hs_function_params: the bytes of all parameters, or -1 where the driver cannot tell.
int hs_function_params(hs_device *d, uintptr_t function, int64_t *bytes);
// args is the kernel's one parameter. The driver puts it where the kernel wants it: a struct with tensor maps is aligned to 64
// bytes, which a packed parameter buffer would have to know.
int hs_launch(hs_device *d, uintptr_t function, unsigned gx, unsigned gy, unsigned gz, unsigned threads, unsigned shared,
              uintptr_t stream, const void *args);

// hs_tensor_map writes the 128 bytes of a map of a bf16 matrix [rows, columns], rows one after another, for boxes of
// box_rows and box_columns (of 128 bytes at most, swizzled over as many).
int hs_tensor_map(hs_device *d, void *map, uint64_t base, uint64_t rows, uint64_t columns, uint32_t box_rows, uint32_t box_columns);

// Column-major, as the library sees it: D[m,n] = alpha op(A)[m,k] op(B)[k,n] + beta D.
typedef struct {
    int64_t m, n, k, lda, ldb, ldd;
    int transa, transb;
    int in, out;                   // HS_CUDA_R_*
    uint32_t aligna, alignb, alignd; // bytes, of every address that will be used
    uint64_t workspace;              // bytes at most
} hs_product;

hs_blas *hs_blas_open(const char *path, char **file, char **why);
size_t hs_blas_version(hs_blas *b);
const char *hs_blas_status(hs_blas *b, int status);
int hs_blas_create(hs_blas *b, hs_device *d, uintptr_t *handle);
int hs_blas_destroy(hs_blas *b, hs_device *d, uintptr_t handle);
int hs_blas_plan(hs_blas *b, const hs_product *p, hs_plan **plan);
void hs_blas_forget(hs_blas *b, hs_plan *plan);
// hs_blas_choices: the library's algorithms for the product, best first, without any that splits K.
int hs_blas_choices(hs_blas *b, hs_device *d, uintptr_t handle, const hs_plan *plan, const hs_product *p, hs_algo *found, int want, int *got);
// hs_blas_check: whether algo runs the plan and the workspace it needs then.
int hs_blas_check(hs_blas *b, hs_device *d, uintptr_t handle, const hs_plan *plan, const hs_algo *algo, size_t *workspace);
int hs_blas_matmul(hs_blas *b, hs_device *d, uintptr_t handle, const hs_plan *plan, const hs_algo *algo, float alpha, uint64_t a,
                   uint64_t bp, float beta, uint64_t c, uint64_t workspace, size_t workspace_bytes, uintptr_t stream);

// Collectives, one entry for all: op is one of HS_REDUCE_SCATTER ...
enum { HS_REDUCE_SCATTER, HS_ALL_GATHER, HS_ALL_REDUCE, HS_BROADCAST };

hs_nccl *hs_nccl_open(const char *path, char **file, char **why);
// hs_nccl_default sets an environment variable of the process unless it is set; before the first use of the library.
void hs_nccl_default(const char *name, const char *value);
int hs_nccl_version(hs_nccl *n, int *version);
const char *hs_nccl_error_text(hs_nccl *n, int code);
const char *hs_nccl_last_error(hs_nccl *n, uintptr_t comm); // NULL where the library has none
int hs_nccl_unique_id(hs_nccl *n, void *id);
int hs_nccl_join(hs_nccl *n, hs_device *d, const void *id, int rank, int world, uintptr_t *comm);
int hs_nccl_destroy(hs_nccl *n, hs_device *d, uintptr_t comm);
int hs_nccl_abort(hs_nccl *n, hs_device *d, uintptr_t comm);
int hs_nccl_async_error(hs_nccl *n, uintptr_t comm, int *code);
int hs_nccl_collective(hs_nccl *n, hs_device *d, int op, uint64_t dst, uint64_t src, size_t count, int type, int root,
                       uintptr_t comm, uintptr_t stream);

#endif
