package trainer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"harness-s/internal/nodes"
	"harness-s/kernels"
	"harness-s/model"
	"harness-s/model/chat"
	"harness-s/model/tokenizer"
	"harness-s/rollout"
	"harness-s/rollout/harness"
	"harness-s/rollout/policy"
	"harness-s/rollout/vllm"
)

// Build wires the real parts: the model on its backend, the policy server (embedded, unless rollout.endpoint names
// one) behind the vLLM client, the SQL environment, the pool and its router.
func Build(ctx context.Context, c Config, from Sources) (parts Parts, err error) {
	b := &builder{cfg: c, from: from}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	parts = Parts{Close: b.close}
	if parts.Pool, err = harness.LoadPool(from.Pool); err != nil {
		return Parts{}, fmt.Errorf("pool.path: %w", err)
	}
	if parts.Router, err = b.router(parts.Pool); err != nil {
		return Parts{}, err
	}
	env, tasks, err := openTasks(c.Data)
	if err != nil {
		return Parts{}, err
	}
	parts.Env, parts.Tasks = env, tasks
	if from.Train {
		if parts.Learner, err = b.learner(ctx); err != nil {
			return Parts{}, err
		}
	}
	client, err := b.client(ctx)
	if err != nil {
		return Parts{}, err
	}
	parts.Server = client
	parts.Actor, err = b.actor(env, client)
	return parts, err
}

// builder holds what is open, to be closed in reverse.
type builder struct {
	cfg  Config
	from Sources
	open []func() error
}

func (b *builder) opened(f func() error) { b.open = append(b.open, f) }

func (b *builder) close() error {
	var errs []error
	for i := len(b.open) - 1; i >= 0; i-- {
		errs = append(errs, b.open[i]())
	}
	b.open = nil
	return errors.Join(errs...)
}

func (b *builder) learner(ctx context.Context) (Learner, error) {
	dtype, err := kernels.ParseDType(b.cfg.Model.DType)
	if err != nil {
		return nil, fmt.Errorf("model.dtype: %w", err)
	}
	name, _ := kernels.Resolve(b.cfg.Backend)
	others, err := b.gather(ctx, name)
	if err != nil {
		return nil, err
	}
	g, err := model.OpenGroup(model.Setup{
		Backend: name, DType: dtype, Devices: b.cfg.Devices, Threads: b.cfg.Threads,
		Recompute: b.cfg.Model.Recompute, Offload: b.cfg.Model.Offload,
	}, others)
	if err != nil {
		return nil, fmt.Errorf("backend: %w", err)
	}
	b.opened(g.Close)
	if err := g.Load(b.from.Model); err != nil {
		return nil, fmt.Errorf("model.path: %w", err)
	}
	return modelLearner{g}, nil
}

// gather waits for the run's other nodes, if it has any.
func (b *builder) gather(ctx context.Context, backend string) ([]*nodes.Link, error) {
	if b.from.Others == nil {
		return nil, nil
	}
	if backend == "cpu" {
		return nil, errors.New("backend: cpu trains on one node; use cuda, or start without NNODES (under Slurm: NNODES=1)")
	}
	return b.from.Others(ctx)
}

// apiKeyVariable is the environment variable with the rollout server's key, if it asks for one.
const apiKeyVariable = "HARNESS_S_API_KEY"

// client dials the policy server, starting the embedded one where no endpoint is named.
func (b *builder) client(ctx context.Context) (*vllm.Client, error) {
	url := b.cfg.Rollout.Endpoint
	if url == "" {
		local, stop, err := embeddedServer(b.cfg, b.from.Model)
		if err != nil {
			return nil, err
		}
		b.opened(stop)
		url = local
	}
	dir, err := filepath.Abs(b.from.Model)
	if err != nil {
		return nil, err
	}
	client, err := vllm.Dial(ctx, vllm.Options{URLs: []string{url}, LoadDir: dir, APIKey: os.Getenv(apiKeyVariable)})
	if err != nil {
		return nil, fmt.Errorf("rollout.endpoint: %w", err)
	}
	b.opened(func() error { client.Close(); return nil })
	if n := client.MaxModelLen(); n > 0 && n < b.cfg.Rollout.MaxContext {
		return nil, fmt.Errorf("rollout.max_context: %d, but the server at %s takes %d tokens", b.cfg.Rollout.MaxContext, url, n)
	}
	return client, nil
}

func (b *builder) actor(env rollout.Environment, client rollout.Policy) (Actor, error) {
	tok, err := tokenizer.Load(b.from.Model)
	if err != nil {
		return nil, fmt.Errorf("model.path: %w", err)
	}
	renderer, err := chat.NewRenderer(tok, b.cfg.Model.Thinking)
	if err != nil {
		return nil, fmt.Errorf("model.path: %s: %w", b.from.Model, err)
	}
	r := b.cfg.Rollout
	return collector{rollout.CollectOptions{
		Env: env, Policy: client, Renderer: renderer, RunSeed: b.cfg.Seed, Temperature: r.Temperature,
		Workers: r.Concurrency, Retries: r.Retries, Backoff: time.Second,
		Limits: rollout.Limits{
			MaxTurns: r.MaxTurns, MaxTokensPerTurn: r.MaxTokens, MaxContextTokens: r.MaxContext,
			ToolDeadline: toolDeadline, RolloutDeadline: time.Duration(r.DeadlineS) * time.Second,
		},
	}}, nil
}

// toolDeadline bounds one call of the environment; a statement has its own, shorter limit.
const toolDeadline = 30 * time.Second

// collector is rollout.Collect as an Actor.
type collector struct {
	opt rollout.CollectOptions
}

// Collect makes the attempts.
func (c collector) Collect(ctx context.Context, jobs []rollout.Job, ended func(n int)) ([]*rollout.Record, error) {
	o := c.opt
	if ended != nil {
		o.Progress = func(done, _ int, _ *rollout.Record) { ended(done) }
	}
	records, _, err := rollout.Collect(ctx, jobs, o)
	return records, err
}

// embeddedServer serves the policy in this process, on a free loopback port.
func embeddedServer(c Config, dir string) (url string, stop func() error, err error) {
	s, err := policy.Open(dir, policy.OpenOptions{Threads: c.Threads, MaxSeqs: c.Rollout.Concurrency, Dev: true, Thinking: c.Model.Thinking})
	if err != nil {
		return "", nil, fmt.Errorf("embedded policy server: model.path: %w", err)
	}
	url, stop, err = s.StartLocal()
	if err != nil {
		return "", nil, fmt.Errorf("embedded policy server: %w", err)
	}
	return url, stop, nil
}
