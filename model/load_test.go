package model

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"harness-s/kernels"
	"harness-s/model/safetensors"
)

// writeFolder writes a model folder with every tensor in the type pick gives it, and more tensors.
func writeFolder(t *testing.T, m *Model, config string, pick func(i int) safetensors.DType, more ...safetensors.Entry) string {
	t.Helper()
	dir := t.TempDir()
	var entries []safetensors.Entry
	for i := range m.params {
		p := &m.params[i]
		entries = append(entries, m.entry(p.Name, p, &m.w, pick(i)))
	}
	if err := safetensors.WriteFile(filepath.Join(dir, safetensors.SingleName), map[string]string{"format": "pt"}, append(more, entries...)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, configName), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func f32(int) safetensors.DType { return safetensors.F32 }

func rawEntry(name string, dtype safetensors.DType, shape []int, content []byte) safetensors.Entry {
	return safetensors.Entry{Name: name, DType: dtype, Shape: shape, Data: func(w io.Writer) error { _, err := w.Write(content); return err }}
}

func TestSaveAndLoad(t *testing.T) {
	m := newModelFor(t, smallConfig(), 1, Options{})
	mtp := rawEntry("mtp.fc.weight", "I8", []int{3}, []byte{1, 2, 3}) // misaligns the rest
	visual := rawEntry("model.visual.x", "F64", []int{1}, []byte("8 bytes!"))
	mixed := func(i int) safetensors.DType {
		return []safetensors.DType{safetensors.F32, safetensors.BF16, safetensors.F16}[i%3]
	}
	dir := writeFolder(t, m, textConfig, mixed, mtp, visual)
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, opt := range []SaveOptions{{}, {KeepDType: true}, {ShardBytes: 3000}} {
		first, second := saveTwice(t, dir, opt)
		if !bytes.Equal(first, second) {
			t.Errorf("%+v: saved, loaded and saved again: the files differ", opt)
		}
	}
}

// saveTwice loads dir, saves it, loads that, saves again and returns all bytes of both saves.
func saveTwice(t *testing.T, dir string, opt SaveOptions) (first, second []byte) {
	be, tmp := newBackend(t, 1), t.TempDir()
	var all [2][]byte
	for i, name := range []string{"one", "two"} {
		m, err := Load(dir, be, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if len(m.source.extra) != 2 {
			t.Errorf("%d tensors pass through", len(m.source.extra))
		}
		dir = filepath.Join(tmp, name)
		if err := m.Save(dir, opt); err != nil {
			t.Fatal(err)
		}
		if err := m.Save(dir, opt); err == nil {
			t.Error("a folder was overwritten")
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		files, _ := os.ReadDir(dir)
		for _, f := range files {
			all[i] = append(append(all[i], f.Name()...), must(os.ReadFile(filepath.Join(dir, f.Name())))...)
		}
		set, err := safetensors.OpenDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if got := must(io.ReadAll(set.Tensor("model.visual.x").Raw())); string(got) != "8 bytes!" {
			t.Errorf("the tensor that passes through became %q", got)
		}
		if (opt.ShardBytes > 0) != (len(set.Files) > 1) {
			t.Errorf("%+v: %d files", opt, len(set.Files))
		}
		set.Close()
		if string(must(os.ReadFile(filepath.Join(dir, "tokenizer.json")))) != "{}" || string(must(os.ReadFile(filepath.Join(dir, configName)))) != textConfig {
			t.Error("side files changed")
		}
	}
	if left, _ := filepath.Glob(filepath.Join(tmp, ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	return all[0], all[1]
}

// TestGoldenPassThrough: a folder of the multimodal class keeps every byte of the tensors that are not trained, and
// saving in the file's own types changes none at all.
func TestGoldenPassThrough(t *testing.T) {
	for _, dir := range goldenDirs(t) {
		loaded, err := Load(dir, newBackend(t, 1), Options{})
		m := closing(t, loaded, err)
		out := filepath.Join(t.TempDir(), "saved")
		if err := m.Save(out, SaveOptions{KeepDType: true}); err != nil {
			t.Fatal(err)
		}
		a, b := must(safetensors.OpenDir(dir)), must(safetensors.OpenDir(out))
		defer a.Close()
		defer b.Close()
		if len(a.Names()) != len(b.Names()) {
			t.Errorf("%d tensors became %d", len(a.Names()), len(b.Names()))
		}
		for _, name := range a.Names() {
			if !bytes.Equal(must(io.ReadAll(a.Tensor(name).Raw())), must(io.ReadAll(b.Tensor(name).Raw()))) {
				t.Errorf("%s changed", name)
			}
		}
	}
}

func TestNewModelRoundTrip(t *testing.T) {
	m := newModelFor(t, smallConfig(), 1, Options{Train: true})
	dir := filepath.Join(t.TempDir(), "m")
	if err := m.Save(dir, SaveOptions{}); err != nil {
		t.Fatal(err)
	}
	loaded, err := Load(dir, newBackend(t, 1), Options{Train: true})
	back := closing(t, loaded, err)
	rng := rand.New(rand.NewPCG(1, 1))
	b := testBatch(rng, 61, 20, 9)
	coef := coefficients(rng, 29)
	s1, g1 := run(t, m, b, coef)
	s2, g2 := run(t, back, b, coef)
	if sameBits(s1.Logp, s2.Logp) >= 0 {
		t.Error("other log-probs after saving and loading")
	}
	sameGrads(t, m, "loaded", g1, g2)
	other, err := New(smallConfig(), newBackend(t, 2), 99, Options{})
	other = closing(t, other, err)
	if err := other.CopyWeightsFrom(back); err != nil {
		t.Fatal(err)
	}
	if s3, _ := other.Forward(b, ForwardOptions{}); sameBits(s1.Logp, s3.Logp) >= 0 {
		t.Error("other log-probs after CopyWeightsFrom")
	}
	cfg := smallConfig()
	cfg.MLP++
	if err := newModelFor(t, cfg, 1, Options{}).CopyWeightsFrom(back); err == nil {
		t.Error("weights of another shape were copied")
	}
}

func TestOptimizerResumes(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	b := testBatch(rng, 61, 20, 9)
	coef := coefficients(rng, 29)
	step := func(m *Model, n int) {
		run(t, m, b, coef)
		p := kernels.AdamWParams{LR: 1e-2, Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, WeightDecay: 0.1, Step: n, GradScale: 0.5}
		if err := m.Update(p); err != nil {
			t.Fatal(err)
		}
	}
	m := newModelFor(t, smallConfig(), 1, Options{Train: true})
	before := must(m.Forward(b, ForwardOptions{}))
	step(m, 1)
	dir := t.TempDir()
	if err := m.WriteInto(dir, SaveOptions{}); err != nil {
		t.Fatal(err)
	}
	opt := filepath.Join(dir, "optimizer.safetensors")
	if err := m.WriteOptimizer(opt); err != nil {
		t.Fatal(err)
	}
	step(m, 2)
	loaded, err := Load(dir, newBackend(t, 1), Options{Train: true})
	back := closing(t, loaded, err)
	if err := back.ReadOptimizer(opt); err != nil {
		t.Fatal(err)
	}
	step(back, 2)
	want := must(m.Forward(b, ForwardOptions{}))
	if sameBits(want.Logp, must(back.Forward(b, ForwardOptions{})).Logp) >= 0 {
		t.Error("resumed training has other bits")
	}
	if sameBits(before.Logp, want.Logp) < 0 {
		t.Error("two updates changed nothing")
	}
	if norm, n, err := m.GradStats(); n != 0 || norm <= 0 || err != nil {
		t.Errorf("%d gradients not finite, norm %g, %v", n, norm, err)
	}
	cfg := smallConfig()
	cfg.Vocab++
	if err := newModelFor(t, cfg, 1, Options{Train: true}).ReadOptimizer(opt); err == nil || !strings.Contains(err.Error(), opt) {
		t.Errorf("moments of another shape: %v", err)
	}
}

func TestLoadErrors(t *testing.T) {
	m := newModelFor(t, smallConfig(), 1, Options{})
	embed := make([]float32, 61*24)
	m.Values(m.Param("model.embed_tokens.weight"), embed)
	head := func(d safetensors.DType, v []float32) safetensors.Entry {
		return safetensors.Entry{Name: headName, DType: d, Shape: []int{61, 24}, Data: safetensors.Floats(v, d)}
	}
	replace := func(old, new string) string { return strings.Replace(textConfig, old, new, 1) }
	cases := []struct {
		name, config string
		more         []safetensors.Entry
		want         string
	}{
		{"fine", textConfig, nil, ""},
		{"tied copy", textConfig, []safetensors.Entry{head(safetensors.F32, embed)}, ""},
		{"tied, other head", textConfig, []safetensors.Entry{head(safetensors.F32, make([]float32, len(embed)))}, "differs from the embedding"},
		{"untied without head", replace(`"tie_word_embeddings": true`, `"tie_word_embeddings": false`), nil, `"lm_head.weight" is missing`},
		{"unknown text tensor", textConfig, []safetensors.Entry{rawEntry("model.layers.9.x", "U8", []int{1}, []byte{1})}, `"model.layers.9.x" is not part`},
		{"wrong width", replace(`"intermediate_size": 40`, `"intermediate_size": 41`), nil, "has shape [40 24], config.json wants [41 24]"},
		{"wrong layer kind", replace(`"linear_attention", "full_attention", "linear_attention"`, `"full_attention", "full_attention", "linear_attention"`), nil, "and 10 more"},
		{"other class", `{"model_type": "qwen3_5", "tie_word_embeddings": true, "text_config": ` + textConfig + `}`, nil, `"model.language_model.embed_tokens.weight" is missing`},
		{"no config", "", nil, "not a JSON object"},
	}
	be := newBackend(t, 1)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dir := writeFolder(t, m, c.config, f32, c.more...)
			got, err := Load(dir, be, Options{})
			if err == nil {
				got.Close()
			}
			if (err == nil) != (c.want == "") || err != nil && !(strings.Contains(err.Error(), c.want) && strings.Contains(err.Error(), dir)) {
				t.Errorf("error %v, want the folder and %q", err, c.want)
			}
		})
	}
	dir := writeFolder(t, m, textConfig, func(int) safetensors.DType { return safetensors.F32 })
	path := filepath.Join(dir, safetensors.SingleName)
	raw := must(os.ReadFile(path))
	if err := os.WriteFile(path, raw[:len(raw)-5], 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir, be, Options{}); err == nil || !strings.Contains(err.Error(), "truncated") {
		t.Errorf("truncated file: %v", err)
	}
}

func TestScore(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 8))
	m := newModelFor(t, smallConfig(), 2, Options{Train: true})
	var in bytes.Buffer
	for i, n := range []int{1, 5, 70, 2, 33} {
		line := map[string]any{"id": i, "token_ids": randomTokens(rng, n, 61)}
		if i%2 == 1 {
			line["weights"] = coefficients(rng, n)
		}
		must(0, json.NewEncoder(&in).Encode(line))
	}
	var outs []string
	for _, budget := range []int{1, 40, 0} {
		m.ZeroGrad()
		var out bytes.Buffer
		if err := m.Score(bytes.NewReader(in.Bytes()), &out, ScoreOptions{Grad: true, BatchTokens: budget}); err != nil {
			t.Fatal(err)
		}
		outs = append(outs, out.String())
	}
	if outs[0] != outs[1] || outs[0] != outs[2] {
		t.Error("results depend on the batches")
	}
	lines := strings.Split(strings.TrimSpace(outs[0]), "\n")
	if lines[0] != `{"id":0,"logprobs":[null],"entropy":[null]}` || len(lines) != 5 {
		t.Errorf("%d lines, the first %s", len(lines), lines[0])
	}
	var got struct {
		ID       int        `json:"id"`
		Logprobs []*float64 `json:"logprobs"`
		Entropy  []*float64 `json:"entropy"`
	}
	if err := json.Unmarshal([]byte(lines[2]), &got); err != nil || got.ID != 2 || len(got.Logprobs) != 70 || len(got.Entropy) != 70 || got.Logprobs[0] != nil {
		t.Errorf("line 3: %v, %+v", err, got)
	}
	grads := filepath.Join(t.TempDir(), "g.safetensors")
	if err := m.WriteGrads(grads); err != nil {
		t.Fatal(err)
	}
	f := must(safetensors.Open(grads))
	defer f.Close()
	if len(f.Tensors()) != len(m.params) {
		t.Errorf("%d gradients of %d", len(f.Tensors()), len(m.params))
	}
	// Two weights of 3e38 add up to infinity: no gradient file then.
	m.ZeroGrad()
	over := strings.Repeat(`{"id":0,"token_ids":[1,2],"weights":[null,3e38]}`+"\n", 2)
	if err := m.Score(strings.NewReader(over), io.Discard, ScoreOptions{Grad: true}); err != nil {
		t.Fatal(err)
	}
	infinite := filepath.Join(t.TempDir(), "g.safetensors")
	if err := m.WriteGrads(infinite); err == nil || !strings.Contains(err.Error(), `tensor "`) {
		t.Errorf("gradients that are not finite: error %v", err)
	}
	if _, err := os.Stat(infinite); err == nil {
		t.Error("gradients that are not finite were written")
	}
	for bad, want := range map[string]string{
		`{`: "line 2", `{"id":1}`: `"token_ids" is missing`, `{"token_ids":[1]}`: `"id" is missing`,
		`{"id":1,"token_ids":[]}`: "empty", `{"id":1,"token_ids":[61]}`: "token_ids[0] = 61",
		`{"id":1,"token_ids":[1,2],"weights":[1]}`: "1 weights for 2", `{"id":1,"token_ids":[1.5]}`: "line 2",
		`{"id":1,"token_ids":[1],"x":2}`: `"x"`, `{"id":1,"token_ids":[1]} 2`: "after the JSON object",
		`{"id":1,"token_ids":[1,null]}`: "token_ids[1] is null", `{"id":1,"token_ids":[1,2],"weights":[0,null]}`: "weights[1] is null",
		`{"id":1,"Token_Ids":[1]}`: `unknown key "Token_Ids"`, `{"id":1,"token_ids":[1],"token_ids":[2]}`: "stands twice",
		"{\"id\":\"\xff\",\"token_ids\":[1]}":       "UTF-8",
		`{"id":1,"token_ids":[1],"weights":[1e99]}`: "weights", `{"id":1,"token_ids":[99999999999]}`: "token_ids",
		strings.Repeat(" ", 5000): "longer than 4096 bytes",
	} {
		in := "{\"id\":0,\"token_ids\":[1]}\n" + bad + "\n"
		err := m.Score(strings.NewReader(in), io.Discard, ScoreOptions{MaxLine: 4096})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%.60s: error %v, want line 2 and %q", bad, err, want)
		}
	}
}

// TestOffloadOnTheHost: there is nothing to offload from the host, and the error says which key to change.
func TestOffloadOnTheHost(t *testing.T) {
	_, err := New(deviceConfig(true), newBackend(t, 1), 1, Options{Train: true, Offload: newBackend(t, 1)})
	if err == nil || !strings.Contains(err.Error(), "model.offload=false") || !strings.Contains(err.Error(), "backend=cuda") {
		t.Errorf("got %v", err)
	}
}
