package report

import (
	"encoding/json"
	"fmt"
	"html/template"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"harness-s/trainer"
)

// comparisonPage is everything the report of a comparison shows.
type comparisonPage struct {
	Title, Command string
	Set            []string // overrides of every arm, the file's and the command's
	Facts          [][2]string
	Figures        []template.HTML
	Tables         []trainer.ComparedTable
}

// WriteComparison makes report.html in the folder of a comparison and returns its path. What is not done yet is left out.
func WriteComparison(dir string) (string, error) {
	raw, err := os.ReadFile(filepath.Join(dir, "summary.json"))
	if err != nil {
		return "", fmt.Errorf("report of %s: %w", dir, err)
	}
	var c trainer.Comparison
	if err := json.Unmarshal(raw, &c); err != nil {
		return "", fmt.Errorf("report of %s: summary.json: %w", dir, err)
	}
	return writePage(dir, "comparison", comparisonOf(filepath.Base(dir), c))
}

func comparisonOf(name string, c trainer.Comparison) *comparisonPage {
	v := comparisonView{c: c, command: "harness-s compare … --run " + name}
	if c.Plan.File != "" {
		v.command = "harness-s compare " + c.Plan.File
	}
	return &comparisonPage{
		Title: "Comparison " + name, Command: v.command, Set: c.Plan.Set,
		Facts: [][2]string{
			{"runs", fmt.Sprintf("%d of %d", c.Done, c.Runs)}, {"arms", fmt.Sprint(len(c.Plan.Arms))}, {"seeds", fmt.Sprint(len(c.Plan.Seeds))},
			{"harnesses", fmt.Sprint(len(c.Pool))}, {"time of all runs", duration(c.WallS)},
		},
		Figures: []template.HTML{v.curves(), v.outcome(), v.ranks(), v.rescue()},
		Tables:  c.Tables(),
	}
}

// comparisonView draws a comparison's figures.
type comparisonView struct {
	c       trainer.Comparison
	command string
}

// trained are the arms with a curve.
func (v comparisonView) trained() []trainer.Arm {
	return slices.DeleteFunc(slices.Clone(v.c.Plan.Arms), func(a trainer.Arm) bool { return a.Frozen != "" || len(v.c.Arms[a.Name]) == 0 })
}

// figure is a wide figure with its caption.
func (v comparisonView) figure(title, caption string, w, h float64, body string) template.HTML {
	if body == "" {
		return template.HTML(fmt.Sprintf(`<figure class="chart wide"><figcaption>%s</figcaption><p>no data yet</p></figure>`, template.HTMLEscapeString(title)))
	}
	return template.HTML(fmt.Sprintf(`<figure class="chart wide"><figcaption>%s</figcaption><div class="scroll"><svg viewBox="0 0 %g %g" role="img" aria-label="%s">%s</svg></div><p>%s</p></figure>`,
		template.HTMLEscapeString(title), w, h, template.HTMLEscapeString(title), body, template.HTMLEscapeString(caption+" From "+v.command+".")))
}

// Size of the curves' figure in SVG units.
const (
	curveW, curveH                     = 760.0, 340.0
	curveL, curveR, curveTop, curveBot = 40.0, 205.0, 12.0, 40.0
)

// curves draws H0's success over the rollouts: an arm's mean thick, its seeds thin.
func (v comparisonView) curves() template.HTML {
	title := fmt.Sprintf("H0 Avg@%d on held-out tasks over training rollouts", v.c.K())
	top, last := 0.0, 0.0
	for _, a := range v.trained() {
		for _, r := range v.c.Arms[a.Name] {
			for _, p := range r.Curve {
				top, last = math.Max(top, p.Avg), math.Max(last, float64(p.Rollouts))
			}
		}
	}
	if last == 0 {
		return v.figure(title, "", 0, 0, "")
	}
	x, y := niceAxis(0, last, 6).within(0, last), niceAxis(0, top, 5)
	px := func(r float64) float64 { return x.at(r, curveL, curveW-curveR) }
	py := func(a float64) float64 { return y.at(a, curveH-curveBot, curveTop) }
	var b strings.Builder
	for _, t := range y.ticks {
		fmt.Fprintf(&b, `<line class="grid" x1="%g" x2="%g" y1="%.1f" y2="%.1f"/><text class="tick" x="%g" y="%.1f" text-anchor="end">%s</text>`,
			curveL, curveW-curveR, py(t), py(t), curveL-5, py(t)+3.5, tickLabel(t))
	}
	for _, t := range x.ticks {
		fmt.Fprintf(&b, `<text class="tick" x="%.1f" y="%g" text-anchor="middle">%s</text>`, px(t), curveH-curveBot+16, tickLabel(t))
	}
	fmt.Fprintf(&b, `<text class="tick" x="%g" y="%g" text-anchor="middle">training rollouts</text>`, (curveL+curveW-curveR)/2, curveH-6)
	var ends []lineEnd
	for i, a := range v.trained() {
		var seeds [][]trainer.Point
		for _, seed := range v.c.Plan.Seeds {
			if r, ok := v.c.Arms[a.Name][fmt.Sprint(seed)]; ok {
				seeds = append(seeds, r.Curve)
				fmt.Fprintf(&b, `<path class="seed c%d" d="%s"><title>%s, seed %d</title></path>`, i%8, pathOf(r.Curve, px, py), template.HTMLEscapeString(a.String()), seed)
			}
		}
		m := meanCurve(seeds)
		fmt.Fprintf(&b, `<path class="line c%d" d="%s"><title>%s</title></path>`, i%8, pathOf(m, px, py), template.HTMLEscapeString(a.String()))
		ends = append(ends, lineEnd{i % 8, py(m[len(m)-1].Avg), fmt.Sprintf("%s %.2f", a, m[len(m)-1].Avg)})
	}
	drawEnds(&b, ends, px(last))
	return v.figure(title, "Thick: the mean over seeds; thin: each seed. Measured with fresh attempts that train nothing and count in no budget.", curveW, curveH, b.String())
}

