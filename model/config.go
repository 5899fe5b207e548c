package model

import (
	"fmt"
	"math"

	"harness-s/kernels"
)

// Layer types, as config.json spells them.
const (
	LinearAttention = "linear_attention" // gated delta net
	FullAttention   = "full_attention"
)

// Config is the shape of a Qwen3.5 text model.
type Config struct {
	Vocab, Hidden, MLP int      // V, H, I
	LayerTypes         []string // LinearAttention or FullAttention, one a layer

	// Full attention.
	Hq, Hk, D    int     // query heads, kv heads, head dim
	RotaryFactor float64 // share of D that rotates
	RopeTheta    float64 // RoPE base

	// Gated delta net.
	GDNHk, GDNHv, Dk, Dv int // key heads, value heads, key and value dim
	K                    int // conv width

	Eps         float64 // of every norm, rms_norm_eps
	Tied        bool    // the head is the embedding
	MaxPosition int     // max_position_embeddings; 0 when the file does not say

	// Multimodal says that the folder has the layout of Qwen3_5ForConditionalGeneration: text tensors under
	// "model.language_model.", and tensors of other parts that pass through.
	Multimodal bool
}

// GDN is the kernel shape of a gated-delta-net layer.
func (c *Config) GDN() kernels.GDNShape {
	return kernels.GDNShape{Hk: c.GDNHk, Hv: c.GDNHv, Dk: c.Dk, Dv: c.Dv, K: c.K, Eps: float32(c.Eps)}
}

// Attn is the kernel shape of a full-attention layer.
//
// The rotary frequencies are theta^(-2i/r) with r = int(D·factor). For odd r the reference rotates r+1 dims at
// those frequencies; the kernels want an even count R and use Theta^(-2i/R), hence Theta = theta^(R/r).
func (c *Config) Attn() kernels.AttnShape {
	r := int(float64(c.D) * c.RotaryFactor)
	even := r + r%2
	theta := c.RopeTheta
	if even != r {
		theta = math.Pow(theta, float64(even)/float64(r))
	}
	return kernels.AttnShape{Hq: c.Hq, Hk: c.Hk, D: c.D, Rotary: even, Theta: theta, Eps: float32(c.Eps)}
}

// count is the number of layers of a type.
func (c *Config) count(layerType string) int {
	n := 0
	for _, t := range c.LayerTypes {
		if t == layerType {
			n++
		}
	}
	return n
}

// maxDim bounds every size, so that no product of two overflows.
const maxDim = 1 << 24

// keyed is a config value with the key that an error names.
type keyed struct {
	key   string
	value int
}

// Validate checks the sizes against each other. Errors name the config.json key.
func (c *Config) Validate() error {
	sizes := []keyed{{"vocab_size", c.Vocab}, {"hidden_size", c.Hidden}, {"intermediate_size", c.MLP},
		{"num_hidden_layers", len(c.LayerTypes)}}
	if c.count(FullAttention) > 0 {
		sizes = append(sizes, keyed{"num_attention_heads", c.Hq}, keyed{"num_key_value_heads", c.Hk}, keyed{"head_dim", c.D})
	}
	if c.count(LinearAttention) > 0 {
		sizes = append(sizes, keyed{"linear_num_key_heads", c.GDNHk}, keyed{"linear_num_value_heads", c.GDNHv},
			keyed{"linear_key_head_dim", c.Dk}, keyed{"linear_value_head_dim", c.Dv}, keyed{"linear_conv_kernel_dim", c.K})
	}
	for _, s := range sizes {
		if s.value < 1 || s.value > maxDim {
			return fmt.Errorf("key %q is %d, want 1 to %d", s.key, s.value, maxDim)
		}
	}
	if !(c.Eps > 0) || c.Eps > 1 {
		return fmt.Errorf("key \"rms_norm_eps\" is %g, want a small positive number", c.Eps)
	}
	for i, t := range c.LayerTypes {
		if t != LinearAttention && t != FullAttention {
			return fmt.Errorf("key \"layer_types\": layer %d is %q, want %q or %q", i, t, LinearAttention, FullAttention)
		}
	}
	return c.validateHeads()
}

func (c *Config) validateHeads() error {
	if c.count(FullAttention) > 0 {
		if c.Hq%c.Hk != 0 {
			return fmt.Errorf("key \"num_attention_heads\" is %d, want a multiple of num_key_value_heads %d", c.Hq, c.Hk)
		}
		if !(c.RotaryFactor > 0) || c.RotaryFactor > 1 {
			return fmt.Errorf("key \"partial_rotary_factor\" is %g, want above 0 and at most 1", c.RotaryFactor)
		}
		if r := c.Attn().Rotary; r > c.D {
			return fmt.Errorf("key \"partial_rotary_factor\" %g rotates %d of head_dim %d dims", c.RotaryFactor, r, c.D)
		}
		if !(c.RopeTheta > 0) || math.IsInf(c.RopeTheta, 0) {
			return fmt.Errorf("key \"rope_theta\" is %g, want a positive number", c.RopeTheta)
		}
		if n := c.Hq * c.D; n > maxDim {
			return fmt.Errorf("keys \"num_attention_heads\" x \"head_dim\" give %d, want at most %d", n, maxDim)
		}
	}
	if c.count(LinearAttention) > 0 {
		if c.GDNHv%c.GDNHk != 0 {
			return fmt.Errorf("key \"linear_num_value_heads\" is %d, want a multiple of linear_num_key_heads %d", c.GDNHv, c.GDNHk)
		}
		if n := 2*c.GDNHk*c.Dk + c.GDNHv*c.Dv; n > maxDim {
			return fmt.Errorf("keys \"linear_*\" give %d conv channels, want at most %d", n, maxDim)
		}
	}
	return nil
}
