package model

import (
	"fmt"

	"harness-s/kernels"
)

// workspace is the activation arena of one model: as large as the largest batch so far, carved anew for each.
type workspace struct {
	be    kernels.Backend
	arena kernels.Buffer
	kept  *activations // of the last Forward with Grad, until Backward
}

func newWorkspace(be kernels.Backend) *workspace { return &workspace{be: be} }

func (w *workspace) free() {
	w.be.Free(w.arena)
	w.arena, w.kept = kernels.Buffer{}, nil
}

// carve runs plan twice: first to count words, then on an arena that holds them. Nothing carved before is valid
// afterwards.
func (w *workspace) carve(plan func(c *carver)) error {
	w.kept = nil
	count := &carver{words: w.be.Words}
	plan(count)
	if count.peak > w.arena.Len() {
		w.free()
		arena, err := w.be.Alloc("activations", count.peak)
		if err != nil {
			return fmt.Errorf("allocate activations: %w", err)
		}
		w.arena = arena
	}
	plan(&carver{arena: w.arena, words: w.be.Words})
	return nil
}

// carver hands out consecutive aligned pieces of an arena. Without one it only counts.
type carver struct {
	arena     kernels.Buffer
	words     func(n int) int // that n activations take
	off, peak int
}

// acts is room for n activations.
func (c *carver) acts(n int) kernels.Buffer { return c.take(c.words(n)) }

func (c *carver) take(n int) kernels.Buffer {
	at := c.off
	c.off += align(n)
	c.peak = max(c.peak, c.off)
	if c.arena.IsNil() {
		return kernels.Buffer{}
	}
	return c.arena.Slice(at, n)
}

// alternatives carves several plans over the same words: only one of them is in use at a time.
func (c *carver) alternatives(plans ...func()) {
	at, end := c.off, c.off
	for _, plan := range plans {
		c.off = at
		plan()
		end = max(end, c.off)
	}
	c.off = end
}

// activations are one batch's buffers. Shapes as in kernels.Backend: in (parentheses) activations, in [brackets] words.
type activations struct {
	T, N   int // tokens; tokens whose log-prob is wanted
	seg    kernels.Segments
	train  bool // kept for Backward
	temps  float32
	source []int32 // [N] the wanted tokens' places, for coefficients

	ids, pos kernels.Buffer // int32 [T]
	x        []kernels.Buffer
	layers   []layerActs

	rows, targets       kernels.Buffer // int32 [N]: where each wanted token's hidden state lies, and its id
	picked, rstd, final kernels.Buffer // (N,H), [N], (N,H): those rows before and after the final norm
	logp, entropy, lse  kernels.Buffer // [N]

	grads  gradActs
	policy policyActs
}

// layerActs is what one layer computes. Either gdn or attn is used.
type layerActs struct {
	norm, rstd  kernels.Buffer // (T,H), [T] of the input norm
	gdn         gdnActs
	attn        attnActs
	mid         kernels.Buffer // (T,H) the stream after the mixer
	norm2       kernels.Buffer // (T,H)
	rstd2       kernels.Buffer // [T]
	gate, up, y kernels.Buffer // (T,I)
}

type gdnActs struct {
	raw, qkv kernels.Buffer // (T,Ch) before and after the conv
	z        kernels.Buffer // (T,Hv,Dv)
	a, b     kernels.Buffer // (T,Hv)
	g, beta  kernels.Buffer // [T,Hv]
	saved    kernels.Buffer // GDNSaved words; none without Backward
	o, y     kernels.Buffer // (T,Hv,Dv) before and after the gated norm
}

type attnActs struct {
	qg   kernels.Buffer // (T,Hq,2D)
	k, v kernels.Buffer // (T,Hk,D)
	qr   kernels.Buffer // (T,Hq,D) normed and rotated
	kr   kernels.Buffer // (T,Hk,D)
	o, y kernels.Buffer // (T,Hq,D) before and after the output gate
	lse  kernels.Buffer // [T,Hq]; none without Backward
}

// gradActs is the scratch of Backward, shared by all layers.
type gradActs struct {
	dx, dn kernels.Buffer // (T,H) gradient of the stream; of a norm's output
	wide   kernels.Buffer // (T,I)
	gdn    gdnActs        // gradients of the fields of the same name
	attn   attnActs
	picked kernels.Buffer // (N,H)
	final  kernels.Buffer // (N,H)
}

// planner says how a batch's activations are laid out.
type planner struct {
	cfg      *Config
	gdnSaved func(kernels.GDNShape, kernels.Segments) int
	// keep: every layer has its own buffers. Otherwise one set serves all; with inputs, the layers' inputs are kept.
	keep, inputs, grads bool
	policy              bool // room for an objective
}

