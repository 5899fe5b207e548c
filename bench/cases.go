package bench

import (
	"fmt"
	"slices"

	"harness-s/kernels"
	"harness-s/model"
)

// Case is one operation at one shape: what it costs at least, how to run it on a device, and what others reach.
type Case struct {
	Name, Shape string
	Cost        Cost
	Bars        []Bar
	setup       func(d *deviceArena) func() // allocates operands and gives the operation, which queues its work
}

// caseSet is the input of the cases of one model.
type caseSet struct {
	cfg    model.Config
	T      int
	one    kernels.Segments // T tokens in one row
	packed kernels.Segments // in eight
	list   []Case
}

// Cases are the operations of training a model on T tokens, a multiple of 8: one row, and eight where rows matter.
func Cases(cfg model.Config, T int) []Case {
	c := &caseSet{cfg: cfg, T: T, one: rows(1, T), packed: rows(8, T/8)}
	c.head()
	c.gdn()
	c.attention()
	c.pointwise()
	c.products()
	c.optimizer()
	return c.list
}

func rows(n, length int) kernels.Segments {
	s := kernels.Segments{Cu: []int32{0}}
	for i := range n {
		s.Cu = append(s.Cu, int32((i+1)*length))
	}
	return s
}

func (c *caseSet) add(name, shape string, cost Cost, bars []Bar, setup func(d *deviceArena) func()) {
	if c.cfg.Hidden < 1024 {
		bars = nil // they are of real models
	}
	c.list = append(c.list, Case{name, shape, cost, bars, setup})
}

func (c *caseSet) head() {
	cfg, T := c.cfg, c.T
	shape := fmt.Sprintf("T %d, H %d, V %d", T, cfg.Hidden, cfg.Vocab)
	forward, backward := headForward(&cfg, T), headBackward(&cfg, T)
	run := func(fwd, bwd bool, keep int) func(d *deviceArena) func() {
		return func(d *deviceArena) func() {
			h, dh := d.acts(T*cfg.Hidden, 1), d.empty(d.words(T*cfg.Hidden))
			w, dw := d.weight(cfg.Vocab, cfg.Hidden), d.empty(cfg.Vocab*cfg.Hidden)
			targets, stats := d.ids(T, cfg.Vocab), []kernels.Buffer{d.empty(T), d.empty(T), d.empty(T)}
			coef := make([]float32, T)
			for t := range coef {
				if t%2 < keep {
					coef[t] = 1e-3
				}
			}
			return func() {
				if fwd {
					d.be.HeadForward(stats[0], stats[1], stats[2], h, w, targets, T, 1)
				}
				if bwd {
					d.be.HeadBackward(dh, dw, h, w, targets, stats[2], coef, 1)
				}
			}
		}
	}
	c.add("head forward", shape, forward, bars["head forward"], run(true, false, 2))
	c.add("head backward", shape, backward, bars["head backward"], run(false, true, 2))
	c.add("head forward+backward", shape, forward.plus(backward), bars["head forward+backward"], run(true, true, 2))
	c.add("head backward, half the rows", shape, headBackward(&cfg, T/2), bars["head backward"], run(false, true, 1))
}

func (c *caseSet) gdn() {
	for _, seg := range []kernels.Segments{c.one, c.packed} {
		s, T := c.cfg.GDN(), seg.Tokens()
		shape := fmt.Sprintf("%dx%d, Hk %d Hv %d d %d", seg.Rows(), T/seg.Rows(), s.Hk, s.Hv, s.Dk)
		run := func(backward bool) func(d *deviceArena) func() {
			return func(d *deviceArena) func() {
				qkv, o := d.acts(T*s.Channels(), 1), d.empty(d.words(T*s.Hv*s.Dv))
				g, beta, saved := d.fp32(T*s.Hv, -0.05, 0.04), d.fp32(T*s.Hv, 0.5, 0.4), d.empty(d.be.GDNSaved(s, seg))
				forward := func() { d.be.GDN(o, saved, qkv, g, beta, s, seg) }
				if !backward {
					return forward
				}
				forward()
				do, dqkv := d.acts(T*s.Hv*s.Dv, 1), d.empty(d.words(T*s.Channels()))
				dg, dbeta := d.empty(T*s.Hv), d.empty(T*s.Hv)
				return func() { d.be.GDNBackward(dqkv, dg, dbeta, do, saved, qkv, g, beta, s, seg) }
			}
		}
		published := "" // the figures are of one shape
		if s.Hk == 16 && s.Hv == 32 && s.Dk == 128 && T == 32768 {
			published = fmt.Sprintf("/%d rows", seg.Rows())
		}
		c.add("gdn forward", shape, gdnForward(s, T), bars["gdn forward"+published], run(false))
		c.add("gdn backward", shape, gdnBackward(s, T), bars["gdn backward"+published], run(true))
	}
}

