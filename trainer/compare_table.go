package trainer

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"harness-s/rollout/harness"
)

// Estimate is a mean over seeds with the half width of its 95 % interval by Student's t. Values that are not numbers are left
// out; of one value the half width is NaN, of none the mean too.
type Estimate struct {
	N          int
	Mean, Half float64
}

// tQuantile is the 0.975 quantile of Student's t by degrees of freedom; beyond, the last serves, which is a little too wide.
var tQuantile = []float64{0, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
	2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086}

// NewEstimate of one value a seed.
func NewEstimate(values []float64) Estimate {
	v := slices.DeleteFunc(slices.Clone(values), math.IsNaN)
	e := Estimate{N: len(v), Mean: math.NaN(), Half: math.NaN()}
	if e.N == 0 {
		return e
	}
	sum, sq := 0.0, 0.0
	for _, x := range v {
		sum += x
	}
	e.Mean = sum / float64(e.N)
	if e.N == 1 {
		return e
	}
	for _, x := range v {
		sq += (x - e.Mean) * (x - e.Mean)
	}
	t := tQuantile[min(e.N-1, len(tQuantile)-1)]
	e.Half = t * math.Sqrt(sq/float64(e.N-1)/float64(e.N))
	return e
}

// String is "0.800 ± 0.012"; a dash of nothing.
func (e Estimate) String() string {
	switch {
	case e.N == 0:
		return "–"
	case e.N == 1:
		return fmt.Sprintf("%.3f", e.Mean)
	}
	return fmt.Sprintf("%.3f ± %.3f", e.Mean, e.Half)
}

// String is how tables name the arm.
func (a Arm) String() string {
	if a.Label != "" {
		return a.Label
	}
	return a.Name
}

// Of is a quantity of an arm's finished seeds, in the plan's order of seeds.
func (c Comparison) Of(arm string, f func(Result) float64) []float64 {
	var out []float64
	for _, seed := range c.Plan.Seeds {
		if r, ok := c.Arms[arm][strconv.FormatInt(seed, 10)]; ok {
			out = append(out, f(r))
		}
	}
	return out
}

// Against is an arm's quantity minus the reference arm's under the same seed, where both are done.
func (c Comparison) Against(arm string, f func(Result) float64) []float64 {
	var out []float64
	for _, seed := range c.Plan.Seeds {
		at := strconv.FormatInt(seed, 10)
		r, ok := c.Arms[arm][at]
		ref, okRef := c.Arms[c.Plan.reference()][at]
		if ok && okRef {
			out = append(out, f(r)-f(ref))
		}
	}
	return out
}

// K is the attempts at each held-out task.
func (c Comparison) K() int {
	for _, bySeed := range c.Arms {
		for _, r := range bySeed {
			return r.After[harness.BaseID].K
		}
	}
	return 0
}

// After is a score's success share after training; Before, before it.
func After(name string) func(Result) float64 {
	return func(r Result) float64 { return average(r.After, name) }
}

// Before is After of the policy before training.
func Before(name string) func(Result) float64 {
	return func(r Result) float64 { return average(r.Before, name) }
}

func average(scores map[string]Score, name string) float64 {
	s, ok := scores[name]
	if !ok {
		return math.NaN()
	}
	return s.Avg
}

// PassAfter is Pass@K after training.
func PassAfter(name string) func(Result) float64 {
	return func(r Result) float64 {
		s, ok := r.After[name]
		if !ok {
			return math.NaN()
		}
		return s.Pass
	}
}

// ComparedTable is one table of a comparison: a row an arm.
type ComparedTable struct {
	Title, Note string
	Head        []string
	Rows        [][]string
}

// Tables are the outcome, the ranks, the training and the cost. Arms stand in the plan's order; those without a finished seed
// are left out.
func (c Comparison) Tables() []ComparedTable {
	return []ComparedTable{c.outcome(), c.ranks(), c.training(), c.cost()}
}

func (c Comparison) outcome() ComparedTable {
	k := c.K()
	at := func(s string) string { return fmt.Sprintf(s, k) }
	note := at("Held-out tasks after training, %d attempts each. Best: the sibling best on validation tasks. Routed: the router's first of the whole pool. ") +
		"A frozen arm trains nothing and is used as its name says."
	return c.table("Outcome", note, c.all(), []columnOf{
		{at("H0 Avg@%d"), c.mean(After(harness.BaseID))}, {at("H0 Pass@%d"), c.mean(PassAfter(harness.BaseID))},
		{"H0 less " + c.Plan.label(c.Plan.reference()), c.difference},
		{at("best Avg@%d"), c.mean(After(bestName))}, {at("best Pass@%d"), c.mean(PassAfter(bestName))},
		{at("routed Avg@%d"), c.mean(After(routedName))}, {at("routed Pass@%d"), c.mean(PassAfter(routedName))},
		{"seeds", func(a Arm) string { return fmt.Sprint(len(c.Arms[a.Name])) }},
	})
}

