package warmstart

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"harness-s/model"
	"harness-s/rollout"
	"harness-s/rollout/env/sqlenv/taskgen"
	"harness-s/rollout/harness"
	"harness-s/rollout/policy"
	"harness-s/rollout/vllm"
)

// Figures say what a policy does on validation tasks before any training with rewards.
type Figures struct {
	Tasks   int                `json:"tasks"`
	AllFail float64            `json:"all_fail"` // share of tasks that fail in all 8 attempts under h0
	Rescued Share              `json:"rescued"`  // of those, solved by one attempt under each sibling
	Harness map[string]Harness `json:"harness"`
	Traps   map[string]Share   `json:"traps"` // h0's attempts by trap
	Kinds   map[string]Share   `json:"kinds"` // h0's attempts by kind
}

// Harness is what happens under one harness.
type Harness struct {
	Success  Share   `json:"success"`
	OnFailed Share   `json:"on_failed"` // on the tasks that all fail under h0
	Look     float64 `json:"p_look"`    // exact probability that the first call looks the schema up
	Count    float64 `json:"p_count"`   // ... that a count is asked for with count(*)
	Clean    float64 `json:"p_clean"`   // ... that text is compared with lower(trim())
}

const baseAttempts = 8

// measure runs n validation tasks under every harness, through the embedded server as a run does, and computes the exact
// chances with the weights at hand.
func measure(ctx context.Context, dir string, m *model.Model, d *demonstrator, threads, n int) (f Figures, err error) {
	source, err := taskgen.New(taskgen.Options{Seed: uint64(d.cfg.Demo.TaskSeed), Val: n, Mix: d.cfg.Demo.mix()})
	if err != nil {
		return f, err
	}
	server, err := policy.Open(dir, policy.OpenOptions{Threads: threads})
	if err != nil {
		return f, err
	}
	url, stop, err := server.StartLocal()
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	client, err := vllm.Dial(ctx, vllm.Options{URLs: []string{url}})
	if err != nil {
		return f, err
	}
	defer client.Close()
	jobs := probeJobs(d.pool, source, n)
	records, _, err := rollout.Collect(ctx, jobs, rollout.CollectOptions{
		Env: d.play.Env, Policy: client, Renderer: d.format, RunSeed: d.cfg.Seed, Temperature: 1, Workers: 64,
		Limits: rollout.Limits{MaxTurns: 8, MaxTokensPerTurn: 96, MaxContextTokens: 1024, ToolDeadline: time.Minute, RolloutDeadline: 10 * time.Minute},
	})
	if err != nil {
		return f, err
	}
	f = Figures{Tasks: n, Harness: map[string]Harness{}, Traps: map[string]Share{}, Kinds: map[string]Share{}}
	f.count(records, jobs, len(d.pool.Siblings()))
	for _, spec := range d.pool.Specs {
		h := f.Harness[spec.ID]
		if err := h.probe(m, d, spec, source, min(n, 60)); err != nil {
			return f, err
		}
		f.Harness[spec.ID] = h
	}
	return f, nil
}

// probeJobs are, task by task, the attempts under h0 and one under each sibling.
func probeJobs(pool *harness.Pool, source *taskgen.Source, n int) (jobs []rollout.Job) {
	for i := range n {
		t := source.Task(taskgen.Val, i)
		for a := range baseAttempts {
			jobs = append(jobs, rollout.Job{Spec: pool.Base(), Task: t, Phase: "eval", Attempt: a})
		}
		for k, spec := range pool.Siblings() {
			jobs = append(jobs, rollout.Job{Spec: spec, Task: t, Phase: "eval", Attempt: baseAttempts + k})
		}
	}
	return jobs
}

// count fills in what the records say.
func (f *Figures) count(records []*rollout.Record, jobs []rollout.Job, siblings int) {
	all, onFailed := map[string]Share{}, map[string]Share{}
	var rescued Share
	for at := 0; at < len(records); at += baseAttempts + siblings {
		task := records[at : at+baseAttempts+siblings]
		t := jobs[at].Task.Data.(*taskgen.Task)
		trap := strings.Join(t.Traps.Names(), "+")
		if trap == "" {
			trap = "none"
		}
		solved, saved := false, false
		for _, r := range task[:baseAttempts] {
			solved = solved || r.Success
			add(all, r.Harness, r.Success)
			add(f.Kinds, t.Kind, r.Success)
			add(f.Traps, trap, r.Success)
		}
		for _, r := range task[baseAttempts:] {
			add(all, r.Harness, r.Success)
			saved = saved || r.Success
			if !solved {
				add(onFailed, r.Harness, r.Success)
			}
		}
		if !solved {
			rescued = rescued.with(saved)
		}
	}
	f.AllFail, f.Rescued = float64(rescued.N)/float64(f.Tasks), rescued
	for id, x := range all {
		f.Harness[id] = Harness{Success: x, OnFailed: onFailed[id]}
	}
}

