package model

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
)

// ReadConfig reads and validates the config.json of a Hugging Face folder. Every error names the file and the key.
func ReadConfig(dir string) (Config, error) {
	path := filepath.Join(dir, configName)
	raw, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("read config: %w", err)
	}
	cfg, err := ParseConfig(raw)
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	return cfg, nil
}

// ParseConfig is ReadConfig for the text of a config.json. It accepts model_type qwen3_5_text (Qwen3_5ForCausalLM)
// and qwen3_5 (Qwen3_5ForConditionalGeneration, whose text_config is read and whose tie_word_embeddings counts).
func ParseConfig(raw []byte) (Config, error) {
	top, err := parseObject(raw)
	if err != nil {
		return Config{}, err
	}
	var cfg Config
	text := top
	switch t := top.text("model_type", ""); t {
	case "qwen3_5_text":
	case "qwen3_5":
		cfg.Multimodal = true
		text = top.object("text_config", true)
		if sub := text.text("model_type", "qwen3_5_text"); sub != "qwen3_5_text" {
			text.fail("model_type", "is %q, want \"qwen3_5_text\"", sub)
		}
	case "":
		top.fail("model_type", "is missing")
	default:
		top.fail("model_type", "is %q, want \"qwen3_5_text\" or \"qwen3_5\"", t)
	}
	cfg.Tied = top.boolean("tie_word_embeddings", false)
	text.readSizes(&cfg)
	text.readRope(&cfg)
	text.refuseUnsupported()
	if *top.err != nil {
		return Config{}, *top.err
	}
	if err := cfg.Validate(); err != nil {
		return Config{}, err
	}
	return cfg, nil
}

func (o object) readSizes(cfg *Config) {
	cfg.Vocab = o.integer("vocab_size")
	cfg.Hidden = o.integer("hidden_size")
	cfg.MLP = o.integer("intermediate_size")
	cfg.LayerTypes = o.layerTypes(o.integer("num_hidden_layers"))
	cfg.Eps = o.number("rms_norm_eps", 1e-6)
	if o.has("max_position_embeddings") {
		cfg.MaxPosition = o.integer("max_position_embeddings")
	}
	if cfg.count(FullAttention) > 0 {
		cfg.Hq = o.integer("num_attention_heads")
		cfg.Hk = o.integer("num_key_value_heads")
		cfg.D = o.integer("head_dim")
	}
	if cfg.count(LinearAttention) > 0 {
		cfg.GDNHk = o.integer("linear_num_key_heads")
		cfg.GDNHv = o.integer("linear_num_value_heads")
		cfg.Dk = o.integer("linear_key_head_dim")
		cfg.Dv = o.integer("linear_value_head_dim")
		cfg.K = o.integer("linear_conv_kernel_dim")
	}
}

// layerTypes reads layer_types, or derives it from full_attention_interval (every n-th layer is full, 4 by default).
func (o object) layerTypes(layers int) []string {
	if layers < 1 || layers > 1<<16 {
		o.fail("num_hidden_layers", "is %d, want 1 to %d", layers, 1<<16)
		return nil
	}
	types := make([]string, 0, layers)
	if !o.has("layer_types") {
		interval := 4
		if o.has("full_attention_interval") {
			interval = o.integer("full_attention_interval")
		}
		if interval < 1 {
			o.fail("full_attention_interval", "is %d, want at least 1", interval)
			return nil
		}
		for i := range layers {
			t := LinearAttention
			if (i+1)%interval == 0 {
				t = FullAttention
			}
			types = append(types, t)
		}
		return types
	}
	if err := json.Unmarshal(o.keys["layer_types"], &types); err != nil {
		o.fail("layer_types", "is not a list of texts")
	} else if len(types) != layers {
		o.fail("layer_types", "has %d entries, num_hidden_layers is %d", len(types), layers)
	}
	return types
}

// readRope reads the base and the rotated share from rope_parameters or the top level, where older files have them.
func (o object) readRope(cfg *Config) {
	rope := o.object("rope_parameters", false)
	for key := range rope.keys {
		switch key {
		case "rope_theta", "rope_type", "type", "partial_rotary_factor", "mrope_section", "mrope_interleaved":
		default:
			rope.fail(key, "is not supported")
		}
	}
	scaling := o.object("rope_scaling", false)
	for _, ro := range []object{rope, scaling} {
		for _, key := range []string{"rope_type", "type"} {
			if t := ro.text(key, "default"); t != "default" {
				ro.fail(key, "is %q, only \"default\" is supported", t)
			}
		}
	}
	pick := func(key string, fallback float64) float64 {
		v := rope.number(key, o.number(key, fallback))
		// transformers writes its default partial_rotary_factor at the top even when rope_parameters has another, and
		// reads rope_parameters: a top-level default beside it says nothing.
		if top := o.number(key, v); top != v && !(key == "partial_rotary_factor" && top == fallback) {
			o.fail(key, "is %g, rope_parameters says %g", top, v)
		}
		return v
	}
	cfg.RopeTheta = pick("rope_theta", 10000)
	cfg.RotaryFactor = pick("partial_rotary_factor", 0.25)
}

