package model

import (
	"errors"
	"fmt"

	"harness-s/kernels"
	"harness-s/model/safetensors"
)

// Options says what a model is made for.
type Options struct {
	Train     bool // allocate gradients, so that Forward may keep activations for Backward
	Recompute bool // keep only the layers' inputs and compute the rest again in Backward; same bits, less memory
}

// Model is the weights on one backend and what computing with them needs. Close frees it all.
type Model struct {
	Config Config
	be     kernels.Backend
	opt    Options

	params     []Param
	byName     map[string]int
	words      int            // of each arena
	decayWords int            // the first part, where weight decay applies
	w, grad    kernels.Buffer // arenas: masters and gradients
	m1, m2     kernels.Buffer // arenas: Adam moments, made when first asked for
	packed     kernels.Buffer // arena: compute copies

	embed     linear
	layers    []layer
	finalNorm *Param
	head      linear
	linears   []*linear // all of them, for Repack

	source source     // what a loaded folder held besides the parameters
	ws     *workspace // activations; see workspace.go
}

// linear is a projection: weight, compute copy and gradient.
type linear struct {
	kernels.Weight
	grad kernels.Buffer
}

// layer is one block: exactly one of gdn and attn is set.
type layer struct {
	inNorm, postNorm *Param
	gdn              *gdnWeights
	attn             *attnWeights
	gate, up, down   linear // the MLP's
}

type gdnWeights struct {
	qkv, z, b, a, out  linear
	conv               linear // [Ch,K]
	aLog, dtBias, norm *Param
}

type attnWeights struct {
	q, k, v, o   linear
	qNorm, kNorm *Param
}

// newModel allocates a model with zero weights.
func newModel(cfg Config, be kernels.Backend, opt Options) (*Model, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	m := &Model{Config: cfg, be: be, opt: opt, params: cfg.paramList(), byName: map[string]int{}}
	m.decayWords, m.words = layout(m.params)
	var err error
	if m.w, err = be.Alloc("weights", m.words); err != nil {
		return nil, fmt.Errorf("allocate weights: %w", err)
	}
	if opt.Train {
		if m.grad, err = be.Alloc("gradients", m.words); err != nil {
			m.Close()
			return nil, fmt.Errorf("allocate gradients: %w", err)
		}
	}
	for i := range m.params {
		p := &m.params[i]
		m.byName[p.Name] = i
		p.W = m.w.Slice(p.off, p.size())
		if opt.Train {
			p.Grad = m.grad.Slice(p.off, p.size())
		}
	}
	m.connect()
	if err := m.allocPacked(); err != nil {
		m.Close()
		return nil, err
	}
	m.ws = newWorkspace(be)
	return m, nil
}

// connect points the layers at their parameters.
func (m *Model) connect() {
	pre := m.Config.textPrefix()
	m.weight(&m.embed, pre+"embed_tokens.weight")
	m.finalNorm = m.Param(pre + "norm.weight")
	m.layers = make([]layer, len(m.Config.LayerTypes))
	for i := range m.layers {
		at := fmt.Sprintf("%slayers.%d.", pre, i)
		l := &m.layers[i]
		l.inNorm, l.postNorm = m.Param(at+"input_layernorm.weight"), m.Param(at+"post_attention_layernorm.weight")
		if m.Config.LayerTypes[i] == LinearAttention {
			l.gdn = m.connectGDN(at + "linear_attn.")
		} else {
			l.attn = m.connectAttn(at + "self_attn.")
		}
		m.linear(&l.gate, at+"mlp.gate_proj.weight")
		m.linear(&l.up, at+"mlp.up_proj.weight")
		m.linear(&l.down, at+"mlp.down_proj.weight")
	}
	if m.Config.Tied {
		m.linear(&m.head, pre+"embed_tokens.weight")
	} else {
		m.linear(&m.head, headName)
	}
}

func (m *Model) connectGDN(at string) *gdnWeights {
	g := &gdnWeights{aLog: m.Param(at + "A_log"), dtBias: m.Param(at + "dt_bias"), norm: m.Param(at + "norm.weight")}
	m.weight(&g.conv, at+"conv1d.weight")
	m.linear(&g.qkv, at+"in_proj_qkv.weight")
	m.linear(&g.z, at+"in_proj_z.weight")
	m.linear(&g.b, at+"in_proj_b.weight")
	m.linear(&g.a, at+"in_proj_a.weight")
	m.linear(&g.out, at+"out_proj.weight")
	return g
}

