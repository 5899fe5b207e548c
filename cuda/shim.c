#define _GNU_SOURCE
#include "record.h"
#include "shim.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIELD(field, symbol, params) int(*field) params;

struct hs_driver {
    HS_DRIVER(FIELD)
    HS_DRIVER_OPTIONAL(FIELD)
    const char *(*last_error)(void);
};

struct hs_device {
    hs_driver *r;
    int device;
    uintptr_t context;
    uint64_t serial; // never used twice: a context's address may be
};

struct hs_blas {
    HS_BLAS(FIELD)
    size_t (*version)(void);
    const char *(*status_name)(int);
};

struct hs_plan {
    uintptr_t desc, a, b, d;
};

struct hs_nccl {
    HS_NCCL(FIELD)
    const char *(*error_text)(int);
    const char *(*last_error)(uintptr_t);
};

// Libraries.

static void *fail(void *table, char **why, const char *format, const char *detail) {
    if (asprintf(why, format, detail) < 0) *why = NULL;
    free(table);
    return NULL;
}

static char recorder; // stands for the library that is part of this program (record.c)

static void *symbol_of(void *lib, const char *symbol) { return lib == &recorder ? hs_record_find(symbol) : dlsym(lib, symbol); }

static void *load(const char *path, size_t table_bytes, void **table, char **why) {
    *table = NULL;
    void *lib = strcmp(path, HS_RECORDER) ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : &recorder;
    if (!lib) {
        const char *text = dlerror();
        return fail(NULL, why, "%s", text ? text : "dlopen failed");
    }
    *table = calloc(1, table_bytes);
    return *table ? lib : fail(NULL, why, "%s", "no memory");
}

// file_of is the file that holds a function of the library: the path when it was found by a plain name.
static char *file_of(void *function, const char *path) {
    Dl_info info;
    return strdup(dladdr(function, &info) && info.dli_fname ? info.dli_fname : path);
}

// keep is the one table with these functions: a library that is opened again has the same ones. Tables live as long as the
// process, since whoever was handed one may still call.
static void *keep(void *table, size_t bytes) {
    static struct kept {
        void *table;
        size_t bytes;
        struct kept *next;
    } *all;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    for (struct kept *k = all; k; k = k->next)
        if (k->bytes == bytes && memcmp(k->table, table, bytes) == 0) {
            free(table);
            pthread_mutex_unlock(&lock);
            return k->table;
        }
    struct kept *k = malloc(sizeof *k);
    if (k) *k = (struct kept){table, bytes, all}, all = k;
    pthread_mutex_unlock(&lock);
    return table;
}

#define NEED(field, symbol, params)                                                     \
    if (!(*(void **)&t->field = symbol_of(lib, symbol))) return fail(t, why, "function %s missing", symbol);
#define MAY(field, symbol, params) *(void **)&t->field = symbol_of(lib, symbol);

hs_driver *hs_driver_open(const char *path, char **file, char **why) {
    hs_driver *t;
    void *lib = load(path, sizeof *t, (void **)&t, why);
    if (!lib) return NULL;
    HS_DRIVER(NEED)
    HS_DRIVER_OPTIONAL(MAY)
    MAY(last_error, HS_SIM_LAST_ERROR, )
    *file = file_of((void *)t->init, path);
    return keep(t, sizeof *t);
}

hs_blas *hs_blas_open(const char *path, char **file, char **why) {
    hs_blas *t;
    void *lib = load(path, sizeof *t, (void **)&t, why);
    if (!lib) return NULL;
    HS_BLAS(NEED)
    NEED(version, HS_BLAS_VERSION, )
    NEED(status_name, HS_BLAS_STATUS_NAME, )
    *file = file_of((void *)t->version, path);
    return keep(t, sizeof *t);
}

