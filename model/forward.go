package model

import (
	"errors"
	"fmt"
	"math"

	"harness-s/kernels"
)

// ForwardOptions says what Forward computes.
type ForwardOptions struct {
	Temperature float32 // logits are divided by it; 0 = 1
	Grad        bool    // keep activations for Backward
}

// Stats are per token, len(Tokens) each; entry t belongs to token t given the tokens before it in its row. The first
// entry of a row and tokens that were not wanted have 0.
type Stats struct {
	Logp    []float32 // log-probability of the token at the temperature, <= 0
	Entropy []float32 // nats, of the distribution the token was drawn from
}

// Forward runs the model over packed rows. The bits of a row's results depend on the row and the temperature alone.
func (m *Model) Forward(b Batch, opt ForwardOptions) (Stats, error) {
	a, err := m.prepare(b, opt)
	if err != nil {
		return Stats{}, fmt.Errorf("forward: %w", err)
	}
	m.be.Embed(a.x[0], a.ids, m.embed.W, a.T, m.Config.Hidden, m.Config.Vocab)
	for i := range m.layers {
		m.layerForward(a, i)
	}
	m.headForward(a)
	stats := m.collect(a, len(b.Tokens))
	if err := m.be.Sync(); err != nil {
		return Stats{}, fmt.Errorf("forward: %w", err)
	}
	if opt.Grad {
		m.ws.kept = a
	}
	return stats, nil
}

// prepare checks the batch, carves the arena and uploads ids, positions and targets.
func (m *Model) prepare(b Batch, opt ForwardOptions) (*activations, error) {
	if err := b.check(m.Config.Vocab); err != nil {
		return nil, err
	}
	if opt.Temperature == 0 {
		opt.Temperature = 1
	}
	if !(opt.Temperature > 0) || math.IsInf(float64(opt.Temperature), 0) {
		return nil, fmt.Errorf("temperature %g, want a positive number", opt.Temperature)
	}
	if opt.Grad && !m.opt.Train {
		return nil, errors.New("the model was made without Options.Train, it keeps no gradients")
	}
	a := &activations{T: len(b.Tokens), seg: b.segments(), train: opt.Grad, temps: opt.Temperature, source: b.wanted()}
	a.N = len(a.source)
	p := planner{cfg: &m.Config, gdnSaved: m.be.GDNSaved,
		keep: opt.Grad && !m.opt.Recompute, inputs: opt.Grad && m.opt.Recompute, grads: opt.Grad}
	if err := m.ws.carve(func(c *carver) { p.plan(a, c) }); err != nil {
		return nil, err
	}
	m.be.UploadInts(a.ids, b.Tokens)
	m.be.UploadInts(a.pos, b.positions())
	rows, targets := make([]int32, a.N), make([]int32, a.N)
	for i, t := range a.source {
		rows[i], targets[i] = t-1, b.Tokens[t]
	}
	m.be.UploadInts(a.rows, rows)
	m.be.UploadInts(a.targets, targets)
	return a, nil
}

// layerForward computes a.x[i+1] from a.x[i].
func (m *Model) layerForward(a *activations, i int) {
	l, act := &m.layers[i], &a.layers[i]
	m.mixer(a, i)
	m.mlpHidden(l, act, a.T)
	m.be.Linear(a.x[i+1], act.y, l.down.Weight, a.T)
	m.be.Add(a.x[i+1], act.mid, a.T*m.Config.Hidden)
}

// mixer computes the layer's mid from its input.
func (m *Model) mixer(a *activations, i int) {
	l, act, x := &m.layers[i], &a.layers[i], a.x[i]
	m.be.RMSNorm(act.norm, act.rstd, x, l.inNorm.W, a.T, m.Config.Hidden, float32(m.Config.Eps))
	if l.gdn != nil {
		m.gdnLayer(l.gdn, act, a)
	} else {
		m.attentionLayer(l.attn, act, a)
	}
	m.be.Add(act.mid, x, a.T*m.Config.Hidden)
}

