package trainer

import (
	"context"
	"errors"
	"fmt"
	"io"

	"harness-s/internal/nodes"
	"harness-s/internal/strictyaml"
	"harness-s/kernels"
	"harness-s/rollout/harness"
	"harness-s/trainer/loss"
	"harness-s/trainer/runfolder"
)

// ErrInterrupted says that a run stopped on request (Ctrl-C) and can be resumed. It wraps context.Canceled.
var ErrInterrupted error = interruption{}

type interruption struct{}

func (interruption) Error() string { return "interrupted; continue with --run and --resume" }
func (interruption) Unwrap() error { return context.Canceled }

// Options are what a run needs besides its config.
type Options struct {
	RunDir   string
	Resume   bool      // continue with the run's own config, the folder's; of the one given only Set counts
	Set      []string  // the overrides (a.b=c) that the given config has in it
	Out      io.Writer // progress and the closing table; nil: none
	Terminal bool      // Out is a terminal: long phases show in one line that is written over
	Build    Builder   // wires the parts; nil: Build of this package
	// Nodes is this process's place, node 0, where other processes (Follow) take part; the zero Place: alone.
	Nodes nodes.Place
	// Report writes report.html into a run folder and returns its path; nil: none.
	Report func(dir string) (string, error)
}

// run is one training run in this process.
type run struct {
	cfg      Config
	opts     Options
	parts    Parts
	loss     loss.Loss
	direct   *direct // where the learner evaluates the loss itself
	pool     *harness.Pool
	folder   *runfolder.Folder
	sampler  *sampler
	state    state
	saved    int // step of the last checkpoint; -1: none
	clock    clock
	progress *progress
}

// Train runs a config to the end of its budget and returns the summary. It returns ErrInterrupted when ctx
// ends; the folder then resumes to the same bits.
func Train(ctx context.Context, cfg Config, opts Options) (Summary, error) {
	r, err := open(ctx, cfg, opts)
	if err != nil {
		return Summary{}, err
	}
	defer r.close()
	summary, err := r.train(ctx)
	r.progress.end()
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return summary, r.interrupted()
	}
	return summary, err
}

func (r *run) train(ctx context.Context) (Summary, error) {
	if err := r.start(ctx); err != nil {
		return Summary{}, err
	}
	r.progress.begin(r.state.Rollouts, r.cfg)
	for r.more() {
		if err := ctx.Err(); err != nil {
			return Summary{}, err
		}
		if err := r.step(ctx); err != nil {
			return Summary{}, err
		}
	}
	return r.finish(ctx)
}

// more says whether the budget has another step in it.
func (r *run) more() bool { return r.cfg.another(r.state) }

func (c Config) another(s state) bool {
	return s.Rollouts+c.Rollout.N <= c.Budget.Rollouts && (c.Budget.Steps == 0 || s.Step < c.Budget.Steps)
}

// open takes the folder, decides where to start and wires the parts.
func open(ctx context.Context, cfg Config, opts Options) (_ *run, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	folder, err := runfolder.Open(opts.RunDir, opts.Resume)
	if err != nil {
		return nil, err
	}
	r := &run{cfg: cfg, opts: opts, folder: folder, saved: -1}
	r.progress = newProgress(opts.Out, opts.Terminal)
	others := r.others(runHash(cfg))
	defer func() {
		if err != nil {
			r.close()
			folder.DropUnused()
		}
	}()
	if opts.Resume {
		if err := r.ownConfig(); err != nil {
			return nil, fmt.Errorf("resume: %w", err)
		}
	} else {
		r.resolveBackend()
	}
	cfg = r.cfg
	if r.loss, err = loss.New(cfg.Loss); err != nil {
		return nil, err
	}
	model, pool := cfg.Model.Path, cfg.Pool.Path
	if opts.Resume {
		pool = folder.Path("pool")
		if model, err = r.resumePoint(); err != nil {
			return nil, err
		}
	}
	if r.parts, err = opts.Build.wire(ctx, cfg, Sources{Model: model, Pool: pool, Train: true, Others: others, Answers: folder.Path("router", "answers.jsonl")}); err != nil {
		return nil, err
	}
	r.pool = r.parts.Pool
	r.chooseLoss()
	if err := r.checkParts(); err != nil {
		return nil, err
	}
	r.sampler = newSampler(cfg.Seed, r.parts.Tasks.Train)
	if opts.Resume {
		return r, r.restore(model)
	}
	return r, r.claim()
}

