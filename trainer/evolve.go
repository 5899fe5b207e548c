package trainer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"harness-s/internal/strictyaml"
	"harness-s/rollout"
	"harness-s/rollout/harness"
	"harness-s/router/evolve"
	"harness-s/trainer/config"
	"harness-s/trainer/runfolder"
)

// EvolveOptions are what an evolution needs besides its config.
type EvolveOptions struct {
	RunDir   string
	Resume   bool      // continue with the run's own config, the folder's; of the one given only Set counts
	Set      []string  // the overrides (a.b=c) that the given config has in it
	Out      io.Writer // progress; nil: none
	Terminal bool      // Out is a terminal: long phases show in one line that is written over
	Build    Builder   // wires the parts; nil: Build of this package
	// Report writes report.html into a run folder and returns its path; nil: none.
	Report func(dir string) (string, error)
}

// evolution is one run of Evolve in this process.
type evolution struct {
	cfg      Config
	opts     EvolveOptions
	folder   *runfolder.Folder
	progress *progress
}

var evolveSubfolders = []string{"pool", "rollouts"}

// Evolve makes a pool of siblings from the base harness with the policy of the config, which stays as it is. It returns
// ErrInterrupted when ctx ends; the folder then resumes to the same pool.
func Evolve(ctx context.Context, cfg Config, opts EvolveOptions) (evolve.Summary, error) {
	if err := cfg.Validate(); err != nil {
		return evolve.Summary{}, fmt.Errorf("config: %w", err)
	}
	folder, err := runfolder.OpenWith(opts.RunDir, opts.Resume, evolveSubfolders)
	if err != nil {
		return evolve.Summary{}, err
	}
	e := &evolution{cfg: cfg, opts: opts, folder: folder, progress: newProgress(opts.Out, opts.Terminal)}
	defer e.close()
	s, err := e.run(ctx)
	e.progress.end()
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return s, fmt.Errorf("run folder %s: %w", folder.Dir, ErrInterrupted)
	}
	return s, err
}

// close drops the lock, and the folder where no run began.
func (e *evolution) close() {
	e.folder.Close()
	e.folder.DropUnused()
}

func (e *evolution) run(ctx context.Context) (evolve.Summary, error) {
	if e.opts.Resume {
		if err := e.ownConfig(); err != nil {
			return evolve.Summary{}, fmt.Errorf("resume: %w", err)
		}
	}
	base, err := e.base()
	if err != nil {
		return evolve.Summary{}, err
	}
	parts, err := e.opts.Build.wire(ctx, e.cfg, Sources{Model: e.cfg.Model.Path, Pool: e.poolPath()})
	if err != nil {
		return evolve.Summary{}, err
	}
	if parts.Close != nil {
		defer parts.Close()
	}
	makers, err := newMakers(e.cfg.Evolve, e.cfg.Seed, parts.Env.Tools())
	if err != nil {
		return evolve.Summary{}, err
	}
	defer makers.close()
	o := e.options(base, parts, makers)
	if err := o.Check(); err != nil {
		return evolve.Summary{}, err
	}
	if !e.opts.Resume {
		if err := e.claim(base); err != nil {
			return evolve.Summary{}, err
		}
	}
	s, err := evolve.Run(ctx, o)
	if err != nil || e.opts.Report == nil {
		return s, err
	}
	path, err := e.opts.Report(e.folder.Dir)
	if err != nil {
		return s, fmt.Errorf("write the report: %w", err)
	}
	e.progress.note("report: " + path)
	return s, nil
}

// poolPath is a pool that loads: the run's own, once it has one.
func (e *evolution) poolPath() string {
	if e.opts.Resume {
		return e.folder.Path("pool")
	}
	return e.cfg.Pool.Path
}

