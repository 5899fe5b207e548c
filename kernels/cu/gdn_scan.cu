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

// Grid: rows, value heads, blocks of Dv. The help is o, for which it takes S and e.
template <class T, int DK> HD void gdn_scan(const GDNScanArgs &a) {
    constexpr int HAND_S = 16 * DK / 2, HAND = HAND_S + 16 * GDN_C;
    using Walk = GDNWalk<T, DK, HAND, true>;
    DYNAMIC(u8, memory);
    Walk walk(a.in, &memory, a.v, a.in.Ch);
    int dv = walk.col, Dk = a.in.Dk;
    i64 o_stride = (i64)a.in.Hv * a.in.Dv;
    Frag<1, DK / 8> S;
    S.zero();
    if (a.first && walk.live && !walk.helps()) get_state(S, a.first, walk);

    // put_o ends what S q began.
    auto put_o = [&](Frag<1, 8> &o, Frag<1, 8> &e, const typename Walk::Tiles &t) {
        Rows<T, 4> r;
        if (a.e) put_transposed((T *)a.e + (walk.h * a.in.T + t.t0) * a.in.Dv + dv, a.in.Dv, t.n, e, walk.own);
        each(e, [&](float &y, int b, int i) { y *= t.gate[frag_col(b, i)].beta; });
        each(o, [&](float &y, int b, int i) { y *= t.gate[frag_col(b, i)].q_in; });
        set_rows(r, e, walk.own, Walk::OWN_LD);
        pair_mma<false>(o, r, t.P, Walk::LDP, t.n);
        put_transposed((T *)a.o + t.t0 * o_stride + (i64)walk.h * a.in.Dv + dv, o_stride, t.n, o, walk.own);
    };
    auto state_at = [&](i64 t0) { return (T *)a.state + ((gdn_slot(t0) * a.in.Hv + walk.h) * a.in.Dv + dv) * Dk; };

    auto state = [&](int step, const typename Walk::Tiles &t) {
        Frag<1, 8> x, o, e;
        Rows<T, 4> r;
        x.zero(), o.zero(), e.zero();
        {
            Rows<T, DK / 16> s;
            set_rows(s, S, walk.own, Walk::OWN_LD);
            if (walk.split) hand_on(t.hand, s);
            rows_mma<false, FULL>(x, s, t.k, Walk::LD);
            if (!walk.split) rows_mma<false, FULL>(o, s, t.q, Walk::LD);
        }
        if (!walk.split && a.state && step > 0) put_state(state_at(t.t0), Dk, S);
        get_transposed(e, t.x, Walk::LDX);
        each(x, [&](float &y, int b, int i) { y = fmaf(-t.gate[frag_col(b, i)].k_in, y, e.v[0][b][i]); });
        set_rows(r, x, walk.own, Walk::OWN_LD);
        e.zero();
        pair_mma<false>(e, r, t.A, Walk::LDP, t.n);
        if (walk.split) hand_on(t.hand + HAND_S, e);
        each(x, [&](float &y, int b, int i) { y = t.gate[frag_col(b, i)].beta * e.v[0][b][i] * t.gate[frag_col(b, i)].k_out; });
        float end = t.gate[t.n - 1].gamma;
        each(S, [&](float &y, int, int) { y *= end; });
        set_rows(r, x, walk.own, Walk::OWN_LD);
        rows_mma<true, FULL>(S, r, t.k, Walk::LD);
        if (!walk.split) put_o(o, e, t);
    };
    auto help = [&](int step, const typename Walk::Tiles &t) {
        Frag<1, 8> o, e;
        Rows<T, DK / 16> s;
        o.zero();
        take(s, t.hand);
        if (a.state && step > 0) put_state(state_at(t.t0), Dk, s);
        rows_mma<false, FULL>(o, s, t.q, Walk::LD);
        take(e, t.hand + HAND_S);
        put_o(o, e, t);
    };
    walk.run(state, help);
    if (a.last && walk.live && !walk.helps()) put_last(a.last, S, walk);
}
GDN_WALKS(gdn_scan, GDNScanArgs)
