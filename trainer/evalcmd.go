package trainer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"harness-s/trainer/config"
	"harness-s/trainer/runfolder"
)

// EvalOptions are one evaluation outside a run. With RunDir, config, pool, weights (the last checkpoint) and
// router come from there; otherwise Config says where.
type EvalOptions struct {
	RunDir   string
	Config   Config
	Model    string   // Hugging Face folder instead of the run's or the config's
	Endpoint string   // a server that holds the policy already, instead of the embedded one
	Pool     string   // harness folder instead of the run's or the config's
	Harness  []string // h0, siblings, routed, best, rank2, rank3, ... or ids
	Anchor   bool     // calibrate the router on the policy as it is, though the run has a router
	K        int      // attempts at each task
	Split    string   // test or val
	Tasks    int      // tasks used; 0: as the config says
	Out      io.Writer
	Terminal bool
	Build    Builder // nil: Build of this package
}

// EvalResult is what an evaluation found. Broken attempts are listed in the scores and count as failures.
type EvalResult struct {
	Model  string           `json:"model"` // folder or endpoint
	Step   int              `json:"step"`
	Split  string           `json:"split"`
	K      int              `json:"k"`
	Scores map[string]Score `json:"scores"`

	Best           string   `json:"best,omitempty"`     // what "best" stood for
	H0Share        *float64 `json:"h0_share,omitempty"` // with "routed": share of tasks for which the router ranks H0 first
	Rollouts       int      `json:"rollouts"`           // attempts at held-out tasks
	RouterRollouts int      `json:"router_rollouts"`    // attempts at validation tasks to calibrate the router
}

// Eval makes K attempts at each task of a split under each harness. What the router decides (routed, best, rank2, ...) follows
// the router of the run; without a run, or with Anchor, it is calibrated on the validation tasks first.
func Eval(ctx context.Context, o EvalOptions) (EvalResult, error) {
	if len(o.Harness) == 0 {
		return EvalResult{}, errors.New("eval: name at least one harness: h0, siblings, routed or an id of the pool")
	}
	at, err := o.locate()
	if err != nil {
		return EvalResult{}, fmt.Errorf("eval: %w", err)
	}
	parts, err := o.Build.wire(ctx, at.cfg, at.from)
	if err != nil {
		return EvalResult{}, fmt.Errorf("eval: %w", err)
	}
	r := &run{cfg: at.cfg, parts: parts, pool: parts.Pool, state: at.state, progress: newProgress(o.Out, o.Terminal)}
	if parts.Close != nil {
		defer parts.Close()
	}
	defer r.progress.end()
	res, err := r.evalOnly(ctx, o)
	if err != nil {
		return EvalResult{}, err
	}
	res.Model, res.Step, res.Split, res.K = at.from.Model, at.state.Step, at.cfg.Eval.Split, at.cfg.Eval.K
	if at.cfg.Rollout.Endpoint != "" {
		res.Model = at.cfg.Rollout.Endpoint
	}
	return res, nil
}

// evalOnly evaluates without a run folder.
func (r *run) evalOnly(ctx context.Context, o EvalOptions) (res EvalResult, err error) {
	if err := r.checkNames(o.Harness); err != nil {
		return res, fmt.Errorf("eval: %w", err)
	}
	if len(r.evalTasks()) == 0 {
		return res, fmt.Errorf("eval: no %s tasks", r.cfg.Eval.Split)
	}
	s := &stepRun{run: r, out: metrics{}, next: r.state}
	if asksRouter(o.Harness...) {
		if err := s.knowRouter(ctx, o); err != nil {
			return res, err
		}
	}
	if res.Scores, err = s.evaluate(ctx, "eval", o.Harness); err != nil {
		return res, err
	}
	if slices.Contains(o.Harness, bestName) {
		if res.Best, err = r.parts.Router.Best(); err != nil {
			return res, fmt.Errorf("eval: best sibling: %w", err)
		}
	}
	if share, ok := s.out["eval/h0_share"]; ok {
		res.H0Share = &share
	}
	res.Rollouts, res.RouterRollouts = int(s.out["rollouts/eval"]), int(s.out["rollouts/router"])
	return res, nil
}

// knowRouter gives the router its evidence: the run's, or attempts made now.
func (s *stepRun) knowRouter(ctx context.Context, o EvalOptions) error {
	if len(s.state.Router) == 0 || o.Pool != "" || o.Anchor {
		s.next.Anchors = 0 // a first measurement: whole, whatever the run's own did
		s.next.Anchors = 0 // a first measurement, which router.budget does not bound
		return s.anchor(ctx)
	}
	if err := s.parts.Router.UnmarshalJSON(s.state.Router); err != nil {
		return fmt.Errorf("eval: router state of the run: %w", err)
	}
	return nil
}

// evalPlace is where an evaluation takes things from.
type evalPlace struct {
	cfg   Config
	from  Sources
	state state
}

func (o EvalOptions) locate() (evalPlace, error) {
	at := evalPlace{cfg: o.Config}
	if o.RunDir != "" {
		at.cfg = Default()
		if err := config.Read(filepath.Join(o.RunDir, "config.yaml"), nil, &at.cfg); err != nil {
			return at, err
		}
	}
	at.from = Sources{Model: at.cfg.Model.Path, Pool: at.cfg.Pool.Path}
	if o.RunDir != "" {
		at.from.Pool = filepath.Join(o.RunDir, "pool")
		dir, err := runfolder.LastCheckpoint(o.RunDir)
		if err != nil {
			return at, err
		}
		at.from.Model = dir
		if at.state, err = readState(dir); err != nil {
			return at, err
		}
	}
	if o.Model != "" {
		at.from.Model = o.Model
	}
	if o.Pool != "" {
		at.from.Pool = o.Pool
	}
	if o.Endpoint != "" {
		at.cfg.Rollout.Endpoint = o.Endpoint
	}
	at.cfg.Eval.K, at.cfg.Eval.Split = o.K, o.Split
	if o.Tasks > 0 {
		at.cfg.Eval.Tasks = o.Tasks
	}
	return at, at.cfg.Validate()
}
