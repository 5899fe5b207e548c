// gemm_body.h: the inner loops of multiply, included by gemm.cpp once for each width of vector: VW floats, MR rows and two
// vectors of columns a tile. No include guard. Every element is a chain over k of its own, so its bits depend neither on the
// tile it falls into nor on VW.

typedef float vec __attribute__((vector_size(VW * 4), aligned(4), may_alias));
static constexpr int64_t NR = 2 * VW, KC = 128, MC = 8 * MR, NC = 512;

static int64_t round_to(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// tile: c[MR, NR] += a[kc, MR]ᵀ b[kc, NR], both packed.
static void tile(int64_t kc, const float *a, const float *b, float *c, int64_t ldc) {
    vec acc[MR][2];
#pragma GCC unroll 16
    for (int i = 0; i < MR; i++) acc[i][0] = *(const vec *)(c + i * ldc), acc[i][1] = *(const vec *)(c + i * ldc + VW);
    for (int64_t k = 0; k < kc; k++, a += MR, b += NR) {
        vec b0 = *(const vec *)b, b1 = *(const vec *)(b + VW);
#pragma GCC unroll 16
        for (int i = 0; i < MR; i++) acc[i][0] += a[i] * b0, acc[i][1] += a[i] * b1;
    }
#pragma GCC unroll 16
    for (int i = 0; i < MR; i++) *(vec *)(c + i * ldc) = acc[i][0], *(vec *)(c + i * ldc + VW) = acc[i][1];
}

static inline float element(const float *p) { return *p; }
static inline float element(const uint16_t *p) {
    uint32_t bits = (uint32_t)*p << 16;
    float f;
    __builtin_memcpy(&f, &bits, 4);
    return f;
}

// pack copies an [outer, k] matrix to panels of W: element (i, k) of a panel at k·W + i, zeros beyond `outer`.
template <int W, class T>
static void pack_as(float *to, const T *from, int64_t so, int64_t sk, int64_t outer, int64_t kc) {
    for (int64_t o = 0; o < outer; o += W, to += W * kc) {
        int64_t w = outer - o < W ? outer - o : W;
        const T *p = from + o * so;
        if (so == 1 && w == W) {
            for (int64_t k = 0; k < kc; k++)
                for (int i = 0; i < W; i++) to[k * W + i] = element(p + k * sk + i);
            continue;
        }
        for (int64_t i = 0; i < w; i++)
            for (int64_t k = 0; k < kc; k++) to[k * W + i] = element(p + i * so + k * sk);
        for (int64_t i = w; i < W; i++)
            for (int64_t k = 0; k < kc; k++) to[k * W + i] = 0;
    }
}
template <int W> static void pack(float *to, const void *p, bool bf16, int64_t at, int64_t so, int64_t sk, int64_t outer, int64_t kc) {
    if (bf16) pack_as<W>(to, (const uint16_t *)p + at, so, sk, outer, kc);
    else pack_as<W>(to, (const float *)p + at, so, sk, outer, kc);
}

// write_out stores rows [i0, i0+mc) and columns [j0, j0+nc) of D from their sums.
static void write_out(const Product &p, const float *sum, int64_t lds, int64_t i0, int64_t j0, int64_t mc, int64_t nc) {
    for (int64_t i = 0; i < mc; i++)
        for (int64_t j = 0; j < nc; j++) {
            float x = p.alpha * sum[i * lds + j];
            int64_t c = (i0 + i) * p.ldc + j0 + j, d = (i0 + i) * p.ldd + j0 + j;
            if (p.beta != 0) x += p.beta * (p.bf16 ? element((const uint16_t *)p.C + c) : element((const float *)p.C + c));
            if (p.bf16) ((uint16_t *)p.D)[d] = round_bf16(x);
            else ((float *)p.D)[d] = x;
        }
}

// block computes rows [i0, i0+mc) of the slab of columns [j0, j0+nc), whose B is packed: panels of KC rows of k, each of
// panels of NR columns. room holds a packed block of A and two blocks of sums.
static void block(const Product &p, const float *packed, float *room, int64_t i0, int64_t mc, int64_t j0, int64_t nc) {
    int64_t columns = round_to(nc, NR), size = round_to(mc, MR) * columns;
    float *a = room, *sum = a + MC * KC, *total = sum + MC * NC;
    for (int64_t i = 0; i < size; i++) sum[i] = 0;
    bool apart = p.interval > 0 && p.interval < p.K;
    for (int64_t i = 0; apart && i < size; i++) total[i] = 0;
    for (int64_t k = 0; k < p.K; k += KC) {
        int64_t kc = p.K - k < KC ? p.K - k : KC;
        pack<MR>(a, p.A.p, p.A.bf16, i0 * p.A.row + k * p.A.col, p.A.row, p.A.col, mc, kc);
        for (int64_t j = 0; j < columns; j += NR)
            for (int64_t i = 0; i < mc; i += MR) tile(kc, a + i * kc, packed + k * columns + j * kc, sum + i * columns + j, columns);
        if (!apart || ((k + kc) % p.interval && k + kc < p.K)) continue;
        for (int64_t i = 0; i < size; i++) total[i] += sum[i], sum[i] = 0;
    }
    write_out(p, apart ? total : sum, columns, i0, j0, mc, nc);
}

// product computes D on the calling thread. room has room_floats(p) floats.
static void product(const Product &p, float *room) {
    float *packed = room + MC * KC + 2 * MC * NC;
    for (int64_t j = 0; j < p.N; j += NC) {
        int64_t nc = p.N - j < NC ? p.N - j : NC, columns = round_to(nc, NR);
        for (int64_t k = 0; k < p.K; k += KC) {
            int64_t kc = p.K - k < KC ? p.K - k : KC;
            pack<NR>(packed + k * columns, p.B.p, p.B.bf16, k * p.B.row + j * p.B.col, p.B.col, p.B.row, nc, kc);
        }
        for (int64_t i = 0; i < p.M; i += MC) block(p, packed, room, i, p.M - i < MC ? p.M - i : MC, j, nc);
    }
}

static int64_t room_floats(const Product &p) {
    int64_t nc = p.N < NC ? round_to(p.N, NR) : NC;
    return MC * KC + 2 * MC * NC + p.K * nc;
}
