package trainer

import (
	"fmt"

	"harness-s/rollout"
	"harness-s/rollout/env/sqlenv"
	"harness-s/rollout/env/sqlenv/dbbench"
	"harness-s/rollout/env/sqlenv/taskgen"
)

// openTasks makes the environment and the splits a config names: official rows where data.path is set,
// generated tasks otherwise.
func openTasks(c DataConfig) (rollout.Environment, Tasks, error) {
	if c.Path != "" {
		src, err := dbbench.NewSource(c.Path, "dbbench", dbbench.DefaultSplits)
		if err != nil {
			return nil, Tasks{}, fmt.Errorf("data.path: %w", err)
		}
		return sqlenv.New(sqlenv.Options{Name: "dbbench"}), splits(src, src.Len("train")), nil
	}
	src, err := taskgen.New(taskgen.Options{Seed: uint64(c.TaskSeed), Env: "sql", Val: c.Validation, Test: c.Test})
	if err != nil {
		return nil, Tasks{}, fmt.Errorf("data: %w", err)
	}
	return sqlenv.New(sqlenv.Options{Name: "sql"}), splits(src, c.Train), nil
}

func splits(src sqlenv.Source, train int) Tasks {
	take := func(split string, n int) []rollout.Task {
		out := make([]rollout.Task, n)
		for i := range out {
			out[i] = src.Task(split, i)
		}
		return out
	}
	return Tasks{Train: take("train", train), Validation: take("val", src.Len("val")), Test: take("test", src.Len("test"))}
}
