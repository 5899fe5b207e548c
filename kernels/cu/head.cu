// head.cu: rows of logits. The products around them (logits, and the gradients by hidden state and weight) are the BLAS
// library's; here a row becomes log-prob, entropy and lse, and later its own gradient.
//
// Logits are fp32 in both modes: bf16 logits of 16 to 32 are up to 0.0625 off, a peaked row's log-prob is then off by as much,
// and positive log-probs come of it. Rows lie ldz floats apart, ldz a multiple of 8, so that a row is read 16 bytes at a time;
// what lies between V and ldz is never used.
//
//   head_stats   logp, entropy, lse = of the rows             a block a row, one read of the row
//   head_grad    the row = dL/dz, in place, in storage type   a block a row, one read of the row
//
// A row's sums depend on V alone: a thread takes every blockDim-th run of 8 logits (61 runs of a vocabulary of 248,320), each
// summed as a tree, then lanes and warps follow in fixed order. A serial fp32 sum of such a row would be 5e-4 nats off.
#include "hs.cuh"

constexpr int HEAD_THREADS = 512, RUN = 8;

HD float inf_() { return bits_to_float(0x7f800000u); }

// Powers are taken of e in fp32 mode, accurate to the last bit but one, and of 2 in bf16 mode, where one instruction does it
// and errs by some 1e-6 of the value at x = -20. unit<T> is log of e to that base: base^(unit x) = e^x.
template <class T> HD float unit() { return sizeof(T) == sizeof(float) ? 1.0f : 1.44269504f; }
template <class T> HD float power(float x) { return sizeof(T) == sizeof(float) ? exp_(x) : exp2_fast(x); }

