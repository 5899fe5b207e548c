//go:build ignore

// blas.cpp: the part of cuBLASLt that this project uses: column-major or row-major operands of fp32 or bf16, fp32 sums.
//
// As in the real library the heuristic's first choice depends on the shape, and its algorithms round differently: a caller
// that lets the number of rows choose gets other bits for the same row.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>

#include "call.h"
#include "gemm.h"

namespace sim {

enum Status { BLAS_SUCCESS = 0, BLAS_NOT_INITIALIZED = 1, BLAS_INVALID_VALUE = 7, BLAS_EXECUTION_FAILED = 13, BLAS_NOT_SUPPORTED = 15 };
enum { TYPE_F32 = 0, TYPE_BF16 = 14, COMPUTE_F32 = 68, COMPUTE_F32_PEDANTIC = 69, ORDER_COL = 0, ORDER_ROW = 1 };

struct BlasHandle {
    Device *device;
};
struct Desc {
    int compute, scale, trans_a, trans_b;
};
struct Layout {
    int type, order;
    int64_t rows, cols, ld;
};
struct Preference {
    uint64_t workspace = 0;
    uint32_t schemes = ~0u;
    uint32_t align[4] = {256, 256, 256, 256};
};

// Algo is cublasLtMatmulAlgo_t: 64 opaque bytes.
struct Algo {
    uint64_t magic;
    int32_t number;
    int32_t in, out, trans_a, trans_b; // what it was chosen for
    uint32_t align[4];
    uint32_t rest[5];
};
static_assert(sizeof(Algo) == 64, "the size of cublasLtMatmulAlgo_t");
struct Choice { // cublasLtMatmulHeuristicResult_t
    Algo algo;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

static constexpr uint64_t MAGIC = 0x6d69732d6f676c61ull;

struct Method {
    int64_t interval; // see Product
    int splits;       // of K; more than 1 needs workspace
    uint32_t scheme;  // how splits are summed
};
static const Method methods[] = {{0, 1, 0}, {512, 1, 0}, {256, 1, 0}, {0, 2, 2}};
static constexpr int METHODS = sizeof methods / sizeof *methods;

// Descriptors live outside of any context.
static std::set<const void *> &objects() {
    static auto *s = new std::set<const void *>;
    return *s;
}
template <class T> static int add(void **out, T value) {
    Lock lock(world().mu);
    T *p = new T(value);
    objects().insert(p);
    *out = p;
    return BLAS_SUCCESS;
}
template <class T> static int remove(void *p) {
    Lock lock(world().mu);
    if (!objects().erase(p)) return fail(BLAS_INVALID_VALUE, "%p is not a descriptor", p);
    delete (T *)p;
    return BLAS_SUCCESS;
}
static bool known(std::initializer_list<const void *> all) {
    return std::all_of(all.begin(), all.end(), [](const void *p) { return objects().count(p) != 0; });
}

template <class T> static int read(T *out, const void *value, size_t bytes) {
    if (bytes != sizeof(T)) return fail(BLAS_INVALID_VALUE, "an attribute of %zu bytes, want %zu", bytes, sizeof(T));
    memcpy(out, value, sizeof(T));
    return BLAS_SUCCESS;
}

// ---------------------------------------------------------------- handles and descriptors

SIM_API size_t cublasLtGetVersion(void) { return 120900; }

SIM_API const char *cublasLtGetStatusName(int status) {
    switch (status) {
    case BLAS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case BLAS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case BLAS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case BLAS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case BLAS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "unknown status";
    }
}
SIM_API const char *cublasLtGetStatusString(int status) { return cublasLtGetStatusName(status); }

SIM_API int cublasLtCreate(void **handle) {
    Call c;
    *handle = nullptr;
    if (c.code) return BLAS_NOT_INITIALIZED;
    BlasHandle *h = new BlasHandle{c.device};
    world().handles[h] = {Kind::Blas, c.device, delete_as<BlasHandle>};
    *handle = h;
    return BLAS_SUCCESS;
}

SIM_API int cublasLtDestroy(void *handle) {
    Lock lock(world().mu);
    BlasHandle *h = lookup<BlasHandle>(handle, Kind::Blas);
    if (!h) return fail(BLAS_NOT_INITIALIZED, "%p is not a cuBLASLt handle", handle);
    world().handles.erase(h);
    delete h;
    return BLAS_SUCCESS;
}

SIM_API int cublasLtMatmulDescCreate(void **desc, int compute, int scale) {
    *desc = nullptr;
    if (compute != COMPUTE_F32 && compute != COMPUTE_F32_PEDANTIC)
        return fail(BLAS_NOT_SUPPORTED, "compute type %d: the simulator sums in fp32 (68)", compute);
    if (scale != TYPE_F32) return fail(BLAS_NOT_SUPPORTED, "scale type %d, want fp32 (0)", scale);
    return add(desc, Desc{compute, scale, 0, 0});
}
SIM_API int cublasLtMatmulDescDestroy(void *desc) { return remove<Desc>(desc); }

SIM_API int cublasLtMatmulDescSetAttribute(void *desc, int attribute, const void *value, size_t bytes) {
    enum { POINTER_MODE = 2, TRANS_A = 3, TRANS_B = 4, EPILOGUE = 7 };
    Lock lock(world().mu);
    if (!known({desc})) return fail(BLAS_INVALID_VALUE, "%p is not a descriptor", desc);
    Desc *d = (Desc *)desc;
    int32_t v = 0;
    if (int code = read(&v, value, bytes)) return code;
    switch (attribute) {
    case TRANS_A: case TRANS_B:
        if (v != 0 && v != 1) return fail(BLAS_INVALID_VALUE, "transposition %d", v);
        (attribute == TRANS_A ? d->trans_a : d->trans_b) = v;
        return BLAS_SUCCESS;
    case POINTER_MODE:
        return v == 0 ? BLAS_SUCCESS : fail(BLAS_NOT_SUPPORTED, "pointer mode %d: alpha and beta lie on the host in the simulator", v);
    case EPILOGUE: return v == 1 ? BLAS_SUCCESS : fail(BLAS_NOT_SUPPORTED, "epilogue %d", v);
    default: return fail(BLAS_NOT_SUPPORTED, "descriptor attribute %d", attribute);
    }
}

SIM_API int cublasLtMatrixLayoutCreate(void **layout, int type, uint64_t rows, uint64_t cols, int64_t ld) {
    *layout = nullptr;
    if (type != TYPE_F32 && type != TYPE_BF16)
        return fail(BLAS_NOT_SUPPORTED, "matrix type %d: the simulator has fp32 (0) and bf16 (14)", type);
    return add(layout, Layout{type, ORDER_COL, (int64_t)rows, (int64_t)cols, ld});
}
SIM_API int cublasLtMatrixLayoutDestroy(void *layout) { return remove<Layout>(layout); }

SIM_API int cublasLtMatrixLayoutSetAttribute(void *layout, int attribute, const void *value, size_t bytes) {
    enum { ORDER = 1, BATCHES = 5 };
    Lock lock(world().mu);
    if (!known({layout})) return fail(BLAS_INVALID_VALUE, "%p is not a layout", layout);
    int32_t v = 0;
    if (int code = read(&v, value, bytes)) return code;
    if (attribute == BATCHES && v == 1) return BLAS_SUCCESS;
    if (attribute != ORDER || (v != ORDER_COL && v != ORDER_ROW)) return fail(BLAS_NOT_SUPPORTED, "layout attribute %d = %d", attribute, v);
    ((Layout *)layout)->order = v;
    return BLAS_SUCCESS;
}

SIM_API int cublasLtMatmulPreferenceCreate(void **preference) { return add(preference, Preference{}); }
SIM_API int cublasLtMatmulPreferenceDestroy(void *preference) { return remove<Preference>(preference); }

SIM_API int cublasLtMatmulPreferenceSetAttribute(void *preference, int attribute, const void *value, size_t bytes) {
    enum { SEARCH = 0, WORKSPACE = 1, SCHEMES = 3, ALIGN_A = 5, ALIGN_D = 8 };
    Lock lock(world().mu);
    if (!known({preference})) return fail(BLAS_INVALID_VALUE, "%p is not a preference", preference);
    Preference *p = (Preference *)preference;
    if (attribute == WORKSPACE) return read(&p->workspace, value, bytes);
    uint32_t v = 0;
    if (int code = read(&v, value, bytes)) return code;
    if (attribute == SCHEMES) p->schemes = v;
    else if (attribute >= ALIGN_A && attribute <= ALIGN_D) p->align[attribute - ALIGN_A] = v;
    else if (attribute != SEARCH) return fail(BLAS_NOT_SUPPORTED, "preference %d", attribute);
    return BLAS_SUCCESS;
}

// ---------------------------------------------------------------- algorithms

static int64_t lines(const Layout &l) { return l.order == ORDER_COL ? l.cols : l.rows; }
static int64_t line(const Layout &l) { return l.order == ORDER_COL ? l.rows : l.cols; }
static int64_t element_bytes(int type) { return type == TYPE_BF16 ? 2 : 4; }
static int64_t extent(const Layout &l) { return ((lines(l) - 1) * l.ld + line(l)) * element_bytes(l.type); }

static int check_layout(const char *name, const Layout &l) {
    if (l.rows <= 0 || l.cols <= 0) return fail(BLAS_INVALID_VALUE, "matrix %s is %lld x %lld", name, (long long)l.rows, (long long)l.cols);
    if (l.ld < line(l))
        return fail(BLAS_INVALID_VALUE, "matrix %s: leading dimension %lld is less than %lld", name, (long long)l.ld, (long long)line(l));
    return BLAS_SUCCESS;
}

struct Problem {
    const Desc *desc;
    const Layout *a, *b, *c, *d;
    int64_t m, n, k;
};

static int check_problem(Problem &p) {
    const char *names[] = {"A", "B", "C", "D"};
    const Layout *all[] = {p.a, p.b, p.c, p.d};
    for (int i = 0; i < 4; i++)
        if (int code = check_layout(names[i], *all[i])) return code;
    bool ta = p.desc->trans_a, tb = p.desc->trans_b;
    p.m = ta ? p.a->cols : p.a->rows, p.k = ta ? p.a->rows : p.a->cols, p.n = tb ? p.b->rows : p.b->cols;
    int64_t kb = tb ? p.b->cols : p.b->rows;
    if (p.k != kb || p.d->rows != p.m || p.d->cols != p.n || p.c->rows != p.m || p.c->cols != p.n)
        return fail(BLAS_INVALID_VALUE, "op(A) is %lld x %lld, op(B) %lld x %lld, C %lld x %lld, D %lld x %lld", (long long)p.m,
                    (long long)p.k, (long long)kb, (long long)p.n, (long long)p.c->rows, (long long)p.c->cols,
                    (long long)p.d->rows, (long long)p.d->cols);
    if (p.a->type != p.b->type || p.c->type != p.d->type || (p.a->type == TYPE_F32 && p.d->type != TYPE_F32))
        return fail(BLAS_NOT_SUPPORTED, "types A %d, B %d, C %d, D %d", p.a->type, p.b->type, p.c->type, p.d->type);
    if (p.c->order != p.d->order) return fail(BLAS_NOT_SUPPORTED, "C and D are stored in different orders");
    return BLAS_SUCCESS;
}

static int make_problem(Problem &p, void *handle, void *desc, void *a, void *b, void *c, void *d) {
    if (!lookup<BlasHandle>(handle, Kind::Blas)) return fail(BLAS_NOT_INITIALIZED, "%p is not a cuBLASLt handle", handle);
    if (!known({desc, a, b, c, d})) return fail(BLAS_INVALID_VALUE, "a descriptor is missing or was destroyed");
    p = {(Desc *)desc, (Layout *)a, (Layout *)b, (Layout *)c, (Layout *)d, 0, 0, 0};
    return check_problem(p);
}

static size_t workspace_of(const Method &m, const Problem &p) { return m.splits > 1 ? (size_t)(p.m * p.n * 4 * m.splits) : 0; }

// order_of lists the methods, best first, as a library would for this shape.
static std::vector<int> order_of(const Problem &p) {
    int64_t small = std::min(p.m, p.n);
    if (small <= 32) return {3, 2, 0, 1};
    if (small < 256) return {0, 1, 2, 3};
    return {1, 0, 2, 3};
}

static Choice choose(int number, const Problem &p, const Preference &pref) {
    Choice c = {};
    c.algo.magic = MAGIC, c.algo.number = number;
    c.algo.in = p.a->type, c.algo.out = p.d->type, c.algo.trans_a = p.desc->trans_a, c.algo.trans_b = p.desc->trans_b;
    std::copy(pref.align, pref.align + 4, c.algo.align);
    c.workspace = workspace_of(methods[number], p), c.waves = 1;
    return c;
}

SIM_API int cublasLtMatmulAlgoGetHeuristic(void *handle, void *desc, void *a, void *b, void *c, void *d, void *preference, int want,
                                           Choice *results, int *got) {
    Lock lock(world().mu);
    forget_refusal();
    Problem p;
    *got = 0;
    if (int code = make_problem(p, handle, desc, a, b, c, d)) return code;
    if (!known({preference}) || want < 1) return fail(BLAS_INVALID_VALUE, "no preference, or no result wanted");
    const Preference &pref = *(Preference *)preference;
    for (int number : order_of(p)) {
        const Method &m = methods[number];
        if (*got == want || (m.scheme & ~pref.schemes) || workspace_of(m, p) > pref.workspace) continue;
        results[(*got)++] = choose(number, p, pref);
    }
    return *got ? BLAS_SUCCESS : fail(BLAS_NOT_SUPPORTED, "no algorithm fits the preference");
}

static int check_algo(const Algo &algo, const Problem &p) {
    if (algo.magic != MAGIC || algo.number < 0 || algo.number >= METHODS)
        return fail(BLAS_INVALID_VALUE, "not an algorithm of this library");
    if (algo.in != p.a->type || algo.out != p.d->type || algo.trans_a != p.desc->trans_a || algo.trans_b != p.desc->trans_b)
        return fail(BLAS_NOT_SUPPORTED, "the algorithm was chosen for other types or transpositions");
    return BLAS_SUCCESS;
}

SIM_API int cublasLtMatmulAlgoCheck(void *handle, void *desc, void *a, void *b, void *c, void *d, const Algo *algo, Choice *result) {
    Lock lock(world().mu);
    forget_refusal();
    Problem p;
    if (int code = make_problem(p, handle, desc, a, b, c, d)) return code;
    if (int code = check_algo(*algo, p)) return code;
    *result = {};
    result->algo = *algo, result->workspace = workspace_of(methods[algo->number], p), result->waves = 1;
    return BLAS_SUCCESS;
}

SIM_API int cublasLtMatmulAlgoConfigGetAttribute(const Algo *algo, int attribute, void *value, size_t bytes, size_t *written) {
    enum { ID = 0, TILE = 1, SPLITS = 2, SCHEME = 3, SWIZZLE = 4, CUSTOM = 5, STAGES = 6, INNER = 7, CLUSTER = 8 };
    if (algo->magic != MAGIC || algo->number < 0 || algo->number >= METHODS)
        return fail(BLAS_INVALID_VALUE, "not an algorithm of this library");
    if (attribute < ID || attribute > CLUSTER) return fail(BLAS_INVALID_VALUE, "algorithm attribute %d", attribute);
    const Method &m = methods[algo->number];
    int32_t v = attribute == ID ? algo->number : attribute == SPLITS ? m.splits : attribute == SCHEME ? (int32_t)m.scheme : 0;
    size_t size = attribute == INNER || attribute == CLUSTER ? 2 : 4;
    if (written) *written = size;
    if (bytes < size) return fail(BLAS_INVALID_VALUE, "algorithm attribute %d has %zu bytes", attribute, size);
    memcpy(value, &v, size);
    return BLAS_SUCCESS;
}

// ---------------------------------------------------------------- products

static Operand operand(const Layout &l, uint64_t p, bool trans) {
    int64_t row = l.order == ORDER_COL ? 1 : l.ld, col = l.order == ORDER_COL ? l.ld : 1;
    if (trans) std::swap(row, col);
    return {(const void *)p, row, col, l.type == TYPE_BF16};
}

// product_of puts the problem into the form of gemm.h. A column-major D is the row-major Dᵀ = op(B)ᵀ op(A)ᵀ.
static Product product_of(const Problem &p, const Method &m, float alpha, uint64_t a, uint64_t b, float beta, uint64_t c, uint64_t d) {
    Product g = {};
    g.M = p.m, g.N = p.n, g.K = p.k;
    g.A = operand(*p.a, a, p.desc->trans_a), g.B = operand(*p.b, b, p.desc->trans_b);
    if (p.d->order == ORDER_COL) {
        std::swap(g.M, g.N), std::swap(g.A, g.B);
        std::swap(g.A.row, g.A.col), std::swap(g.B.row, g.B.col);
    }
    g.D = (void *)d, g.C = (const void *)c, g.ldd = p.d->ld, g.ldc = p.c->ld, g.bf16 = p.d->type == TYPE_BF16;
    g.alpha = alpha, g.beta = beta;
    g.interval = m.splits > 1 ? (p.k + m.splits - 1) / m.splits / 128 * 128 + 128 : m.interval;
    return g;
}

struct Range {
    const char *name;
    uint64_t p;
    int64_t bytes, align;
};

static std::string check_ranges(Device *d, const std::vector<Range> &ranges) {
    for (const Range &r : ranges) {
        std::string bad = holds(d, r.p, r.bytes);
        if (!bad.empty()) return std::string(r.name) + ": " + bad;
    }
    return "";
}

static int threads() {
    const char *s = getenv("HARNESS_S_SIM_THREADS");
    int n = s ? atoi(s) : 2;
    return std::min(std::max(n, 1), 64);
}

SIM_API int cublasLtMatmul(void *handle, void *desc, const float *alpha, uint64_t a, void *la, uint64_t b, void *lb, const float *beta,
                           uint64_t c, void *lc, uint64_t d, void *ld, const Algo *algo, uint64_t workspace, size_t workspace_bytes,
                           void *stream) {
    Call call;
    if (call.code) return BLAS_EXECUTION_FAILED;
    Problem p;
    if (int code = make_problem(p, handle, desc, la, lb, lc, ld)) return code;
    Device *dev = call.device;
    if (((BlasHandle *)handle)->device != dev)
        return fail(BLAS_INVALID_VALUE, "the handle belongs to device %d, the current context to device %d",
                    ((BlasHandle *)handle)->device->index, dev->index);
    Stream *s = call.stream(stream);
    if (!s) return BLAS_INVALID_VALUE;
    Algo own;
    if (!algo) { // the library chooses
        Preference any;
        any.workspace = workspace_bytes;
        std::fill(any.align, any.align + 4, 1);
        std::vector<int> order = order_of(p);
        auto fits = [&](int i) { return workspace_of(methods[i], p) <= workspace_bytes; };
        own = choose(*std::find_if(order.begin(), order.end(), fits), p, any).algo;
        algo = &own;
    }
    if (int code = check_algo(*algo, p)) return code;
    const Method &m = methods[algo->number];
    std::vector<Range> ranges = {{"A", a, extent(*p.a), algo->align[0]},
                                 {"B", b, extent(*p.b), algo->align[1]},
                                 {"D", d, extent(*p.d), algo->align[3]}};
    if (*beta != 0) ranges.push_back({"C", c, extent(*p.c), algo->align[2]});
    if (c == d && p.c->ld != p.d->ld) return fail(BLAS_INVALID_VALUE, "C and D are one matrix with different leading dimensions");
    if (d == a || d == b) return fail(BLAS_INVALID_VALUE, "D lies on an operand");
    size_t need = workspace_of(m, p);
    if (need > workspace_bytes)
        return fail(BLAS_INVALID_VALUE, "the algorithm needs %zu bytes of workspace, given are %zu", need, workspace_bytes);
    if (workspace_bytes) ranges.push_back({"workspace", workspace, (int64_t)workspace_bytes, 16});
    for (const Range &r : ranges)
        if (r.p % std::max<int64_t>(r.align, 1))
            return fail(BLAS_NOT_SUPPORTED, "%s at 0x%llx is not aligned to %lld bytes, for which the algorithm was chosen", r.name,
                        (unsigned long long)r.p, (long long)r.align);
    std::string bad = check_ranges(dev, ranges);
    if (!bad.empty()) return fail(BLAS_INVALID_VALUE, "%s", bad.c_str());

    Product g = product_of(p, m, *alpha, a, b, *beta, c, d);
    Work w;
    w.what = "product of " + std::to_string(p.m) + " x " + std::to_string(p.n) + " x " + std::to_string(p.k);
    w.body = [=]() -> Outcome {
        {
            Lock lock(world().mu);
            std::string bad = check_ranges(dev, ranges);
            if (!bad.empty()) return {ILLEGAL_ADDRESS, bad};
        }
        if (need) memset((void *)workspace, 0xff, need); // whatever was there is gone
        multiply(g, threads());
        return {};
    };
    return enqueue(s, std::move(w)) ? BLAS_EXECUTION_FAILED : BLAS_SUCCESS;
}

} // namespace sim
