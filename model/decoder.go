package model

import (
	"errors"
	"fmt"
	"math"

	"harness-s/kernels"
)

// ErrFull says that the decoder has no room now: every sequence slot or cache block is in use. Closing a sequence
// makes room.
var ErrFull = errors.New("decoder: no room")

// DecoderOptions bound a Decoder's memory.
type DecoderOptions struct {
	MaxTokens int // tokens cached over all sequences and kept prefixes, rounded up to whole blocks
	MaxSeqs   int // open sequences
}

// Decoder extends sequences token by token. It caches keys and values, recurrent states and conv tails; blocks of
// kernels.ChunkLen tokens stay as kept prefixes after their sequence is closed, until their room is needed. What is
// sampled depends on the weights, the sequence's tokens and the sampling parameters alone, bit for bit: not on the
// batch, on how the tokens were split into steps, or on what came from a kept prefix.
type Decoder struct {
	m      *Model
	be     kernels.InferenceBackend // the model's
	opt    DecoderOptions
	ws     *workspace
	blocks blockPool
	states []seqState // free ones
	open   int        // open sequences
	live   map[*Seq]bool
	bufs   []kernels.Buffer // to free
}

// Seq is an open sequence of a Decoder.
type Seq struct {
	tokens []int32            // processed so far
	blocks []*block           // enough for tokens; more when reserved
	pages  [][]kernels.Buffer // per attention layer: the blocks' pages
	state  seqState
	stale  bool // its state was made before Reset: nothing of it may be kept
	closed bool
}

// Len is the number of tokens processed so far, cached ones included.
func (s *Seq) Len() int { return len(s.tokens) }

// seqState is the running state of one sequence.
type seqState struct {
	all       kernels.Buffer
	gdn, conv []kernels.Buffer // per GDN layer
}

// Work is one sequence's part of a step.
type Work struct {
	Seq    *Seq
	Tokens []int32               // to append, at least one
	Sample *kernels.SampleParams // draw the token after them; nil = none, and no head work
	TopK   int                   // also list this many most likely tokens at the temperature; needs Sample
}

// TopLogprob is one of the most likely tokens.
type TopLogprob struct {
	ID      int32
	Logprob float32
}

// Result answers one Work; it is zero when nothing was sampled.
type Result struct {
	Sample kernels.Sample // ID -1 when the logits were not finite
	Top    []TopLogprob   // best first, ties by id
}

// NewDecoder makes a decoder over a model's weights. The memory for the cache is taken as it fills.
func NewDecoder(m *Model, opt DecoderOptions) (*Decoder, error) {
	if opt.MaxTokens < 1 || opt.MaxSeqs < 1 {
		return nil, fmt.Errorf("decoder: MaxTokens %d and MaxSeqs %d must be at least 1", opt.MaxTokens, opt.MaxSeqs)
	}
	be, ok := m.be.(kernels.InferenceBackend)
	if !ok {
		return nil, fmt.Errorf("decoder: backend %s does not generate; load the model on cpu, or use a vLLM server", m.be.Name())
	}
	d := &Decoder{m: m, be: be, opt: opt, ws: newWorkspace(be), live: map[*Seq]bool{}}
	d.blocks.init(&m.Config, be, blocksFor(opt.MaxTokens))
	return d, nil
}

// Free gives all memory back. No sequence may be used afterwards.
func (d *Decoder) Free() {
	d.ws.free()
	d.blocks.destroy()
	for _, b := range d.bufs {
		d.be.Free(b)
	}
	d.bufs, d.states, d.live = nil, nil, map[*Seq]bool{}
}

