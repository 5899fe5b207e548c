package trainer

import (
	"fmt"
	"path/filepath"

	"harness-s/rollout"
	"harness-s/rollout/harness"
	"harness-s/router"
	"harness-s/trainer/config"
	"harness-s/trainer/runfolder"
)

// Route is the router's choice for one task, with its evidence.
type Route struct {
	Task    string            `json:"task"`
	Kind    string            `json:"kind"`
	Step    int               `json:"step"`    // of the policy that the statistics were taken with
	Ranking []router.Evidence `json:"ranking"` // the whole pool, H0 included, best first
}

// Explain ranks a run's pool for one of its tasks by the router state of the last checkpoint.
func Explain(runDir, taskID string) (Route, error) {
	cfg := Default()
	if err := config.Read(filepath.Join(runDir, "config.yaml"), nil, &cfg); err != nil {
		return Route{}, fmt.Errorf("route: %w", err)
	}
	_, tasks, err := openTasks(cfg.Data)
	if err != nil {
		return Route{}, fmt.Errorf("route: %w", err)
	}
	task, err := findTask(tasks, taskID)
	if err != nil {
		return Route{}, fmt.Errorf("route: %w", err)
	}
	pool, err := harness.LoadPool(filepath.Join(runDir, "pool"))
	if err != nil {
		return Route{}, fmt.Errorf("route: %w", err)
	}
	dir, err := runfolder.LastCheckpoint(runDir)
	if err != nil {
		return Route{}, fmt.Errorf("route: %w", err)
	}
	s, err := readState(dir)
	if err != nil {
		return Route{}, fmt.Errorf("route: %w", err)
	}
	rule := router.NewRule(pool)
	if len(s.Router) > 0 {
		if err := rule.UnmarshalJSON(s.Router); err != nil {
			return Route{}, fmt.Errorf("route: router state in %s: %w", dir, err)
		}
	}
	return Route{Task: task.ID, Kind: task.Kind, Step: rule.Step(), Ranking: rule.Explain(task)}, nil
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