// lineEnd is the name at the end of a line.
type lineEnd struct {
	colour int
	y      float64
	text   string
}

// drawEnds writes names beside the ends of lines, moved apart so that none covers another.
func drawEnds(b *strings.Builder, ends []lineEnd, x float64) {
	const gap = 13.0
	slices.SortStableFunc(ends, func(a, b lineEnd) int { return int(math.Copysign(1, a.y-b.y)) })
	at := make([]float64, len(ends))
	for i, e := range ends {
		at[i] = e.y
		if i > 0 {
			at[i] = math.Max(at[i], at[i-1]+gap)
		}
	}
	floor := curveH - curveBot
	for i := len(ends) - 1; i >= 0; i-- {
		at[i] = math.Min(at[i], floor)
		floor = at[i] - gap
	}
	for i, e := range ends {
		fmt.Fprintf(b, `<path class="seed c%d" d="M%.1f %.1fL%.1f %.1f"/><text class="end c%d" x="%.1f" y="%.1f">%s</text>`,
			e.colour, x, e.y, x+10, at[i], e.colour, x+13, at[i]+3.5, template.HTMLEscapeString(e.text))
	}
}

func pathOf(points []trainer.Point, px, py func(float64) float64) string {
	var b strings.Builder
	for i, p := range points {
		pen := "L"
		if i == 0 {
			pen = "M"
		}
		fmt.Fprintf(&b, "%s%.1f %.1f", pen, px(float64(p.Rollouts)), py(p.Avg))
	}
	return b.String()
}

// meanCurve is the mean of curves: at each place of any of them, the others taken by the line between their points.
func meanCurve(curves [][]trainer.Point) []trainer.Point {
	var places []int
	for _, c := range curves {
		for _, p := range c {
			places = append(places, p.Rollouts)
		}
	}
	slices.Sort(places)
	var out []trainer.Point
	for _, at := range slices.Compact(places) {
		sum, n := 0.0, 0
		for _, c := range curves {
			if v, ok := valueAt(c, at); ok {
				sum += v
				n++
			}
		}
		if n == len(curves) {
			out = append(out, trainer.Point{Rollouts: at, Avg: sum / float64(n)})
		}
	}
	return out
}

// valueAt is a curve's value at a place, by the line between its points; past its end the last one.
func valueAt(c []trainer.Point, at int) (float64, bool) {
	if len(c) == 0 || at < c[0].Rollouts {
		return 0, false
	}
	for i := 1; i < len(c); i++ {
		if a, b := c[i-1], c[i]; at <= b.Rollouts {
			if b.Rollouts == a.Rollouts {
				return b.Avg, true
			}
			return a.Avg + (b.Avg-a.Avg)*float64(at-a.Rollouts)/float64(b.Rollouts-a.Rollouts), true
		}
	}
	return c[len(c)-1].Avg, true
}

// bars is a group of bars with one name.
type bars struct {
	name   string
	values []trainer.Estimate // a bar each; without values (N 0) none
}

