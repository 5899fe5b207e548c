package warmstart

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"harness-s/model"
	"harness-s/rollout"
	"harness-s/rollout/env/sqlenv"
	"harness-s/rollout/env/sqlenv/taskgen"
	"harness-s/rollout/harness"
)

// Figures say what a policy does on validation tasks before any training with rewards.
type Figures struct {
	Tasks   int                   `json:"tasks"`
	AllFail float64               `json:"all_fail"` // share of tasks that fail in all 8 attempts under h0
	Rescued float64               `json:"rescued"`  // of those, solved by one attempt under each of the siblings
	Harness map[string]Harness    `json:"harness"`
	Traps   map[string][2]float64 `json:"traps"` // h0's success by trap ("none": no trap), and its share of tasks
	Kinds   map[string]float64    `json:"kinds"` // h0's success by kind
}

// Harness is what happens under one harness.
type Harness struct {
	Success  float64 `json:"success"`
	OnFailed float64 `json:"on_failed"` // on the tasks that all fail under h0
	Look     float64 `json:"p_look"`    // exact probability that the first call looks the schema up
	Count    float64 `json:"p_count"`   // ... that a count is asked for with count(*)
	Clean    float64 `json:"p_clean"`   // ... that text is compared with lower(trim())
}

const baseAttempts = 8

// measure runs validation tasks under every harness.
func measure(ctx context.Context, m *model.Model, d *demonstrator, n int) (Figures, error) {
	source, err := taskgen.New(taskgen.Options{Seed: uint64(d.cfg.Demo.TaskSeed), Val: n, Mix: d.cfg.Demo.mix()})
	if err != nil {
		return Figures{}, err
	}
	s, free, err := newSampler(m, d.format.Stop())
	if err != nil {
		return Figures{}, err
	}
	defer free()
	f := Figures{Tasks: n, Harness: map[string]Harness{}, Traps: map[string][2]float64{}, Kinds: map[string]float64{}}
	var jobs []rollout.Job
	for i := range n {
		t := source.Task(taskgen.Val, i)
		for a := range baseAttempts {
			jobs = append(jobs, rollout.Job{Spec: d.pool.Base(), Task: t, Phase: "eval", Attempt: a})
		}
		for k, spec := range d.pool.Siblings() {
			jobs = append(jobs, rollout.Job{Spec: spec, Task: t, Phase: "eval", Attempt: baseAttempts + k})
		}
	}
	records, _, err := rollout.Collect(ctx, jobs, rollout.CollectOptions{
		Env: sqlenv.New(sqlenv.Options{Name: "sql"}), Policy: s, Renderer: d.format, RunSeed: d.cfg.Seed, Temperature: 1, Workers: 64,
		Limits: rollout.Limits{MaxTurns: 8, MaxTokensPerTurn: 96, MaxContextTokens: 1024, ToolDeadline: time.Minute, RolloutDeadline: 10 * time.Minute},
	})
	if err != nil {
		return Figures{}, err
	}
	f.count(records, jobs, len(d.pool.Siblings()))
	free()
	free = func() {}
	for _, spec := range d.pool.Specs {
		h := f.Harness[spec.ID]
		if err := h.probe(m, d, spec, source, min(n, 60)); err != nil {
			return Figures{}, err
		}
		f.Harness[spec.ID] = h
	}
	return f, nil
}

// count fills in what the records say.
func (f *Figures) count(records []*rollout.Record, jobs []rollout.Job, siblings int) {
	all, onFailed := map[string][2]float64{}, map[string][2]float64{}
	add := func(m map[string][2]float64, key string, success bool) {
		x := m[key]
		if success {
			x[0]++
		}
		x[1]++
		m[key] = x
	}
	traps, kinds := map[string][2]float64{}, map[string][2]float64{}
	failed, rescued := 0.0, 0.0
	for at := 0; at < len(records); at += baseAttempts + siblings {
		task := records[at : at+baseAttempts+siblings]
		t := jobs[at].Task.Data.(*taskgen.Task)
		fails := true
		for _, r := range task[:baseAttempts] {
			fails = fails && !r.Success
			add(all, r.Harness, r.Success)
			add(kinds, t.Kind, r.Success)
			name := strings.Join(t.Traps.Names(), "+")
			if name == "" {
				name = "none"
			}
			add(traps, name, r.Success)
		}
		saved := false
		for _, r := range task[baseAttempts:] {
			add(all, r.Harness, r.Success)
			saved = saved || r.Success
			if fails {
				add(onFailed, r.Harness, r.Success)
			}
		}
		if fails {
			failed++
			if saved {
				rescued++
			}
		}
	}
	n := float64(f.Tasks)
	f.AllFail, f.Rescued = failed/n, rescued/math.Max(failed, 1)
	for id, x := range all {
		h := Harness{Success: x[0] / x[1]}
		if y := onFailed[id]; y[1] > 0 {
			h.OnFailed = y[0] / y[1]
		}
		f.Harness[id] = h
	}
	for name, x := range traps {
		f.Traps[name] = [2]float64{x[0] / x[1], x[1] / (n * baseAttempts)}
	}
	for name, x := range kinds {
		f.Kinds[name] = x[0] / x[1]
	}
}

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
	fmt.Fprintf(w, "%d validation tasks: %.2f fail in all %d attempts under h0, %.2f of those are solved under some sibling\n", f.Tasks, f.AllFail, baseAttempts, f.Rescued)
	fmt.Fprintf(w, "%-12s %8s %10s %9s %9s %9s\n", "harness", "success", "on failed", "P(look)", "P(count)", "P(clean)")
	for _, s := range pool.Specs {
		h := f.Harness[s.ID]
		fmt.Fprintf(w, "%-12s %8.2f %10.2f %9.2g %9.2g %9.2g\n", s.ID, h.Success, h.OnFailed, h.Look, h.Count, h.Clean)
	}
	for _, m := range []any{f.Kinds, f.Traps} {
		j, _ := json.Marshal(m) // maps of numbers always marshal
		fmt.Fprintf(w, "h0: %s\n", j)
	}
}
