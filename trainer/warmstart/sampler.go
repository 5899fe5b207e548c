package warmstart

import (
	"context"

	"harness-s/model"
	"harness-s/rollout"
	"harness-s/rollout/policy"
)

// sampler is the policy in this process, for probes.
type sampler struct{ engine *policy.Engine }

func newSampler(m *model.Model, stop []int32) (*sampler, func(), error) {
	dec, err := model.NewDecoder(m, model.DecoderOptions{MaxTokens: 256 << 10, MaxSeqs: 64})
	if err != nil {
		return nil, nil, err
	}
	e, err := policy.NewEngine(decoder{dec}, policy.EngineOptions{MaxModelLen: m.Config.MaxPosition, Vocab: m.Config.Vocab, EOS: stop})
	if err != nil {
		dec.Free()
		return nil, nil, err
	}
	return &sampler{e}, func() { e.Close(); dec.Free() }, nil
}

// Generate samples one turn.
func (s *sampler) Generate(ctx context.Context, r rollout.Request) (rollout.Reply, error) {
	out, err := s.engine.Generate(ctx, policy.Request{ID: r.RolloutID, Prompt: r.Prompt, Params: policy.Params{
		N: 1, Seed: uint64(r.Seed), Temperature: float32(r.Temperature), TopP: 1, MaxTokens: r.MaxTokens, StopIDs: r.Stop,
	}})
	if err != nil {
		return rollout.Reply{}, err
	}
	return rollout.Reply{Tokens: out[0].Tokens, Logprobs: out[0].Logprobs, FinishReason: out[0].Finish}, nil
}

// decoder is model.Decoder as the engine takes it.
type decoder struct{ *model.Decoder }

func (d decoder) Open(prompt []int32) (policy.Sequence, int, error) {
	s, cached, err := d.Decoder.Open(prompt)
	if err == model.ErrFull {
		err = policy.ErrFull
	}
	return s, cached, err
}
func (d decoder) Close(s policy.Sequence) { d.Decoder.Close(s.(*model.Seq)) }
func (d decoder) Step(work []policy.Work) ([]policy.Result, error) {
	w := make([]model.Work, len(work))
	for i, x := range work {
		w[i] = model.Work{Seq: x.Seq.(*model.Seq), Tokens: x.Tokens, Sample: x.Sample, TopK: x.TopK}
	}
	res, err := d.Decoder.Step(w)
	if err == model.ErrFull {
		err = policy.ErrFull
	}
	out := make([]policy.Result, len(res))
	for i, r := range res {
		out[i].Sample = r.Sample
		for _, t := range r.Top {
			out[i].Top = append(out[i].Top, policy.Top{ID: t.ID, Logprob: t.Logprob})
		}
	}
	return out, err
}
