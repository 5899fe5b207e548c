// Matrix products against a double loop.
#include "check.h"
#include <cmath>

enum { F32 = 0, BF16 = 14 };
static uint64_t rng = 1;
static float uniform() {
    rng ^= rng >> 12, rng ^= rng << 25, rng ^= rng >> 27;
    return (float)((rng * 0x2545F4914F6CDD1Dull >> 40) / 16777216.0 - 0.5);
}
static uint16_t to_bf16(float f) {
    uint32_t b;
    memcpy(&b, &f, 4);
    return f != f ? 0x7fff : (b + 0x7fff + (b >> 16 & 1)) >> 16;
}
static float from_bf16(uint16_t h) {
    uint32_t b = (uint32_t)h << 16;
    float f;
    memcpy(&f, &b, 4);
    return f;
}

// Matrix is rows x cols in a buffer of lines of ld elements, column-major unless row_major.
struct Matrix {
    int type, rows, cols, ld;
    bool row_major;
    std::vector<float> v; // what the device has, element by element of the buffer
    uint64_t p = 0;
    Handle layout;
    Matrix(int type, int rows, int cols, int pad, bool row_major) : type(type), rows(rows), cols(cols),
        ld((row_major ? cols : rows) + pad), row_major(row_major) {
        v.resize((size_t)ld * (row_major ? rows : cols));
        for (float &x : v) x = type == BF16 ? from_bf16(to_bf16(uniform())) : uniform();
        OK(cublasLtMatrixLayoutCreate(&layout, type, rows, cols, ld));
        int order = row_major;
        OK(cublasLtMatrixLayoutSetAttribute(layout, 1, &order, 4));
    }
    float &at(int i, int j) { return v[row_major ? (size_t)i * ld + j : (size_t)j * ld + i]; }
    void upload() {
        std::vector<uint16_t> h(v.size());
        for (size_t i = 0; i < v.size(); i++) h[i] = to_bf16(v[i]);
        size_t bytes = v.size() * (type == BF16 ? 2 : 4);
        if (!p) OK(cuMemAlloc_v2(&p, bytes));
        OK(cuMemcpyHtoD_v2(p, type == BF16 ? (void *)h.data() : v.data(), bytes));
    }
    void download() {
        std::vector<uint16_t> h(v.size());
        OK(cuMemcpyDtoH_v2(type == BF16 ? (void *)h.data() : v.data(), p, v.size() * (type == BF16 ? 2 : 4)));
        if (type == BF16) for (size_t i = 0; i < v.size(); i++) v[i] = from_bf16(h[i]);
    }
};

struct Blas {
    Gpu g;
    Handle handle, preference;
    uint64_t workspace;
    Blas() {
        OK(cublasLtCreate(&handle));
        OK(cublasLtMatmulPreferenceCreate(&preference));
        uint64_t bytes = 1 << 20;
        OK(cublasLtMatmulPreferenceSetAttribute(preference, 1, &bytes, 8));
        for (int i = 5; i <= 8; i++) { uint32_t align = 2; OK(cublasLtMatmulPreferenceSetAttribute(preference, i, &align, 4)); }
        OK(cuMemAlloc_v2(&workspace, bytes));
    }
    Handle desc(int ta, int tb) {
        Handle d;
        OK(cublasLtMatmulDescCreate(&d, 68, 0));
        OK(cublasLtMatmulDescSetAttribute(d, 3, &ta, 4));
        OK(cublasLtMatmulDescSetAttribute(d, 4, &tb, 4));
        return d;
    }
    std::vector<Choice> choices(Handle d, Matrix &a, Matrix &b, Matrix &c) {
        std::vector<Choice> all(8);
        int n = 0;
        OK(cublasLtMatmulAlgoGetHeuristic(handle, d, a.layout, b.layout, c.layout, c.layout, preference, 8, all.data(), &n));
        all.resize(n);
        return all;
    }
    int run(Handle d, Matrix &a, Matrix &b, Matrix &c, float alpha, float beta, const Algo *algo) {
        return cublasLtMatmul(handle, d, &alpha, a.p, a.layout, b.p, b.layout, &beta, c.p, c.layout, c.p, c.layout, algo,
            workspace, 1 << 20, g.stream);
    }
};

