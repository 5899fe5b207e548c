package trainer

import (
	"context"
	"fmt"

	"harness-s/rollout"
	"harness-s/rollout/harness"
)

// pick is the harnesses of a failed task's rescue attempts, one an attempt.
type pick struct {
	task      rollout.Task
	harnesses []*harness.Spec
}

// pick chooses K harnesses for each failed group, by the mode.
func (s *stepRun) pick(ctx context.Context, failed []group) ([]pick, error) {
	var picks []pick
	err := s.out.timed("time/router", func() error {
		for _, g := range failed {
			specs, err := s.choose(ctx, g.task)
			if err != nil {
				return fmt.Errorf("step %d: pick siblings for task %s: %w", s.n, g.task.ID, err)
			}
			picks = append(picks, pick{g.task, specs})
		}
		return nil
	})
	return picks, err
}

func (s *stepRun) choose(ctx context.Context, t rollout.Task) ([]*harness.Spec, error) {
	k := s.cfg.Rescue.K
	switch s.cfg.Rescue.Mode {
	case ModeRouted: // K distinct siblings, one attempt each
		ids, err := s.parts.Router.TopK(ctx, t, k)
		return s.specs(ids, err)
	case ModeRandom: // K distinct siblings, drawn
		siblings := s.pool.Siblings()
		order := rng(s.cfg.Seed, "random "+t.ID, s.n).Perm(len(siblings))
		specs := make([]*harness.Spec, k)
		for i := range specs {
			specs[i] = siblings[order[i]]
		}
		return specs, nil
	case ModeRepeat: // the best few, several attempts each
		ids, err := s.parts.Router.TopK(ctx, t, s.cfg.Rescue.Repeat)
		few, err := s.specs(ids, err)
		if err != nil {
			return nil, err
		}
		return repeated(few, k), nil
	case ModeFixed: // one sibling for every task
		spec, err := s.specs([]string{s.state.Fixed}, nil)
		if err != nil {
			return nil, err
		}
		return repeated(spec, k), nil
	case ModeResample: // H0 again
		return repeated([]*harness.Spec{s.pool.Base()}, k), nil
	case ModePrefix: // H0 behind K different meaningless prefixes
		specs := make([]*harness.Spec, k)
		for i := range specs {
			specs[i] = harness.WithPrefix(s.pool.Base(), rollout.Seed(s.cfg.Seed, "prefix", s.n, t.ID, i, 0))
		}
		return specs, nil
	}
	panic("trainer: no rescue in mode " + s.cfg.Rescue.Mode)
}

// repeated gives each harness the same number of attempts, those of one harness side by side.
func repeated(specs []*harness.Spec, k int) []*harness.Spec {
	out := make([]*harness.Spec, 0, k)
	for i := range k {
		out = append(out, specs[i*len(specs)/k])
	}
	return out
}

// specs looks harnesses up by id.
func (s *stepRun) specs(ids []string, err error) ([]*harness.Spec, error) {
	if err != nil {
		return nil, err
	}
	out := make([]*harness.Spec, len(ids))
	for i, id := range ids {
		spec, ok := s.pool.Get(id)
		if !ok {
			return nil, fmt.Errorf("the pool has no harness %q", id)
		}
		out[i] = spec
	}
	return out, nil
}

// mixIn is the control without a trigger: every second attempt of every group is made under a sibling, the
// router's best for the task in turn.
func (s *stepRun) mixIn(ctx context.Context, specs []*harness.Spec, t rollout.Task) error {
	ids, err := s.parts.Router.TopK(ctx, t, min(len(specs)/2, len(s.pool.Siblings())))
	siblings, err := s.specs(ids, err)
	if err != nil {
		return fmt.Errorf("step %d: pick siblings for task %s: %w", s.n, t.ID, err)
	}
	for a := 1; a < len(specs); a += 2 {
		specs[a] = siblings[a/2%len(siblings)]
	}
	return nil
}
