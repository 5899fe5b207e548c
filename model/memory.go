package model

import "harness-s/kernels"

// Memory estimates the bytes that training takes on the CPU backend, by part: weights, gradients, optimizer, compute
// weights, activations (of one packed batch of that many tokens in rows of 1024). The backend's Usage has the same names.
func Memory(cfg Config, tokens int, recompute bool) map[string]int64 {
	params := cfg.paramList()
	_, _, words := layout(params, 1)
	var packed int64
	for _, p := range params {
		if len(p.Shape) == 2 && (cfg.Tied || p.Name != cfg.textPrefix()+"embed_tokens.weight") { // else it is only looked up
			const panel = 32 // rows a panel, of AVX-512; other instruction sets take less
			packed += int64((p.Shape[0]+panel-1)/panel*panel) * int64(p.Shape[1])
		}
	}
	return map[string]int64{
		"weights": 4 * int64(words), "gradients": 4 * int64(words), "optimizer": 8 * int64(words),
		"compute weights": 4 * packed, "activations": 4 * int64(activationWords(&cfg, tokens, recompute)),
	}
}

// planRow is the row length that estimates assume.
const planRow = 1024

// activationWords counts the arena of a training batch.
func activationWords(cfg *Config, tokens int, recompute bool) int {
	a := &activations{T: tokens, N: tokens, seg: kernels.Segments{Cu: []int32{0}}}
	for at := 0; at < tokens; {
		at = min(at+planRow, tokens)
		a.seg.Cu = append(a.seg.Cu, int32(at))
	}
	saved := func(s kernels.GDNShape, seg kernels.Segments) int { // prediction errors, and the state at each chunk's start
		chunks := 0
		for row := range seg.Rows() {
			chunks += blocksFor(int(seg.Cu[row+1] - seg.Cu[row]))
		}
		return tokens*s.Hv*s.Dv + chunks*s.Hv*s.Dk*s.Dv
	}
	count := &carver{words: func(n int) int { return n }}
	planner{cfg: cfg, gdnSaved: saved, keep: !recompute, inputs: recompute, grads: true}.plan(a, count)
	return count.peak
}

// FLOPs is the floating-point operations for one token at the end of a context of that many tokens: forward, and forward
// plus backward. A multiply-add counts as two; recompute adds a forward pass without the head.
func (c *Config) FLOPs(context int) (forward, training int64) {
	forward = c.bodyFLOPs(context) + c.headFLOPs()
	return forward, 3 * forward
}

// BatchFLOPs is the floating-point operations of a forward pass over a batch, whose head sees the wanted tokens alone. A
// multiply-add counts as two; training takes three times as many.
func (c *Config) BatchFLOPs(b Batch) float64 {
	n := float64(len(b.wanted())) * float64(c.headFLOPs())
	perPair := float64(c.bodyFLOPs(1) - c.bodyFLOPs(0))
	for row := range b.Rows() {
		length := float64(b.Cu[row+1] - b.Cu[row])
		n += length*float64(c.bodyFLOPs(0)) + length*length/2*perPair
	}
	return n
}

func (c *Config) headFLOPs() int64 { return 2 * int64(c.Vocab) * int64(c.Hidden) }

// bodyFLOPs is a forward pass of one token at the end of a context, without the head.
func (c *Config) bodyFLOPs(context int) int64 {
	matrices := int64(0)
	for _, p := range c.paramList() {
		if len(p.Shape) == 2 && p.Name != headName && p.Name != c.textPrefix()+"embed_tokens.weight" {
			matrices += int64(p.size())
		}
	}
	chunk := int64(kernels.ChunkLen)
	gdn := int64(c.count(LinearAttention)) * int64(c.GDNHv) *
		(2*3*int64(c.Dk)*int64(c.Dv) + chunk*(2*int64(c.Dk)+2*int64(c.Dv))) // state read twice and written; half the chunk's pairs, twice
	attn := int64(c.count(FullAttention)) * 4 * int64(context) * int64(c.Hq*c.D)
	return 2*matrices + gdn + attn
}

// CacheBytes is the memory of one block of kernels.ChunkLen tokens in a Decoder's cache: keys and values of every
// full-attention layer, and every GDN layer's state and conv tail at the block's end.
func (c *Config) CacheBytes() int64 {
	g := c.GDN()
	kv := c.count(FullAttention) * 2 * c.Hk * c.D * kernels.ChunkLen
	state := c.count(LinearAttention) * (g.Hv*g.Dk*g.Dv + (g.K-1)*g.Channels())
	return 4 * int64(kv+state)
}
