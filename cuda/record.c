#include "record.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

// Addresses of device memory are handed out and stand for nothing.
typedef struct { uint64_t p; size_t bytes; } allocation;

static struct {
    pthread_mutex_t mu;
    hs_record_device device;
    hs_record_entry *entries;
    int n, room, taken;
    allocation *live;
    int nlive, liveroom;
    uint64_t next, used, peak;
    uintptr_t handles;
} R = {.mu = PTHREAD_MUTEX_INITIALIZER};

enum { FIRST_ADDRESS = 1 << 20, OUT_OF_MEMORY = HS_CUDA_ERROR_OUT_OF_MEMORY, INVALID = 1 };

void hs_record_start(const hs_record_device *d) {
    pthread_mutex_lock(&R.mu);
    R.device = *d;
    R.n = R.taken = R.nlive = 0;
    R.next = FIRST_ADDRESS;
    R.used = R.peak = 0;
    pthread_mutex_unlock(&R.mu);
}

// grow makes room for one element more.
static int grow(void **list, int *room, int n, size_t size) {
    if (n < *room) return 1;
    int want = *room ? 2 * *room : 1024;
    void *more = realloc(*list, (size_t)want * size);
    if (!more) return 0;
    *list = more, *room = want;
    return 1;
}

static int put(const hs_record_entry *e) {
    pthread_mutex_lock(&R.mu);
    int ok = grow((void **)&R.entries, &R.room, R.n, sizeof *R.entries);
    if (ok) R.entries[R.n++] = *e;
    pthread_mutex_unlock(&R.mu);
    return ok ? 0 : OUT_OF_MEMORY;
}

static int put_bytes(int kind, const char *name, uint64_t bytes) {
    hs_record_entry e = {.kind = kind, .bytes = bytes};
    strncpy(e.name, name, sizeof e.name - 1);
    return put(&e);
}

int hs_record_take(hs_record_entry *list, int max) {
    pthread_mutex_lock(&R.mu);
    int n = R.n - R.taken < max ? R.n - R.taken : max;
    memcpy(list, R.entries + R.taken, (size_t)n * sizeof *list);
    R.taken += n;
    if (R.taken == R.n) R.taken = R.n = 0;
    pthread_mutex_unlock(&R.mu);
    return n;
}

uint64_t hs_record_peak(void) {
    pthread_mutex_lock(&R.mu);
    uint64_t peak = R.peak;
    pthread_mutex_unlock(&R.mu);
    return peak;
}

static int handle(uintptr_t *h) {
    pthread_mutex_lock(&R.mu);
    *h = ++R.handles;
    pthread_mutex_unlock(&R.mu);
    return 0;
}

// The driver.

