// Elementwise ops over n activations, a chunk of 8 a thread; n need not be a multiple of 8.
#include "pointwise.cuh"

struct MapArgs {
    void *y, *y2;
    const void *a, *b, *dy;
    i64 n;
};

constexpr int THREADS = 256;

// y += a
template <class T> HD void add(const MapArgs &m) {
    i64 i = 8 * ((i64)blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= m.n) return;
    float y[8], a[8];
    load_part(i, m.n, y, (const T *)m.y, a, (const T *)m.a);
    for (int k = 0; k < 8; k++) y[k] += a[k];
    store_part(i, m.n, (T *)m.y, y);
}
KERNELS(add, MapArgs, THREADS)

// y = silu(a)·b
template <class T> HD void swiglu(const MapArgs &m) {
    i64 i = 8 * ((i64)blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= m.n) return;
    float a[8], b[8];
    load_part(i, m.n, a, (const T *)m.a, b, (const T *)m.b);
    for (int k = 0; k < 8; k++) a[k] = a[k] * sigmoid_of<T>(a[k]) * b[k];
    store_part(i, m.n, (T *)m.y, a);
}
KERNELS(swiglu, MapArgs, THREADS)

// y = da = dy·b·silu'(a), y2 = db = dy·silu(a); y may be a and y2 b.
template <class T> HD void swiglu_backward(const MapArgs &m) {
    i64 i = 8 * ((i64)blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= m.n) return;
    float a[8], b[8], dy[8];
    load_part(i, m.n, a, (const T *)m.a, b, (const T *)m.b, dy, (const T *)m.dy);
    for (int k = 0; k < 8; k++) {
        float s = sigmoid_of<T>(a[k]), x = a[k];
        a[k] = dy[k] * b[k] * silu_grad(x, s);
        b[k] = dy[k] * x * s;
    }
    store_part(i, m.n, (T *)m.y, a);
    store_part(i, m.n, (T *)m.y2, b);
}
KERNELS(swiglu_backward, MapArgs, THREADS)
