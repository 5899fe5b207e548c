package bench

import "fmt"

// pointwise are the operations that memory bounds: norms, activations, convolution, gates, RoPE.
func (c *caseSet) pointwise() {
	c.norms()
	c.conv()
	c.mixerParts()
	cfg, n := c.cfg, c.T*c.cfg.MLP
	shape := fmt.Sprintf("T %d, I %d", c.T, cfg.MLP)
	c.add("swiglu forward", shape, passes(3, f(n)), bars["pointwise"], func(d *deviceArena) func() {
		y, gate, up := d.empty(d.words(n)), d.acts(n, 1), d.acts(n, 1)
		return func() { d.be.SwiGLU(y, gate, up, n) }
	})
	c.add("swiglu backward", shape, passes(5, f(n)), bars["pointwise"], func(d *deviceArena) func() {
		dgate, dup, dy, gate, up := d.empty(d.words(n)), d.empty(d.words(n)), d.acts(n, 1), d.acts(n, 1), d.acts(n, 1)
		return func() { d.be.SwiGLUBackward(dgate, dup, dy, gate, up, n) }
	})
}

func (c *caseSet) norms() {
	cfg, T, H := c.cfg, c.T, c.cfg.Hidden
	shape, eps := fmt.Sprintf("T %d, H %d", T, H), float32(cfg.Eps)
	c.add("rmsnorm forward", shape, passes(2, f(T)*f(H)), bars["rmsnorm forward"], func(d *deviceArena) func() {
		y, rstd, x, w := d.empty(d.words(T*H)), d.empty(T), d.acts(T*H, 1), d.fp32(H, 0, 0.1)
		return func() { d.be.RMSNorm(y, rstd, x, w, T, H, eps) }
	})
	c.add("add+rmsnorm forward", shape, passes(4, f(T)*f(H)), bars["pointwise"], func(d *deviceArena) func() {
		y, rstd, x, res, w := d.empty(d.words(T*H)), d.empty(T), d.acts(T*H, 1), d.acts(T*H, 1e-3), d.fp32(H, 0, 0.1)
		return func() { d.be.AddRMSNorm(y, rstd, x, res, w, T, H, eps) }
	})
	c.add("rmsnorm backward", shape, passes(4, f(T)*f(H)), bars["rmsnorm backward"], func(d *deviceArena) func() {
		dx, dw, dy, x := d.empty(d.words(T*H)), d.empty(H), d.acts(T*H, 1e-3), d.acts(T*H, 1)
		rstd, w := d.fp32(T, 1, 0.1), d.fp32(H, 0, 0.1)
		return func() { d.be.RMSNormBackward(dx, dw, dy, x, rstd, w, T, H) }
	})
	s := cfg.GDN()
	rows, D := T*s.Hv, s.Dv
	gated := fmt.Sprintf("T %d, Hv %d d %d", T, s.Hv, D)
	c.add("gated rmsnorm forward", gated, passes(3, f(rows)*f(D)), bars["pointwise"], func(d *deviceArena) func() {
		y, x, z, w := d.empty(d.words(rows*D)), d.acts(rows*D, 1), d.acts(rows*D, 1), d.fp32(D, 1, 0.1)
		return func() { d.be.GatedRMSNorm(y, x, z, w, rows, D, s.Eps) }
	})
	c.add("gated rmsnorm backward", gated, passes(5, f(rows)*f(D)), bars["pointwise"], func(d *deviceArena) func() {
		dx, dz, dw, dy := d.empty(d.words(rows*D)), d.empty(d.words(rows*D)), d.empty(D), d.acts(rows*D, 1)
		x, z, w := d.acts(rows*D, 1), d.acts(rows*D, 1), d.fp32(D, 1, 0.1)
		return func() { d.be.GatedRMSNormBackward(dx, dz, dw, dy, x, z, w, rows, D, s.Eps) }
	})
}

func (c *caseSet) conv() {
	s, T, seg := c.cfg.GDN(), c.T, c.one
	ch := s.Channels()
	shape := fmt.Sprintf("T %d, %d channels, width %d", T, ch, s.K)
	c.add("conv+silu forward", shape, passes(2, f(T)*f(ch)), bars["pointwise"], func(d *deviceArena) func() {
		y, x, w := d.empty(d.words(T*ch)), d.acts(T*ch, 1), d.weight(ch, s.K)
		return func() { d.be.ConvSiLU(y, x, w, seg) }
	})
	c.add("conv+silu backward", shape, passes(3, f(T)*f(ch)), bars["pointwise"], func(d *deviceArena) func() {
		dx, dw, dy, x, w := d.empty(d.words(T*ch)), d.empty(ch*s.K), d.acts(T*ch, 1), d.acts(T*ch, 1), d.weight(ch, s.K)
		return func() { d.be.ConvSiLUBackward(dx, dw, dy, x, w, seg) }
	})
}