// Open starts a sequence. The first cached tokens of the prompt, a multiple of kernels.ChunkLen and less than the whole,
// came from a kept prefix; the caller passes the rest, prompt[cached:], to Step. Room for the prompt is set aside; see
// Reserve for what follows it. ErrFull: try again when a sequence was closed.
func (d *Decoder) Open(prompt []int32) (seq *Seq, cached int, err error) {
	if len(prompt) == 0 {
		return nil, 0, errors.New("decoder: empty prompt")
	}
	if i := badToken(prompt, d.m.Config.Vocab); i >= 0 {
		return nil, 0, fmt.Errorf("decoder: prompt token %d: id %d is outside the vocabulary of %d", i, prompt[i], d.m.Config.Vocab)
	}
	if d.open >= d.opt.MaxSeqs {
		return nil, 0, ErrFull
	}
	seq = &Seq{pages: make([][]kernels.Buffer, d.m.Config.count(FullAttention))}
	for _, b := range d.blocks.match(prompt[:len(prompt)-1]) {
		d.blocks.acquire(b)
		d.addBlock(seq, b)
	}
	kept := len(seq.blocks)
	if err := d.Reserve(seq, len(prompt)); err != nil {
		d.dropBlocks(seq)
		return nil, 0, err
	}
	if seq.state, err = d.takeState(); err != nil {
		d.dropBlocks(seq)
		return nil, 0, err
	}
	if kept > 0 {
		d.restore(seq.state, seq.blocks[kept-1])
	} else {
		d.be.Zero(seq.state.all)
	}
	cached = kept * kernels.ChunkLen
	seq.tokens = append(seq.tokens, prompt[:cached]...)
	d.open++
	d.live[seq] = true
	return seq, cached, nil
}

// Reserve sets room aside for a sequence of tokens tokens in all, so that steps up to there cannot fail with ErrFull.
func (d *Decoder) Reserve(seq *Seq, tokens int) error {
	need := blocksFor(tokens)
	if need > d.blocks.max {
		return fmt.Errorf("decoder: a sequence of %d tokens exceeds the cache of %d", tokens, d.blocks.max*kernels.ChunkLen)
	}
	if !d.blocks.canTake(need - len(seq.blocks)) {
		return ErrFull
	}
	for len(seq.blocks) < need {
		b, err := d.blocks.take()
		if err != nil {
			return err
		}
		d.addBlock(seq, b)
	}
	return nil
}

// Close ends a sequence. Its full blocks stay as kept prefixes.
func (d *Decoder) Close(seq *Seq) {
	if seq.closed || !d.live[seq] {
		return
	}
	seq.closed = true
	delete(d.live, seq)
	d.open--
	d.dropBlocks(seq)
	d.states = append(d.states, seq.state)
	seq.state = seqState{}
}

// Reset drops all kept prefixes; it must follow a change of the weights. Open sequences may go on, but nothing of them
// is kept.
func (d *Decoder) Reset() {
	d.blocks.reset()
	for seq := range d.live {
		seq.stale = true
	}
}

// addBlock appends a block and its pages.
func (d *Decoder) addBlock(seq *Seq, b *block) {
	seq.blocks = append(seq.blocks, b)
	for i := range seq.pages {
		seq.pages[i] = append(seq.pages[i], d.blocks.page(b, i))
	}
}

// dropBlocks releases a sequence's blocks, the last first: an eviction then meets children before parents.
func (d *Decoder) dropBlocks(seq *Seq) {
	for i := len(seq.blocks) - 1; i >= 0; i-- {
		d.blocks.release(seq.blocks[i])
	}
	seq.blocks, seq.pages = nil, nil
}

// slabStates are allocated at a time.
const slabStates = 16

// takeState is a free state or a new one.
func (d *Decoder) takeState() (seqState, error) {
	if len(d.states) == 0 {
		if err := d.growStates(); err != nil {
			return seqState{}, err
		}
	}
	n := len(d.states) - 1
	s := d.states[n]
	d.states = d.states[:n]
	return s, nil
}