hs_nccl *hs_nccl_open(const char *path, char **file, char **why) {
    hs_nccl *t;
    void *lib = load(path, sizeof *t, (void **)&t, why);
    if (!lib) return NULL;
    HS_NCCL(NEED)
    NEED(error_text, HS_NCCL_ERROR_TEXT, )
    MAY(last_error, HS_NCCL_LAST_ERROR, )
    *file = file_of((void *)t->version, path);
    return keep(t, sizeof *t);
}

// Driver and devices.

int hs_driver_init(hs_driver *r) { return r->init(0); }
int hs_driver_version(hs_driver *r, int *version) { return r->version(version); }
int hs_driver_devices(hs_driver *r, int *n) { return r->device_count(n); }

const char *hs_driver_error_name(hs_driver *r, int code) {
    const char *s = NULL;
    return r->error_name(code, &s) || !s ? "unknown error" : s;
}
const char *hs_driver_error_text(hs_driver *r, int code) {
    const char *s = NULL;
    return r->error_text(code, &s) || !s ? "" : s;
}
const char *hs_driver_trouble(hs_driver *r) { return r->last_error ? r->last_error() : NULL; }

int hs_device_describe(hs_driver *r, int ordinal, char *name, int name_bytes, size_t *memory, const int *attributes, int *values, int n) {
    int device, code = r->device_get(&device, ordinal);
    if (!code) code = r->device_name(name, name_bytes, device);
    if (!code) code = r->device_memory(memory, device);
    for (int i = 0; !code && i < n; i++) code = r->device_attribute(&values[i], attributes[i], device);
    return code;
}

int hs_device_peer(hs_driver *r, int ordinal, int other, int *yes) {
    int a, b, code = r->device_get(&a, ordinal);
    if (!code) code = r->device_get(&b, other);
    return code ? code : r->device_peer(yes, a, b);
}

static __thread uint64_t current; // serial of the hs_device whose context is current on this thread

static int enter(hs_device *d) {
    if (current == d->serial) return 0;
    int code = d->r->set_current(d->context);
    current = code ? 0 : d->serial;
    return code;
}
#define ENTER(d)                \
    do {                        \
        int code_ = enter(d);   \
        if (code_) return code_; \
    } while (0)

int hs_device_open(hs_driver *r, int ordinal, hs_device **out) {
    static uint64_t serials;
    hs_device *d = calloc(1, sizeof *d);
    if (!d) return HS_CUDA_ERROR_OUT_OF_MEMORY;
    d->r = r;
    int code = r->device_get(&d->device, ordinal);
    if (!code) code = r->primary_retain(&d->context, d->device);
    if (code) {
        free(d);
        return code;
    }
    d->serial = __atomic_add_fetch(&serials, 1, __ATOMIC_RELAXED);
    *out = d;
    return 0;
}

int hs_device_close(hs_device *d) {
    int code = d->r->primary_release(d->device);
    if (current == d->serial) current = 0;
    free(d);
    return code;
}

// Memory.

int hs_sync(hs_device *d) { ENTER(d); return d->r->context_sync(); }
int hs_mem_info(hs_device *d, size_t *free, size_t *total) { ENTER(d); return d->r->mem_info(free, total); }
int hs_mem_alloc(hs_device *d, size_t bytes, uint64_t *p) { ENTER(d); return d->r->mem_alloc(p, bytes); }
int hs_mem_free(hs_device *d, uint64_t p) { ENTER(d); return d->r->mem_free(p); }
int hs_host_alloc(hs_device *d, size_t bytes, void **p) { ENTER(d); return d->r->host_alloc(p, bytes, HS_HOST_PORTABLE); }
int hs_host_free(hs_device *d, void *p) { ENTER(d); return d->r->host_free(p); }

