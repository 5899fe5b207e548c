package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"

	"harness-s/kernels"
	"harness-s/model"
	"harness-s/model/chat"
	"harness-s/model/tokenizer"
)

// OpenOptions say how a model folder is served. Zero values take the defaults named.
type OpenOptions struct {
	Name        string    // model name on the wire; the folder's name
	Threads     int       // of the CPU backend; all cores
	MaxModelLen int       // tokens of one sequence; the model's, at most 32768
	CacheTokens int       // tokens cached over all sequences and kept prefixes; 131072, at least MaxModelLen
	MaxSeqs     int       // sequences in one step; 64
	StepTokens  int       // tokens of one step; 1024
	Dev         bool      // serve the routes that control weights and caches
	Thinking    bool      // chat turns think unless the request says otherwise
	Log         io.Writer // nil discards
}

const (
	defaultModelLen = 32768
	// DefaultCacheTokens is OpenOptions.CacheTokens where none is named; the memory is taken as it fills.
	DefaultCacheTokens = 131072
)

// Open loads a Hugging Face folder (config, weights, and tokenizer.json if there is one) onto a CPU backend of its own and makes a
// server of it. The server owns everything; Serve, the stop of StartLocal, or Close frees it.
func Open(dir string, opt OpenOptions) (s *Server, err error) {
	tok, err := loadTokenizer(dir)
	if err != nil {
		return nil, err
	}
	var closers []func() error
	defer func() {
		if err != nil {
			for _, f := range closers {
				f()
			}
		}
	}()
	be, err := kernels.NewCPU(opt.Threads)
	if err != nil {
		return nil, err
	}
	closers = append(closers, be.Close)
	m, err := model.Load(dir, be, model.Options{})
	if err != nil {
		return nil, err
	}
	closers = append([]func() error{m.Close}, closers...)
	opt = opt.withDefaults(dir, m.Config)
	dec, err := model.NewDecoder(m, model.DecoderOptions{MaxTokens: opt.CacheTokens, MaxSeqs: opt.MaxSeqs})
	if err != nil {
		return nil, err
	}
	closers = append([]func() error{func() error { dec.Free(); return nil }}, closers...)
	if tok != nil && tok.VocabSize() > m.Config.Vocab {
		return nil, fmt.Errorf("%s: tokenizer.json has ids up to %d, but vocab_size in config.json is %d: they belong to different models",
			dir, tok.VocabSize()-1, m.Config.Vocab)
	}
	eos, err := endTokens(m, tok)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	eng, err := NewEngine(&modelDecoder{Decoder: dec}, EngineOptions{
		MaxModelLen: opt.MaxModelLen, Vocab: m.Config.Vocab, EOS: eos, MaxSeqs: opt.MaxSeqs, StepTokens: opt.StepTokens,
		Reload: reloader(m), Score: scorer(m), Tokenizer: tok})
	if err != nil {
		return nil, err
	}
	s, err = NewServer(eng, tok, ServerOptions{Model: opt.Name, ModelDir: dir, Dev: opt.Dev, Thinking: opt.Thinking, Log: opt.Log})
	if err != nil {
		eng.Close()
		return nil, err
	}
	s.closers = closers
	return s, nil
}

func (o OpenOptions) withDefaults(dir string, cfg model.Config) OpenOptions {
	if o.Name == "" {
		if abs, err := filepath.Abs(dir); err == nil {
			dir = abs
		}
		o.Name = filepath.Base(dir)
	}
	own := defaultModelLen
	if cfg.MaxPosition > 0 {
		own = min(own, cfg.MaxPosition)
	}
	o.MaxModelLen = orDefault(o.MaxModelLen, own)
	o.MaxSeqs = orDefault(o.MaxSeqs, 64)
	o.CacheTokens = max(orDefault(o.CacheTokens, DefaultCacheTokens), o.MaxModelLen)
	return o
}

// endTokens is eos_token_id of generation_config.json, else of config.json, else the tokenizer's end of turn.
func endTokens(m *model.Model, tok *tokenizer.Tokenizer) ([]int32, error) {
	for _, name := range []string{"generation_config.json", "config.json"} {
		var file struct {
			EOS json.RawMessage `json:"eos_token_id"`
		}
		raw := m.File(name)
		if raw == nil || json.Unmarshal(raw, &file) != nil || len(file.EOS) == 0 || string(file.EOS) == "null" {
			continue
		}
		var one int32
		if json.Unmarshal(file.EOS, &one) == nil {
			return []int32{one}, nil
		}
		var list []int32
		if err := json.Unmarshal(file.EOS, &list); err != nil {
			return nil, fmt.Errorf("%s: eos_token_id must be an id or a list of ids: %w", name, err)
		}
		return list, nil
	}
	if tok == nil {
		return nil, nil
	}
	if id, ok := tok.ID(chat.EOS); ok {
		return []int32{id}, nil
	}
	return nil, nil
}

// loadTokenizer is nil where the folder has none.
func loadTokenizer(dir string) (*tokenizer.Tokenizer, error) {
	if _, err := os.Stat(filepath.Join(dir, tokenizer.FileName)); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return tokenizer.Load(dir)
}

// reloader loads a folder beside the model and copies it over only when all of it is sound. The copy needs as much
// memory again, for as long as it takes.
func reloader(m *model.Model) func(dir string) error {
	return func(dir string) error {
		fresh, err := model.Load(dir, m.Backend(), model.Options{})
		if err != nil {
			return err
		}
		defer fresh.Close()
		if !reflect.DeepEqual(fresh.Config, m.Config) {
			return fmt.Errorf("%s holds a model of another shape", dir)
		}
		for i := range fresh.Params() {
			p := &fresh.Params()[i]
			if n := m.Backend().NonFinite(p.W, p.W.Len()); n > 0 {
				return fmt.Errorf("%s: %d values of %s are not finite", dir, n, p.Name)
			}
		}
		return m.CopyWeightsFrom(fresh)
	}
}

func scorer(m *model.Model) func(ids []int32) ([]float32, error) {
	return func(ids []int32) ([]float32, error) {
		var b model.Batch
		b.Add(ids, nil)
		stats, err := m.Forward(b, model.ForwardOptions{Temperature: 1})
		return stats.Logp, err
	}
}

// modelDecoder is model.Decoder in the engine's words.
type modelDecoder struct {
	*model.Decoder
	work    []model.Work
	results []Result
}

// minLogprob stands for minus infinity, which JSON cannot say; vLLM writes the same.
const minLogprob = -9999

func full(err error) error {
	if errors.Is(err, model.ErrFull) {
		return ErrFull
	}
	return err
}

func (d *modelDecoder) Open(prompt []int32) (Sequence, int, error) {
	seq, cached, err := d.Decoder.Open(prompt)
	if err != nil {
		return nil, 0, full(err)
	}
	return seq, cached, nil
}

func (d *modelDecoder) Close(seq Sequence) { d.Decoder.Close(seq.(*model.Seq)) }

func (d *modelDecoder) Step(work []Work) ([]Result, error) {
	d.work, d.results = d.work[:0], d.results[:0]
	for _, w := range work {
		d.work = append(d.work, model.Work{Seq: w.Seq.(*model.Seq), Tokens: w.Tokens, Sample: w.Sample, TopK: w.TopK})
	}
	results, err := d.Decoder.Step(d.work)
	if err != nil {
		return nil, full(err)
	}
	for _, r := range results {
		var top []Top
		for _, t := range r.Top {
			top = append(top, Top{t.ID, max(t.Logprob, minLogprob)})
		}
		d.results = append(d.results, Result{r.Sample, top})
	}
	return d.results, nil
}
