package warmstart

import (
	"context"
	"fmt"
	"math/rand/v2"

	"golang.org/x/sync/errgroup"

	"harness-s/model/chat"
	"harness-s/model/tokenizer"
	"harness-s/rollout"
	"harness-s/rollout/env/sqlenv"
	"harness-s/rollout/env/sqlenv/demo"
	"harness-s/rollout/env/sqlenv/taskgen"
	"harness-s/rollout/harness"
)

// row is one training sequence. weight[t] is the loss weight of token t given those before it.
type row struct {
	tokens []int32
	weight []float32
	policy int // tokens that the policy writes
	recall bool
}

// demonstrator makes training rows. Row i is the same whoever makes it and when.
type demonstrator struct {
	cfg    Config
	tasks  *taskgen.Source
	pool   *harness.Pool
	tok    *tokenizer.Tokenizer
	format rollout.Renderer
	play   demo.Options
}

func newDemonstrator(cfg Config, pool *harness.Pool, tok *tokenizer.Tokenizer) (*demonstrator, error) {
	probs := taskgen.DefaultProbs
	probs.Opaque = cfg.Demo.Opaque
	tasks, err := taskgen.New(taskgen.Options{Seed: uint64(cfg.Demo.TaskSeed), Probs: &probs, Mix: cfg.Demo.mix()})
	if err != nil {
		return nil, err
	}
	format, err := chat.NewRenderer(tok, false)
	if err != nil {
		return nil, err
	}
	d := &demonstrator{cfg: cfg, tasks: tasks, pool: pool, tok: tok, format: format}
	d.play = demo.Options{
		Obedience: cfg.Demo.Obedience, Env: sqlenv.New(sqlenv.Options{Name: "sql"}), Renderer: format,
		Encode: demo.NewEncoder(tok, format.Stop()[0]), Limits: demo.DefaultLimits(),
	}
	return d, nil
}

// rng is the randomness of row i.
func (d *demonstrator) rng(i int) *rand.Rand {
	return rand.New(rand.NewPCG(uint64(d.cfg.Seed), uint64(i)))
}

// record plays demonstration i.
func (d *demonstrator) record(ctx context.Context, i int, rng *rand.Rand) (*rollout.Record, error) {
	spec := d.pool.Base()
	if sib := d.pool.Siblings(); rng.Float64() >= d.cfg.Demo.H0Share {
		spec = sib[rng.IntN(len(sib))]
	}
	return demo.Play(ctx, d.play, spec, d.tasks.Task(taskgen.Demo, i), rng)
}

// row makes training row i: recall text with the chance given, else a demonstration.
func (d *demonstrator) row(ctx context.Context, i int, recall float64) (row, error) {
	rng := d.rng(i)
	if rng.Float64() < recall {
		return d.recallRow(rng), nil
	}
	rec, err := d.record(ctx, i, rng)
	if err != nil {
		return row{}, err
	}
	if len(rec.Rows) != 1 {
		return row{}, fmt.Errorf("demonstration %s has %d rows, want one: its harness rewrites the context", rec.ID, len(rec.Rows))
	}
	r := row{tokens: rec.Rows[0].Tokens}
	for _, m := range rec.Rows[0].Mask {
		r.add(m == 1, d.cfg.Demo.Context)
	}
	return r, nil
}

func (r *row) add(policy bool, context float64) {
	if policy {
		r.weight = append(r.weight, 1)
		r.policy++
	} else {
		r.weight = append(r.weight, float32(context))
	}
}

func (d *demonstrator) recallRow(rng *rand.Rand) row {
	r := row{recall: true}
	for k, part := range recallText(rng) {
		ids := d.tok.Encode(part, false)
		r.tokens = append(r.tokens, ids...)
		for range ids {
			r.add(k%2 == 1, 0) // what is given is chance: nothing to learn
		}
	}
	return r
}

// batches makes the rows of every step, some steps ahead, and hands them over in order.
func (d *demonstrator) batches(ctx context.Context, workers int, recall func(step int) float64) (<-chan []row, func() error) {
	o := d.cfg.Optim
	out := make(chan []row, 2)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(out)
		for step := range o.Steps {
			rows := make([]row, o.Batch)
			makers, inner := errgroup.WithContext(ctx)
			makers.SetLimit(workers)
			for k := range rows {
				makers.Go(func() (err error) {
					rows[k], err = d.row(inner, step*o.Batch+k, recall(step))
					return err
				})
			}
			if err := makers.Wait(); err != nil {
				return err
			}
			select {
			case out <- rows:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	return out, group.Wait
}

func callText(c chat.ToolCall) string {
	text, err := chat.FormatCall(c)
	if err != nil {
		panic("warmstart: " + err.Error()) // the script's arguments are JSON
	}
	return text
}

func executeCall(sql string) chat.ToolCall {
	return chat.ToolCall{Name: sqlenv.ToolSQL, Args: []chat.Arg{chat.StringArg("query", sql)}}
}
