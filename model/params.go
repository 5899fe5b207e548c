package model

import (
	"fmt"
	"strings"

	"harness-s/kernels"
)

// Param is one trained tensor.
type Param struct {
	Name  string         // as the checkpoint calls it
	Shape []int          // as the checkpoint has it
	W     kernels.Buffer // fp32 master; none for a matrix whose pieces several ranks own, or that lies on the host
	Grad  kernels.Buffer // fp32; none unless the model was made with Options.Train
	Decay bool           // whether weight decay applies: matrices yes; norms, A_log and dt_bias no

	off    int // words into the arenas, as if one rank owned all
	bucket int // of a matrix
}

// size is the number of elements.
func (p *Param) size() int { return product(p.Shape) }

func product(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// alignWords keeps every view 64-byte aligned.
const alignWords = 16

func align(n int) int { return (n + alignWords - 1) / alignWords * alignWords }

// textPrefix is what text tensors' names start with.
func (c *Config) textPrefix() string {
	if c.Multimodal {
		return "model.language_model."
	}
	return "model."
}

const headName = "lm_head.weight"

// paramList is every text tensor of the architecture: those that decay first, then the others, each in model order.
func (c *Config) paramList() []Param {
	var decay, plain []Param
	pre := c.textPrefix()
	matrix := func(name string, shape ...int) { decay = append(decay, Param{Name: name, Shape: shape, Decay: true}) }
	vector := func(name string, n int) { plain = append(plain, Param{Name: name, Shape: []int{n}}) }

	matrix(pre+"embed_tokens.weight", c.Vocab, c.Hidden)
	for i, t := range c.LayerTypes {
		at := fmt.Sprintf("%slayers.%d.", pre, i)
		vector(at+"input_layernorm.weight", c.Hidden)
		if t == LinearAttention {
			at := at + "linear_attn."
			value, s := c.GDNHv*c.Dv, c.GDN()
			matrix(at+"in_proj_qkv.weight", s.Channels(), c.Hidden)
			matrix(at+"in_proj_z.weight", value, c.Hidden)
			matrix(at+"in_proj_b.weight", c.GDNHv, c.Hidden)
			matrix(at+"in_proj_a.weight", c.GDNHv, c.Hidden)
			matrix(at+"conv1d.weight", s.Channels(), 1, c.K)
			vector(at+"A_log", c.GDNHv)
			vector(at+"dt_bias", c.GDNHv)
			vector(at+"norm.weight", c.Dv)
			matrix(at+"out_proj.weight", c.Hidden, value)
		} else {
			at := at + "self_attn."
			matrix(at+"q_proj.weight", 2*c.Hq*c.D, c.Hidden)
			matrix(at+"k_proj.weight", c.Hk*c.D, c.Hidden)
			matrix(at+"v_proj.weight", c.Hk*c.D, c.Hidden)
			matrix(at+"o_proj.weight", c.Hidden, c.Hq*c.D)
			vector(at+"q_norm.weight", c.D)
			vector(at+"k_norm.weight", c.D)
		}
		vector(at+"post_attention_layernorm.weight", c.Hidden)
		matrix(at+"mlp.gate_proj.weight", c.MLP, c.Hidden)
		matrix(at+"mlp.up_proj.weight", c.MLP, c.Hidden)
		matrix(at+"mlp.down_proj.weight", c.Hidden, c.MLP)
	}
	vector(pre+"norm.weight", c.Hidden)
	if !c.Tied {
		matrix(headName, c.Vocab, c.Hidden)
	}
	return append(decay, plain...)
}

// layout gives every parameter its place in the arenas and returns the buckets, the words of the decaying part, which they
// make up, and of all. Buckets are padded so that world ranks can own equal, aligned parts.
func layout(params []Param, world int) (buckets []bucket, decayWords, words int) {
	for i := range params {
		p := &params[i]
		if p.Decay && (i == 0 || bucketName(p.Name) != bucketName(params[i-1].Name)) {
			words = closeBucket(buckets, words, world)
			buckets = append(buckets, bucket{off: words})
		}
		if !p.Decay && params[i-1].Decay {
			words = closeBucket(buckets, words, world)
			decayWords = words
		}
		p.off, p.bucket = words, len(buckets)-1
		words += align(p.size())
	}
	return buckets, decayWords, words
}

func closeBucket(buckets []bucket, words, world int) int {
	if len(buckets) == 0 {
		return words
	}
	b := &buckets[len(buckets)-1]
	unit := alignWords * world
	b.words = (words - b.off + unit - 1) / unit * unit
	return b.off + b.words
}

// bucketName is what the parameters of a bucket share: the layer, or the name of a matrix outside the layers.
func bucketName(name string) string {
	at := strings.Index(name, "layers.")
	if at < 0 {
		return name
	}
	number, _, _ := strings.Cut(name[at+len("layers."):], ".")
	return "layer " + number
}

// Params are all trained tensors: those that decay first. The slice is the model's own.
func (m *Model) Params() []Param { return m.params }

// Param is the tensor called name, or nil.
func (m *Model) Param(name string) *Param {
	if i, ok := m.byName[name]; ok {
		return &m.params[i]
	}
	return nil
}

// NumParams is the number of trained values, a tied matrix counted once.
func (c *Config) NumParams() int {
	n := 0
	for _, p := range c.paramList() {
		n += p.size()
	}
	return n
}

// Values copies a parameter's master weights to dst, which has its size. The model is not sharded.
func (m *Model) Values(p *Param, dst []float32) {
	be, buf := m.local(&m.w, p)
	be.Download(dst[:p.size()], buf)
}

// GradValues copies a parameter's gradient to dst, which has its size.
func (m *Model) GradValues(p *Param, dst []float32) { m.be.Download(dst[:p.size()], p.Grad) }
