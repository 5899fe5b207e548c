package trainer

import (
	"context"
	"fmt"
	"path/filepath"

	"harness-s/rollout"
	"harness-s/rollout/harness"
	"harness-s/router"
	"harness-s/trainer/config"
	"harness-s/trainer/runfolder"
)

// Route is the router's choice for one task, with what it rests on.
type Route struct {
	Task string `json:"task"`
	Kind string `json:"kind"`
	router.Explanation
}

// explainer is a router that says why.
type explainer interface {
	Explain(ctx context.Context, t rollout.Task) (router.Explanation, error)
}

// Explain ranks a run's pool for one of its tasks by the router state of the last checkpoint. Language models are asked only
// for ballots that the run does not have; what they say then is not kept.
func Explain(ctx context.Context, runDir, taskID string) (Route, error) {
	route, err := explain(ctx, runDir, taskID)
	if err != nil {
		return Route{}, fmt.Errorf("route: %w", err)
	}
	return route, nil
}

func explain(ctx context.Context, runDir, taskID string) (Route, error) {
	cfg := Default()
	if err := config.Read(filepath.Join(runDir, "config.yaml"), nil, &cfg); err != nil {
		return Route{}, err
	}
	_, tasks, err := openTasks(cfg.Data)
	if err != nil {
		return Route{}, err
	}
	task, err := findTask(tasks, taskID)
	if err != nil {
		return Route{}, err
	}
	pool, err := harness.LoadPool(filepath.Join(runDir, "pool"))
	if err != nil {
		return Route{}, err
	}
	dir, err := runfolder.LastCheckpoint(runDir)
	if err != nil {
		return Route{}, fmt.Errorf("%w; a choice is explained by the last checkpoint of a training run", err)
	}
	s, err := readState(dir)
	if err != nil {
		return Route{}, err
	}
	return explainState(ctx, cfg, pool, s, task)
}

func explainState(ctx context.Context, cfg Config, pool *harness.Pool, s state, task rollout.Task) (Route, error) {
	r, stop, err := newRouter(cfg, pool, "")
	if err != nil {
		return Route{}, err
	}
	defer stop() // nothing was written
	if len(s.Router) > 0 {
		if err := r.UnmarshalJSON(s.Router); err != nil {
			return Route{}, fmt.Errorf("router state of step %d: %w", s.Step, err)
		}
	}
	e, err := r.(explainer).Explain(ctx, task)
	return Route{Task: task.ID, Kind: task.Kind, Explanation: e}, err
}

func findTask(t Tasks, id string) (rollout.Task, error) {
	for _, split := range [][]rollout.Task{t.Test, t.Validation, t.Train} {
		for _, task := range split {
			if task.ID == id {
				return task, nil
			}
		}
	}
	return rollout.Task{}, fmt.Errorf("the run has no task %q; rollouts record ids such as %s", id, t.Test[0].ID)
}
