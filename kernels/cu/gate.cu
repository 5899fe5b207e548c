// The attention's output gate: y = o·sigmoid(gate), gate the second half of each head of qg (T,Hq,2D).
#include "pointwise.cuh"

struct OutputGateArgs {
    void *y, *dqg;
    const void *dy, *o, *qg;
    i64 rows; // T·Hq
    i32 D;
};

constexpr int THREADS = 256;

// gate_at finds a thread's chunk: its offset in [rows,D] and in the gates of [rows,2D]. A block has blockDim / (D/8) rows.
HD bool gate_at(const OutputGateArgs &a, i64 &at, i64 &gate) {
    int per = a.D / 8, r = threadIdx.x / per, c = threadIdx.x % per * 8, rows = blockDim.x / per;
    i64 row = (i64)blockIdx.x * rows + r;
    at = row * a.D + c;
    gate = (2 * row + 1) * a.D + c;
    return r < rows && row < a.rows;
}

template <class T> HD void output_gate(const OutputGateArgs &a) {
    i64 at, gate;
    if (!gate_at(a, at, gate)) return;
    float o[8], z[8];
    ld8(o, (const T *)a.o + at), ld8(z, (const T *)a.qg + gate);
    for (int i = 0; i < 8; i++) o[i] *= sigmoid_of<T>(z[i]);
    st8((T *)a.y + at, o);
}
KERNELS(output_gate, OutputGateArgs, THREADS)

// y = do = dy·s, gates of dqg = dy·o·s·(1-s); do may be o or dy.
template <class T> HD void output_gate_backward(const OutputGateArgs &a) {
    i64 at, gate;
    if (!gate_at(a, at, gate)) return;
    float o[8], z[8], dy[8];
    ld8(o, (const T *)a.o + at), ld8(z, (const T *)a.qg + gate), ld8(dy, (const T *)a.dy + at);
    for (int i = 0; i < 8; i++) {
        float s = sigmoid_of<T>(z[i]);
        z[i] = dy[i] * o[i] * (s * (1.0f - s));
        o[i] = dy[i] * s;
    }
    st8((T *)a.y + at, o), st8((T *)a.dqg + gate, z);
}
KERNELS(output_gate_backward, OutputGateArgs, THREADS)
