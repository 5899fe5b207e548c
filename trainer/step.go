package trainer

import (
	"context"
	"fmt"

	"harness-s/rollout"
	"harness-s/rollout/harness"
)

// step is one step of training. It differs from plain GRPO between collectBase and setAdvantages: groups that failed under the
// base harness are replaced by attempts under sibling harnesses, each trained on in the context it was sampled in.
func (r *run) step(ctx context.Context) error {
	s := r.begin()

	tasks := s.sample()
	votes := s.prepareVotes(ctx, tasks) // while the base rollouts run
	defer votes.end()
	base, err := s.collectBase(ctx, tasks)
	if err != nil {
		return err
	}
	failed := s.failedGroups(base)
	picks, err := s.pick(ctx, failed)
	if err != nil {
		return err
	}
	if err := votes.end(); err != nil {
		return err
	}
	rescue, err := s.collectRescue(ctx, picks)
	if err != nil {
		return err
	}
	retained := replace(base, rescue)
	setAdvantages(retained, r.cfg.Loss.Advantages(r.loss), r.cfg.Loss.Eps)
	batches := pack(retained, r.loss, r.cfg.Optim.Minibatches, r.cfg.Optim.MicrobatchTok, r.ranks())
	s.describe(base, rescue, retained, batches)

	// From here to commit the weights are ahead of the last checkpoint: nothing below stops on Ctrl-C.
	ctx = context.WithoutCancel(ctx)
	if err := s.update(batches); err != nil {
		return err
	}
	if err := s.sync(ctx); err != nil {
		return err
	}
	if err := s.onSchedule(ctx); err != nil {
		return err
	}
	return s.commit()
}

// stepRun is a step at work: its number, its metrics, its records, and the state it will leave.
type stepRun struct {
	*run
	n       int // counts from 1
	out     metrics
	records []*rollout.Record // every attempt
	next    state
}

func (r *run) begin() *stepRun {
	next := r.state
	next.Step++
	s := &stepRun{run: r, n: next.Step, out: metrics{}, next: next}
	r.clock.start()
	return s
}

// sample deals the step's tasks: as many as the rest of the budget pays for, at most rollout.tasks.
func (s *stepRun) sample() []rollout.Task {
	affordable := (s.cfg.Budget.Rollouts - s.state.Rollouts) / s.cfg.Rollout.N
	tasks, dealt := s.sampler.next(s.state.Dealt, min(s.cfg.Rollout.Tasks, affordable))
	s.next.Dealt = dealt
	return tasks
}

// collectBase makes the n attempts at each task.
func (s *stepRun) collectBase(ctx context.Context, tasks []rollout.Task) ([]group, error) {
	var jobs []rollout.Job
	for _, t := range tasks {
		specs, err := s.baseHarnesses(ctx, t)
		if err != nil {
			return nil, err
		}
		for a, spec := range specs {
			jobs = append(jobs, s.job(t, spec, "train", a))
		}
	}
	records, err := s.collect(ctx, "time/rollout", jobs)
	return intoGroups(tasks, records), err
}

// baseHarnesses is H0 for every attempt, except in the control that mixes siblings in without a trigger.
func (s *stepRun) baseHarnesses(ctx context.Context, t rollout.Task) ([]*harness.Spec, error) {
	specs := make([]*harness.Spec, s.cfg.Rollout.N)
	for a := range specs {
		specs[a] = s.pool.Base()
	}
	if s.cfg.Rescue.Mode != ModeMixture {
		return specs, nil
	}
	return specs, s.mixIn(ctx, specs, t)
}

func (s *stepRun) job(t rollout.Task, spec *harness.Spec, phase string, attempt int) rollout.Job {
	return rollout.Job{Task: t, Spec: spec, Phase: phase, Step: s.n, Attempt: attempt}
}

// collect runs jobs under a timer and counts them against the budget.
func (s *stepRun) collect(ctx context.Context, timer string, jobs []rollout.Job) ([]*rollout.Record, error) {
	var records []*rollout.Record
	err := s.out.timed(timer, func() (err error) {
		records, err = s.parts.Actor.Collect(ctx, jobs, nil)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("step %d: collect rollouts: %w", s.n, err)
	}
	if len(records) != len(jobs) {
		panic(fmt.Sprintf("trainer: %d records of %d jobs", len(records), len(jobs)))
	}
	s.next.Rollouts += len(jobs)
	s.out["rollouts/train"] += float64(len(jobs))
	s.records = append(s.records, records...)
	return records, nil
}

// failedGroups are the base groups to rescue: all that failed, as far as the budget pays for their rescue.
func (s *stepRun) failedGroups(base []group) []group {
	var failed []group
	left := s.cfg.Budget.Rollouts - s.next.Rollouts
	s.out["group/base"] = float64(len(base))
	for _, g := range base {
		s.next.Groups++
		if !g.failed() {
			continue
		}
		s.next.Failed++
		if s.cfg.Rescue.Mode == ModeOff || s.cfg.Rescue.Mode == ModeMixture || left < s.cfg.Rescue.K {
			continue
		}
		left -= s.cfg.Rescue.K
		failed = append(failed, g)
	}
	return failed
}

// collectRescue makes fresh attempts at failed tasks under the picked harnesses, counting on from n.
func (s *stepRun) collectRescue(ctx context.Context, picks []pick) ([]group, error) {
	if len(picks) == 0 {
		return nil, nil
	}
	var jobs []rollout.Job
	var tasks []rollout.Task
	for _, p := range picks {
		tasks = append(tasks, p.task)
		for i, spec := range p.harnesses {
			jobs = append(jobs, s.job(p.task, spec, "rescue", s.cfg.Rollout.N+i))
		}
	}
	records, err := s.collect(ctx, "time/rescue", jobs)
	if err != nil {
		return nil, err
	}
	groups := intoGroups(tasks, records)
	s.out["rescue/groups"] = float64(len(groups))
	for _, g := range groups {
		s.next.Rescued++
		if g.successes() > 0 {
			s.next.Saved++
		}
	}
	return groups, nil
}
