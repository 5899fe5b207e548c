// gdn_scan_backward: the walk from a row's end to its start (gdn.cuh): dv, and D between the chunks.
#include "gdn_walk.cuh"

struct GDNScanBackwardArgs {
    void *dv;            // token stride Ch
    void *dstate;        // [T/64,Hv,Dv,Dk]
    float *dfirst;       // [rows,Hv,Dk,Dv], the gradient of the state before each row; may be null
    GDNWalkArgs in;
    const void *dout;    // [T,Hv,Dv]
    const float *dlast;  // [rows,Hv,Dk,Dv], the gradient of the state after each row; null = 0
};

// Grid and warps as in gdn_scan.
template <class T, int DK> HD void gdn_scan_backward(const GDNScanBackwardArgs &a) {
    using Walk = GDNWalk<T, DK>;
    DYNAMIC(u8, memory);
    Walk walk(a.in, &memory);
    int dv = walk.col, Dk = a.in.Dk;
    i64 stride = (i64)a.in.Hv * a.in.Dv;
    const T *dout = (const T *)a.dout + walk.t0 * stride + (i64)walk.h * a.in.Dv + walk.block_col;
    Frag<1, DK / 8> D;
    D.zero();
    if (a.dlast && walk.live) get_state(D, a.dlast, walk);
    walk.begin(dout, stride, -1);
    for (int step = 0; step < walk.chunks; step++) {
        typename Walk::Tiles t = walk.next(step, dout, stride);
        if (walk.live) {
            int c = walk.chunk(step), n = walk.tokens(c);
            i64 t0 = walk.t0 + (i64)c * GDN_C;
            if (step > 0) put_state((T *)a.dstate + ((gdn_slot(t0 + GDN_C) * a.in.Hv + walk.h) * a.in.Dv + dv) * Dk, Dk, D);
            Frag<1, 8> du, x;
            du.zero();
            {
                Rows<T, DK / 16> d;
                set_rows(d, D, walk.own, Walk::OWN_LD);
                rows_mma<false, FULL>(du, d, t.k, Walk::LD);
            }
            Rows<T, 4> r;
            get_transposed(x, t.x + 16 * warp_id(), walk.ldx);
            each(du, [&](float &y, int b, int i) { y *= t.gate[frag_col(b, i)].k_out; });
            set_rows(r, x, walk.own, Walk::OWN_LD);
            pair_mma<true>(du, r, t.P, t.ldp, n);
            each(du, [&](float &y, int b, int i) { y *= t.gate[frag_col(b, i)].beta; });
            each(x, [&](float &y, int b, int i) { y *= t.gate[frag_col(b, i)].q_in; });
            float end = t.gate[n - 1].gamma;
            each(D, [&](float &y, int, int) { y *= end; });
            set_rows(r, x, walk.own, Walk::OWN_LD);
            rows_mma<true, FULL>(D, r, t.q, Walk::LD);
            x.zero();
            set_rows(r, du, walk.own, Walk::OWN_LD);
            pair_mma<true>(x, r, t.A, t.ldp, n);
            each(du, [&](float &y, int b, int i) { y = -t.gate[frag_col(b, i)].k_in * x.v[0][b][i]; });
            set_rows(r, du, walk.own, Walk::OWN_LD);
            rows_mma<true, FULL>(D, r, t.k, Walk::LD);
            put_transposed((T *)a.dv + t0 * a.in.Ch + (i64)walk.h * a.in.Dv + dv, a.in.Ch, n, x, walk.own);
        }
        walk.done();
    }
    if (a.dfirst && walk.live) put_last(a.dfirst, D, walk);
}
GDN_KERNELS(gdn_scan_backward, GDNScanBackwardArgs, 128, 1)
