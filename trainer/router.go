package trainer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"harness-s/rollout"
	"harness-s/rollout/harness"
	"harness-s/router"
	"harness-s/router/llm"
)

// router makes the router that the config names, over a pool.
func (b *builder) router(pool *harness.Pool) (Router, error) {
	r, stop, err := newRouter(b.cfg, pool, b.from.Answers)
	if err != nil {
		return nil, err
	}
	b.opened(stop)
	return r, nil
}

// newRouter makes a router and what closes it. answers is the file for what language models say; empty: none is kept.
func newRouter(c Config, pool *harness.Pool, answers string) (Router, func() error, error) {
	if c.Router.Kind == RouterRule {
		return router.NewRule(pool), func() error { return nil }, nil
	}
	models := &models{cfg: c.Router, budget: &llm.Budget{Calls: c.Router.LLM.Calls}, open: map[string]*llm.Client{}}
	r, err := models.vote(pool, c.Seed, answers)
	if err != nil {
		models.close()
		return nil, nil, err
	}
	return r, func() error { models.close(); return r.Close() }, nil
}

// models are the language models that vote and group, one client a model and endpoint.
type models struct {
	cfg    RouterConfig
	budget *llm.Budget
	open   map[string]*llm.Client
}

func (m *models) vote(pool *harness.Pool, seed int64, answers string) (*router.Vote, error) {
	o := router.VoteOptions{Aggregate: m.cfg.Aggregate, Quorum: m.cfg.Quorum, Fixed: m.cfg.Profiles == ProfilesFixed, Answers: answers}
	for _, name := range m.cfg.Voters {
		v, ok := router.Embedded[name]
		if !ok {
			client, err := m.client(name)
			if err != nil {
				return nil, fmt.Errorf("router.voters: %w", err)
			}
			v = &router.LLMVoter{Label: name, Model: client, Seed: seed}
		}
		o.Voters = append(o.Voters, v)
	}
	if m.cfg.Grouper != MakerEmbedded {
		client, err := m.client(m.cfg.Grouper)
		if err != nil {
			return nil, fmt.Errorf("router.grouper: %w", err)
		}
		o.Grouper = &router.LLMGrouper{Model: client, Seed: seed}
	}
	return router.NewVote(pool, o)
}

func (m *models) client(name string) (*llm.Client, error) {
	if c := m.open[name]; c != nil {
		return c, nil
	}
	model, url, _ := modelOf(name)
	if url == "" {
		url = m.cfg.LLM.URL
	}
	l := m.cfg.LLM
	c, err := llm.New(llm.Options{
		URL: url, Model: model, KeyVariable: l.KeyVariable, Timeout: time.Duration(l.TimeoutS) * time.Second, Retries: l.Retries,
		MaxTokens: l.MaxTokens, Temperature: l.Temperature, Concurrency: l.Concurrency, Budget: m.budget,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	m.open[name] = c
	return c, nil
}

func (m *models) close() {
	for _, c := range m.open {
		c.Close()
	}
}

// votes are choices being prepared beside the base rollouts.
type votes struct {
	stop context.CancelFunc
	done chan error
}

// prepareVotes begins to ask for what the rescue of any of the tasks may need. Which of them fail is not known yet.
func (s *stepRun) prepareVotes(ctx context.Context, tasks []rollout.Task) *votes {
	ctx, stop := context.WithCancel(ctx)
	v := &votes{stop, make(chan error, 1)}
	if s.cfg.Rescue.Mode != ModeRouted && s.cfg.Rescue.Mode != ModeRepeat { // no other mode asks about a task after its rollouts
		close(v.done)
		return v
	}
	go func() {
		defer close(v.done)
		v.done <- s.parts.Router.Prepare(ctx, tasks)
	}()
	return v
}

// end stops what is still being asked and waits for it. It may be called again.
func (v *votes) end() error {
	v.stop()
	if err := <-v.done; !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// anchorTasks are the validation tasks of a measurement: all in use at the start; later as many as router.budget pays for,
// others each time, so that each has its turn.
func (s *stepRun) anchorTasks() []rollout.Task {
	tasks := s.parts.Tasks.Validation
	if n := s.cfg.Router.Tasks; n > 0 {
		tasks = tasks[:min(n, len(tasks))]
	}
	c := s.cfg.Router
	if c.Budget == 0 || s.next.Anchors == 0 {
		return tasks
	}
	n := min(c.Budget/(c.Attempts*len(s.pool.Specs)), len(tasks))
	order := rng(s.cfg.Seed, "anchor", 0).Perm(len(tasks)) // one order for the run, so that windows do not overlap
	var out []rollout.Task
	for i := range n {
		out = append(out, tasks[order[((s.next.Anchors-1)*n+i)%len(tasks)]])
	}
	return out
}

// checkAnchor says whether router.budget pays for a measurement at all.
func (r *run) checkAnchor() error {
	c := r.cfg.Router
	if least := c.Attempts * len(r.pool.Specs); c.Budget > 0 && c.Budget < least {
		return fmt.Errorf("router.budget: %d rollouts do not pay for router.attempts = %d at one task under %d harnesses; it takes %d", c.Budget, c.Attempts, len(r.pool.Specs), least)
	}
	return nil
}