int hs_zero(hs_device *d, uint64_t p, size_t bytes, uintptr_t stream) {
    ENTER(d);
    if ((p | bytes) & 3) return d->r->set8(p, 0, bytes, stream);
    return d->r->set32(p, 0, bytes / 4, stream);
}
int hs_copy_in(hs_device *d, uint64_t dst, const void *pinned, size_t bytes, uintptr_t stream) {
    ENTER(d);
    return d->r->copy_in(dst, pinned, bytes, stream);
}
int hs_copy_out(hs_device *d, void *pinned, uint64_t src, size_t bytes, uintptr_t stream) {
    ENTER(d);
    return d->r->copy_out(pinned, src, bytes, stream);
}
int hs_copy(hs_device *d, uint64_t dst, uint64_t src, size_t bytes, uintptr_t stream) { ENTER(d); return d->r->copy(dst, src, bytes, stream); }

// Streams and events.

int hs_stream_create(hs_device *d, uintptr_t *stream) { ENTER(d); return d->r->stream_create(stream, HS_STREAM_NON_BLOCKING); }
int hs_stream_destroy(hs_device *d, uintptr_t stream) { ENTER(d); return d->r->stream_destroy(stream); }
int hs_stream_sync(hs_device *d, uintptr_t stream) { ENTER(d); return d->r->stream_sync(stream); }
int hs_stream_wait(hs_device *d, uintptr_t stream, uintptr_t event) { ENTER(d); return d->r->stream_wait(stream, event, 0); }
int hs_event_create(hs_device *d, int timing, uintptr_t *event) { ENTER(d); return d->r->event_create(event, timing ? 0 : HS_EVENT_DISABLE_TIMING); }
int hs_event_destroy(hs_device *d, uintptr_t event) { ENTER(d); return d->r->event_destroy(event); }
int hs_event_record(hs_device *d, uintptr_t event, uintptr_t stream) { ENTER(d); return d->r->event_record(event, stream); }
int hs_event_sync(hs_device *d, uintptr_t event) { ENTER(d); return d->r->event_sync(event); }
int hs_event_elapsed(hs_device *d, uintptr_t start, uintptr_t end, float *ms) { ENTER(d); return d->r->event_elapsed(ms, start, end); }

// Modules and launches.

int hs_module_load(hs_device *d, const void *image, char *log, size_t log_bytes, uintptr_t *module) {
    ENTER(d);
    int options[] = {HS_JIT_ERROR_LOG_BUFFER, HS_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)(uintptr_t)log_bytes};
    memset(log, 0, log_bytes);
    return d->r->module_load(module, image, 2, options, values);
}
int hs_module_unload(hs_device *d, uintptr_t module) { ENTER(d); return d->r->module_unload(module); }
int hs_module_function(hs_device *d, uintptr_t module, const char *name, uintptr_t *function) {
    ENTER(d);
    return d->r->module_function(function, module, name);
}
int hs_function_get(hs_device *d, uintptr_t function, int attribute, int *value) { ENTER(d); return d->r->function_get(value, attribute, function); }
int hs_function_set(hs_device *d, uintptr_t function, int attribute, int value) { ENTER(d); return d->r->function_set(function, attribute, value); }

int hs_function_params(hs_device *d, uintptr_t function, int64_t *bytes) {
    ENTER(d);
    *bytes = -1;
    if (!d->r->param_info) return 0;
    size_t first = 0, end = 0, offset, size;
    for (size_t i = 0; !d->r->param_info(function, i, &offset, &size); i++) { // the first index past the last one fails
        if (i == 0) first = offset; // not 0 where a parameter is aligned to more than where the device keeps them
        end = offset + size;
    }
    *bytes = (int64_t)(end - first);
    return 0;
}

int hs_launch(hs_device *d, uintptr_t function, unsigned gx, unsigned gy, unsigned gz, unsigned threads, unsigned shared,
              uintptr_t stream, const void *args) {
    ENTER(d);
    void *params[] = {(void *)args};
    return d->r->launch(function, gx, gy, gz, threads, 1, 1, shared, stream, params, NULL);
}