// resolveBackend puts the backend that auto stands for into the run's own config, so that it resumes on the same.
func (r *run) resolveBackend() {
	name, why := kernels.Resolve(r.cfg.Backend)
	if why != "" && r.opts.Out != nil {
		fmt.Fprintf(r.opts.Out, "training on %s (%s)\n", name, why)
	}
	r.cfg.Backend = name
}

// checkParts checks what only shows once the pool and the tasks are loaded.
func (r *run) checkParts() error {
	if err := r.pool.RequireK(r.cfg.Rescue.Siblings()); err != nil {
		return fmt.Errorf("rescue.k: %w", err)
	}
	if id := r.cfg.Rescue.Fixed; id != "" {
		if _, ok := r.pool.Get(id); !ok {
			return fmt.Errorf("rescue.fixed: the pool has no harness %q", id)
		}
	}
	if err := r.checkAnchor(); err != nil {
		return err
	}
	if err := r.checkNames(r.cfg.Eval.Ends); err != nil {
		return fmt.Errorf("eval.ends: %w", err)
	}
	if len(r.parts.Tasks.Train) == 0 {
		return errors.New("data: no training tasks")
	}
	if (r.cfg.Eval.Before || r.cfg.Eval.After || r.cfg.Eval.Every > 0) && len(r.evalTasks()) == 0 {
		return fmt.Errorf("data: no %s tasks to evaluate on", r.cfg.Eval.Split)
	}
	if r.needsRouter() && len(r.parts.Tasks.Validation) == 0 {
		return errors.New("data: no validation tasks, which the router is calibrated on")
	}
	return nil
}

// claim writes what makes the folder this run's: the pool first, the config last.
func (r *run) claim() error {
	if err := r.pool.Save(r.folder.Path("pool")); err != nil {
		return err
	}
	return r.folder.Write("config.yaml", strictyaml.Encode(r.cfg))
}

// start does what comes before the first step: send the weights, and in a fresh run calibrate the router,
// evaluate, and commit as step 0.
func (r *run) start(ctx context.Context) error {
	r.clock.start()
	if err := r.sync(ctx, r.state.Step, r.state.Probe); err != nil {
		return err
	}
	if r.saved >= 0 {
		return nil
	}
	s := &stepRun{run: r, out: metrics{}, next: r.state}
	s.next.Fixed = r.cfg.Rescue.Fixed
	if r.needsRouter() {
		if err := s.anchor(ctx); err != nil {
			return err
		}
	}
	if r.cfg.Eval.Before {
		scores, err := s.evaluate(ctx, "before", r.cfg.Eval.Ends)
		if err != nil {
			return err
		}
		s.next.Before = scores
	}
	return s.commit()
}

// needsRouter says whether anything asks the router.
func (r *run) needsRouter() bool {
	switch r.cfg.Rescue.Mode {
	case ModeRouted, ModeRepeat, ModeMixture:
		return true
	case ModeFixed:
		return r.cfg.Rescue.Fixed == ""
	}
	return asksRouter(r.cfg.Eval.Ends...) && (r.cfg.Eval.Before || r.cfg.Eval.After)
}

// interrupted leaves the folder so that nothing done is done again: the last complete step becomes a
// checkpoint if it is not one yet.
func (r *run) interrupted() error {
	if r.saved < r.state.Step && r.state.Step > 0 {
		if err := r.checkpoint(); err != nil {
			return fmt.Errorf("interrupted, and the checkpoint failed: %w", err)
		}
	}
	return fmt.Errorf("run folder %s: %w", r.folder.Dir, ErrInterrupted)
}

func (r *run) close() {
	if r.parts.Close != nil {
		if err := r.parts.Close(); err != nil {
			r.progress.note("closing: " + err.Error())
		}
	}
	r.folder.Close()
}
