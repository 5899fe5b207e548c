package warmstart

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"time"

	"harness-s/kernels"
	"harness-s/model"
	"harness-s/rollout/harness"
)

// Options of Make.
type Options struct {
	Threads int       // CPU threads, 0: all cores; the result does not depend on it
	Out     io.Writer // progress
}

// Make makes the policy and writes it as a Hugging Face folder at dir, which must not exist.
func Make(ctx context.Context, cfg Config, dir string, o Options) error {
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("warm start: %w", err)
	}
	if o.Threads == 0 {
		o.Threads = runtime.NumCPU()
	}
	pool, err := harness.LoadPool(cfg.Pool)
	if err != nil {
		return fmt.Errorf("warm start: %w", err)
	}
	began := time.Now()
	tok, err := trainTokenizer(ctx, cfg, pool)
	if err != nil {
		return fmt.Errorf("warm start: %w", err)
	}
	fmt.Fprintf(o.Out, "tokenizer: %d tokens, %.0f s\n", tok.VocabSize(), time.Since(began).Seconds())
	d, err := newDemonstrator(cfg, pool, tok)
	if err != nil {
		return fmt.Errorf("warm start: %w", err)
	}
	be, err := kernels.NewCPU(o.Threads)
	if err != nil {
		return fmt.Errorf("warm start: %w", err)
	}
	defer be.Close()
	m, err := model.New(cfg.shape(tok.VocabSize()), be, uint64(cfg.Seed), model.Options{Train: true})
	if err != nil {
		return fmt.Errorf("warm start: %w", err)
	}
	defer m.Close()
	fmt.Fprintf(o.Out, "model: %d parameters\n", m.Config.NumParams())
	if err := clone(ctx, m, d, o.Threads, func(p Progress) {
		if p.Step%20 == 0 || p.Step == p.Steps {
			fmt.Fprintf(o.Out, "step %d/%d loss %.3f recall %.3f grad %.2f tokens %.2fM (%.2fM of the policy) %.0f tok/s left %s\n", p.Step, p.Steps,
				p.Loss, p.Recall, p.GradNorm, float64(p.Tokens)/1e6, float64(p.PolicyTokens)/1e6, float64(p.Tokens)/p.Elapsed.Seconds(), p.Left().Round(time.Second))
		}
	}); err != nil {
		return fmt.Errorf("warm start: %w", err)
	}
	f, err := measure(ctx, m, d, 100)
	if err != nil {
		return fmt.Errorf("warm start: %w", err)
	}
	f.Print(o.Out, pool)
	return save(m, tok, dir)
}