int hs_tensor_map(hs_device *d, void *map, uint64_t base, uint64_t rows, uint64_t columns, uint32_t box_rows, uint32_t box_columns) {
    ENTER(d);
    _Alignas(64) unsigned char own[128];
    const uint64_t dims[2] = {columns, rows}, strides[1] = {columns * 2};
    const uint32_t box[2] = {box_columns, box_rows}, steps[2] = {1, 1};
    int code = d->r->tensor_map(own, HS_TENSOR_MAP_BFLOAT16, 2, (void *)(uintptr_t)base, dims, strides, box, steps, 0, HS_TENSOR_MAP_SWIZZLE_128B,
                                HS_TENSOR_MAP_L2_256B, 0);
    memcpy(map, own, sizeof own);
    return code;
}

// Matrix products.

size_t hs_blas_version(hs_blas *b) { return b->version(); }
const char *hs_blas_status(hs_blas *b, int status) { return b->status_name(status); }
int hs_blas_create(hs_blas *b, hs_device *d, uintptr_t *handle) { ENTER(d); return b->create(handle); }
int hs_blas_destroy(hs_blas *b, hs_device *d, uintptr_t handle) { ENTER(d); return b->destroy(handle); }

void hs_blas_forget(hs_blas *b, hs_plan *plan) {
    if (plan->d) b->layout_destroy(plan->d);
    if (plan->b) b->layout_destroy(plan->b);
    if (plan->a) b->layout_destroy(plan->a);
    if (plan->desc) b->desc_destroy(plan->desc);
    free(plan);
}

int hs_blas_plan(hs_blas *b, const hs_product *p, hs_plan **out) {
    hs_plan *plan = calloc(1, sizeof *plan);
    if (!plan) return 3; // CUBLAS_STATUS_ALLOC_FAILED
    int32_t ta = p->transa, tb = p->transb; // CUBLAS_OP_N 0, CUBLAS_OP_T 1
    int code = b->desc_create(&plan->desc, HS_CUBLAS_COMPUTE_32F, HS_CUDA_R_32F);
    if (!code) code = b->desc_set(plan->desc, HS_DESC_TRANSA, &ta, sizeof ta);
    if (!code) code = b->desc_set(plan->desc, HS_DESC_TRANSB, &tb, sizeof tb);
    if (!code) code = b->layout_create(&plan->a, p->in, ta ? p->k : p->m, ta ? p->m : p->k, p->lda);
    if (!code) code = b->layout_create(&plan->b, p->in, tb ? p->n : p->k, tb ? p->k : p->n, p->ldb);
    if (!code) code = b->layout_create(&plan->d, p->out, p->m, p->n, p->ldd);
    if (code) {
        hs_blas_forget(b, plan);
        return code;
    }
    *out = plan;
    return 0;
}

static int preference(hs_blas *b, const hs_product *p, uintptr_t *pref) {
    uint32_t none = 0, align[4] = {p->aligna, p->alignb, p->alignd, p->alignd};
    int code = b->pref_create(pref);
    if (code) return code;
    code = b->pref_set(*pref, HS_PREF_MAX_WORKSPACE_BYTES, &p->workspace, sizeof p->workspace);
    if (!code) code = b->pref_set(*pref, HS_PREF_REDUCTION_SCHEME_MASK, &none, sizeof none);
    for (int i = 0; !code && i < 4; i++) code = b->pref_set(*pref, HS_PREF_MIN_ALIGNMENT_A_BYTES + i, &align[i], sizeof align[i]);
    if (code) b->pref_destroy(*pref);
    return code;
}

// splits says whether an algorithm cuts K into parts that are summed apart.
static int splits(hs_blas *b, const hs_algo *algo, int *yes) {
    int32_t parts = 0;
    uint32_t scheme = 0;
    size_t n;
    int code = b->config_get(algo, HS_ALGO_SPLITK_NUM, &parts, sizeof parts, &n);
    if (!code) code = b->config_get(algo, HS_ALGO_REDUCTION_SCHEME, &scheme, sizeof scheme, &n);
    *yes = parts > 1 || scheme != 0;
    return code;
}