// sum_run adds a run as a tree.
HD float sum_run(float (&x)[RUN]) {
    return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

// load_run reads logits [j, j+RUN) of a row, j < V a multiple of RUN; those from V on as -inf.
HD void load_run(float (&z)[RUN], const float *row, int j, int V) {
    ld8(z, row + j);
    if (j + RUN > V) {
#pragma unroll
        for (int i = 0; i < RUN; i++) z[i] = j + i < V ? z[i] : -inf_();
    }
}

// RowSum describes a set of logits z at x = (z - max)·scale, scale = unit·invTemp: the maximum logit, and the sums of base^x and
// of x·base^x. Differences to the maximum are taken before the temperature, so that the maximum's is exactly 0. NaN and +inf
// end as a NaN sum.
struct RowSum {
    float max, sum, dot;
};

// rebase moves the reference point up to max >= r.max. A shift of -inf (nothing seen so far, or out of range) is held at a
// finite value whose power is 0, because 0·inf is not.
template <class T> HD void rebase(RowSum &r, float max, float scale) {
    float shift = fmaxf((r.max - max) * scale, -1e30f), factor = power<T>(shift);
    r.dot = (r.dot + shift * r.sum) * factor;
    r.sum *= factor;
    r.max = max;
}

template <class T> HD void add_run(RowSum &r, const float (&z)[RUN], float scale) {
    float top = fmaxf(fmaxf(fmaxf(z[0], z[1]), fmaxf(z[2], z[3])), fmaxf(fmaxf(z[4], z[5]), fmaxf(z[6], z[7])));
    if (top > r.max) rebase<T>(r, top, scale);
    float base = r.max > -inf_() ? r.max : 0.0f; // -inf alone so far: powers of -inf below, not of inf-inf
    float e[RUN], d[RUN];
#pragma unroll
    for (int i = 0; i < RUN; i++) {
        d[i] = (z[i] - base) * scale;
        e[i] = power<T>(d[i]);
        d[i] = fmaxf(d[i], -200.0f) * e[i]; // -inf·0 is 0 here; a NaN stays one through e
    }
    r.sum += sum_run(e);
    r.dot += sum_run(d);
}

struct HeadStatsArgs {
    const float *z;              // [rows, ldz]
    const i32 *index, *targets;  // row i is token index[i]; targets [T]
    float *logp, *entropy, *lse; // [T]
    i64 ldz;
    i32 V;
    float inv_temp;
};

template <class T> HD void head_stats(const HeadStatsArgs &a) {
    SHARED_ARRAY(float, red, 32);
    const float *z = a.z + blockIdx.x * a.ldz;
    i64 t = a.index[blockIdx.x];
    float own = z[a.targets[t]], scale = a.inv_temp * unit<T>();
    RowSum r = {-inf_(), 0, 0};
    for (int j = threadIdx.x * RUN; j < a.V; j += blockDim.x * RUN) {
        float x[RUN];
        load_run(x, z, j, a.V);
        add_run<T>(r, x, scale);
    }
    rebase<T>(r, block_max(r.max, red), scale);
    float sum = block_sum(r.sum, red), dot = block_sum(r.dot, red);
    if (threadIdx.x) return;
    bool ok = sum > 0 && sum < inf_(); // not so where a logit is NaN or +inf, or all are -inf
    // The maximum's own power is exactly 1 and the others are not negative, so that sum >= 1 however it rounds: a log-prob
    // is never above 0 and an entropy never below.
    float log_sum = log_(sum), nan = bits_to_float(0x7fc00000u);
    a.logp[t] = ok ? (own - r.max) * a.inv_temp - log_sum : nan;
    a.entropy[t] = ok ? log_sum - dot / sum / unit<T>() : nan;
    a.lse[t] = ok ? r.max * a.inv_temp + log_sum : nan;
}
KERNELS(head_stats, HeadStatsArgs, HEAD_THREADS)

struct HeadGradArgs {
    float *z;                // [rows, ldz]
    const i32 *index, *from; // row i is token index[i] and is made from row from[i], or from row i when from is null
    const i32 *targets;      // [T]
    const float *lse, *coef; // [T]
    i64 ldz;
    i32 V;
    float inv_temp;
};

// head_grad: dz = coef·invTemp·(1{v = target} - p), p = e^(z·invTemp - lse). The target's 1-p is the sum of the other p: it
// keeps its relative accuracy however close to 1 p is, where bf16(p)-1 has lost it all at p = .999.
//
// bf16 results go over the front half of the row. Element j is read at byte 4j and written at byte 2j: once a round of runs is
// read by all threads, writing it harms nothing that is still to be read, so one barrier a round is enough. A row that is made
// from another one lies where a row without gradient was, which nobody reads.
template <class T> HD void head_grad(const HeadGradArgs &a) {
    SHARED_ARRAY(float, red, 32);
    int to = blockIdx.x, from = a.from ? a.from[to] : to;
    const float *z = a.z + from * a.ldz;
    T *dz = reinterpret_cast<T *>(a.z + to * a.ldz);
    i64 t = a.index[to];
    int y = a.targets[t];
    float c = a.coef[t] * a.inv_temp, scale = a.inv_temp * unit<T>(), lse = a.lse[t] * unit<T>(), rest = 0;
    for (int k = 0; k < a.V; k += blockDim.x * RUN) {
        int j = k + threadIdx.x * RUN;
        float p[RUN], g[RUN];
        if (j < a.V) {
            load_run(p, z, j, a.V);
#pragma unroll
            for (int i = 0; i < RUN; i++) {
                p[i] = j + i == y ? 0 : power<T>(fmaf(p[i], scale, -lse));
                g[i] = -c * p[i];
            }
            rest += sum_run(p);
        }
        if (sizeof(T) < sizeof(float)) __syncthreads();
        if (j < a.V) st8(dz + j, g);
    }
    rest = block_sum(rest, red); // its barriers put the target's value after all runs
    if (threadIdx.x == 0) put(dz[y], c * rest);
}
KERNELS(head_grad, HeadGradArgs, HEAD_THREADS)