// growStates makes more free states, at most as many as sequences can be open.
func (d *Decoder) growStates() error {
	cfg, be := &d.m.Config, d.be
	layers := cfg.count(LinearAttention)
	gdn, conv := 0, 0
	if layers > 0 {
		gdn, conv = align(be.GDNState(cfg.GDN())), align(be.ConvState(cfg.GDN().Channels(), cfg.K))
	}
	words, n := layers*(gdn+conv), max(1, min(slabStates, d.opt.MaxSeqs-d.open))
	slab, err := be.Alloc("sequence state", n*words)
	if err != nil {
		return fmt.Errorf("decoder: allocate sequence state: %w", err)
	}
	d.bufs = append(d.bufs, slab)
	for i := n - 1; i >= 0; i-- {
		s := seqState{all: slab.Slice(i*words, words)}
		for l := range layers {
			s.gdn = append(s.gdn, s.all.Slice(l*(gdn+conv), be.GDNState(cfg.GDN())))
			s.conv = append(s.conv, s.all.Slice(l*(gdn+conv)+gdn, be.ConvState(cfg.GDN().Channels(), cfg.K)))
		}
		d.states = append(d.states, s)
	}
	return nil
}

// snapshot copies one GDN layer's state at a block's end into the block.
func (d *Decoder) snapshot(b *block, s seqState, layer int) {
	S, conv := d.blocks.state(b, layer)
	d.be.Copy(S, s.gdn[layer].Slice(0, S.Len()))
	d.be.Copy(conv, s.conv[layer])
}

// restore is the opposite of snapshot, for all layers.
func (d *Decoder) restore(s seqState, b *block) {
	for layer := range s.gdn {
		S, conv := d.blocks.state(b, layer)
		d.be.Copy(s.gdn[layer].Slice(0, S.Len()), S)
		d.be.Copy(s.conv[layer], conv)
	}
}

// checkWork says what is wrong with a step's work, if anything, before anything is changed.
func (d *Decoder) checkWork(work []Work) error {
	seen := make(map[*Seq]bool, len(work))
	for i, w := range work {
		switch {
		case w.Seq == nil || w.Seq.closed || !d.live[w.Seq]:
			return fmt.Errorf("decoder: work %d: sequence is not open", i)
		case seen[w.Seq]:
			return fmt.Errorf("decoder: work %d: sequence appears twice in a step", i)
		case len(w.Tokens) == 0:
			return fmt.Errorf("decoder: work %d has no tokens", i)
		case w.TopK < 0 || w.TopK > d.m.Config.Vocab:
			return fmt.Errorf("decoder: work %d: top %d of a vocabulary of %d", i, w.TopK, d.m.Config.Vocab)
		}
		seen[w.Seq] = true
		if at := badToken(w.Tokens, d.m.Config.Vocab); at >= 0 {
			return fmt.Errorf("decoder: work %d, token %d: id %d is outside the vocabulary of %d", i, at, w.Tokens[at], d.m.Config.Vocab)
		}
		if w.Sample == nil {
			continue
		}
		if err := checkSample(w.Sample, d.m.Config.Vocab); err != nil {
			return fmt.Errorf("decoder: work %d: %w", i, err)
		}
	}
	return nil
}

func checkSample(p *kernels.SampleParams, vocab int) error {
	if !(p.Temperature >= 0) || math.IsInf(float64(p.Temperature), 0) {
		return fmt.Errorf("temperature %g, want 0 or a positive number", p.Temperature)
	}
	if !(p.TopP > 0) || p.TopP > 1 {
		return fmt.Errorf("top_p %g, want above 0 and at most 1", p.TopP)
	}
	if p.Allowed != nil && len(p.Allowed) == 0 {
		return errors.New("the list of allowed tokens is empty")
	}
	if i := badToken(p.Allowed, vocab); i >= 0 {
		return fmt.Errorf("allowed token id %d is outside the vocabulary of %d", p.Allowed[i], vocab)
	}
	return nil
}

// Used is the share of the cache that open sequences hold, 0 to 1; kept prefixes are not counted.
func (d *Decoder) Used() float64 {
	idle := len(d.blocks.free) + d.blocks.max - d.blocks.made + d.blocks.idle.Len()
	return 1 - float64(idle)/float64(d.blocks.max)
}