enum { CHOICES = 32 };

int hs_blas_choices(hs_blas *b, hs_device *d, uintptr_t handle, const hs_plan *plan, const hs_product *p, hs_algo *found, int want, int *got) {
    ENTER(d);
    hs_heuristic result[CHOICES];
    uintptr_t pref;
    int n = 0, yes;
    int code = preference(b, p, &pref);
    if (code) return code;
    *got = 0;
    code = b->heuristic(handle, plan->desc, plan->a, plan->b, plan->d, plan->d, pref, CHOICES, result, &n);
    b->pref_destroy(pref);
    for (int i = 0; i < n && *got < want; i++) {
        if (result[i].state || result[i].workspace > p->workspace) continue;
        if (splits(b, &result[i].algo, &yes) == 0 && !yes) found[(*got)++] = result[i].algo;
    }
    return code;
}

int hs_blas_check(hs_blas *b, hs_device *d, uintptr_t handle, const hs_plan *plan, const hs_algo *algo, size_t *workspace) {
    ENTER(d);
    hs_heuristic result = {0};
    int code = b->check(handle, plan->desc, plan->a, plan->b, plan->d, plan->d, algo, &result);
    *workspace = result.workspace;
    return code ? code : result.state;
}

int hs_blas_matmul(hs_blas *b, hs_device *d, uintptr_t handle, const hs_plan *plan, const hs_algo *algo, float alpha, uint64_t a,
                   uint64_t bp, float beta, uint64_t c, uint64_t workspace, size_t workspace_bytes, uintptr_t stream) {
    ENTER(d);
    return b->matmul(handle, plan->desc, &alpha, a, plan->a, bp, plan->b, &beta, c, plan->d, c, plan->d, algo, workspace,
                     workspace_bytes, stream);
}

// Collectives. NCCL goes through the CUDA runtime, which may leave another context current: the next call sets it again.

void hs_nccl_default(const char *name, const char *value) { setenv(name, value, 0); }
int hs_nccl_version(hs_nccl *n, int *version) { return n->version(version); }
const char *hs_nccl_error_text(hs_nccl *n, int code) { return n->error_text(code); }
const char *hs_nccl_last_error(hs_nccl *n, uintptr_t comm) { return n->last_error ? n->last_error(comm) : NULL; }
int hs_nccl_unique_id(hs_nccl *n, void *id) { return n->unique_id(id); }

static int left(int code) {
    current = 0;
    return code;
}

int hs_nccl_join(hs_nccl *n, hs_device *d, const void *id, int rank, int world, uintptr_t *comm) {
    hs_comm_id own;
    memcpy(&own, id, sizeof own);
    if (enter(d)) return 1; // ncclUnhandledCudaError
    return left(n->init_rank(comm, world, own, rank));
}
int hs_nccl_destroy(hs_nccl *n, hs_device *d, uintptr_t comm) { return enter(d) ? 1 : left(n->destroy(comm)); }
int hs_nccl_abort(hs_nccl *n, hs_device *d, uintptr_t comm) { return enter(d) ? 1 : left(n->abort(comm)); }
int hs_nccl_async_error(hs_nccl *n, uintptr_t comm, int *code) { return n->async_error(comm, code); }

int hs_nccl_collective(hs_nccl *n, hs_device *d, int op, uint64_t dst, uint64_t src, size_t count, int type, int root,
                       uintptr_t comm, uintptr_t stream) {
    if (enter(d)) return 1;
    switch (op) {
    case HS_REDUCE_SCATTER: return left(n->reduce_scatter(src, dst, count, type, HS_NCCL_SUM, comm, stream));
    case HS_ALL_GATHER: return left(n->all_gather(src, dst, count, type, comm, stream));
    case HS_ALL_REDUCE: return left(n->all_reduce(src, dst, count, type, HS_NCCL_SUM, comm, stream));
    default: return left(n->broadcast(src, dst, count, type, root, comm, stream));
    }
}