// base is H0: the run's own copy once it has one, else the config's file or its pool's.
func (e *evolution) base() (*harness.Spec, error) {
	if path := e.cfg.Evolve.Base; path != "" && !e.opts.Resume {
		s, err := harness.Load(path)
		if err != nil {
			return nil, fmt.Errorf("evolve.base: %w", err)
		}
		s.ID, s.Parent, s.Direction = harness.BaseID, "", ""
		return s, nil
	}
	pool, err := harness.LoadPool(e.poolPath())
	if err != nil {
		return nil, fmt.Errorf("pool.path: %w", err)
	}
	return pool.Base(), nil
}

// claim writes what makes the folder this run's: the base harness and the journal first, the config last.
func (e *evolution) claim(base *harness.Spec) error {
	if err := base.Save(e.folder.Path("pool", base.ID+".yaml")); err != nil {
		return err
	}
	if err := e.folder.Write(evolve.JournalName, nil); err != nil {
		return err
	}
	return e.folder.Write("config.yaml", strictyaml.Encode(e.cfg))
}

func (e *evolution) options(base *harness.Spec, parts Parts, m makers) evolve.Options {
	c := e.cfg.Evolve
	validation := parts.Tasks.Validation
	if c.Validation > 0 {
		validation = validation[:min(c.Validation, len(validation))]
	}
	o := evolve.Options{
		Dir: e.folder.Dir, Seed: e.cfg.Seed, Base: base, Tools: parts.Env.Tools(), Train: parts.Tasks.Train, Validation: validation,
		Size: evolve.Size{
			Generations: c.Generations, Tasks: c.Tasks, Attempts: c.Attempts, Failures: c.Failures, Directions: c.Directions,
			Children: c.Children, Parents: c.Parents, Pool: c.Pool, MaxBytes: c.MaxBytes, Control: c.Control,
		},
		Limit: evolve.Limit{Rollouts: c.Budget.Rollouts, Calls: c.Budget.Calls, Tokens: c.Budget.Tokens},
		Actor: parts.Actor, Analyst: m.analyst, Editor: m.editor, Meter: m.meter, Progress: evolveProgress{e.progress},
		Chunk: 4 * e.cfg.Rollout.Concurrency, // a chunk waits for its slowest attempt: more of them keep the workers busy
	}
	if s, ok := parts.Env.(rollout.Secretive); ok {
		o.Secrets = s.Secrets
	}
	return o
}

// evolveProgress is a progress as an evolution tells it.
type evolveProgress struct{ p *progress }

func (e evolveProgress) Note(line string) { e.p.note(line) }
func (e evolveProgress) Phase(what string, rollouts int) func(ended int) {
	return e.p.phase(what, rollouts)
}

// evolveMayChange are the keys that a resumed evolution may set anew: they change what is done next, not what was done.
var evolveMayChange = map[string]bool{
	"threads": true, "rollout.concurrency": true, "rollout.endpoint": true, "rollout.deadline_s": true, "rollout.retries": true,
	"evolve.generations": true, "evolve.control": true, "evolve.budget.rollouts": true, "evolve.budget.calls": true, "evolve.budget.tokens": true,
	"evolve.llm.url": true, "evolve.llm.key_variable": true, "evolve.llm.timeout_s": true, "evolve.llm.retries": true,
	"evolve.llm.concurrency": true, "pool.path": true, // the folder's own copy is used
}

// ownConfig takes the config from the run folder, with the overrides given now. It refuses those that would make
// another run of it.
func (e *evolution) ownConfig() error {
	if _, err := os.Stat(e.folder.Path(evolve.JournalName)); err != nil {
		return fmt.Errorf("run folder %s holds no evolution: %w", e.folder.Dir, err)
	}
	was, now, err := ownConfig(e.folder.Path("config.yaml"), e.opts.Set, evolveMayChange)
	if err != nil {
		return err
	}
	if keys := config.Diff(e.cfg, now); len(keys) > 0 {
		e.progress.note("resuming with the run's own config, which differs from the given one in " + strings.Join(keys, ", "))
	}
	e.cfg = now
	if len(config.Diff(was, now)) > 0 { // what a later resume starts from
		return e.folder.Write("config.yaml", strictyaml.Encode(now))
	}
	return nil
}