func (c *caseSet) attention() {
	for _, seg := range []kernels.Segments{c.one, c.packed} {
		s, T := c.cfg.Attn(), seg.Tokens()
		shape := fmt.Sprintf("%dx%d causal, Hq %d Hk %d d %d", seg.Rows(), T/seg.Rows(), s.Hq, s.Hk, s.D)
		run := func(backward bool) func(d *deviceArena) func() {
			return func(d *deviceArena) func() {
				nq, nk := T*s.Hq*s.D, T*s.Hk*s.D
				q, k, v := d.acts(nq, 1), d.acts(nk, 1), d.acts(nk, 1)
				o, lse := d.empty(d.words(nq)), d.empty(T*s.Hq)
				forward := func() { d.be.Attention(o, lse, q, k, v, s, seg) }
				if !backward {
					return forward
				}
				forward()
				do, dq, dk, dv := d.acts(nq, 1), d.empty(d.words(nq)), d.empty(d.words(nk)), d.empty(d.words(nk))
				return func() { d.be.AttentionBackward(dq, dk, dv, do, o, lse, q, k, v, s, seg) }
			}
		}
		c.add("attention forward", shape, attentionForward(s, seg), bars["attention forward"], run(false))
		c.add("attention backward", shape, attentionBackward(s, seg), bars["attention backward"], run(true))
	}
}

// optimizer is AdamW over a share of the parameters that any device holds: 2^28 of them at most.
func (c *caseSet) optimizer() {
	n := min(c.cfg.NumParams(), 1<<28) / 8 * 8
	c.add("adamw", fmt.Sprintf("%d parameters", n), adamW(n), bars["pointwise"], func(d *deviceArena) func() {
		w, m, v, g, compute := d.fp32(n, 0, 1), d.empty(n), d.empty(n), d.fp32(n, 0, 1), d.empty(d.words(n))
		p := kernels.AdamWParams{LR: 1e-6, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01, Step: 1, GradScale: 1}
		return func() { d.be.AdamWCast(compute, w, m, v, g, n, p) }
	})
	c.add("global norm", fmt.Sprintf("%d parameters", n), Cost{Bytes: word * f(n)}, bars["pointwise"], func(d *deviceArena) func() {
		g := d.fp32(n, 0, 1)
		return func() { d.be.SumSquares(g, n) }
	})
}

// products are the model's matrix products, a layer's at a time: forward, the input's gradient, the weight's gradient.
func (c *caseSet) products() {
	cfg, T := c.cfg, c.T
	s, value := cfg.GDN(), cfg.GDNHv*cfg.Dv
	groups := []struct {
		name string
		cost Cost
		dims [][2]int // out, in
	}{
		{"gdn projections", gdnProjections(&cfg, T), [][2]int{{s.Channels(), cfg.Hidden}, {value, cfg.Hidden}, {s.Hv, cfg.Hidden}, {s.Hv, cfg.Hidden}, {cfg.Hidden, value}}},
		{"attention projections", attentionProjections(&cfg, T), [][2]int{{2 * cfg.Hq * cfg.D, cfg.Hidden}, {cfg.Hk * cfg.D, cfg.Hidden}, {cfg.Hk * cfg.D, cfg.Hidden}, {cfg.Hidden, cfg.Hq * cfg.D}}},
		{"mlp products", mlpProducts(&cfg, T), [][2]int{{cfg.MLP, cfg.Hidden}, {cfg.MLP, cfg.Hidden}, {cfg.Hidden, cfg.MLP}}},
	}
	for _, g := range groups {
		shape := fmt.Sprintf("T %d, %d products", T, len(g.dims))
		for _, pass := range []string{"forward", "input gradient", "weight gradient"} {
			c.add(g.name+" "+pass, shape, g.cost, bars["product"], func(d *deviceArena) func() { return d.products(g.dims, T, pass) })
		}
	}
}

// products gives one pass over linear layers [out, in].
func (d *deviceArena) products(dims [][2]int, T int, pass string) func() {
	wide := 0
	for _, p := range dims {
		wide = max(wide, slices.Max(p[:]))
	}
	x, y := d.acts(T*wide, 1), d.acts(T*wide, 1)
	var run []func()
	for _, p := range dims {
		out, in := p[0], p[1]
		switch pass {
		case "forward":
			w := d.weight(out, in)
			run = append(run, func() { d.be.Linear(y, x, w, T) })
		case "input gradient":
			w := d.weight(out, in)
			run = append(run, func() { d.be.LinearBackwardInput(x, y, w, T, false) })
		default:
			dw := d.empty(out * in)
			run = append(run, func() { d.be.LinearBackwardWeight(dw, y, x, T, out, in) })
		}
	}
	return func() {
		for _, r := range run {
			r()
		}
	}
}
