// gdn_scan: the walk along a row (gdn.cuh): o, and for backward e and the chunks' states.
#include "gdn_walk.cuh"

struct GDNScanArgs {
    void *o;            // [T,Hv,Dv]
    void *e, *state;    // [Hv,T,Dv], [T/64,Hv,Dv,Dk]; null without a backward pass
    float *last;        // [rows,Hv,Dk,Dv], the state after each row; may be null
    GDNWalkArgs in;
    const void *v;      // token stride Ch
    const float *first; // [rows,Hv,Dk,Dv], the state before each row; null = 0
};

// Grid: rows, value heads, blocks of Dv. A warp has 16 columns of S, transposed; warps share the tiles of a chunk and
// nothing else, so that how many make a block changes no bit.
template <class T, int DK> HD void gdn_scan(const GDNScanArgs &a) {
    using Walk = GDNWalk<T, DK>;
    DYNAMIC(u8, memory);
    Walk walk(a.in, &memory);
    int dv = walk.col, Dk = a.in.Dk;
    const T *v = (const T *)a.v + walk.t0 * a.in.Ch + (i64)walk.h * a.in.Dv + walk.block_col;
    i64 o_stride = (i64)a.in.Hv * a.in.Dv;
    Frag<1, DK / 8> S;
    S.zero();
    if (a.first && walk.live) get_state(S, a.first, walk);
    walk.begin(v, a.in.Ch, 1);
    for (int c = 0; c < walk.chunks; c++) {
        typename Walk::Tiles t = walk.next(c, v, a.in.Ch);
        if (walk.live) {
            i64 t0 = walk.t0 + (i64)c * GDN_C;
            int n = walk.tokens(c);
            if (a.state && c > 0) put_state((T *)a.state + ((gdn_slot(t0) * a.in.Hv + walk.h) * a.in.Dv + dv) * Dk, Dk, S);
            Frag<1, 8> x, o, e;
            x.zero(), o.zero(), e.zero();
            {
                Rows<T, DK / 16> s;
                set_rows(s, S, walk.own, Walk::OWN_LD);
                rows_mma<false, FULL>(x, s, t.k, Walk::LD);
                rows_mma<false, FULL>(o, s, t.q, Walk::LD);
            }
            Rows<T, 4> r;
            get_transposed(e, t.x + 16 * warp_id(), walk.ldx);
            each(x, [&](float &y, int b, int i) { y = fmaf(-t.gate[frag_col(b, i)].k_in, y, e.v[0][b][i]); });
            set_rows(r, x, walk.own, Walk::OWN_LD);
            e.zero();
            pair_mma<false>(e, r, t.A, t.ldp, n);
            if (a.e) put_transposed((T *)a.e + (walk.h * a.in.T + t0) * a.in.Dv + dv, a.in.Dv, n, e, walk.own);
            each(x, [&](float &y, int b, int i) { y = t.gate[frag_col(b, i)].beta * e.v[0][b][i]; });
            each(o, [&](float &y, int b, int i) { y *= t.gate[frag_col(b, i)].q_in; });
            set_rows(r, x, walk.own, Walk::OWN_LD);
            pair_mma<false>(o, r, t.P, t.ldp, n);
            each(x, [&](float &y, int b, int i) { y *= t.gate[frag_col(b, i)].k_out; });
            float end = t.gate[n - 1].gamma;
            each(S, [&](float &y, int, int) { y *= end; });
            set_rows(r, x, walk.own, Walk::OWN_LD);
            rows_mma<true, FULL>(S, r, t.k, Walk::LD);
            put_transposed((T *)a.o + t0 * o_stride + (i64)walk.h * a.in.Dv + dv, o_stride, n, o, walk.own);
        }
        walk.done();
    }
    if (a.last && walk.live) put_last(a.last, S, walk);
}
GDN_KERNELS(gdn_scan, GDNScanArgs, 128, 1)
