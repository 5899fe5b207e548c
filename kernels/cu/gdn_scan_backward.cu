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

// Grid as in gdn_scan. The help is P'do and s q'(gamma do).
template <class T, int DK> HD void gdn_scan_backward(const GDNScanBackwardArgs &a) {
    constexpr int HAND_Q = 16 * GDN_C, HAND = HAND_Q + 16 * DK;
    using Walk = GDNWalk<T, DK, HAND, false>;
    DYNAMIC(u8, memory);
    i64 stride = (i64)a.in.Hv * a.in.Dv;
    Walk walk(a.in, &memory, a.dout, stride);
    int dv = walk.col, Dk = a.in.Dk;
    Frag<1, DK / 8> D;
    D.zero();
    if (a.dlast && walk.live && !walk.helps()) get_state(D, a.dlast, walk);

    // pairs_do makes P'do, gated_do and q_do make Q = q'(s gamma do).
    auto pairs_do = [&](Frag<1, 8> &y, const typename Walk::Tiles &t) {
        Frag<1, 8> x;
        Rows<T, 4> r;
        y.zero();
        get_transposed(x, t.x, Walk::LDX);
        set_rows(r, x, walk.own, Walk::OWN_LD);
        pair_mma<true>(y, r, t.P, Walk::LDP, t.n);
    };
    // Q [16,DK] in two halves, for want of registers.
    typedef Frag<1, DK / 16> Half;
    auto gated_do = [&](Rows<T, 4> &r, const typename Walk::Tiles &t) {
        Frag<1, 8> x;
        get_transposed(x, t.x, Walk::LDX);
        each(x, [&](float &y, int b, int i) { y *= t.gate[frag_col(b, i)].q_in; });
        set_rows(r, x, walk.own, Walk::OWN_LD);
    };
    auto q_do = [&](Half &Q, const Rows<T, 4> &r, const typename Walk::Tiles &t, int half) {
        Q.zero();
        rows_mma<true, FULL>(Q, r, t.q + half * DK / 2, Walk::LD);
    };

    auto state = [&](int step, const typename Walk::Tiles &t) {
        if (step > 0) put_state((T *)a.dstate + ((gdn_slot(t.t0 + GDN_C) * a.in.Hv + walk.h) * a.in.Dv + dv) * Dk, Dk, D);
        Frag<1, 8> du, y;
        Rows<T, 4> r;
        du.zero();
        {
            Rows<T, DK / 16> d;
            set_rows(d, D, walk.own, Walk::OWN_LD);
            rows_mma<false, FULL>(du, d, t.k, Walk::LD);
        }
        if (walk.split) take(y, t.hand);
        else pairs_do(y, t);
        each(du, [&](float &v, int b, int i) {
            const GDNGate &g = t.gate[frag_col(b, i)];
            v = g.beta * fmaf(g.k_out, v, y.v[0][b][i]);
        });
        float end = t.gate[t.n - 1].gamma;
        if (!walk.split) gated_do(r, t);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            Half Q;
            if (walk.split) take(Q, t.hand + HAND_Q + half * 8 * DK);
            else q_do(Q, r, t, half);
            each(Q, [&](float &v, int b, int i) { float &d = D.v[0][half * DK / 16 + b][i]; d = fmaf(end, d, v); });
        }
        y.zero();
        set_rows(r, du, walk.own, Walk::OWN_LD);
        pair_mma<true>(y, r, t.A, Walk::LDP, t.n);
        each(du, [&](float &v, int b, int i) { v = -t.gate[frag_col(b, i)].k_in * y.v[0][b][i]; });
        set_rows(r, du, walk.own, Walk::OWN_LD);
        rows_mma<true, FULL>(D, r, t.k, Walk::LD);
        put_transposed((T *)a.dv + t.t0 * a.in.Ch + (i64)walk.h * a.in.Dv + dv, a.in.Ch, t.n, y, walk.own);
    };
    auto help = [&](int, const typename Walk::Tiles &t) {
        {
            Frag<1, 8> y;
            pairs_do(y, t);
            hand_on(t.hand, y);
        }
        Rows<T, 4> r;
        gated_do(r, t);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            Half Q;
            q_do(Q, r, t, half);
            hand_on(t.hand + HAND_Q + half * 8 * DK, Q);
        }
    };
    walk.run(state, help);
    if (a.dfirst && walk.live && !walk.helps()) put_last(a.dfirst, D, walk);
}
GDN_WALKS(gdn_scan_backward, GDNScanBackwardArgs)