// case_of computes one product in every algorithm and compares each element with a sum in double.
static void case_of(Blas &blas, int m, int n, int k, int ta, int tb, int in, int out, bool row_major, float alpha, float beta, int pad) {
    Matrix a(in, ta ? k : m, ta ? m : k, pad, row_major), b(in, tb ? n : k, tb ? k : n, pad, row_major), c(out, m, n, pad, row_major);
    if (beta == 0) for (float &x : c.v) x = NAN; // must not be read
    int lines = row_major ? m : n, used = row_major ? n : m;
    for (size_t i = 0; i < c.v.size(); i++)
        if ((int)(i % c.ld) >= used) c.v[i] = 123; // between the lines nothing may be written
    Matrix before = c;
    a.upload(), b.upload();
    Handle d = blas.desc(ta, tb);
    for (const Choice &choice : blas.choices(d, a, b, c)) {
        c.v = before.v;
        c.upload();
        OK(blas.run(d, a, b, c, alpha, beta, &choice.algo));
        OK(cuStreamSynchronize(blas.g.stream));
        c.download();
        double worst = 0;
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++) {
                double sum = 0, size = 0;
                for (int l = 0; l < k; l++) {
                    double t = (double)(ta ? a.at(l, i) : a.at(i, l)) * (tb ? b.at(j, l) : b.at(l, j));
                    sum += t, size += fabs(t);
                }
                sum = alpha * sum + (beta ? beta * before.at(i, j) : 0);
                double bound = size * k * 6e-8 + 1e-6 + (out == BF16 ? fabs(sum) * 4e-3 : 0);
                double err = fabs(sum - c.at(i, j)) / bound;
                worst = err <= worst ? worst : err == err ? err : 1e9;
            }
        if (!(worst <= 1)) {
            fprintf(stderr, "%dx%dx%d ta %d tb %d in %d out %d row-major %d alpha %g beta %g pad %d: %g times the bound\n", m,
                n, k, ta, tb, in, out, row_major, alpha, beta, pad, worst);
            failed() = true;
        }
        for (int l = 0; l < lines; l++)
            for (int q = used; q < c.ld; q++) CHECK(c.v[l * c.ld + q] == 123);
    }
    for (Matrix *x : {&a, &b, &c}) {
        OK(cuMemFree_v2(x->p));
        OK(cublasLtMatrixLayoutDestroy(x->layout));
    }
    OK(cublasLtMatmulDescDestroy(d));
}

static void shapes() {
    Blas blas;
    const int sizes[][3] = {{1, 1, 1}, {1, 33, 7}, {5, 3, 129}, {12, 32, 128}, {13, 31, 300}, {97, 65, 64}, {100, 7, 513}, {3, 600, 130}};
    for (auto &s : sizes)
        for (int trans = 0; trans < 4; trans++)
            for (int types = 0; types < 3; types++)
                for (int order = 0; order < 2; order++)
                    case_of(blas, s[0], s[1], s[2], trans & 1, trans >> 1, types ? BF16 : F32, types == 2 ? BF16 : F32,
                            order, types ? 1.0f : -0.5f,
                            (trans + order) % 3 ? 0.0f : 0.75f, order ? 3 : trans);
}
TEST(products) { shapes(); }
TEST(products_without_avx512) {
    setting("HARNESS_S_SIM_NARROW", "1");
    shapes();
}
TEST(products_on_threads) {
    Blas blas;
    setting("HARNESS_S_SIM_THREADS", "3");
    case_of(blas, 300, 170, 260, 1, 0, BF16, F32, false, 1, 1, 0);
    case_of(blas, 170, 300, 260, 0, 1, F32, F32, true, 1, 0, 0);
}

static std::vector<float> row(Blas &blas, int m, const Algo *algo, int *splits) {
    rng = 9;
    Matrix a(F32, 700, m, 0, false), b(F32, 700, 40, 0, false), c(F32, m, 40, 0, false); // C = Aᵀ B
    Handle d = blas.desc(1, 0);
    rng = 77;
    for (int l = 0; l < 700; l++) a.at(l, 0) = uniform();
    for (float &x : b.v) x = uniform();
    a.upload(), b.upload(), c.upload();
    Choice first = blas.choices(d, a, b, c)[0];
    if (splits) OK(cublasLtMatmulAlgoConfigGetAttribute(&first.algo, 2, splits, 4, nullptr));
    OK(blas.run(d, a, b, c, 1, 0, algo ? algo : &first.algo));
    OK(cuStreamSynchronize(blas.g.stream));
    c.download();
    std::vector<float> r;
    for (int j = 0; j < 40; j++) r.push_back(c.at(0, j));
    return r;
}