func (m *Model) connectAttn(at string) *attnWeights {
	a := &attnWeights{qNorm: m.Param(at + "q_norm.weight"), kNorm: m.Param(at + "k_norm.weight")}
	m.linear(&a.q, at+"q_proj.weight")
	m.linear(&a.k, at+"k_proj.weight")
	m.linear(&a.v, at+"v_proj.weight")
	m.linear(&a.o, at+"o_proj.weight")
	return a
}

// linear points l at a matrix that products read, which has a compute copy of its own.
func (m *Model) linear(l *linear, name string) {
	m.weight(l, name)
	m.linears = append(m.linears, l)
}

// weight points l at a matrix.
func (m *Model) weight(l *linear, name string) {
	p := m.Param(name)
	l.Weight = kernels.Weight{Master: p.W, Out: p.Shape[0], In: p.size() / p.Shape[0]}
	l.grad = p.Grad
}

// allocPacked gives every projection its compute copy.
func (m *Model) allocPacked() error {
	total := 0
	for _, l := range m.linears {
		total += align(m.be.PackSize(l.Out, l.In))
	}
	var err error
	if m.packed, err = m.be.Alloc("compute weights", total); err != nil {
		return fmt.Errorf("allocate compute weights: %w", err)
	}
	off := 0
	for _, l := range m.linears {
		n := m.be.PackSize(l.Out, l.In)
		l.Compute = m.packed.Slice(off, n)
		off += align(n)
	}
	return nil
}

// Backend is where the model lives.
func (m *Model) Backend() kernels.Backend { return m.be }

// Repack makes the compute copies anew. It must follow every change of the master weights.
func (m *Model) Repack() {
	for _, l := range m.linears {
		m.be.Pack(l.Weight)
	}
}

// ZeroGrad sets every gradient to zero.
func (m *Model) ZeroGrad() { m.be.Zero(m.grad) }

// CopyWeightsFrom takes the weights of another model of the same shape, which may live on another backend.
func (m *Model) CopyWeightsFrom(other *Model) error {
	if len(m.params) != len(other.params) || m.words != other.words {
		return errors.New("copy weights: the models differ in shape")
	}
	for i := range m.params {
		if a, b := m.params[i], other.params[i]; a.size() != b.size() || a.off != b.off {
			return fmt.Errorf("copy weights: %s is %v, the other model has %s %v", a.Name, a.Shape, b.Name, b.Shape)
		}
	}
	buf := make([]float32, min(m.words, 1<<20))
	for off := 0; off < m.words; off += len(buf) {
		n := min(len(buf), m.words-off)
		other.be.Download(buf[:n], other.w.Slice(off, n))
		m.be.Upload(m.w.Slice(off, n), buf[:n])
	}
	if err := other.be.Sync(); err != nil {
		return fmt.Errorf("copy weights: %w", err)
	}
	m.Repack()
	if err := m.be.Sync(); err != nil {
		return fmt.Errorf("copy weights: %w", err)
	}
	return nil
}

// Close frees the model's memory and files. It may be called twice.
func (m *Model) Close() error {
	if m.ws != nil {
		m.ws.free()
	}
	for _, b := range []*kernels.Buffer{&m.w, &m.grad, &m.m1, &m.m2, &m.packed} {
		m.be.Free(*b)
		*b = kernels.Buffer{}
	}
	return m.source.close()
}

// source is what a loaded folder held besides the parameters.
type source struct {
	set      *safetensors.Set             // open as long as tensors pass through
	extra    []*safetensors.Tensor        // tensors that pass through, byte for byte
	dtypes   map[string]safetensors.DType // of each parameter in the file
	metadata map[string]string            // of the first weight file
	files    map[string][]byte            // config.json, tokenizer files and the like
}

func (s *source) close() error {
	if s.set == nil {
		return nil
	}
	set := s.set
	s.set = nil
	return set.Close()
}
