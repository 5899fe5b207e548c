package trainer

import (
	"context"
	"encoding/json"

	"harness-s/internal/nodes"
	"harness-s/kernels"
	"harness-s/model"
	"harness-s/rollout"
	"harness-s/rollout/harness"
)

// Learner is the policy under training. *model.Group is most of it (learner.go); tests bring a small one.
// One goroutine uses it.
type Learner interface {
	// Score is the log-probs of each batch, in order.
	Score(batches []model.Batch, opt model.ForwardOptions) ([]model.Stats, error)
	// Accumulate adds each batch's gradient. grad turns a batch's log-probs into the loss's derivatives by them, nil for a batch
	// that is to add nothing; it is called in the batches' order.
	Accumulate(batches []model.Batch, opt model.ForwardOptions, grad func(i int, s model.Stats) ([]float32, error)) error
	ZeroGrad()
	GradStats() (norm float64, bad int, err error) // the L2 norm of all gradients; how many are not finite
	Update(p kernels.AdamWParams) error

	WriteWeights(dir string) error    // a Hugging Face folder's files into an existing folder
	WriteOptimizer(path string) error // the Adam moments
	ReadOptimizer(path string) error  // what WriteOptimizer wrote
	DeviceBytes() int64               // memory held on the device, 0 where that is the host
}

// ObjectiveLearner is a Learner that may evaluate objectives itself, beside the model.
type ObjectiveLearner interface {
	Learner
	// TakesObjectives says whether Learn works.
	TakesObjectives() bool
	// Learn adds the gradient of each batch's objective. note is told each batch's results, in the batches' order.
	Learn(batches []model.Batch, opt model.ForwardOptions, objectives []model.Objective, note func(i int, s model.Stats)) error
}

// MeteredLearner is a Learner that knows what its work takes.
type MeteredLearner interface {
	Learner
	FLOP(b model.Batch) float64 // of a forward pass; a third of forward and backward together
	PeakFLOPS() float64         // a second, of all its devices together by their data sheet; 0: not known
}

// Actor runs attempts: the rollout side as the loop sees it.
type Actor interface {
	// Collect returns one record a job, in the jobs' order. Broken attempts were retried; one that stayed broken
	// comes back with its broken status. An error means that the whole call failed or ctx ended. ended, which may be
	// nil, is told after each attempt how many have ended, one call at a time.
	Collect(ctx context.Context, jobs []rollout.Job, ended func(n int)) ([]*rollout.Record, error)
}

// Server is the rollout servers' control side.
type Server interface {
	// Sync makes the servers load the Hugging Face folder dir as weight version `version`.
	Sync(ctx context.Context, dir string, version int) error
	// Score is the log-prob of each token given those before it, at temperature 1; entry 0 is 0.
	Score(ctx context.Context, tokens []int32) ([]float32, error)
}

// Router chooses siblings. Its choices follow from its state and its arguments alone.
type Router interface {
	// Observe takes attempts at validation tasks under H0 and every sibling, made by the policy after step training steps.
	Observe(ctx context.Context, step int, tasks []rollout.Task, records []*rollout.Record) error
	// Prepare asks for what a choice for the tasks will need, where that takes long. Nothing rests on it: a choice not prepared
	// asks then. One Prepare at most runs at a time, beside TopK and Ranking of other tasks at most.
	Prepare(ctx context.Context, tasks []rollout.Task) error
	// TopK is the k best distinct siblings for a task, best first.
	TopK(ctx context.Context, task rollout.Task, k int) ([]string, error)
	// Ranking is the whole pool for a task, H0 included, best first.
	Ranking(ctx context.Context, task rollout.Task) ([]string, error)
	// Best is the sibling that does best over all validation tasks.
	Best() (string, error)
	// Tally is what the choices since the last call rested on, by metric name.
	Tally() map[string]float64
	// Files are the parts of the state that people read, by name: stats, and what else the router keeps.
	Files() (map[string][]byte, error)
	json.Marshaler
	json.Unmarshaler
}

// Tasks are the splits of an environment.
type Tasks struct {
	Train, Validation, Test []rollout.Task
}

// Parts are what a run is wired to.
type Parts struct {
	Learner Learner
	Actor   Actor
	Server  Server
	Router  Router
	Pool    *harness.Pool
	Tasks   Tasks
	Env     rollout.Environment // what the tasks are of
	Close   func() error        // frees what the parts hold; may be nil
}

// Sources say where the parts come from.
type Sources struct {
	Model string // Hugging Face folder
	Pool  string // folder of harness specs
	Train bool   // a Learner is needed
	// Answers is the file that keeps what language models told the router, so that a resumed run rests on it; empty: none.
	Answers string
	// Others waits for the other nodes that the Learner's devices are on; nil: there are none.
	Others func(context.Context) ([]*nodes.Link, error)
}

// Builder wires the parts of a config.
type Builder func(ctx context.Context, c Config, from Sources) (Parts, error)

// wire builds by b, or by Build where b is nil.
func (b Builder) wire(ctx context.Context, c Config, from Sources) (Parts, error) {
	if b == nil {
		b = Build
	}
	return b(ctx, c, from)
}
