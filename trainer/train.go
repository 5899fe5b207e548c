package trainer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"harness-s/internal/strictyaml"
	"harness-s/rollout"
	"harness-s/rollout/harness"
	"harness-s/trainer/config"
	"harness-s/trainer/loss"
	"harness-s/trainer/runfolder"
)

// ErrInterrupted says that a run stopped on request (Ctrl-C) and can be resumed. It wraps context.Canceled.
var ErrInterrupted = fmt.Errorf("interrupted; continue with --resume: %w", context.Canceled)

// Options are what a run needs besides its config.
type Options struct {
	RunDir   string
	Resume   bool      // continue with the run's own config, the folder's; of the one given only Set counts
	Set      []string  // the overrides (a.b=c) that the given config has in it
	Out      io.Writer // progress and the closing table; nil: none
	Terminal bool      // Out is a terminal: one line that is written over
	Build    Builder   // wires the parts; nil: Build of this package
	// Report writes report.html into a run folder and returns its path; nil: none.
	Report func(dir string) (string, error)
}

// run is one training run in this process.
type run struct {
	cfg      Config
	opts     Options
	parts    Parts
	loss     loss.Loss
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
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	if opts.Resume {
		if err := r.ownConfig(); err != nil {
			return nil, fmt.Errorf("resume: %w", err)
		}
		cfg = r.cfg
	}
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
	if r.parts, err = opts.Build.wire(ctx, cfg, Sources{Model: model, Pool: pool, Train: true}); err != nil {
		return nil, err
	}
	r.pool = r.parts.Pool
	if err := r.checkParts(); err != nil {
		return nil, err
	}
	r.sampler = newSampler(cfg.Seed, r.parts.Tasks.Train)
	if opts.Resume {
		return r, r.restore(model)
	}
	return r, r.claim()
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
	for _, name := range r.cfg.Eval.Ends {
		if _, err := r.expand([]string{name}); err != nil {
			return fmt.Errorf("eval.ends: %w", err)
		}
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

// resumePoint cuts the folder back to its last checkpoint and returns where the weights are: that checkpoint,
// or the model of the config when the run stopped before its first.
func (r *run) resumePoint() (string, error) {
	steps, err := r.folder.Steps("checkpoints")
	if err != nil {
		return "", fmt.Errorf("resume: %w", err)
	}
	if len(steps) > 0 {
		r.saved = steps[len(steps)-1]
	}
	if err := r.folder.Cut(r.saved); err != nil {
		return "", err
	}
	if r.saved < 0 {
		return r.cfg.Model.Path, nil
	}
	return r.folder.StepDir("checkpoints", r.saved), nil
}

// restore brings back the state of a checkpoint.
func (r *run) restore(dir string) error {
	if r.saved < 0 {
		return nil
	}
	var err error
	if r.state, err = readState(dir); err != nil {
		return err
	}
	if r.state.Step != r.saved {
		return fmt.Errorf("resume: %s says it is step %d", filepath.Join(dir, stateName), r.state.Step)
	}
	if err := r.parts.Learner.ReadOptimizer(filepath.Join(dir, optimizerName)); err != nil {
		return fmt.Errorf("resume: %w", err)
	}
	if len(r.state.Router) > 0 {
		if err := r.parts.Router.UnmarshalJSON(r.state.Router); err != nil {
			return fmt.Errorf("resume: router state in %s: %w", filepath.Join(dir, stateName), err)
		}
	}
	return nil
}

// mayChange are the keys that a resumed run may set anew: they change what is done next, not what was done.
var mayChange = map[string]bool{
	"threads": true, "budget.rollouts": true, "budget.steps": true, "rollout.concurrency": true,
	"rollout.endpoint": true, "rollout.deadline_s": true, "rollout.retries": true, "eval.every": true,
	"eval.after": true, "eval.ends": true, "checkpoint.every": true, "checkpoint.keep": true,
	"model.recompute": true, "optim.microbatch_tokens": true, "mismatch.kl": true, "mismatch.max_abs": true,
	"mismatch.probe": true, "pool.path": true, // the folder's own copy is used
}

// ownConfig takes the config from the run folder, with the overrides given now. It refuses those that would make
// another run of it.
func (r *run) ownConfig() error {
	path := r.folder.Path("config.yaml")
	was := Default()
	if err := config.Read(path, nil, &was); err != nil {
		return err
	}
	now := was
	if err := config.Override(r.opts.Set, &now); err != nil {
		return err
	}
	for _, key := range config.Diff(was, now) {
		if !mayChange[key] {
			return fmt.Errorf("--set %s: the run has another value (%s); start a new run for it with another --run", key, path)
		}
	}
	if err := now.Validate(); err != nil {
		return err
	}
	if keys := config.Diff(r.cfg, now); len(keys) > 0 {
		r.progress.note("resuming with the run's own config, which differs from the given one in " + strings.Join(keys, ", "))
	}
	r.cfg = now
	return nil
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
	for _, e := range r.cfg.Eval.Ends {
		if e == routedName && (r.cfg.Eval.Before || r.cfg.Eval.After) {
			return true
		}
	}
	return false
}

// describe fills in the step's metrics known before the update.
func (s *stepRun) describe(base, rescue, retained []group, batches []minibatch) {
	s.out.describeRollouts(s.records)
	s.out.describeGroups(base, rescue, retained, s.cfg.Rescue.Mode)
	s.out["errors/nonfinite"] = 0
	for _, m := range batches {
		s.out["tokens/effective"] += float64(m.tokens)
	}
	s.next.Probe = probeRow(batches, s.next.Probe)
}

// update makes the step's optimizer updates.
func (s *stepRun) update(batches []minibatch) error {
	progress := float64(s.state.Rollouts) / float64(s.cfg.Budget.Rollouts)
	u := updater{cfg: s.cfg, loss: s.loss, learner: s.parts.Learner, updates: s.next.Updates, out: s.out,
		lr:   func(update int) float64 { return learningRate(s.cfg.Optim, update, progress) },
		dump: s.dump}
	s.out["policy/lr"] = u.lr(u.updates)
	if err := u.run(batches); err != nil {
		return fmt.Errorf("step %d: %w", s.n, err)
	}
	s.next.Updates = u.updates
	return nil
}

func (s *stepRun) dump(d dump) error {
	d.Step = s.n
	if err := os.MkdirAll(s.folder.Path("nonfinite"), 0o755); err != nil {
		return fmt.Errorf("dump a minibatch: %w", err)
	}
	return s.folder.WriteJSON(fmt.Sprintf("nonfinite/step_%d_epoch_%d_minibatch_%d.json", d.Step, d.Epoch, d.Minibatch), d)
}

func (s *stepRun) sync(ctx context.Context) error {
	return s.out.timed("time/sync", func() error { return s.run.sync(ctx, s.n, s.next.Probe) })
}

// onSchedule does what is due after the update: calibrate the router again (after the last step in any case, for
// the closing evaluation), evaluate under H0.
func (s *stepRun) onSchedule(ctx context.Context) error {
	if every := s.cfg.Router.Refresh; every > 0 && (s.n%every == 0 || !s.cfg.another(s.next)) && s.needsRouter() {
		if err := s.anchor(ctx); err != nil {
			return err
		}
	}
	if every := s.cfg.Eval.Every; every > 0 && s.n%every == 0 {
		if _, err := s.evaluate(ctx, "eval", []string{harness.BaseID}); err != nil {
			return err
		}
	}
	return nil
}

// anchor measures every harness on validation tasks under the current weights and tells the router.
func (s *stepRun) anchor(ctx context.Context) error {
	tasks := s.parts.Tasks.Validation
	if n := s.cfg.Router.Tasks; n > 0 {
		tasks = tasks[:min(n, len(tasks))]
	}
	return s.out.timed("time/router", func() error {
		records, err := s.attempts(ctx, "anchor", "anchor", tasks, s.pool.Specs, s.cfg.Router.Attempts)
		if err != nil {
			return err
		}
		if err := s.parts.Router.Observe(s.next.Step, records); err != nil {
			return fmt.Errorf("step %d: router: %w", s.next.Step, err)
		}
		if s.cfg.Rescue.Mode == ModeFixed && s.next.Fixed == "" {
			if s.next.Fixed, err = s.parts.Router.Best(); err != nil {
				return fmt.Errorf("rescue.fixed: %w", err)
			}
		}
		if s.folder == nil { // eval without a run folder of its own
			return nil
		}
		stats, err := s.parts.Router.MarshalJSON()
		if err != nil {
			return fmt.Errorf("router statistics: %w", err)
		}
		return s.folder.Write(fmt.Sprintf("router/stats_%06d.json", s.next.Step), append(stats, '\n'))
	})
}

// commit writes what the step leaves: rollouts, metrics, and on schedule a checkpoint, which makes it final.
func (s *stepRun) commit() error {
	if len(s.records) > 0 {
		if err := writeRecords(s.folder.RolloutPath("step", s.n), s.records); err != nil {
			return err
		}
	}
	router, err := s.parts.Router.MarshalJSON()
	if err != nil {
		return fmt.Errorf("router state: %w", err)
	}
	s.next.Router = json.RawMessage(router)
	s.clock.lap(s.out)
	s.next.WallS += s.out["time/step"]
	s.run.state = s.next
	s.perf()
	// The checkpoint's own time is known only after it: it stands in the next step's line.
	s.out["time/checkpoint"] = s.clock.checkpoint
	s.clock.checkpoint = 0
	if err := s.folder.AppendMetrics(s.out.line(s.state.Step)); err != nil {
		return err
	}
	s.progress.step(s.state, s.out)
	if s.state.Step%s.cfg.Checkpoint.Every != 0 && s.more() {
		return nil
	}
	start := time.Now()
	err = s.checkpoint()
	s.clock.checkpoint = time.Since(start).Seconds()
	return err
}

// interrupted leaves the folder so that nothing done is done again: the last complete step becomes a
// checkpoint if it is not one yet.
func (r *run) interrupted() error {
	if r.saved < r.state.Step && r.state.Step > 0 {
		if err := r.checkpoint(); err != nil {
			return fmt.Errorf("interrupted, and the checkpoint failed: %w", err)
		}
	}
	return ErrInterrupted
}

func (r *run) close() {
	if r.parts.Close != nil {
		if err := r.parts.Close(); err != nil {
			r.progress.note("closing: " + err.Error())
		}
	}
	r.folder.Close()
}

// writeRecords makes a file of rollouts, replacing one that an interrupted try left.
func writeRecords(path string, records []*rollout.Record) error {
	w, err := rollout.OpenRecords(path, 0)
	if err != nil {
		return err
	}
	for _, r := range records {
		if err := w.Write(r); err != nil {
			w.Close()
			return err
		}
	}
	return w.Close()
}

func writeJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}