// drawBars draws groups of horizontal bars with their 95 % intervals; a colour a place in the group.
func drawBars(groups []bars, names []string) (body string, w, h float64) {
	const left, right, barH, gap, top = 190.0, 60.0, 11.0, 10.0, 26.0
	w = 760
	high := 0.0
	for _, g := range groups {
		for _, e := range g.values {
			if e.N > 0 {
				high = math.Max(high, e.Mean)
			}
			if e.N > 1 {
				high = math.Max(high, math.Min(1, e.Mean+e.Half)) // of fractions: an interval is drawn up to 1
			}
		}
	}
	axis := niceAxis(0, math.Max(high, 0.05), 5)
	px := func(v float64) float64 { return axis.at(math.Max(0, math.Min(v, axis.hi)), left, w-right) }
	var b strings.Builder
	y := top
	for _, g := range groups {
		fmt.Fprintf(&b, `<text class="name" x="%g" y="%.1f" text-anchor="end">%s</text>`, left-8, y+barH*float64(len(g.values))/2+4, template.HTMLEscapeString(clip(g.name, 32)))
		for i, e := range g.values {
			if e.N == 0 {
				fmt.Fprintf(&b, `<text class="value" x="%g" y="%.1f">–</text>`, left+4, y+barH-2)
			} else {
				drawBar(&b, e, names[i], i, left, y, barH, px)
			}
			y += barH
		}
		y += gap
	}
	var head strings.Builder
	for _, t := range axis.ticks {
		fmt.Fprintf(&head, `<line class="grid" x1="%.1f" x2="%.1f" y1="%g" y2="%.1f"/><text class="tick" x="%.1f" y="%.1f" text-anchor="middle">%s</text>`, px(t), px(t), top-4, y, px(t), y+12, tickLabel(t))
	}
	x := left
	for i, name := range names {
		fmt.Fprintf(&head, `<rect class="bar c%d" x="%.1f" y="4" width="14" height="9"/><text class="tick" x="%.1f" y="12">%s</text>`, i, x, x+19, template.HTMLEscapeString(name))
		x += 34 + 6*float64(len(name))
	}
	return head.String() + b.String(), w, y + 18
}

func drawBar(b *strings.Builder, e trainer.Estimate, name string, colour int, left, y, barH float64, px func(float64) float64) {
	fmt.Fprintf(b, `<rect class="bar c%d" x="%g" y="%.1f" width="%.1f" height="%g"><title>%s: %s</title></rect>`, colour, left, y, px(e.Mean)-left, barH-1.5, template.HTMLEscapeString(name), e)
	end := px(e.Mean)
	if e.N > 1 {
		lo, hi := px(e.Mean-e.Half), px(e.Mean+e.Half)
		mid := y + (barH-1.5)/2
		fmt.Fprintf(b, `<path class="whisker" d="M%.1f %.1fH%.1fM%.1f %.1fv5M%.1f %.1fv5"/>`, lo, mid, hi, lo, mid-2.5, hi, mid-2.5)
		end = hi
	}
	fmt.Fprintf(b, `<text class="value" x="%.1f" y="%.1f">%.3f</text>`, end+5, y+barH-2.5, e.Mean)
}

// estimates are an arm's quantities over its seeds.
func (v comparisonView) estimates(arm string, of ...func(trainer.Result) float64) []trainer.Estimate {
	var out []trainer.Estimate
	for _, f := range of {
		out = append(out, trainer.NewEstimate(v.c.Of(arm, f)))
	}
	return out
}

func (v comparisonView) barFigure(title, caption string, groups []bars, names []string) template.HTML {
	if len(groups) == 0 {
		return v.figure(title, "", 0, 0, "")
	}
	body, w, h := drawBars(groups, names)
	return v.figure(title, caption, w, h, body)
}

func (v comparisonView) outcome() template.HTML {
	var groups []bars
	for _, a := range v.c.Plan.Arms {
		if len(v.c.Arms[a.Name]) > 0 {
			groups = append(groups, bars{a.String(), v.estimates(a.Name, trainer.After("h0"), trainer.After("best"), trainer.After("routed"))})
		}
	}
	return v.barFigure(fmt.Sprintf("Avg@%d on held-out tasks at the end", v.c.K()),
		"Bars: mean over seeds; whiskers: 95 % interval of the mean, cut at 0 and 1. Best is chosen on validation tasks; routed is the router's first of the whole pool.",
		groups, []string{"H0", "best sibling", "routed"})
}

func (v comparisonView) ranks() template.HTML {
	var groups []bars
	for _, a := range v.trained() {
		if len(groups) == 0 {
			groups = append(groups, bars{"before training", v.estimates(a.Name, trainer.Before("h0"), trainer.Before("routed"), trainer.Before("rank2"), trainer.Before("rank3"))})
		}
		groups = append(groups, bars{a.String(), v.estimates(a.Name, trainer.After("h0"), trainer.After("routed"), trainer.After("rank2"), trainer.After("rank3"))})
	}
	return v.barFigure(fmt.Sprintf("The router's first three against H0, before and after training (Avg@%d)", v.c.K()),
		"Each task under the harness that the router ranks first, second or third for it. The router is calibrated on the policy that is measured.",
		groups, []string{"H0", "rank 1", "rank 2", "rank 3"})
}

func (v comparisonView) rescue() template.HTML {
	var groups []bars
	for _, a := range v.trained() {
		g := bars{a.String(), v.estimates(a.Name, trainer.RescueSuccess(0), trainer.RescueSuccess(1), trainer.RescueSuccess(2))}
		if slices.ContainsFunc(g.values, func(e trainer.Estimate) bool { return e.N > 0 }) {
			groups = append(groups, g)
		}
	}
	return v.barFigure("Rescue success by stage of training",
		"Share of rescued groups with at least one success, by thirds of the training rollouts. Arms without a rescue are left out.",
		groups, []string{"first third", "second third", "last third"})
}
