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

	// Of Learn, see kernels.PolicyResult: each token's share of the loss, its ratio, and the clip that holds it back.
	Loss, Ratio []float32
	Clip        []int32
}

// Forward runs the model over packed rows. The bits of a row's results depend on the row and the temperature alone.
func (m *Model) Forward(b Batch, opt ForwardOptions) (Stats, error) {
	a, err := m.prepare(b, opt)
	if err != nil {
		return Stats{}, fmt.Errorf("forward: %w", err)
	}
	m.layersForward(a)
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

// layersForward takes the token ids to the last layer's output.
func (m *Model) layersForward(a *activations) {
	m.be.Embed(a.x[0], a.ids, m.embed.Weight, a.T)
	for i := range m.layers {
		m.layerForward(a, i)
	}
	last := len(m.layers) - 1
	m.be.Add(a.x[last+1], a.layers[last].mid, a.T*m.Config.Hidden)
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
		policy: opt.Grad && m.TakesObjectives(),
		keep:   opt.Grad && !m.opt.Recompute, inputs: opt.Grad && m.opt.Recompute, grads: opt.Grad}
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

// layerForward takes layer i-1's output, whose last addition is still to be made, to layer i's: the sum of a.x[i+1] and the
// layer's mid. Additions are made by the norm that follows them.
func (m *Model) layerForward(a *activations, i int) {
	l, act, H, eps := &m.layers[i], &a.layers[i], m.Config.Hidden, float32(m.Config.Eps)
	if i == 0 {
		m.be.RMSNorm(act.norm, act.rstd, a.x[i], l.inNorm.W, a.T, H, eps)
	} else {
		m.be.AddRMSNorm(act.norm, act.rstd, a.x[i], a.layers[i-1].mid, l.inNorm.W, a.T, H, eps)
	}
	m.layerHidden(a, i)
	m.be.Linear(a.x[i+1], act.y, l.down.Weight, a.T)
}

// layerHidden computes all of a layer between the input norm and the down projection.
func (m *Model) layerHidden(a *activations, i int) {
	l, act := &m.layers[i], &a.layers[i]
	if l.gdn != nil {
		m.gdnLayer(l.gdn, act, a)
	} else {
		m.attentionLayer(l.attn, act, a)
	}
	m.mlpHidden(l, act, a.x[i], a.T)
}

// gdnLayer is the gated delta net: mid = out(norm(rule(conv(qkv)), z)) of the normed input.
func (m *Model) gdnLayer(w *gdnWeights, act *layerActs, a *activations) {
	be, T, s, g := m.be, a.T, m.Config.GDN(), &act.gdn
	be.Linear(g.raw, act.norm, w.qkv.Weight, T)
	be.Linear(g.z, act.norm, w.z.Weight, T)
	be.Linear(g.b, act.norm, w.b.Weight, T)
	be.Linear(g.a, act.norm, w.a.Weight, T)
	be.ConvSiLU(g.qkv, g.raw, w.conv.Weight, a.seg)
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

// mlpHidden adds the layer's input x to mid and computes silu(gate)*up of the norm of that; the down projection is the
// caller's.
func (m *Model) mlpHidden(l *layer, act *layerActs, x kernels.Buffer, T int) {
	be, H := m.be, m.Config.Hidden
	be.AddRMSNorm(act.norm2, act.rstd2, act.mid, x, l.postNorm.W, T, H, float32(m.Config.Eps))
	be.Linear(act.gate, act.norm2, l.gate.Weight, T)
	be.Linear(act.up, act.norm2, l.up.Weight, T)
	be.SwiGLU(act.y, act.gate, act.up, T*m.Config.MLP)
}

// headForward takes the wanted tokens' log-probs.
func (m *Model) headForward(a *activations) {
	if a.N == 0 {
		return
	}
	m.headHidden(a)
	m.be.HeadForward(a.logp, a.entropy, a.lse, a.final, m.head.Weight, a.targets, a.N, 1/a.temps)
}

// headHidden gathers the hidden states that predict wanted tokens and takes the final norm.
func (m *Model) headHidden(a *activations) {
	be, H := m.be, m.Config.Hidden
	be.Gather(a.picked, a.x[len(m.layers)], a.rows, a.N, a.T, H)
	be.RMSNorm(a.final, a.rstd, a.picked, m.finalNorm.W, a.N, H, float32(m.Config.Eps))
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
