package trainer

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"text/tabwriter"

	"harness-s/rollout/harness"
)

// Summary is summary.json.
type Summary struct {
	Before       map[string]Score `json:"before"`
	After        map[string]Score `json:"after"`
	Steps        int              `json:"steps"`
	Rollouts     int              `json:"rollouts"`
	RescueRate   float64          `json:"rescue_rate"`   // all-failed / base groups
	RescuedShare float64          `json:"rescued_share"` // rescued groups with a success / rescued groups
	WallS        float64          `json:"wall_s"`
	Seed         int64            `json:"seed"`
}

// finish evaluates the trained policy and writes the outcome.
func (r *run) finish(ctx context.Context) (Summary, error) {
	s := &stepRun{run: r, n: r.state.Step, out: metrics{}, next: r.state}
	r.clock.start()
	sum := Summary{
		Before: r.state.Before, Steps: r.state.Step, Rollouts: r.state.Rollouts, Seed: r.cfg.Seed,
		RescueRate:   float64(r.state.Failed) / math.Max(1, float64(r.state.Groups)),
		RescuedShare: float64(r.state.Saved) / math.Max(1, float64(r.state.Rescued)),
		After:        map[string]Score{},
	}
	if sum.Before == nil {
		sum.Before = map[string]Score{}
	}
	if r.cfg.Eval.After {
		var err error
		if sum.After, err = s.evaluate(ctx, "after", r.cfg.Eval.Ends); err != nil {
			return Summary{}, err
		}
	}
	s.clock.lap(s.out)
	sum.WallS = r.state.WallS + s.out["time/step"]
	if err := r.folder.WriteJSON("summary.json", sum); err != nil {
		return Summary{}, err
	}
	if r.opts.Out != nil {
		r.progress.end()
		sum.Table(r.opts.Out)
	}
	if r.opts.Report != nil {
		path, err := r.opts.Report(r.folder.Dir)
		if err != nil {
			return sum, fmt.Errorf("write the report: %w", err)
		}
		r.progress.note("report: " + path)
	}
	return sum, nil
}

// Table writes the closing table for people.
func (s Summary) Table(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	k := 0
	for _, scores := range []map[string]Score{s.Before, s.After} {
		for _, score := range scores {
			k = score.K
		}
	}
	if k > 0 { // something was evaluated
		fmt.Fprintf(t, "\nharness\tPass@%d before\tafter\tAvg@%d before\tafter\t\n", k, k)
	}
	for _, id := range rowsOf(s.Before, s.After) {
		b, hasB := s.Before[id]
		a, hasA := s.After[id]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t\n", id, cell(b.Pass, hasB), cell(a.Pass, hasA), cell(b.Avg, hasB), cell(a.Avg, hasA))
	}
	t.Flush()
	fmt.Fprintf(w, "\n%d rollouts in %d steps; rescue rate %.2f, rescued share %.2f; %s\n", s.Rollouts, s.Steps, s.RescueRate, s.RescuedShare, duration(s.WallS))
}

func cell(x float64, ok bool) string {
	if !ok {
		return "-"
	}
	return fmt.Sprintf("%.3f", x)
}

// rowsOf are the harnesses of all scores, in order.
func rowsOf(scores ...map[string]Score) []string {
	all := map[string]Score{}
	for _, m := range scores {
		maps.Copy(all, m)
	}
	return SortHarnesses(all)
}

// SortHarnesses orders harnesses as tables show them: h0, the others by name, routed.
func SortHarnesses[T any](byID map[string]T) []string {
	place := map[string]int{harness.BaseID: -1, routedName: 1} // 0: any other
	return slices.SortedFunc(maps.Keys(byID), func(a, b string) int {
		return cmp.Or(cmp.Compare(place[a], place[b]), cmp.Compare(a, b))
	})
}
