package model

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"harness-s/kernels"
	"harness-s/model/safetensors"
)

const configName = "config.json"

// sideFiles are the files of a Hugging Face folder that go along when a checkpoint is saved.
var sideFiles = []string{
	configName, "generation_config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt",
	"special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "chat_template.json",
	"preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json",
}

// Load reads a Hugging Face folder: config.json and the weights, fp32, bf16 or f16 in any mix, sharded or not. An
// error names the folder or file and what is wrong with it.
func Load(dir string, be kernels.Backend, opt Options) (*Model, error) {
	cfg, err := ReadConfig(dir)
	if err != nil {
		return nil, fmt.Errorf("load model: %w", err)
	}
	set, err := safetensors.OpenDir(dir)
	if err != nil {
		return nil, fmt.Errorf("load model: %w", err)
	}
	m, err := loadFrom(dir, cfg, set, be, opt)
	if err != nil {
		set.Close()
		return nil, fmt.Errorf("load model %s: %w", dir, err)
	}
	if len(m.source.extra) == 0 {
		set.Close()
		m.source.set = nil
	}
	return m, nil
}

func loadFrom(dir string, cfg Config, set *safetensors.Set, be kernels.Backend, opt Options) (*Model, error) {
	src, err := cfg.matchTensors(set)
	if err != nil {
		return nil, err
	}
	if src.files, err = readSideFiles(dir); err != nil {
		return nil, err
	}
	m, err := newModel(cfg, be, opt)
	if err != nil {
		return nil, err
	}
	if err := m.readWeights(set); err != nil {
		m.Close()
		return nil, err
	}
	m.source = src
	return m, nil
}

// matchTensors checks the folder's tensors against the architecture, all at once, so that one error tells all.
func (c *Config) matchTensors(set *safetensors.Set) (source, error) {
	src := source{set: set, dtypes: map[string]safetensors.DType{}}
	if len(set.Files) > 0 {
		src.metadata = set.Files[0].Metadata
	}
	var problems []string
	wanted := map[string]bool{}
	for _, p := range c.paramList() {
		wanted[p.Name] = true
		switch t := set.Tensor(p.Name); {
		case t == nil:
			problems = append(problems, fmt.Sprintf("tensor %q is missing", p.Name))
		case !slices.Equal(t.Shape, p.Shape):
			problems = append(problems, fmt.Sprintf("tensor %q has shape %v, config.json wants %v", p.Name, t.Shape, p.Shape))
		case !t.DType.IsFloat():
			problems = append(problems, fmt.Sprintf("tensor %q has dtype %s, want F32, F16 or BF16", p.Name, t.DType))
		default:
			src.dtypes[p.Name] = t.DType
		}
	}
	for _, name := range set.Names() {
		switch {
		case wanted[name]:
		case c.isText(name):
			problems = append(problems, fmt.Sprintf("tensor %q is not part of the model config.json describes", name))
		case name == headName: // tied: the copy some writers leave is dropped when it is one
			if err := sameTensor(set.Tensor(name), set.Tensor(c.textPrefix()+"embed_tokens.weight")); err != nil {
				problems = append(problems, err.Error())
			}
		default:
			src.extra = append(src.extra, set.Tensor(name))
		}
	}
	return src, joinProblems(problems)
}

// joinProblems makes one error of many, the first ones spelled out.
func joinProblems(problems []string) error {
	const shown = 5
	if len(problems) == 0 {
		return nil
	}
	text := strings.Join(problems[:min(len(problems), shown)], "; ")
	if n := len(problems) - shown; n > 0 {
		text += fmt.Sprintf("; and %d more", n)
	}
	return errors.New(text)
}

// isText says whether a tensor of that name would belong to the text model.
func (c *Config) isText(name string) bool {
	if c.Multimodal {
		return strings.HasPrefix(name, c.textPrefix())
	}
	return strings.HasPrefix(name, "model.") && !strings.HasPrefix(name, "model.visual.")
}

// sameTensor is nil when a tied model's lm_head holds the embedding's values.
func sameTensor(head, embed *safetensors.Tensor) error {
	differs := fmt.Errorf("tensor %q differs from the embedding, though \"tie_word_embeddings\" is true", headName)
	if embed == nil || !slices.Equal(head.Shape, embed.Shape) || !head.DType.IsFloat() || !embed.DType.IsFloat() {
		return differs
	}
	a, b := make([]float32, head.NumElements()), make([]float32, embed.NumElements())
	if err := errors.Join(head.Float32s(a), embed.Float32s(b)); err != nil {
		return err
	}
	if !slices.Equal(a, b) {
		return differs
	}
	return nil
}

func (m *Model) readWeights(set *safetensors.Set) error {
	return m.setValues(func(p *Param, values []float32) error { return set.Tensor(p.Name).Float32s(values) })
}

func readSideFiles(dir string) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, name := range sideFiles {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		files[name] = raw
	}
	return files, nil
}

// File is a side file of the folder the model came from (config.json, tokenizer.json, ...), or nil.
func (m *Model) File(name string) []byte { return m.source.files[name] }

// SetFile adds or replaces a side file; Save writes it into the folder.
func (m *Model) SetFile(name string, content []byte) {
	if name != filepath.Base(name) {
		panic("model: SetFile wants a plain file name")
	}
	if m.source.files == nil {
		m.source.files = map[string][]byte{}
	}
	m.source.files[name] = content
}
