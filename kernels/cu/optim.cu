// AdamW with decoupled weight decay, as PyTorch orders it: w -= lr·wd·w; m, v = moments of g·scale;
// w -= lr/(1-b1^s) · m / (sqrt(v)/sqrt(1-b2^s) + eps). 30 bytes a parameter in bf16: nothing is read or written twice.
#include "pointwise.cuh"

struct AdamWArgs {
    float *w, *m, *v;
    const float *g;
    void *compute; // the new weight in the storage type; may be null
    i64 n;
    float beta1, beta2, eps, step, decay, vscale, grad_scale; // step = lr/(1-b1^s), decay = lr·wd, vscale = 1/sqrt(1-b2^s)
};

template <class T> HD void adamw(const AdamWArgs &a) {
    i64 i = 8 * ((i64)blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= a.n) return;
    float w[8], m[8], v[8], g[8];
    load_part(i, a.n, w, a.w, m, a.m, v, a.v, g, a.g);
    for (int k = 0; k < 8; k++) {
        float d = g[k] * a.grad_scale;
        m[k] = fmaf(a.beta1, m[k], (1.0f - a.beta1) * d);
        v[k] = fmaf(a.beta2, v[k], (1.0f - a.beta2) * (d * d));
        w[k] = fmaf(-a.decay, w[k], w[k]);
        w[k] = fmaf(-a.step, m[k] / fmaf(sqrtf(v[k]), a.vscale, a.eps), w[k]);
    }
    store_part(i, a.n, a.w, w);
    store_part(i, a.n, a.m, m);
    store_part(i, a.n, a.v, v);
    if (a.compute) store_part(i, a.n, (T *)a.compute, w);
}
KERNELS(adamw, AdamWArgs, 256)
