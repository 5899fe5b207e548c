package model

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"

	"harness-s/internal/strictjson"
	"harness-s/model/safetensors"
)

// ScoreOptions says how Score works.
type ScoreOptions struct {
	// Grad adds to the model's gradients those of the sum over all lines of sum_t weights[t]*logprobs[t].
	Grad bool
	// BatchTokens bounds a packed batch; a longer row is a batch of its own. 0 = 4096. Log-probs do not depend on it.
	BatchTokens int
	// MaxLine bounds a line's bytes. 0 = 64 MiB.
	MaxLine int
	// Temperature divides the logits; 0 = 1.
	Temperature float32
}

// scoreLine is one line of input.
type scoreLine struct {
	ID      json.RawMessage `json:"id"`
	Tokens  []int32         `json:"token_ids"`
	Weights []float32       `json:"weights"`

	line int // from 1
}

// Score reads lines {"id", "token_ids", "weights"?} and writes {"id", "logprobs": [null, ...], "entropy": [null, ...]} in
// the same order. Entry t belongs to token t given the tokens before it. Errors name the line.
func (m *Model) Score(in io.Reader, out io.Writer, opt ScoreOptions) error {
	if opt.BatchTokens <= 0 {
		opt.BatchTokens = 4096
	}
	if opt.MaxLine <= 0 {
		opt.MaxLine = 64 << 20
	}
	w := bufio.NewWriterSize(out, 1<<16)
	scan := bufio.NewScanner(in)
	scan.Buffer(make([]byte, min(1<<16, opt.MaxLine)), opt.MaxLine)
	var pending []scoreLine
	tokens, number := 0, 0
	flush := func() error {
		err := m.scoreBatch(pending, w, opt)
		pending, tokens = pending[:0], 0
		return err
	}
	for scan.Scan() {
		number++
		if len(bytes.TrimSpace(scan.Bytes())) == 0 {
			continue
		}
		l, err := m.parseScoreLine(scan.Bytes())
		if err != nil {
			return fmt.Errorf("score: line %d: %w", number, err)
		}
		l.line = number
		if tokens > 0 && tokens+len(l.Tokens) > opt.BatchTokens {
			if err := flush(); err != nil {
				return err
			}
		}
		pending, tokens = append(pending, l), tokens+len(l.Tokens)
	}
	if err := scan.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			err = fmt.Errorf("longer than %d bytes", opt.MaxLine)
		}
		return fmt.Errorf("score: line %d: %w", number+1, err)
	}
	if err := flush(); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("score: write results: %w", err)
	}
	return nil
}

func (m *Model) parseScoreLine(raw []byte) (scoreLine, error) {
	var l scoreLine
	if err := strictjson.Decode(raw, &l, "weights[0]"); err != nil { // entry 0 is ignored, whatever it is
		return l, err
	}
	switch {
	case l.ID == nil:
		return l, errors.New("key \"id\" is missing")
	case len(l.Tokens) == 0:
		return l, errors.New("key \"token_ids\" is missing or empty")
	case l.Weights != nil && len(l.Weights) != len(l.Tokens):
		return l, fmt.Errorf("%d weights for %d token_ids", len(l.Weights), len(l.Tokens))
	}
	if i := badToken(l.Tokens, m.Config.Vocab); i >= 0 {
		return l, fmt.Errorf("token_ids[%d] = %d is outside the vocabulary of %d", i, l.Tokens[i], m.Config.Vocab)
	}
	return l, nil
}

// scoreBatch runs the lines as one packed batch and writes their results.
func (m *Model) scoreBatch(lines []scoreLine, w io.Writer, opt ScoreOptions) error {
	if len(lines) == 0 {
		return nil
	}
	var b Batch
	var coef []float32
	for _, l := range lines {
		b.Add(l.Tokens, nil)
		if l.Weights == nil {
			l.Weights = make([]float32, len(l.Tokens))
		}
		coef = append(coef, l.Weights...)
	}
	span := fmt.Sprintf("lines %d to %d", lines[0].line, lines[len(lines)-1].line)
	stats, err := m.Forward(b, ForwardOptions{Temperature: opt.Temperature, Grad: opt.Grad})
	if err != nil {
		return fmt.Errorf("score: %s: %w", span, err)
	}
	if opt.Grad {
		if err := m.Backward(coef); err != nil {
			return fmt.Errorf("score: %s: %w", span, err)
		}
	}
	for i, l := range lines {
		lo, hi := b.Cu[i], b.Cu[i+1]
		if err := writeScore(w, l.ID, stats.Logp[lo:hi], stats.Entropy[lo:hi]); err != nil {
			return fmt.Errorf("score: line %d: %w", l.line, err)
		}
	}
	return nil
}

func writeScore(w io.Writer, id json.RawMessage, logp, entropy []float32) error {
	buf := append([]byte(`{"id":`), id...)
	for _, field := range []struct {
		name   string
		values []float32
	}{{"logprobs", logp}, {"entropy", entropy}} {
		buf = append(append(append(buf, `,"`...), field.name...), `":[null`...)
		for t, v := range field.values[1:] {
			if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
				return fmt.Errorf("%s[%d] is %g: the model's weights or activations are not finite", field.name, t+1, v)
			}
			buf = strconv.AppendFloat(append(buf, ','), float64(v), 'g', -1, 32)
		}
		buf = append(buf, ']')
	}
	_, err := w.Write(append(buf, '}', '\n'))
	return err
}

// WriteGrads writes the gradients as a safetensors file: the checkpoint's names and shapes, fp32, every text tensor. A
// gradient that is not finite is an error that names its tensor, and nothing is written.
func (m *Model) WriteGrads(path string) error {
	var entries []safetensors.Entry
	for i := range m.params {
		p := &m.params[i]
		if err := m.finite(p); err != nil {
			return fmt.Errorf("write gradients: tensor %q: %w; check the weights given and the model's", p.Name, err)
		}
		entries = append(entries, m.entry(p.Name, p, &m.grad, safetensors.F32))
	}
	safetensors.SortEntries(entries)
	if err := safetensors.WriteFile(path, map[string]string{"format": "pt"}, entries); err != nil {
		return fmt.Errorf("write gradients: %w", err)
	}
	return nil
}

func (m *Model) finite(p *Param) error {
	values, err := m.read(&m.grad, p)
	if err != nil {
		return err
	}
	for i, v := range values {
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return fmt.Errorf("element %d is %g", i, v)
		}
	}
	return nil
}
