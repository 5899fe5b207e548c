package trainer

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"harness-s/model"
)

// maxProbe bounds the probe row.
const maxProbe = 256

// sync sends the weights to the rollout servers and checks that they arrived: the probe row must get the same
// log-probs on both sides.
func (r *run) sync(ctx context.Context, version int, probe []int32) error {
	if err := r.folder.PutStep("sync", version, r.parts.Learner.WriteWeights); err != nil {
		return err
	}
	dir, err := filepath.Abs(r.folder.StepDir("sync", version))
	if err != nil {
		return err
	}
	if err := r.parts.Server.Sync(ctx, dir, version); err != nil {
		return fmt.Errorf("send weights of step %d to the rollout server: %w", version, err)
	}
	if err := r.verifySync(ctx, version, probe); err != nil {
		return err
	}
	return r.folder.Prune("sync", 1)
}

func (r *run) verifySync(ctx context.Context, version int, probe []int32) error {
	if len(probe) < 2 || r.cfg.Mismatch.Probe == 0 {
		return nil
	}
	var b model.Batch
	b.Add(probe, nil)
	scored, err := r.parts.Learner.Score([]model.Batch{b}, model.ForwardOptions{Temperature: 1})
	if err != nil {
		return fmt.Errorf("score the sync probe: %w", err)
	}
	own := scored[0]
	theirs, err := r.parts.Server.Score(ctx, probe)
	if err != nil {
		return fmt.Errorf("score the sync probe on the rollout server: %w", err)
	}
	if len(theirs) != len(probe) {
		return fmt.Errorf("score the sync probe on the rollout server: %d log-probs for %d tokens", len(theirs), len(probe))
	}
	for t := 1; t < len(probe); t++ {
		if d := math.Abs(float64(own.Logp[t]) - float64(theirs[t])); !(d <= r.cfg.Mismatch.Probe) {
			return fmt.Errorf("%w after the weights of step %d were sent: token %d of the probe row has log-prob %.6g here and %.6g on the server, more than mismatch.probe = %g apart; did the server load %s?",
				ErrMismatch, version, t, own.Logp[t], theirs[t], r.cfg.Mismatch.Probe, r.folder.StepDir("sync", version))
		}
	}
	return nil
}

// probeRow is the first row of a step's batch, cut: what the next syncs are checked with.
func probeRow(batches []minibatch, before []int32) []int32 {
	for _, m := range batches {
		for _, rows := range m.micro {
			for _, r := range rows {
				return append([]int32(nil), r.tokens[:min(len(r.tokens), maxProbe)]...)
			}
		}
	}
	return before
}

// checkpoint writes the state as step_N: the Hugging Face folder just sent to the servers, by hard links where
// the file system has them, with moments and state beside it.
func (r *run) checkpoint() error {
	err := r.folder.PutStep("checkpoints", r.state.Step, func(dir string) error {
		if err := linkAll(r.folder.StepDir("sync", r.state.Step), dir); err != nil {
			if err := r.parts.Learner.WriteWeights(dir); err != nil {
				return err
			}
		}
		if err := r.parts.Learner.WriteOptimizer(filepath.Join(dir, optimizerName)); err != nil {
			return err
		}
		return writeJSON(filepath.Join(dir, stateName), r.state)
	})
	if err != nil {
		return err
	}
	r.saved = r.state.Step
	return r.folder.Prune("checkpoints", r.cfg.Checkpoint.Keep)
}

// optimizerName holds the Adam moments, as safetensors. The ending is another, because vLLM loads every *.safetensors of a
// model folder as weights.
const optimizerName = "optimizer.moments"

// linkAll hard-links every file of from into to, or leaves to empty.
func linkAll(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for i, e := range entries {
		if err := os.Link(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			for _, done := range entries[:i] {
				os.Remove(filepath.Join(to, done.Name()))
			}
			return err
		}
	}
	return nil
}
