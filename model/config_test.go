package model

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// textConfig is a valid config.json of the text class.
const textConfig = `{"model_type": "qwen3_5_text", "vocab_size": 61, "hidden_size": 24, "intermediate_size": 40,
 "num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
 "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "linear_num_key_heads": 2,
 "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12, "linear_conv_kernel_dim": 4,
 "rms_norm_eps": 1e-6, "rope_parameters": {"rope_type": "default", "rope_theta": 10000, "partial_rotary_factor": 0.5},
 "tie_word_embeddings": true, "hidden_act": "silu", "attention_bias": false}`

func TestParseConfig(t *testing.T) {
	got, err := ParseConfig([]byte(textConfig))
	if err != nil {
		t.Fatal(err)
	}
	if want := smallConfig(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	raw, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	if back, err := ParseConfig(raw); err != nil || !reflect.DeepEqual(back, got) {
		t.Errorf("written and read again: %+v, %v", back, err)
	}
}

func TestConfigDefaults(t *testing.T) {
	var keys map[string]any
	if err := json.Unmarshal([]byte(textConfig), &keys); err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"layer_types", "rope_parameters", "rms_norm_eps", "hidden_act", "attention_bias", "tie_word_embeddings"} {
		delete(keys, k)
	}
	keys["num_hidden_layers"] = 5
	raw, _ := json.Marshal(keys)
	c, err := ParseConfig(raw)
	if err != nil {
		t.Fatal(err)
	}
	if c.RopeTheta != 10000 || c.RotaryFactor != 0.25 || c.Eps != 1e-6 || c.Tied {
		t.Errorf("defaults %+v", c)
	}
	for i, kind := range c.LayerTypes {
		if (kind == FullAttention) != (i == 3) {
			t.Errorf("layer %d is %s", i, kind)
		}
	}
	keys["full_attention_interval"], keys["rope_theta"], keys["partial_rotary_factor"] = 2, 5e5, 1
	raw, _ = json.Marshal(keys)
	if c, err = ParseConfig(raw); err != nil || c.count(FullAttention) != 2 || c.RopeTheta != 5e5 || c.RotaryFactor != 1 {
		t.Errorf("%+v, %v", c, err)
	}
	// The multimodal class: the text part inside, the tie at the top.
	keys["tie_word_embeddings"] = false
	raw, _ = json.Marshal(map[string]any{"model_type": "qwen3_5", "text_config": keys, "tie_word_embeddings": true})
	if c, err = ParseConfig(raw); err != nil || !c.Multimodal || !c.Tied || c.Vocab != 61 {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestConfigDefaultBesideRope: save_pretrained writes partial_rotary_factor 0.25 at the top whatever rope_parameters
// says, and from_pretrained takes rope_parameters.
func TestConfigDefaultBesideRope(t *testing.T) {
	raw := strings.Replace(textConfig, `"attention_bias": false`, `"partial_rotary_factor": 0.25`, 1)
	c, err := ParseConfig([]byte(raw))
	if err != nil || c.RotaryFactor != 0.5 {
		t.Errorf("rotary factor %g, %v; want 0.5", c.RotaryFactor, err)
	}
}

func TestConfigErrors(t *testing.T) {
	cases := []struct{ name, old, new, want string }{
		{"not JSON", `{"model_type"`, `{"model_type`, "not a JSON object"},
		{"cut", `"attention_bias": false}`, ``, "not a JSON object"},
		{"list", textConfig, `[]`, "not a JSON object"},
		{"null", textConfig, `null`, "not a JSON object"},
		{"text after", `false}`, `false} {}`, "after the JSON object"},
		{"type", "qwen3_5_text", "llama", `"model_type" is "llama"`},
		{"type missing", `"model_type"`, `"x"`, `"model_type" is missing`},
		{"no text part", "qwen3_5_text", "qwen3_5", `"text_config" is missing`},
		{"vocab missing", "vocab_size", "vocab", `"vocab_size" is missing`},
		{"vocab text", `61`, `"61"`, `"vocab_size" is "61", want an integer`},
		{"vocab fraction", `61`, `61.5`, `"vocab_size" is 61.5`},
		{"vocab negative", `61`, `-1`, `"vocab_size" is -1`},
		{"hidden zero", `"hidden_size": 24`, `"hidden_size": 0`, `"hidden_size" is 0`},
		{"hidden huge", `"hidden_size": 24`, `"hidden_size": 1000000000`, `"hidden_size" is 1000000000`},
		{"layers huge", `"num_hidden_layers": 3`, `"num_hidden_layers": 2000000000`, `"num_hidden_layers"`},
		{"layer count", `"num_hidden_layers": 3`, `"num_hidden_layers": 4`, `"layer_types" has 3 entries`},
		{"layer type", `["linear_attention"`, `["sliding_attention"`, `layer 0 is "sliding_attention"`},
		{"kv heads", `"num_key_value_heads": 2`, `"num_key_value_heads": 3`, `"num_attention_heads" is 4`},
		{"value heads", `"linear_num_value_heads": 4`, `"linear_num_value_heads": 3`, `"linear_num_value_heads" is 3`},
		{"activation", `"silu"`, `"gelu"`, `"hidden_act" is "gelu"`},
		{"bias", `"attention_bias": false`, `"attention_bias": true`, `"attention_bias" is true`},
		{"gate", `"attention_bias": false`, `"attn_output_gate": false`, `"attn_output_gate" is false`},
		{"rope type", `"default"`, `"yarn"`, `"rope_parameters.rope_type" is "yarn"`},
		{"rope scaling", `"attention_bias": false`, `"rope_scaling": {"type": "linear", "factor": 2}`, `"rope_scaling.type" is "linear"`},
		{"rope key", `"rope_theta"`, `"factor"`, `"rope_parameters.factor" is not supported`},
		{"rope contradiction", `"attention_bias": false`, `"rope_theta": 7`, `"rope_theta" is 7, rope_parameters says 10000`},
		{"rotary contradiction", `"attention_bias": false`, `"partial_rotary_factor": 0.75`, `"partial_rotary_factor" is 0.75, rope_parameters says 0.5`},
		{"theta", `"rope_theta": 10000`, `"rope_theta": -1`, `"rope_theta" is -1`},
		{"factor", `0.5`, `1.5`, `"partial_rotary_factor" is 1.5`},
		{"eps", `1e-6`, `0`, `"rms_norm_eps" is 0`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			text := strings.Replace(textConfig, c.old, c.new, 1)
			if text == textConfig {
				t.Fatal("the case changes nothing")
			}
			if err := os.WriteFile(filepath.Join(dir, configName), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			_, err := ReadConfig(dir)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), configName) {
				t.Errorf("error %v, want the file's name and %q", err, c.want)
			}
		})
	}
	if _, err := ReadConfig(t.TempDir()); err == nil || !strings.Contains(err.Error(), configName) {
		t.Errorf("no file: %v", err)
	}
}

func TestGoldenConfigs(t *testing.T) {
	for i, dir := range goldenDirs(t) {
		c, err := ReadConfig(dir)
		if err != nil {
			t.Fatal(err)
		}
		if c.Multimodal != (i == 1) || !c.Tied || c.NumParams() != []int{148408, 85672}[i] {
			t.Errorf("%s: %+v, %d parameters", dir, c, c.NumParams())
		}
	}
}

// FuzzParseConfig: any text gives an error or a configuration whose tensors can be listed.
func FuzzParseConfig(f *testing.F) {
	f.Add(textConfig)
	f.Add(`{"model_type": "qwen3_5", "tie_word_embeddings": true, "text_config": ` + textConfig + `}`)
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseConfig([]byte(text))
		if err != nil || len(c.LayerTypes) > 100 {
			return
		}
		for _, p := range c.paramList() {
			if p.size() < 1 {
				t.Fatalf("%s has shape %v", p.Name, p.Shape)
			}
		}
	})
}