func (p planner) plan(a *activations, c *carver) {
	T, N, H := a.T, a.N, p.cfg.Hidden
	layers := len(p.cfg.LayerTypes)
	a.ids, a.pos = c.take(T), c.take(T)
	a.x = make([]kernels.Buffer, layers+1)
	for i := range a.x {
		if p.keep || p.inputs || i < 2 {
			a.x[i] = c.acts(T * H)
		} else {
			a.x[i] = a.x[i-2]
		}
	}
	a.layers = make([]layerActs, layers)
	if p.keep {
		for i, t := range p.cfg.LayerTypes {
			p.layer(&a.layers[i], t, a, c)
		}
	} else {
		p.sharedLayer(a, c)
	}
	a.rows, a.targets = c.take(N), c.take(N)
	a.picked, a.rstd, a.final = c.acts(N*H), c.take(N), c.acts(N*H)
	a.logp, a.entropy, a.lse = c.take(N), c.take(N), c.take(N)
	if p.grads {
		p.gradients(a, c)
	}
	if p.policy {
		a.policy.plan(N, c)
	}
}

// sharedLayer makes one set of buffers serve every layer.
func (p planner) sharedLayer(a *activations, c *carver) {
	var gdn, attn layerActs
	c.alternatives(
		func() { p.layer(&gdn, LinearAttention, a, c) },
		func() { p.layer(&attn, FullAttention, a, c) })
	for i, t := range p.cfg.LayerTypes {
		a.layers[i] = attn
		if t == LinearAttention {
			a.layers[i] = gdn
		}
	}
}

func (p planner) layer(l *layerActs, layerType string, a *activations, c *carver) {
	T, H, I := a.T, p.cfg.Hidden, p.cfg.MLP
	l.norm, l.rstd = c.acts(T*H), c.take(T)
	if layerType == LinearAttention {
		l.gdn = p.gdn(T, c)
		l.gdn.y = c.acts(T * p.cfg.GDNHv * p.cfg.Dv)
		if p.grads {
			l.gdn.saved = c.take(p.gdnSaved(p.cfg.GDN(), a.seg))
		}
	} else {
		l.attn = p.attn(T, c)
		if p.grads {
			l.attn.lse = c.take(T * p.cfg.Hq)
		}
	}
	l.mid, l.norm2, l.rstd2 = c.acts(T*H), c.acts(T*H), c.take(T)
	l.gate, l.up, l.y = c.acts(T*I), c.acts(T*I), c.acts(T*I)
}

// step lays out one layer's buffers for decoding, where nothing is kept from layer to layer.
func (p planner) step(l *layerActs, T int, c *carver) {
	H, I := p.cfg.Hidden, p.cfg.MLP
	l.norm, l.mid, l.norm2 = c.acts(T*H), c.acts(T*H), c.acts(T*H)
	c.alternatives(
		func() { l.gdn = p.gdn(T, c); l.gdn.y = c.acts(T * p.cfg.GDNHv * p.cfg.Dv) },
		func() { l.attn = p.attn(T, c) },
		func() { l.gate, l.up, l.y = c.acts(T*I), c.acts(T*I), c.acts(T*I) })
}

func (p planner) gdn(T int, c *carver) gdnActs {
	s, hv := p.cfg.GDN(), p.cfg.GDNHv
	value := T * hv * p.cfg.Dv
	return gdnActs{raw: c.acts(T * s.Channels()), qkv: c.acts(T * s.Channels()), z: c.acts(value),
		a: c.acts(T * hv), b: c.acts(T * hv), g: c.take(T * hv), beta: c.take(T * hv), o: c.acts(value)}
}

func (p planner) attn(T int, c *carver) attnActs {
	q, k := T*p.cfg.Hq*p.cfg.D, T*p.cfg.Hk*p.cfg.D
	return attnActs{qg: c.acts(2 * q), k: c.acts(k), v: c.acts(k), qr: c.acts(q), kr: c.acts(k), o: c.acts(q), y: c.acts(q)}
}

func (p planner) gradients(a *activations, c *carver) {
	T, N, H := a.T, a.N, p.cfg.Hidden
	g := &a.grads
	g.dx, g.dn = c.acts(T*H), c.acts(T*H)
	c.alternatives(
		func() { g.picked, g.final = c.acts(N*H), c.acts(N*H) },
		func() { g.wide = c.acts(T * p.cfg.MLP) },
		func() { g.gdn = p.gdn(T, c); g.gdn.y = c.acts(T * p.cfg.GDNHv * p.cfg.Dv) },
		func() { g.attn = p.attn(T, c) })
}
