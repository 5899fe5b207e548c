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
	// Offload, where not nil, is the host backend that holds the matrices' masters and moments and makes their updates, so
	// that the device need not. The backend of the model is then a kernels.Flat. Models that work at the same time need one
	// each.
	Offload kernels.Backend
}

// Model is the weights on one backend and what computing with them needs. Close frees it all.
type Model struct {
	Config Config
	be     kernels.Backend
	opt    Options

	flat        kernels.Flat // the backend, where it is one
	rank, world int

	params     []Param
	byName     map[string]int
	buckets    []bucket
	words      int            // of all parameters
	decayWords int            // the first part, where weight decay applies
	w, grad    arena          // masters and gradients
	m1, m2     arena          // Adam moments, made when first asked for
	compute    kernels.Buffer // what products read: panels, or on a Flat backend all matrices in order, (decayWords)
	exchange   exchange       // of gradients, when sharded
	gathered   gathered

	embed     linear
	layers    []layer
	finalNorm *Param
	head      linear
	linears   []*linear // those that products read, for Repack
	matrices  []*linear // all, embedding and convs included

	source source     // what a loaded folder held besides the parameters
	ws     *workspace // activations; see workspace.go
}

// linear is a matrix: weight, compute copy and gradient.
type linear struct {
	kernels.Weight
	grad  kernels.Buffer
	param *Param
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
	m := &Model{Config: cfg, be: be, opt: opt, world: 1, params: cfg.paramList(), byName: map[string]int{}}
	if m.flat, _ = be.(kernels.Flat); m.flat != nil {
		if err := m.flat.CheckShapes(cfg.Hidden, cfg.MLP, cfg.GDN(), cfg.Attn()); err != nil {
			return nil, err
		}
		m.rank, m.world = m.flat.Rank()
	} else if opt.Offload != nil {
		return nil, fmt.Errorf("backend %s keeps everything on the host already: nothing to offload; set model.offload=false, or backend=cuda on a machine with a GPU", be.Name())
	}
	m.buckets, m.decayWords, m.words = layout(m.params, m.world)
	if err := m.alloc(); err != nil {
		m.Close()
		return nil, err
	}
	m.ws = newWorkspace(be)
	return m, nil
}

// alloc makes the arenas and points parameters and layers at them.
func (m *Model) alloc() error {
	masters := m.be
	if m.opt.Offload != nil {
		masters = m.opt.Offload
	}
	var err error
	if m.w, err = m.newArena("weights", masters); err != nil {
		return fmt.Errorf("allocate weights: %w", err)
	}
	if m.opt.Train {
		if m.grad, err = m.newArena("gradients", m.be); err != nil {
			return fmt.Errorf("allocate gradients: %w", err)
		}
	}
	for i := range m.params {
		p := &m.params[i]
		m.byName[p.Name] = i
		if !p.Decay || !m.sharded() {
			if be, w := m.local(&m.w, p); be == m.be {
				p.W = w
			}
			if m.opt.Train {
				_, p.Grad = m.local(&m.grad, p)
			}
		}
	}
	if m.opt.Train && m.sharded() {
		if err := m.allocExchange(); err != nil {
			return err
		}
	}
	m.connect()
	return m.allocCompute()
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
	l.grad, l.param = p.Grad, p
	m.matrices = append(m.matrices, l)
}

// allocCompute gives every projection its compute copy, on a Flat backend every matrix.
func (m *Model) allocCompute() error {
	if m.flat != nil {
		return m.allocFlat()
	}
	total := 0
	for _, l := range m.linears {
		total += align(m.be.PackSize(l.Out, l.In))
	}
	var err error
	if m.compute, err = m.be.Alloc("compute weights", total); err != nil {
		return fmt.Errorf("allocate compute weights: %w", err)
	}
	off := 0
	for _, l := range m.linears {
		n := m.be.PackSize(l.Out, l.In)
		l.Compute = m.compute.Slice(off, n)
		off += align(n)
	}
	return nil
}

func (m *Model) allocFlat() error {
	var err error
	if m.compute, err = m.be.Alloc("compute weights", m.be.Words(m.decayWords)); err != nil {
		return fmt.Errorf("allocate compute weights: %w", err)
	}
	for _, l := range m.matrices {
		l.Compute = m.compute.Slice(m.be.Words(l.param.off), m.be.Words(l.param.size()))
	}
	return nil
}

// Backend is where the model lives.
func (m *Model) Backend() kernels.Backend { return m.be }

// Repack makes the compute copies anew. It must follow every change of the master weights. On a Flat backend updates and
// loading make them as they go.
func (m *Model) Repack() {
	if m.flat != nil {
		return
	}
	for _, l := range m.linears {
		m.be.Pack(l.Weight)
	}
}

// ZeroGrad sets every gradient to zero.
func (m *Model) ZeroGrad() {
	m.be.Zero(m.grad.whole)
	m.exchange.reduced = false
}

// CopyWeightsFrom takes the weights of another model of the same shape, which may live on another backend.
func (m *Model) CopyWeightsFrom(other *Model) error {
	if len(m.params) != len(other.params) {
		return errors.New("copy weights: the models differ in shape")
	}
	for i := range m.params {
		if a, b := m.params[i], other.params[i]; a.Name != b.Name || a.size() != b.size() {
			return fmt.Errorf("copy weights: %s is %v, the other model has %s %v", a.Name, a.Shape, b.Name, b.Shape)
		}
	}
	err := m.setValues(func(p *Param, values []float32) error {
		other.Values(other.Param(p.Name), values)
		return other.be.Sync()
	})
	if err != nil {
		return fmt.Errorf("copy weights: %w", err)
	}
	return nil
}

// Close frees the model's memory and files. It may be called twice.
func (m *Model) Close() error {
	if m.ws != nil {
		m.ws.free()
	}
	for _, a := range []*arena{&m.w, &m.grad, &m.m1, &m.m2} {
		a.free()
	}
	m.endFetch()
	m.exchange.free(m.be)
	m.be.Free(m.compute)
	m.compute = kernels.Buffer{}
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