// difference is H0's gain on the reference arm, paired by seed.
func (c Comparison) difference(a Arm) string {
	if a.Frozen != "" || a.Name == c.Plan.reference() {
		return "–"
	}
	return NewEstimate(c.Against(a.Name, After(harness.BaseID))).String()
}

func (c Comparison) ranks() ComparedTable {
	var columns []columnOf
	for i, name := range []string{harness.BaseID, routedName, "rank2", "rank3"} {
		title := []string{"H0", "rank 1", "rank 2", "rank 3"}[i]
		columns = append(columns, columnOf{title + " before", c.mean(Before(name))}, columnOf{title + " after", c.mean(After(name))})
	}
	columns = append(columns,
		columnOf{"H0 first before", c.mean(func(r Result) float64 { return r.BeforeChoice.H0Share })},
		columnOf{"H0 first after", c.mean(func(r Result) float64 { return r.AfterChoice.H0Share })})
	note := fmt.Sprintf("Avg@%d under the harness that the router ranks first, second and third for each task, and the share of tasks for which that is H0 itself. ", c.K()) +
		"The router is calibrated on the policy that is measured, in every arm alike."
	return c.table("The router's first three against H0, before and after training", note, c.trained(), columns)
}

func (c Comparison) training() ComparedTable {
	return c.table("Training", "Rescue success: rescued groups with a success, by thirds of the rollouts. Contrast: retained groups whose rewards differ. "+
		"Gradient: policy tokens that carry gradient, of all sampled.", c.trained(), []columnOf{
		{"rescue success, first third", c.mean(RescueSuccess(0))}, {"second", c.mean(RescueSuccess(1))}, {"last", c.mean(RescueSuccess(2))},
		{"contrast", c.mean(func(r Result) float64 { return r.Contrast.Value() })},
		{"gradient", c.mean(func(r Result) float64 { return r.Tokens.Value() })},
	})
}

func (c Comparison) cost() ComparedTable {
	return c.table("Cost", "Of a run, mean over seeds. The training rollouts alone are the budget; the router's and those of measuring stand apart. "+
		"Wall time is of runs side by side, where they were.", c.all(), []columnOf{
		{"training rollouts", c.whole(func(r Result) float64 { return float64(r.Rollouts) })},
		{"steps", c.whole(func(r Result) float64 { return float64(r.Steps) })},
		{"router rollouts", c.whole(func(r Result) float64 { return float64(r.RouterRollouts) })},
		{"measuring: validation", c.whole(func(r Result) float64 { return float64(r.MeasureRollouts) })},
		{"measuring: held-out", c.whole(func(r Result) float64 { return float64(r.EvalRollouts) })},
		{"wall time (s)", c.whole(func(r Result) float64 { return r.WallS })},
	})
}

// RescueSuccess is the share of rescued groups with a success in a part of training, from 0.
func RescueSuccess(stage int) func(Result) float64 {
	return func(r Result) float64 { return r.Rescue[stage].Value() }
}

// Table writes all tables in Markdown.
func (c Comparison) Table(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d trainings done, %s of runs in all; ± is the half width of the 95 %% interval of the mean over seeds (Student's t).\n", c.Done, c.Runs, duration(c.WallS))
	for _, t := range c.Tables() {
		fmt.Fprintf(&b, "\n%s. %s\n\n", t.Title, t.Note)
		writeRow(&b, t.Head)
		b.WriteString(strings.Repeat("|---", len(t.Head)) + "|\n")
		for _, row := range t.Rows {
			writeRow(&b, row)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func writeRow(b *strings.Builder, cells []string) {
	for _, cell := range cells {
		b.WriteString("| " + strings.ReplaceAll(cell, "|", `\|`) + " ")
	}
	b.WriteString("|\n")
}

// label is how tables name an arm.
func (p ComparePlan) label(name string) string {
	for _, a := range p.Arms {
		if a.Name == name {
			return a.String()
		}
	}
	return name
}

// columnOf is a column of a table.
type columnOf struct {
	title string
	cell  func(Arm) string
}

func (c Comparison) mean(f func(Result) float64) func(Arm) string {
	return func(a Arm) string { return NewEstimate(c.Of(a.Name, f)).String() }
}

func (c Comparison) whole(f func(Result) float64) func(Arm) string {
	return func(a Arm) string { return fmt.Sprintf("%.0f", NewEstimate(c.Of(a.Name, f)).Mean) }
}

// all are the arms with a finished seed.
func (c Comparison) all() []Arm {
	return slices.DeleteFunc(slices.Clone(c.Plan.Arms), func(a Arm) bool { return len(c.Arms[a.Name]) == 0 })
}

func (c Comparison) trained() []Arm {
	return slices.DeleteFunc(c.all(), func(a Arm) bool { return a.Frozen != "" })
}

func (c Comparison) table(title, note string, arms []Arm, columns []columnOf) ComparedTable {
	t := ComparedTable{Title: title, Note: note, Head: []string{"arm"}}
	for _, col := range columns {
		t.Head = append(t.Head, col.title)
	}
	for _, a := range arms {
		row := []string{a.String()}
		for _, col := range columns {
			row = append(row, col.cell(a))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}
