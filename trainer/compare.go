package trainer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sort"

	"harness-s/internal/atomicfile"
	"harness-s/rollout/harness"
)

// CompareOptions say what to run side by side.
type CompareOptions struct {
	Dir    string   // a run folder each: Dir/MODE-seed-N
	Modes  []string // rescue modes; empty: all
	Seeds  []int64
	Config func(mode string, seed int64) (Config, error) // the same but for rescue.mode and seed
	Train  func(ctx context.Context, cfg Config, opts Options) (Summary, error)
	Run    Options // of each run; RunDir and Resume are set here
	Out    io.Writer
}

// Comparison is the outcome: the summary of each mode and seed.
type Comparison struct {
	Modes map[string]map[string]Summary `json:"modes"` // by mode, then seed
}

// Compare trains every mode under every seed, one after the other, at the budget of the config. Runs that are done are
// taken as they are and a run that was stopped is resumed, so that it can be interrupted and called again. A seed goes
// through all modes before the next one starts: a comparison cut short is still a fair one.
func Compare(ctx context.Context, o CompareOptions) (Comparison, error) {
	c := Comparison{Modes: map[string]map[string]Summary{}}
	if len(o.Modes) == 0 {
		o.Modes = slices.Clone(modes)
	}
	for _, mode := range o.Modes {
		if !slices.Contains(modes, mode) {
			return c, fmt.Errorf("compare: no rescue mode %q; there are %v", mode, modes)
		}
	}
	for _, seed := range o.Seeds {
		for _, mode := range o.Modes {
			sum, err := o.one(ctx, mode, seed)
			if err != nil {
				return c, fmt.Errorf("compare: mode %s, seed %d: %w", mode, seed, err)
			}
			if c.Modes[mode] == nil {
				c.Modes[mode] = map[string]Summary{}
			}
			c.Modes[mode][fmt.Sprint(seed)] = sum
			if err := o.write(c); err != nil {
				return c, err
			}
		}
	}
	return c, nil
}

// one is the summary of a run, which is trained where it is not done yet.
func (o CompareOptions) one(ctx context.Context, mode string, seed int64) (Summary, error) {
	dir := filepath.Join(o.Dir, fmt.Sprintf("%s-seed-%d", mode, seed))
	raw, err := os.ReadFile(filepath.Join(dir, "summary.json"))
	if err == nil {
		var sum Summary
		if err := json.Unmarshal(raw, &sum); err != nil {
			return sum, fmt.Errorf("%s: %w", filepath.Join(dir, "summary.json"), err)
		}
		return sum, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return Summary{}, err
	}
	cfg, err := o.Config(mode, seed)
	if err != nil {
		return Summary{}, err
	}
	run := o.Run
	run.RunDir = dir
	_, err = os.Stat(filepath.Join(dir, "config.yaml"))
	run.Resume = err == nil
	fmt.Fprintf(o.Out, "== %s, seed %d: %s\n", mode, seed, dir)
	return o.Train(ctx, cfg, run)
}

func (o CompareOptions) write(c Comparison) error {
	data, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return fmt.Errorf("compare: %w", err)
	}
	return atomicfile.Write(filepath.Join(o.Dir, "summary.json"), append(data, '\n'))
}

// Table writes one row a mode, in Markdown: H0 Avg before and after and the gain over seeds with 95 % intervals of the mean
// (Student's t over seeds), routed, and each seed's end.
func (c Comparison) Table(w io.Writer) {
	k := 0
	for _, bySeed := range c.Modes {
		for _, s := range bySeed {
			k = max(k, s.After[harness.BaseID].K)
		}
	}
	fmt.Fprintf(w, "| mode | H0 Avg@%d before | after | gain | H0 Pass@%d after | routed Avg@%d after | rescued share | rollouts | each seed's end |\n|---|---|---|---|---|---|---|---|---|\n", k, k, k)
	for _, mode := range c.order() {
		seeds := slices.Sorted(maps.Keys(c.Modes[mode]))
		col := func(f func(Summary) float64) []float64 {
			var v []float64
			for _, s := range seeds {
				v = append(v, f(c.Modes[mode][s]))
			}
			return v
		}
		before := col(func(s Summary) float64 { return s.Before[harness.BaseID].Avg })
		after := col(func(s Summary) float64 { return s.After[harness.BaseID].Avg })
		gain := col(func(s Summary) float64 { return s.After[harness.BaseID].Avg - s.Before[harness.BaseID].Avg })
		pass := col(func(s Summary) float64 { return s.After[harness.BaseID].Pass })
		routed := col(func(s Summary) float64 { return s.After[routedName].Avg })
		share := col(func(s Summary) float64 { return s.RescuedShare })
		rollouts := col(func(s Summary) float64 { return float64(s.Rollouts) })
		ends := ""
		for _, a := range after {
			ends += fmt.Sprintf(" %.3f", a)
		}
		fmt.Fprintf(w, "| `%s` | %s | %s | %s | %s | %s | %s | %.0f |%s |\n", mode,
			interval(before), interval(after), interval(gain), interval(pass),
			onlyIf(average(routed) > 0, interval(routed)), onlyIf(rescues(mode), fmt.Sprintf("%.2f", average(share))), average(rollouts), ends)
	}
}

// rescues says whether a mode replaces failed groups.
func rescues(mode string) bool { return mode != ModeOff && mode != ModeMixture }

// onlyIf is a cell, or a dash where there is nothing to say.
func onlyIf(ok bool, cell string) string {
	if ok {
		return cell
	}
	return "–"
}

// order is the modes, best first.
func (c Comparison) order() []string {
	end := map[string]float64{}
	for mode, bySeed := range c.Modes {
		for _, s := range bySeed {
			end[mode] += s.After[harness.BaseID].Avg / float64(len(bySeed))
		}
	}
	out := slices.Sorted(maps.Keys(c.Modes))
	sort.SliceStable(out, func(i, j int) bool { return end[out[i]] > end[out[j]] })
	return out
}

func average(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / math.Max(1, float64(len(v)))
}

// tQuantile is the 0.975 quantile of Student's t by degrees of freedom; from 10 on the normal's serves.
var tQuantile = []float64{0, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26}

// interval is mean ± half width of the 95 % interval; of one value the mean alone.
func interval(v []float64) string {
	m := average(v)
	if len(v) < 2 {
		return fmt.Sprintf("%.3f", m)
	}
	sq := 0.0
	for _, x := range v {
		sq += (x - m) * (x - m)
	}
	t := 1.96
	if df := len(v) - 1; df < len(tQuantile) {
		t = tQuantile[df]
	}
	return fmt.Sprintf("%.3f ± %.3f", m, t*math.Sqrt(sq/float64(len(v)-1)/float64(len(v))))
}
