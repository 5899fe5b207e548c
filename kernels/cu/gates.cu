// The gates of the delta rule over [T,Hv]: g = -exp(aLog)·softplus(a+dtBias), beta = sigmoid(b). Accurate functions: g is
// summed along the sequence, and the tensors are small.
#include "pointwise.cuh"

struct GatesArgs {
    float *g, *beta;
    const void *a, *b;
    const float *a_log, *dt_bias;
    i64 n; // T·Hv
    i32 Hv;
};

template <class T> HD void gdn_gates(const GatesArgs &a) {
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.n) return;
    int h = (int)(i % a.Hv);
    a.g[i] = -exp_(a.a_log[h]) * softplus_(to_float(((const T *)a.a)[i]) + a.dt_bias[h]);
    a.beta[i] = sigmoid_(to_float(((const T *)a.b)[i]));
}
KERNELS(gdn_gates, GatesArgs, 256)

struct GatesBackwardArgs {
    void *da, *db;
    float *part; // [blocks,2,Hv]: each block's sums of dg·g and of da
    const float *dg, *dbeta;
    const void *a, *b;
    const float *a_log, *dt_bias;
    i64 T, rows; // tokens a block
    i32 Hv;
};

constexpr int WARPS = 8;

// Grid: blocks of tokens, tiles of 32 heads. A lane has a head, a warp every WARPS-th token.
template <class T> HD void gdn_gates_backward(const GatesBackwardArgs &a) {
    SHARED_ARRAY(float, sums, 2 * WARPS * 32);
    int h = blockIdx.y * 32 + lane_id();
    float sum_g = 0, sum_a = 0;
    if (h < a.Hv) {
        float decay = -exp_(a.a_log[h]), bias = a.dt_bias[h];
        i64 end = min((blockIdx.x + 1) * a.rows, a.T);
        for (i64 t = blockIdx.x * a.rows + warp_id(); t < end; t += WARPS) {
            i64 i = t * a.Hv + h;
            float x = to_float(((const T *)a.a)[i]) + bias, dg = a.dg[i], da = decay * sigmoid_(x) * dg;
            float s = sigmoid_(to_float(((const T *)a.b)[i]));
            put(((T *)a.da)[i], da);
            put(((T *)a.db)[i], a.dbeta[i] * (s * (1.0f - s)));
            sum_g = fmaf(dg, decay * softplus_(x), sum_g);
            sum_a += da;
        }
    }
    sums[threadIdx.x] = sum_g;
    sums[WARPS * 32 + threadIdx.x] = sum_a;
    __syncthreads();
    if (warp_id() < 2 && h < a.Hv) { // warp 0 ends the sums of dg·g, warp 1 those of da
        float sum = 0;
        for (int w = 0; w < WARPS; w++) sum += sums[(warp_id() * WARPS + w) * 32 + lane_id()];
        a.part[((i64)blockIdx.x * 2 + warp_id()) * a.Hv + h] = sum;
    }
}
KERNELS(gdn_gates_backward, GatesBackwardArgs, WARPS * 32)
