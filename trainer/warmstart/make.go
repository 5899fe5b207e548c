package warmstart

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"harness-s/kernels"
	"harness-s/model"
	"harness-s/model/tokenizer"
	"harness-s/rollout/harness"
)

// Options of Make.
type Options struct {
	Threads int       // CPU threads, 0: all cores; the result does not depend on it
	Out     io.Writer // progress
}

// Make makes the policy, measures it and writes it as a Hugging Face folder at dir, which must not exist.
func Make(ctx context.Context, cfg Config, dir string, o Options) error {
	if err := build(ctx, cfg, dir, o); err != nil {
		return fmt.Errorf("warm start: %w", err)
	}
	return nil
}

func build(ctx context.Context, cfg Config, dir string, o Options) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	if o.Threads == 0 {
		o.Threads = runtime.NumCPU()
	}
	pool, err := harness.LoadPool(cfg.Pool)
	if err != nil {
		return err
	}
	tmp, publish, discard, err := newFolder(dir)
	if err != nil {
		return err
	}
	defer discard()
	tok, err := trainTokenizer(ctx, cfg, pool)
	if err != nil {
		return err
	}
	d, err := newDemonstrator(cfg, pool, tok)
	if err != nil {
		return err
	}
	if err := trained(ctx, cfg, d, tok, tmp, o); err != nil {
		return err
	}
	return publish()
}

// trained clones a fresh model, writes it into dir and measures it there.
func trained(ctx context.Context, cfg Config, d *demonstrator, tok *tokenizer.Tokenizer, dir string, o Options) (err error) {
	be, err := kernels.NewCPU(o.Threads)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, be.Close()) }()
	m, err := model.New(cfg.shape(tok.VocabSize()), be, uint64(cfg.Seed), model.Options{Train: true})
	if err != nil {
		return err
	}
	defer m.Close()
	fmt.Fprintf(o.Out, "%d parameters, vocabulary of %d\n", m.Config.NumParams(), tok.VocabSize())
	if err := clone(ctx, m, d, o.Threads, func(p Progress) {
		if p.Step%20 == 0 || p.Step == p.Steps {
			fmt.Fprintln(o.Out, p)
		}
	}); err != nil {
		return err
	}
	if err := write(dir, m, tok); err != nil {
		return err
	}
	f, err := measure(ctx, dir, m, d, o.Threads, cfg.Probe)
	if err != nil {
		return fmt.Errorf("measure: %w", err)
	}
	f.Print(o.Out, d.pool)
	return writeFigures(dir, cfg, be, f)
}

// String is a line of progress.
func (p Progress) String() string {
	return fmt.Sprintf("step %d/%d: loss %.3f, recall %.3f, gradient %.2f, %.2fM tokens (%.2fM of the policy), %.0f tokens/s, %s left", p.Step, p.Steps,
		p.Loss, p.Recall, p.GradNorm, float64(p.Tokens)/1e6, float64(p.PolicyTokens)/1e6, float64(p.Tokens)/p.Elapsed.Seconds(), p.Left().Round(time.Second))
}