// gdnLayer is the gated delta net: mid = out(norm(rule(conv(qkv)), z)) of the normed input.
func (m *Model) gdnLayer(w *gdnWeights, act *layerActs, a *activations) {
	be, T, s, g := m.be, a.T, m.Config.GDN(), &act.gdn
	be.Linear(g.raw, act.norm, w.qkv.Weight, T)
	be.Linear(g.z, act.norm, w.z.Weight, T)
	be.Linear(g.b, act.norm, w.b.Weight, T)
	be.Linear(g.a, act.norm, w.a.Weight, T)
	be.ConvSiLU(g.qkv, g.raw, w.conv.W, a.seg, s.Channels(), s.K)
	be.GDNGates(g.g, g.beta, g.a, g.b, w.aLog.W, w.dtBias.W, T, s.Hv)
	be.GDN(g.o, g.saved, g.qkv, g.g, g.beta, s, a.seg)
	be.GatedRMSNorm(g.y, g.o, g.z, w.norm.W, T*s.Hv, s.Dv, s.Eps)
	be.Linear(act.mid, g.y, w.out.Weight, T)
}

// attentionLayer is gated full attention: mid = o(attention(rope(norm(q,k)), v) * sigmoid(gate)) of the normed input.
func (m *Model) attentionLayer(w *attnWeights, act *layerActs, a *activations) {
	be, T, s, t := m.be, a.T, m.Config.Attn(), &act.attn
	be.Linear(t.qg, act.norm, w.q.Weight, T)
	be.Linear(t.k, act.norm, w.k.Weight, T)
	be.Linear(t.v, act.norm, w.v.Weight, T)
	be.QKNormRope(t.qr, t.kr, t.qg, t.k, w.qNorm.W, w.kNorm.W, a.pos, T, s)
	be.Attention(t.o, t.lse, t.qr, t.kr, t.v, s, a.seg)
	be.OutputGate(t.y, t.o, t.qg, T, s)
	be.Linear(act.mid, t.y, w.o.Weight, T)
}

// mlpHidden computes silu(gate)*up of the normed mid; the down projection is the caller's.
func (m *Model) mlpHidden(l *layer, act *layerActs, T int) {
	be, H := m.be, m.Config.Hidden
	be.RMSNorm(act.norm2, act.rstd2, act.mid, l.postNorm.W, T, H, float32(m.Config.Eps))
	be.Linear(act.gate, act.norm2, l.gate.Weight, T)
	be.Linear(act.up, act.norm2, l.up.Weight, T)
	be.SwiGLU(act.y, act.gate, act.up, T*m.Config.MLP)
}

// headForward gathers the hidden states that predict wanted tokens and takes their log-probs.
func (m *Model) headForward(a *activations) {
	if a.N == 0 {
		return
	}
	be, H := m.be, m.Config.Hidden
	be.Embed(a.picked, a.rows, a.x[len(m.layers)], a.N, H, a.T) // a gather
	be.RMSNorm(a.final, a.rstd, a.picked, m.finalNorm.W, a.N, H, float32(m.Config.Eps))
	be.HeadForward(a.logp, a.entropy, a.lse, a.final, m.head.Weight, a.targets, a.N, 1/a.temps)
}

// collect spreads the wanted tokens' results over T entries.
func (m *Model) collect(a *activations, T int) Stats {
	s := Stats{Logp: make([]float32, T), Entropy: make([]float32, T)}
	logp, entropy := make([]float32, a.N), make([]float32, a.N)
	m.download(logp, a.logp)
	m.download(entropy, a.entropy)
	for i, t := range a.source {
		s.Logp[t], s.Entropy[t] = logp[i], entropy[i]
	}
	return s
}

func (m *Model) download(dst []float32, src kernels.Buffer) {
	if len(dst) > 0 {
		m.be.Download(dst, src)
	}
}
