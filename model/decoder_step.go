package model

import (
	"fmt"

	"harness-s/kernels"
)

// Step appends tokens to sequences in one packed batch, prefill and decoding mixed, and samples where asked. results[i]
// answers work[i]. On ErrFull (only beyond what Open and Reserve set aside) and on wrong work nothing was changed. After an
// error of the backend the sequences in work can only be closed.
func (d *Decoder) Step(work []Work) ([]Result, error) {
	if err := d.checkWork(work); err != nil {
		return nil, err
	}
	if err := d.reserveAll(work); err != nil {
		return nil, err
	}
	results := make([]Result, len(work))
	if len(work) == 0 {
		return results, nil
	}
	a, err := d.prepare(work)
	if err != nil {
		return nil, err
	}
	m, be := d.m, d.be
	be.Embed(a.x, a.ids, m.embed.Weight, a.T)
	gdn, attn := 0, 0
	for i := range m.layers {
		l := &m.layers[i]
		be.RMSNorm(a.layer.norm, kernels.Buffer{}, a.x, l.inNorm.W, a.T, m.Config.Hidden, float32(m.Config.Eps))
		if l.gdn != nil {
			d.gdnExtend(l.gdn, a, gdn)
			gdn++
		} else {
			d.attentionExtend(l.attn, a, attn)
			attn++
		}
		m.mlpHidden(l, &a.layer, a.x, a.T)
		be.Linear(a.x, a.layer.y, l.down.Weight, a.T)
		be.Add(a.x, a.layer.mid, a.T*m.Config.Hidden)
	}
	d.sample(a, work, results)
	if err := be.Sync(); err != nil {
		return nil, fmt.Errorf("decoder: step: %w", err)
	}
	for _, w := range work {
		d.advance(w.Seq, w.Tokens)
	}
	return results, nil
}

// reserveAll takes the blocks that the step needs, all or none.
func (d *Decoder) reserveAll(work []Work) error {
	need := 0
	for _, w := range work {
		total := blocksFor(w.Seq.Len() + len(w.Tokens))
		if total > d.blocks.max {
			return fmt.Errorf("decoder: a sequence of %d tokens exceeds the cache of %d", w.Seq.Len()+len(w.Tokens), d.blocks.max*kernels.ChunkLen)
		}
		need += max(0, total-len(w.Seq.blocks))
	}
	if !d.blocks.canTake(need) {
		return ErrFull
	}
	for _, w := range work {
		if err := d.Reserve(w.Seq, w.Seq.Len()+len(w.Tokens)); err != nil {
			return err
		}
	}
	return nil
}

// stepActs are one step's buffers; one set serves all layers.
type stepActs struct {
	T, N   int // tokens, sampled rows
	spans  []kernels.Span
	pages  [][][]kernels.Buffer // per attention layer, per span
	rounds []round
	params []kernels.SampleParams
	owner  []int // per sampled row: its work

	ids, pos, rows kernels.Buffer // int32 [T], [T], [N]
	x              kernels.Buffer // [T,H]
	layer          layerActs
	picked, final  kernels.Buffer // [N,H]
	logits         kernels.Buffer // [N,V]
}

// round is the part of a step that lies in one block of each sequence: recurrent layers go through the rounds one after
// another, so that the state at every block's end can be kept.
type round struct {
	spans  []kernels.Span
	states []seqState
	gdn    [][]kernels.Buffer // per GDN layer, per span
	conv   [][]kernels.Buffer
	ends   []*block // per span: the block it completes, or nil
}

// prepare lays the batch out, carves the buffers and uploads ids, positions and the rows to sample.
func (d *Decoder) prepare(work []Work) (*stepActs, error) {
	a := &stepActs{pages: make([][][]kernels.Buffer, d.blocks.attn)}
	var ids, pos, rows []int32
	for i, w := range work {
		at := w.Seq.Len()
		a.spans = append(a.spans, kernels.Span{Row: len(ids), Len: len(w.Tokens), Pos: at})
		ids = append(ids, w.Tokens...)
		for j := range w.Tokens {
			pos = append(pos, int32(at+j))
		}
		for layer := range a.pages {
			a.pages[layer] = append(a.pages[layer], w.Seq.pages[layer])
		}
		if w.Sample != nil {
			rows = append(rows, int32(len(ids)-1))
			a.params, a.owner = append(a.params, *w.Sample), append(a.owner, i)
		}
	}
	a.T, a.N = len(ids), len(rows)
	a.rounds = d.splitRounds(work, a.spans)
	if err := d.ws.carve(func(c *carver) { d.plan(a, c) }); err != nil {
		return nil, fmt.Errorf("decoder: step of %d tokens: %w", a.T, err)
	}
	d.be.UploadInts(a.ids, ids)
	d.be.UploadInts(a.pos, pos)
	d.be.UploadInts(a.rows, rows)
	return a, nil
}

func (d *Decoder) plan(a *stepActs, c *carver) {
	p := planner{cfg: &d.m.Config}
	H := d.m.Config.Hidden
	a.ids, a.pos, a.rows, a.x = c.take(a.T), c.take(a.T), c.take(a.N), c.acts(a.T*H)
	p.step(&a.layer, a.T, c)
	a.picked, a.final, a.logits = c.acts(a.N*H), c.acts(a.N*H), c.take(a.N*d.m.Config.Vocab)
}