// mixerParts are the small operations around the two mixers.
func (c *caseSet) mixerParts() {
	g, s, T := c.cfg.GDN(), c.cfg.Attn(), c.T
	n := T * g.Hv
	gates := fmt.Sprintf("T %d, Hv %d", T, g.Hv)
	c.add("gdn gates forward", gates, Cost{Bytes: f(n) * (2*act + 2*word)}, nil, func(d *deviceArena) func() {
		gg, beta, a, b := d.empty(n), d.empty(n), d.acts(n, 1), d.acts(n, 1)
		aLog, dt := d.fp32(g.Hv, 1, 0.5), d.fp32(g.Hv, -4, 1)
		return func() { d.be.GDNGates(gg, beta, a, b, aLog, dt, T, g.Hv) }
	})
	c.add("gdn gates backward", gates, Cost{Bytes: f(n) * (4*act + 2*word)}, nil, func(d *deviceArena) func() {
		da, db, dALog, dDt := d.empty(d.words(n)), d.empty(d.words(n)), d.empty(g.Hv), d.empty(g.Hv)
		dg, dbeta, a, b := d.fp32(n, 0, 1), d.fp32(n, 0, 1), d.acts(n, 1), d.acts(n, 1)
		aLog, dt := d.fp32(g.Hv, 1, 0.5), d.fp32(g.Hv, -4, 1)
		return func() { d.be.GDNGatesBackward(da, db, dALog, dDt, dg, dbeta, a, b, aLog, dt, T, g.Hv) }
	})
	nq, nk := T*s.Hq*s.D, T*s.Hk*s.D
	heads := fmt.Sprintf("T %d, Hq %d Hk %d d %d", T, s.Hq, s.Hk, s.D)
	c.add("qk norm+rope forward", heads, passes(2, f(nq+nk)), bars["pointwise"], func(d *deviceArena) func() {
		q, k, qg, kk := d.empty(d.words(nq)), d.empty(d.words(nk)), d.acts(2*nq, 1), d.acts(nk, 1)
		wq, wk, pos := d.fp32(s.D, 0, 0.1), d.fp32(s.D, 0, 0.1), d.ids(T, T)
		return func() { d.be.QKNormRope(q, k, qg, kk, wq, wk, pos, T, s) }
	})
	c.add("qk norm+rope backward", heads, passes(3, f(nq+nk)), bars["pointwise"], func(d *deviceArena) func() {
		dqg, dk, dwq, dwk := d.empty(d.words(2*nq)), d.empty(d.words(nk)), d.empty(s.D), d.empty(s.D)
		dq, dkOut, qg, k := d.acts(nq, 1), d.acts(nk, 1), d.acts(2*nq, 1), d.acts(nk, 1)
		wq, wk, pos := d.fp32(s.D, 0, 0.1), d.fp32(s.D, 0, 0.1), d.ids(T, T)
		return func() { d.be.QKNormRopeBackward(dqg, dk, dwq, dwk, dq, dkOut, qg, k, wq, wk, pos, T, s) }
	})
	c.add("output gate forward", heads, passes(3, f(nq)), bars["pointwise"], func(d *deviceArena) func() {
		y, o, qg := d.empty(d.words(nq)), d.acts(nq, 1), d.acts(2*nq, 1)
		return func() { d.be.OutputGate(y, o, qg, T, s) }
	})
	c.add("output gate backward", heads, passes(5, f(nq)), bars["pointwise"], func(d *deviceArena) func() {
		do, dqg, dy, o, qg := d.empty(d.words(nq)), d.empty(d.words(2*nq)), d.acts(nq, 1), d.acts(nq, 1), d.acts(2*nq, 1)
		return func() { d.be.OutputGateBackward(do, dqg, dy, o, qg, T, s) }
	})
	H, V := c.cfg.Hidden, c.cfg.Vocab
	c.add("embedding forward", fmt.Sprintf("T %d, H %d", T, H), passes(2, f(T)*f(H)), bars["pointwise"], func(d *deviceArena) func() {
		y, ids, w := d.empty(d.words(T*H)), d.ids(T, V), d.weight(V, H)
		return func() { d.be.Embed(y, ids, w, T) }
	})
	c.add("embedding backward", fmt.Sprintf("T %d, H %d", T, H), Cost{Bytes: f(T) * f(H) * (act + 2*word)}, bars["pointwise"], func(d *deviceArena) func() {
		dw, dy, ids := d.empty(V*H), d.acts(T*H, 1), d.ids(T, V)
		return func() { d.be.EmbedBackward(dw, dy, ids, T, H, V) }
	})
}