// With one algorithm a row's bits do not depend on the number of rows; the heuristic's first choice does.
TEST(rows_do_not_depend_on_their_number) {
    Blas blas;
    Matrix a(F32, 700, 64, 0, false), b(F32, 700, 40, 0, false), c(F32, 64, 40, 0, false);
    Handle d = blas.desc(1, 0);
    for (const Choice &choice : blas.choices(d, a, b, c))
        for (int m : {2, 12, 13, 100, 500}) CHECK(row(blas, 1, &choice.algo, nullptr) == row(blas, m, &choice.algo, nullptr));
    int few = 0, many = 0;
    CHECK(row(blas, 2, nullptr, &few) != row(blas, 500, nullptr, &many));
    CHECK(few == 2 && many == 1);
}

TEST(not_a_number_propagates) {
    Blas blas;
    Matrix a(F32, 9, 5, 0, false), b(F32, 5, 7, 0, false), c(F32, 9, 7, 0, false);
    a.at(4, 3) = NAN, b.at(3, 6) = INFINITY;
    for (int j = 0; j < 7; j++) if (j != 6) b.at(3, j) = 0;
    a.upload(), b.upload(), c.upload();
    Handle d = blas.desc(0, 0);
    OK(blas.run(d, a, b, c, 1, 0, nullptr));
    OK(cuStreamSynchronize(blas.g.stream));
    c.download();
    for (int i = 0; i < 9; i++)
        for (int j = 0; j < 7; j++) CHECK(std::isnan(c.at(i, j)) == (i == 4) && std::isinf(c.at(i, j)) == (i != 4 && j == 6));
}

TEST(wrong_products) {
    Blas blas;
    Matrix a(F32, 8, 6, 0, false), b(F32, 6, 4, 0, false), c(F32, 8, 4, 0, false), other(F32, 5, 4, 0, false), half(BF16, 6, 4, 0, false);
    for (Matrix *x : {&a, &b, &c, &other, &half}) x->upload();
    Handle d = blas.desc(0, 0), t = blas.desc(1, 0), none;
    auto all = blas.choices(d, a, b, c);
    NEED(all.size() >= 2);
    CODE(7, blas.run(d, a, other, c, 1, 0, nullptr));
    CHECK(says("op(B) 5 x 4"));
    CODE(15, blas.run(d, a, half, c, 1, 0, nullptr));
    CODE(7, blas.run(t, a, b, c, 1, 0, &all[0].algo));
    CODE(7, blas.run(d, a, b, a, 1, 0, nullptr)); // D on an operand, of the wrong shape besides
    CODE(15, cublasLtMatmulDescCreate(&none, 77, 0)); // tf32
    Algo noise = {};
    CODE(7, blas.run(d, a, b, c, 1, 0, &noise));
    float one = 1, zero = 0;
    for (const Choice &choice : all)
        if (choice.workspace) CODE(7, cublasLtMatmul(blas.handle, d, &one, a.p, a.layout, b.p, b.layout, &zero, c.p, c.layout,
            c.p, c.layout, &choice.algo, blas.workspace, choice.workspace - 1, blas.g.stream));
    CODE(7, cublasLtMatmul(blas.handle, d, &one, a.p, a.layout, b.p, b.layout, &zero, c.p + 4, c.layout, c.p + 4, c.layout,
        nullptr, 0, 0, blas.g.stream));
    CHECK(says("D: 128 bytes at offset 4 leave block"));
    uint32_t align = 16;
    OK(cublasLtMatmulPreferenceSetAttribute(blas.preference, 5, &align, 4));
    Algo aligned = blas.choices(d, a, b, c)[0].algo;
    OK(cuMemAlloc_v2(&a.p, 1024));
    a.p += 4;
    CODE(15, blas.run(d, a, b, c, 1, 0, &aligned));
    uint32_t schemes = 0;
    OK(cublasLtMatmulPreferenceSetAttribute(blas.preference, 3, &schemes, 4));
    for (const Choice &choice : blas.choices(d, a, b, c)) {
        int splits = 0;
        OK(cublasLtMatmulAlgoConfigGetAttribute(&choice.algo, 2, &splits, 4, nullptr));
        CHECK(splits == 1 && choice.workspace == 0);
    }
}