// splitRounds cuts the spans at multiples of kernels.ChunkLen.
func (d *Decoder) splitRounds(work []Work, spans []kernels.Span) []round {
	if d.blocks.gdn == 0 {
		return nil
	}
	var rounds []round
	for i, s := range spans {
		for n := 0; s.Len > 0; n++ {
			if n == len(rounds) {
				rounds = append(rounds, d.newRound(len(work)-i))
			}
			part := s
			part.Len = min(s.Len, kernels.ChunkLen-s.Pos%kernels.ChunkLen)
			var end *block
			if (part.Pos+part.Len)%kernels.ChunkLen == 0 {
				end = work[i].Seq.blocks[part.Pos/kernels.ChunkLen]
			}
			rounds[n].add(part, work[i].Seq.state, end)
			s.Row, s.Pos, s.Len = s.Row+part.Len, s.Pos+part.Len, s.Len-part.Len
		}
	}
	return rounds
}

// newRound is an empty round with room for n spans.
func (d *Decoder) newRound(n int) round {
	r := round{spans: make([]kernels.Span, 0, n), states: make([]seqState, 0, n), ends: make([]*block, 0, n)}
	for range d.blocks.gdn {
		r.gdn, r.conv = append(r.gdn, make([]kernels.Buffer, 0, n)), append(r.conv, make([]kernels.Buffer, 0, n))
	}
	return r
}

func (r *round) add(s kernels.Span, state seqState, end *block) {
	r.spans, r.states, r.ends = append(r.spans, s), append(r.states, state), append(r.ends, end)
	for layer := range r.gdn {
		r.gdn[layer] = append(r.gdn[layer], state.gdn[layer])
		r.conv[layer] = append(r.conv[layer], state.conv[layer])
	}
}

// gdnExtend is gdnLayer over cached sequences; layer counts GDN layers.
func (d *Decoder) gdnExtend(w *gdnWeights, a *stepActs, layer int) {
	be, T, s, g := d.be, a.T, d.m.Config.GDN(), &a.layer.gdn
	be.Linear(g.raw, a.layer.norm, w.qkv.Weight, T)
	be.Linear(g.z, a.layer.norm, w.z.Weight, T)
	be.Linear(g.b, a.layer.norm, w.b.Weight, T)
	be.Linear(g.a, a.layer.norm, w.a.Weight, T)
	be.GDNGates(g.g, g.beta, g.a, g.b, w.aLog.W, w.dtBias.W, T, s.Hv)
	for _, r := range a.rounds {
		be.ConvSiLUExtend(g.qkv, g.raw, w.conv.Master, r.conv[layer], r.spans, s.Channels(), s.K)
		be.GDNExtend(g.o, g.qkv, g.g, g.beta, r.gdn[layer], r.spans, s)
		for i, b := range r.ends {
			if b != nil {
				d.snapshot(b, r.states[i], layer)
			}
		}
	}
	be.GatedRMSNorm(g.y, g.o, g.z, w.norm.W, T*s.Hv, s.Dv, s.Eps)
	be.Linear(a.layer.mid, g.y, w.out.Weight, T)
}

// attentionExtend is attentionLayer over cached sequences; layer counts attention layers.
func (d *Decoder) attentionExtend(w *attnWeights, a *stepActs, layer int) {
	be, T, s, t := d.be, a.T, d.m.Config.Attn(), &a.layer.attn
	be.Linear(t.qg, a.layer.norm, w.q.Weight, T)
	be.Linear(t.k, a.layer.norm, w.k.Weight, T)
	be.Linear(t.v, a.layer.norm, w.v.Weight, T)
	be.QKNormRope(t.qr, t.kr, t.qg, t.k, w.qNorm.W, w.kNorm.W, a.pos, T, s)
	be.AttentionExtend(t.o, t.qr, t.kr, t.v, a.pages[layer], a.spans, s)
	be.OutputGate(t.y, t.o, t.qg, T, s)
	be.Linear(a.layer.mid, t.y, w.o.Weight, T)
}

// sample draws the asked tokens from the last hidden state of their spans.
func (d *Decoder) sample(a *stepActs, work []Work, results []Result) {
	if a.N == 0 {
		return
	}
	m, be, H, V := d.m, d.be, d.m.Config.Hidden, d.m.Config.Vocab
	be.Gather(a.picked, a.x, a.rows, a.N, a.T, H)
	be.RMSNorm(a.final, kernels.Buffer{}, a.picked, m.finalNorm.W, a.N, H, float32(m.Config.Eps))
	be.Logits(a.logits, a.final, m.head.Weight, a.N)
	for row, s := range be.Sample(a.logits, a.params, V) {
		w := work[a.owner[row]]
		r := &results[a.owner[row]]
		r.Sample = s
		if w.TopK > 0 {
			ids, logps := be.TopLogprobs(a.logits.Slice(row*V, V), w.TopK, V, inverse(w.Sample.Temperature))
			for i, id := range ids {
				r.Top = append(r.Top, TopLogprob{ID: id, Logprob: logps[i]})
			}
		}
	}
}

// inverse is 1/temperature; temperature 0 (argmax) reports the distribution of temperature 1.
func inverse(temperature float32) float32 {
	if temperature == 0 {
		return 1
	}
	return 1 / temperature
}

// advance records the tokens and keeps the blocks they completed.
func (d *Decoder) advance(seq *Seq, tokens []int32) {
	first := seq.Len() / kernels.ChunkLen
	seq.tokens = append(seq.tokens, tokens...)
	if seq.stale {
		return
	}
	for i := first; i < seq.Len()/kernels.ChunkLen; i++ {
		var parent *block
		if i > 0 {
			parent = seq.blocks[i-1]
		}
		own := seq.blocks[i]
		b := d.blocks.keep(own, parent, seq.tokens[i*kernels.ChunkLen:(i+1)*kernels.ChunkLen])
		if b == own {
			continue
		}
		seq.blocks[i] = b
		for layer := range seq.pages {
			seq.pages[layer][i] = d.blocks.page(b, layer)
		}
	}
}