// Share is how many of N.
type Share struct{ Yes, N int }

func (s Share) with(yes bool) Share {
	if yes {
		s.Yes++
	}
	s.N++
	return s
}

// Of is the share, 0 of none.
func (s Share) Of() float64 { return float64(s.Yes) / float64(max(s.N, 1)) }

// MarshalJSON writes [yes, n].
func (s Share) MarshalJSON() ([]byte, error) { return json.Marshal([2]int{s.Yes, s.N}) }

func add(m map[string]Share, key string, yes bool) { m[key] = m[key].with(yes) }

// probe computes the exact chances of what rescue should teach, mean over tasks.
func (h *Harness) probe(m *model.Model, d *demonstrator, spec *harness.Spec, source *taskgen.Source, n int) error {
	var looks, counts, cleans []float64
	for i := range n {
		t := source.Make(taskgen.Val, i)
		begin := callText(executeCall("@"))
		begin = begin[:strings.Index(begin, "@")]
		naive := t.SQL(taskgen.Style{})
		chance := func(given, then string) (float64, error) {
			return d.chance(m, spec, source.Task(taskgen.Val, i), given, then)
		}
		p, err := chance("", begin+"DESCRIBE")
		if err != nil {
			return err
		}
		looks = append(looks, p)
		if t.Form == taskgen.Count {
			if p, err = chance(begin+"SELECT", " count"); err != nil {
				return err
			}
			counts = append(counts, p)
		}
		if before, _, ok := strings.Cut(naive, " WHERE name"); ok && t.Form == taskgen.Lookup {
			if p, err = chance(begin+before+" WHERE", " lower"); err != nil {
				return err
			}
			cleans = append(cleans, p)
		}
	}
	h.Look, h.Count, h.Clean = mean(looks), mean(counts), mean(cleans)
	return nil
}

func mean(x []float64) float64 {
	s := 0.0
	for _, v := range x {
		s += v
	}
	return s / math.Max(float64(len(x)), 1)
}

// chance is the exact probability that the policy's first turn, begun with given, goes on with then.
func (d *demonstrator) chance(m *model.Model, spec *harness.Spec, task rollout.Task, given, then string) (float64, error) {
	msgs, err := spec.Messages(task.Vars)
	if err != nil {
		return 0, err
	}
	prompt, err := d.format.Start(msgs, nil)
	if err != nil {
		return 0, err
	}
	before, whole := d.tok.Encode(given, true), d.tok.Encode(given+then, true)
	var b model.Batch
	b.Add(append(append([]int32(nil), prompt...), whole...), nil)
	stats, err := m.Forward(b, model.ForwardOptions{})
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for t := len(prompt) + len(before); t < len(b.Tokens); t++ {
		sum += float64(stats.Logp[t])
	}
	return math.Exp(sum), nil
}

// Print writes the figures for people.
func (f Figures) Print(w io.Writer, pool *harness.Pool) {
	fmt.Fprintf(w, "%d validation tasks: %.2f fail in all %d attempts under h0, %.2f of those are solved under some sibling\n",
		f.Tasks, f.AllFail, baseAttempts, f.Rescued.Of())
	fmt.Fprintf(w, "%-12s %8s %10s %9s %9s %9s\n", "harness", "success", "on failed", "P(look)", "P(count)", "P(clean)")
	for _, s := range pool.Specs {
		h := f.Harness[s.ID]
		fmt.Fprintf(w, "%-12s %8.2f %10.2f %9.2g %9.2g %9.2g\n", s.ID, h.Success.Of(), h.OnFailed.Of(), h.Look, h.Count, h.Clean)
	}
	for _, m := range []map[string]Share{f.Kinds, f.Traps} {
		fmt.Fprint(w, "h0:")
		for _, k := range slices.Sorted(maps.Keys(m)) {
			fmt.Fprintf(w, " %s %.2f (%d)", k, m[k].Of(), m[k].N)
		}
		fmt.Fprintln(w)
	}
}