func (o object) refuseUnsupported() {
	if act := o.text("hidden_act", "silu"); act != "silu" {
		o.fail("hidden_act", "is %q, only \"silu\" is supported", act)
	}
	if o.boolean("attention_bias", false) {
		o.fail("attention_bias", "is true, biases are not supported")
	}
	if !o.boolean("attn_output_gate", true) {
		o.fail("attn_output_gate", "is false, the gate is part of the architecture")
	}
}

// object is a JSON object of the config; the first problem found lands in err, which sub-objects share.
type object struct {
	prefix string // "text_config." and the like, for errors
	keys   map[string]json.RawMessage
	err    *error
}

func parseObject(raw []byte) (object, error) {
	o := object{err: new(error)}
	dec := json.NewDecoder(bytes.NewReader(raw))
	if err := dec.Decode(&o.keys); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return o, fmt.Errorf("not a JSON object: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return o, fmt.Errorf("text after the JSON object")
	}
	if o.keys == nil {
		return o, fmt.Errorf("not a JSON object")
	}
	return o, nil
}

func (o object) fail(key, format string, args ...any) {
	if *o.err == nil {
		*o.err = fmt.Errorf("key %q %s", o.prefix+key, fmt.Sprintf(format, args...))
	}
}

// has says whether the key is there and not null.
func (o object) has(key string) bool {
	v, ok := o.keys[key]
	return ok && string(v) != "null"
}

func (o object) object(key string, required bool) object {
	sub := object{prefix: o.prefix + key + ".", err: o.err}
	if !o.has(key) {
		if required {
			o.fail(key, "is missing")
		}
	} else if err := json.Unmarshal(o.keys[key], &sub.keys); err != nil {
		o.fail(key, "is not an object")
	}
	return sub
}

func (o object) integer(key string) int {
	var v int64
	if !o.has(key) {
		o.fail(key, "is missing")
	} else if err := json.Unmarshal(o.keys[key], &v); err != nil {
		o.fail(key, "is %.40s, want an integer", o.keys[key])
	} else if v < 1 || v > math.MaxInt32 {
		o.fail(key, "is %d, want at least 1 and at most %d", v, math.MaxInt32)
	}
	return int(v)
}

func (o object) number(key string, fallback float64) float64 {
	if !o.has(key) {
		return fallback
	}
	var v float64
	if err := json.Unmarshal(o.keys[key], &v); err != nil {
		o.fail(key, "is %.40s, want a number", o.keys[key])
	}
	return v
}

func (o object) text(key, fallback string) string {
	if !o.has(key) {
		return fallback
	}
	var v string
	if err := json.Unmarshal(o.keys[key], &v); err != nil {
		o.fail(key, "is %.40s, want a text", o.keys[key])
	}
	return v
}

func (o object) boolean(key string, fallback bool) bool {
	if !o.has(key) {
		return fallback
	}
	var v bool
	if err := json.Unmarshal(o.keys[key], &v); err != nil {
		o.fail(key, "is %.40s, want true or false", o.keys[key])
	}
	return v
}

// MarshalJSON writes the config.json of Qwen3_5ForCausalLM. Folders that were loaded keep their own file instead.
func (c Config) MarshalJSON() ([]byte, error) {
	rope := map[string]any{"rope_type": "default", "rope_theta": c.RopeTheta, "partial_rotary_factor": c.RotaryFactor}
	out := map[string]any{
		"architectures": []string{"Qwen3_5ForCausalLM"}, "model_type": "qwen3_5_text", "dtype": "float32",
		"vocab_size": c.Vocab, "hidden_size": c.Hidden, "intermediate_size": c.MLP,
		"num_hidden_layers": len(c.LayerTypes), "layer_types": c.LayerTypes,
		"num_attention_heads": c.Hq, "num_key_value_heads": c.Hk, "head_dim": c.D, "rope_parameters": rope,
		"linear_num_key_heads": c.GDNHk, "linear_num_value_heads": c.GDNHv,
		"linear_key_head_dim": c.Dk, "linear_value_head_dim": c.Dv, "linear_conv_kernel_dim": c.K,
		"rms_norm_eps": c.Eps, "tie_word_embeddings": c.Tied,
		"hidden_act": "silu", "attention_bias": false, "use_cache": true,
	}
	if c.MaxPosition > 0 {
		out["max_position_embeddings"] = c.MaxPosition
	}
	return json.MarshalIndent(out, "", "  ")
}
