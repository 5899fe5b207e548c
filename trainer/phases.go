package trainer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"time"

	"harness-s/cuda"
	"harness-s/rollout"
	"harness-s/rollout/harness"
)

// describe fills in the step's metrics known before the update.
func (s *stepRun) describe(base, rescue, retained []group, batches []minibatch) {
	for _, cause := range []string{"env", "server", "parse", "nonfinite"} {
		s.out["errors/"+cause] = 0 // a step without faults says so
	}
	s.out.describeRollouts(s.records)
	s.out.describeGroups(base, rescue, retained, s.cfg.Rescue.Mode)
	for _, m := range batches {
		s.out["tokens/effective"] += float64(m.tokens)
	}
	s.next.Probe = probeRow(batches, s.next.Probe)
}

// update makes the step's optimizer updates.
func (s *stepRun) update(batches []minibatch) error {
	progress := float64(s.state.Rollouts) / float64(s.cfg.Budget.Rollouts)
	u := updater{cfg: s.cfg, loss: s.loss, learner: s.parts.Learner, direct: s.direct, updates: s.next.Updates, out: s.out,
		lr:   func(update int) float64 { return learningRate(s.cfg.Optim, update, progress) },
		dump: s.dump}
	s.out["policy/lr"] = u.lr(u.updates)
	if err := u.run(batches); errors.Is(err, cuda.ErrOutOfMemory) {
		return fmt.Errorf("step %d: %w; resume with a smaller optim.microbatch_tokens, model.recompute=true or more devices (harness-s plan tells)", s.n, err)
	} else if err != nil {
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
	tasks := s.anchorTasks()
	s.next.Anchors++
	return s.out.timed("time/router", func() error {
		records, err := s.attempts(ctx, "anchor", "anchor", tasks, s.pool.Specs, s.cfg.Router.Attempts)
		if err != nil {
			return err
		}
		if err := s.parts.Router.Observe(ctx, s.next.Step, tasks, records); err != nil {
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
		return s.writeRouter()
	})
}

// writeRouter keeps what the router knows now, for people.
func (s *stepRun) writeRouter() error {
	files, err := s.parts.Router.Files()
	if err != nil {
		return fmt.Errorf("router statistics: %w", err)
	}
	for name, data := range files {
		if err := s.folder.Write(fmt.Sprintf("router/%s_%06d.json", name, s.next.Step), append(data, '\n')); err != nil {
			return err
		}
	}
	return nil
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
	maps.Copy(s.out, s.parts.Router.Tally())
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