static int r_init(unsigned flags) { return 0; }
static int r_version(int *version) { return *version = 12090, 0; }
static int r_error_name(int code, const char **name) { return *name = code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR", 0; }
static int r_error_text(int code, const char **text) { return *text = code == OUT_OF_MEMORY ? "out of memory" : "invalid value", 0; }
static int r_device_count(int *count) { return *count = 1, 0; }
static int r_device_get(int *device, int ordinal) { return *device = ordinal, ordinal ? INVALID : 0; }
static int r_device_name(char *name, int bytes, int device) { return strncpy(name, R.device.name, bytes - 1), name[bytes - 1] = 0, 0; }
static int r_device_memory(size_t *bytes, int device) { return *bytes = R.device.memory, 0; }
static int r_device_peer(int *yes, int device, int peer) { return *yes = 1, 0; }

static int r_device_attribute(int *value, int attribute, int device) {
    const hs_record_device *d = &R.device;
    switch (attribute) {
    case HS_ATTRIBUTE_CLOCK_RATE: *value = d->clock_khz; return 0;
    case HS_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = d->sms; return 0;
    case HS_ATTRIBUTE_MEMORY_CLOCK_RATE: *value = d->memory_clock_khz; return 0;
    case HS_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: *value = d->bus_bits; return 0;
    case HS_ATTRIBUTE_L2_CACHE_SIZE: *value = d->l2; return 0;
    case HS_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = d->major; return 0;
    case HS_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = d->minor; return 0;
    case HS_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *value = d->shared_sm; return 0;
    case HS_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = d->shared_block; return 0;
    }
    *value = 0;
    return 0;
}

static int r_primary_retain(uintptr_t *context, int device) { return handle(context); }
static int r_primary_release(int device) { return 0; }
static int r_set_current(uintptr_t context) { return 0; }
static int r_context_sync(void) { return 0; }

static int r_mem_info(size_t *free, size_t *total) {
    pthread_mutex_lock(&R.mu);
    *total = R.device.memory, *free = R.device.memory - R.used;
    pthread_mutex_unlock(&R.mu);
    return 0;
}

static int r_mem_alloc(uint64_t *p, size_t bytes) {
    int code = 0;
    pthread_mutex_lock(&R.mu);
    if (bytes > R.device.memory - R.used || !grow((void **)&R.live, &R.liveroom, R.nlive, sizeof *R.live)) {
        code = OUT_OF_MEMORY;
    } else {
        *p = R.next;
        R.live[R.nlive++] = (allocation){R.next, bytes};
        R.next += (bytes + 511) / 512 * 512 + 512;
        R.used += bytes;
        if (R.used > R.peak) R.peak = R.used;
    }
    pthread_mutex_unlock(&R.mu);
    return code;
}

static int r_mem_free(uint64_t p) {
    int code = INVALID;
    pthread_mutex_lock(&R.mu);
    for (int i = 0; i < R.nlive && code; i++) {
        if (R.live[i].p != p) continue;
        R.used -= R.live[i].bytes;
        R.live[i] = R.live[--R.nlive];
        code = 0;
    }
    pthread_mutex_unlock(&R.mu);
    return code;
}

static int r_host_alloc(void **p, size_t bytes, unsigned flags) { return (*p = calloc(1, bytes)) ? 0 : OUT_OF_MEMORY; }
static int r_host_free(void *p) { return free(p), 0; }

static int r_set8(uint64_t p, unsigned char value, size_t n, uintptr_t stream) { return put_bytes(HS_RECORD_FILL, "fill", n); }
static int r_set32(uint64_t p, unsigned value, size_t n, uintptr_t stream) { return put_bytes(HS_RECORD_FILL, "fill", 4 * n); }
static int r_copy_in(uint64_t dst, const void *src, size_t bytes, uintptr_t stream) { return put_bytes(HS_RECORD_TRANSFER, "in", bytes); }
static int r_copy_out(void *dst, uint64_t src, size_t bytes, uintptr_t stream) {
    memset(dst, 0, bytes);
    return put_bytes(HS_RECORD_TRANSFER, "out", bytes);
}
static int r_copy(uint64_t dst, uint64_t src, size_t bytes, uintptr_t stream) { return put_bytes(HS_RECORD_COPY, "copy", bytes); }

static int r_stream_create(uintptr_t *stream, unsigned flags) { return handle(stream); }
static int r_stream_destroy(uintptr_t stream) { return 0; }
static int r_stream_sync(uintptr_t stream) { return 0; }
static int r_stream_wait(uintptr_t stream, uintptr_t event, unsigned flags) { return 0; }
static int r_event_create(uintptr_t *event, unsigned flags) { return handle(event); }
static int r_event_destroy(uintptr_t event) { return 0; }
static int r_event_record(uintptr_t event, uintptr_t stream) { return 0; }
static int r_event_sync(uintptr_t event) { return 0; }
static int r_event_elapsed(float *ms, uintptr_t start, uintptr_t end) { return *ms = 0, 0; }

static int r_module_load(uintptr_t *module, const void *image, unsigned n, int *options, void **values) { return handle(module); }
static int r_module_unload(uintptr_t module) { return 0; }

// A function is its own name, which is kept for good: there are as many as kernels.
static int r_module_function(uintptr_t *function, uintptr_t module, const char *name) { return (*function = (uintptr_t)strdup(name)) ? 0 : OUT_OF_MEMORY; }

static int r_function_get(int *value, int attribute, uintptr_t function) {
    *value = attribute == HS_FUNCTION_MAX_THREADS_PER_BLOCK ? 1024 : 0;
    return 0;
}
static int r_function_set(uintptr_t function, int attribute, int value) { return value > R.device.shared_block ? INVALID : 0; }

static int r_launch(uintptr_t function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                    uintptr_t stream, void **params, void **extra) {
    if (gx > 0x7fffffffu || gy > 65535 || gz > 65535 || bx * by * bz > 1024) return INVALID;
    hs_record_entry e = {.kind = HS_RECORD_LAUNCH, .gx = gx, .gy = gy, .gz = gz, .threads = bx * by * bz, .shared = shared};
    strncpy(e.name, (const char *)function, sizeof e.name - 1);
    return put(&e);
}

static int r_tensor_map(void *map, int type, uint32_t rank, void *base, const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
                        const uint32_t *steps, int interleave, int swizzle, int promotion, int fill) {
    return memset(map, 0, 128), 0;
}

// cuBLASLt. Handles of descriptors and layouts are addresses of these.

typedef struct { int transa, transb; } b_desc;
typedef struct { int type; int64_t rows, cols; } b_layout;

static size_t b_version(void) { return 120900; }
static const char *b_status_name(int status) { return "CUBLAS_STATUS"; }
static int b_create(uintptr_t *h) { return handle(h); }
static int b_destroy(uintptr_t h) { return 0; }
static int b_desc_create(uintptr_t *desc, int compute, int scale) { return (*desc = (uintptr_t)calloc(1, sizeof(b_desc))) ? 0 : OUT_OF_MEMORY; }
static int b_desc_destroy(uintptr_t desc) { return free((void *)desc), 0; }
static int b_desc_set(uintptr_t desc, int attribute, const void *value, size_t bytes) {
    b_desc *d = (b_desc *)desc;
    if (attribute == HS_DESC_TRANSA) memcpy(&d->transa, value, sizeof d->transa);
    if (attribute == HS_DESC_TRANSB) memcpy(&d->transb, value, sizeof d->transb);
    return 0;
}
static int b_layout_create(uintptr_t *layout, int type, uint64_t rows, uint64_t cols, int64_t ld) {
    b_layout *l = malloc(sizeof *l);
    if (!l) return OUT_OF_MEMORY;
    *l = (b_layout){type, (int64_t)rows, (int64_t)cols};
    return *layout = (uintptr_t)l, 0;
}
static int b_layout_destroy(uintptr_t layout) { return free((void *)layout), 0; }
static int b_pref_create(uintptr_t *preference) { return handle(preference); }
static int b_pref_destroy(uintptr_t preference) { return 0; }
static int b_pref_set(uintptr_t preference, int attribute, const void *value, size_t bytes) { return 0; }
static int b_heuristic(uintptr_t h, uintptr_t desc, uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t preference, int want,
                       hs_heuristic *results, int *got) {
    memset(results, 0, sizeof *results);
    return *got = 1, 0;
}
static int b_check(uintptr_t h, uintptr_t desc, uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, const hs_algo *algo, hs_heuristic *result) {
    memset(result, 0, sizeof *result);
    return 0;
}
static int b_config_get(const hs_algo *algo, int attribute, void *value, size_t bytes, size_t *written) {
    memset(value, 0, bytes);
    if (attribute == HS_ALGO_SPLITK_NUM && bytes >= sizeof(int)) *(int *)value = 1;
    if (written) *written = bytes;
    return 0;
}
static int b_matmul(uintptr_t h, uintptr_t desc, const void *alpha, uint64_t a, uintptr_t alayout, uint64_t b, uintptr_t blayout,
                    const void *beta, uint64_t c, uintptr_t clayout, uint64_t d, uintptr_t dlayout, const hs_algo *algo,
                    uint64_t workspace, size_t workspace_bytes, uintptr_t stream) {
    const b_desc *p = (const b_desc *)desc;
    const b_layout *in = (const b_layout *)alayout, *out = (const b_layout *)dlayout;
    hs_record_entry e = {.kind = HS_RECORD_MATMUL, .name = "matmul", .m = out->rows, .n = out->cols, .k = p->transa ? in->rows : in->cols,
                         .transa = p->transa, .transb = p->transb, .in = in->type, .out = out->type, .add = *(const float *)beta != 0};
    return put(&e);
}

// NCCL. All other ranks are there at once and bring nothing.

static const char *n_error_text(int code) { return "collective"; }
static int n_version(int *version) { return *version = 22700, 0; }
static int n_unique_id(hs_comm_id *id) { return memset(id, 0, sizeof *id), 0; }
static int n_init_rank(uintptr_t *comm, int world, hs_comm_id id, int rank) { return handle(comm); }
static int n_destroy(uintptr_t comm) { return 0; }
static int n_abort(uintptr_t comm) { return 0; }
static int n_async_error(uintptr_t comm, int *code) { return *code = 0, 0; }
static int collective(const char *name, size_t n, int type) { return put_bytes(HS_RECORD_COLLECTIVE, name, n * (type == HS_NCCL_BFLOAT16 ? 2 : 4)); }
static int n_reduce_scatter(uint64_t src, uint64_t dst, size_t n, int type, int op, uintptr_t comm, uintptr_t stream) { return collective("reduce_scatter", n, type); }
static int n_all_gather(uint64_t src, uint64_t dst, size_t n, int type, uintptr_t comm, uintptr_t stream) { return collective("all_gather", n, type); }
static int n_all_reduce(uint64_t src, uint64_t dst, size_t n, int type, int op, uintptr_t comm, uintptr_t stream) { return collective("all_reduce", n, type); }
static int n_broadcast(uint64_t src, uint64_t dst, size_t n, int type, int root, uintptr_t comm, uintptr_t stream) { return collective("broadcast", n, type); }

// The tables of api.h again: a function that is missing here, or has other parameters, does not compile.
#pragma GCC diagnostic error "-Wincompatible-pointer-types"
typedef void (*any)(void);
#define DRIVER(field, symbol, params) static int(*const typed_r_##field) params = r_##field;
#define BLAS(field, symbol, params) static int(*const typed_b_##field) params = b_##field;
#define NCCL(field, symbol, params) static int(*const typed_n_##field) params = n_##field;
HS_DRIVER(DRIVER)
HS_BLAS(BLAS)
HS_NCCL(NCCL)

void *hs_record_find(const char *symbol) {
#define D(field, name, params) {name, (any)typed_r_##field},
#define B(field, name, params) {name, (any)typed_b_##field},
#define N(field, name, params) {name, (any)typed_n_##field},
    const struct { const char *symbol; any function; } table[] = {
        HS_DRIVER(D) HS_BLAS(B) HS_NCCL(N)
        {HS_BLAS_VERSION, (any)b_version}, {HS_BLAS_STATUS_NAME, (any)b_status_name}, {HS_NCCL_ERROR_TEXT, (any)n_error_text},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].symbol, symbol)) return (void *)table[i].function;
    return NULL;
}
