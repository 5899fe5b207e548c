package trainer

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"harness-s/router/evolve"
	"harness-s/trainer/config"
)

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
	if err := r.readCheckpoint(dir); err != nil {
		return fmt.Errorf("resume: %w; remove %s to resume from the checkpoint before it", err, dir)
	}
	return nil
}

func (r *run) readCheckpoint(dir string) error {
	var err error
	if r.state, err = readState(dir); err != nil {
		return err
	}
	if r.state.Step != r.saved {
		return fmt.Errorf("%s says it is step %d", filepath.Join(dir, stateName), r.state.Step)
	}
	if err := r.parts.Learner.ReadOptimizer(filepath.Join(dir, optimizerName)); err != nil {
		return err
	}
	if len(r.state.Router) > 0 {
		if err := r.parts.Router.UnmarshalJSON(r.state.Router); err != nil {
			return fmt.Errorf("router state in %s: %w", filepath.Join(dir, stateName), err)
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
	"router.llm.url": true, "router.llm.key_variable": true, "router.llm.timeout_s": true, "router.llm.retries": true,
	"router.llm.concurrency": true, "router.llm.calls": true,
	"mismatch.probe": true, "pool.path": true, // the folder's own copy is used
}

// ownConfig takes the config from the run folder, with the overrides given now. It refuses those that would make
// another run of it.
func (r *run) ownConfig() error {
	if _, err := os.Stat(r.folder.Path(evolve.JournalName)); err == nil {
		return fmt.Errorf("run folder %s holds an evolution: go on with harness-s evolve --resume, or train on its pool with --set pool.path", r.folder.Dir)
	}
	_, now, err := ownConfig(r.folder.Path("config.yaml"), r.opts.Set, mayChange)
	if err != nil {
		return err
	}
	if keys := config.Diff(r.cfg, now); len(keys) > 0 {
		r.progress.note("resuming with the run's own config, which differs from the given one in " + strings.Join(keys, ", "))
	}
	r.cfg = now
	return nil
}

// ownConfig reads a run's config.yaml as it was, and as it is with overrides of the keys that may change.
func ownConfig(path string, set []string, mayChange map[string]bool) (was, now Config, err error) {
	was = Default()
	if err := config.Read(path, nil, &was); err != nil {
		return was, now, err
	}
	now = was
	if err := config.Override(set, &now); err != nil {
		return was, now, err
	}
	for _, key := range config.Diff(was, now) {
		if !mayChange[key] {
			return was, now, fmt.Errorf("--set %s: the run has another value (%s); start a new run for it with another --run", key, path)
		}
	}
	return was, now, now.Validate()
}
