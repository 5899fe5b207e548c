package model

import (
	"errors"
	"fmt"
)

// Backward adds to the gradients those of sum_t coef[t]*logp[t] for the last Forward with Grad, and consumes what
// that kept. coef has len(Tokens); entries of tokens without a log-prob (a row's first, not wanted) are ignored.
func (m *Model) Backward(coef []float32) error {
	a := m.ws.kept
	if a == nil {
		return errors.New("backward: no Forward with Grad before it")
	}
	if len(coef) != a.T {
		return fmt.Errorf("backward: %d coefficients for %d tokens", len(coef), a.T)
	}
	m.ws.kept = nil
	picked := make([]float32, a.N)
	live := false
	for i, t := range a.source {
		picked[i] = coef[t]
		live = live || coef[t] != 0
	}
	if !live {
		return m.backwardNothing()
	}
	m.backward(a, picked)
	if err := m.be.Sync(); err != nil {
		return fmt.Errorf("backward: %w", err)
	}
	return nil
}

// backward runs through the buckets from the head's down to the embedding's. coef [N].
func (m *Model) backward(a *activations, coef []float32) {
	m.formHead(func() {
		m.be.HeadBackward(a.grads.final, m.head.grad, a.final, m.head.Weight, a.targets, a.lse, coef, 1/a.temps)
	})
	m.finalNormBackward(a)
	m.layersBackward(a)
}

// formHead runs what adds to the head's gradient. The embedding is the same matrix in a tied model, whose bucket stays open.
func (m *Model) formHead(f func()) {
	bucket := len(m.layers) + 1
	if m.Config.Tied {
		bucket = 0
	}
	m.openBucket(bucket)
	f()
	if !m.Config.Tied {
		m.closeBucket(bucket)
	}
}

// layersBackward runs through the buckets from the last layer's down to the embedding's.
func (m *Model) layersBackward(a *activations) {
	for i := len(m.layers) - 1; i >= 0; i-- {
		if m.opt.Recompute {
			act := &a.layers[i]
			m.be.RMSNorm(act.norm, act.rstd, a.x[i], m.layers[i].inNorm.W, a.T, m.Config.Hidden, float32(m.Config.Eps))
			m.layerHidden(a, i)
		}
		m.openBucket(i + 1)
		m.layerBackward(a, i)
		m.closeBucket(i + 1)
	}
	if !m.Config.Tied {
		m.openBucket(0)
	}
	m.be.EmbedBackward(m.embed.grad, a.grads.dx, a.ids, a.T, m.Config.Hidden, m.Config.Vocab)
	m.closeBucket(0)
}

// backwardNothing takes this rank's part in the exchange of gradients that the other ranks have.
func (m *Model) backwardNothing() error {
	m.formHead(func() {})
	m.exchangeLayers()
	return m.be.Sync()
}

// exchangeLayers is layersBackward with nothing to add.
func (m *Model) exchangeLayers() {
	for i := len(m.layers); i >= 1; i-- {
		m.openBucket(i)
		m.closeBucket(i)
	}
	if !m.Config.Tied {
		m.openBucket(0)
	}
	m.closeBucket(0)
}

// finalNormBackward sets dx to the gradient of the stream after the last layer, from that of the final norm's output.
func (m *Model) finalNormBackward(a *activations) {
	be, g, H := m.be, &a.grads, m.Config.Hidden
	be.Zero(g.picked)
	be.RMSNormBackward(g.picked, m.finalNorm.Grad, g.final, a.picked, a.rstd, m.finalNorm.W, a.N, H)
	be.Scatter(g.dx, g.picked, a.rows, a.N, a.T, H)
}

// layerBackward turns dx from the gradient of the layer's output into that of its input.
func (m *Model) layerBackward(a *activations, i int) {
	l, act := &m.layers[i], &a.layers[i]
	m.mlpBackward(l, act, a)
	if l.gdn != nil {
		m.gdnBackward(l.gdn, act, a)
	} else {
		m.attentionBackward(l.attn, act, a)
	}
	m.be.RMSNormBackward(a.grads.dx, l.inNorm.Grad, a.grads.dn, a.x[i], act.rstd, l.inNorm.W, a.T, m.Config.Hidden)
}

// mlpBackward adds the MLP's part to dx. The gradients of gate and up overwrite gate and up.
func (m *Model) mlpBackward(l *layer, act *layerActs, a *activations) {
	be, g, T, H, I := m.be, &a.grads, a.T, m.Config.Hidden, m.Config.MLP
	be.LinearBackwardWeight(l.down.grad, g.dx, act.y, T, H, I)
	be.LinearBackwardInput(g.wide, g.dx, l.down.Weight, T, false)
	be.SwiGLUBackward(act.gate, act.up, g.wide, act.gate, act.up, T*I)
	be.LinearBackwardWeight(l.gate.grad, act.gate, act.norm2, T, I, H)
	be.LinearBackwardWeight(l.up.grad, act.up, act.norm2, T, I, H)
	be.LinearBackwardInput(g.dn, act.gate, l.gate.Weight, T, false)
	be.LinearBackwardInput(g.dn, act.up, l.up.Weight, T, true)
	be.RMSNormBackward(g.dx, l.postNorm.Grad, g.dn, act.mid, act.rstd2, l.postNorm.W, T, H)
}

// gdnBackward sets dn, the gradient of the normed input, from dx, that of mid.
func (m *Model) gdnBackward(w *gdnWeights, act *layerActs, a *activations) {
	be, d, f, T, s := m.be, &a.grads.gdn, &act.gdn, a.T, m.Config.GDN()
	dx, dn, H, value, ch := a.grads.dx, a.grads.dn, m.Config.Hidden, s.Hv*s.Dv, s.Channels()
	be.LinearBackwardWeight(w.out.grad, dx, f.y, T, H, value)
	be.LinearBackwardInput(d.y, dx, w.out.Weight, T, false)
	be.GatedRMSNormBackward(d.o, d.z, w.norm.Grad, d.y, f.o, f.z, w.norm.W, T*s.Hv, s.Dv, s.Eps)
	be.GDNBackward(d.qkv, d.g, d.beta, d.o, f.saved, f.qkv, f.g, f.beta, s, a.seg)
	be.GDNGatesBackward(d.a, d.b, w.aLog.Grad, w.dtBias.Grad, d.g, d.beta, f.a, f.b, w.aLog.W, w.dtBias.W, T, s.Hv)
	be.ConvSiLUBackward(d.raw, w.conv.grad, d.qkv, f.raw, w.conv.Weight, a.seg)
	be.LinearBackwardWeight(w.qkv.grad, d.raw, act.norm, T, ch, H)
	be.LinearBackwardWeight(w.z.grad, d.z, act.norm, T, value, H)
	be.LinearBackwardWeight(w.b.grad, d.b, act.norm, T, s.Hv, H)
	be.LinearBackwardWeight(w.a.grad, d.a, act.norm, T, s.Hv, H)
	be.LinearBackwardInput(dn, d.raw, w.qkv.Weight, T, false)
	be.LinearBackwardInput(dn, d.z, w.z.Weight, T, true)
	be.LinearBackwardInput(dn, d.b, w.b.Weight, T, true)
	be.LinearBackwardInput(dn, d.a, w.a.Weight, T, true)
}

// attentionBackward sets dn, the gradient of the normed input, from dx, that of mid.
func (m *Model) attentionBackward(w *attnWeights, act *layerActs, a *activations) {
	be, d, f, T, s := m.be, &a.grads.attn, &act.attn, a.T, m.Config.Attn()
	dx, dn, H, q, k := a.grads.dx, a.grads.dn, m.Config.Hidden, s.Hq*s.D, s.Hk*s.D
	be.LinearBackwardWeight(w.o.grad, dx, f.y, T, H, q)
	be.LinearBackwardInput(d.y, dx, w.o.Weight, T, false)
	be.OutputGateBackward(d.o, d.qg, d.y, f.o, f.qg, T, s)
	be.AttentionBackward(d.qr, d.kr, d.v, d.o, f.o, f.lse, f.qr, f.kr, f.v, s, a.seg)
	be.QKNormRopeBackward(d.qg, d.k, w.qNorm.Grad, w.kNorm.Grad, d.qr, d.kr, f.qg, f.k, w.qNorm.W, w.kNorm.W, a.pos, T, s)
	be.LinearBackwardWeight(w.q.grad, d.qg, act.norm, T, 2*q, H)
	be.LinearBackwardWeight(w.k.grad, d.k, act.norm, T, k, H)
	be.LinearBackwardWeight(w.v.grad, d.v, act.norm, T, k, H)
	be.LinearBackwardInput(dn, d.qg, w.q.Weight, T, false)
	be.LinearBackwardInput(dn, d.k, w.k.Weight, T, true)
	be.LinearBackwardInput(dn, d.v, w.v.Weight, T, true)
}
