package report

import (
	"fmt"
	"html/template"
	"math"
	"strings"
)

// series is one line of a chart; NaN leaves a gap.
type series struct {
	Name string
	X, Y []float64
}

// Chart area in SVG units; the viewBox scales it to the column.
const (
	chartW, chartH         = 360.0, 190.0
	padL, padR, padT, padB = 44.0, 10.0, 12.0, 26.0
)

// axis maps data to the chart's area and knows its ticks.
type axis struct {
	lo, hi float64
	ticks  []float64
}

// niceAxis spans [lo, hi] with about n ticks at 1, 2 or 5 times a power of ten.
func niceAxis(lo, hi float64, n int) axis {
	if !(hi > lo) { // one value or none
		d := math.Max(math.Abs(lo)*0.1, 0.5)
		lo, hi = lo-d, hi+d
	}
	step := math.Pow(10, math.Floor(math.Log10((hi-lo)/float64(n))))
	for _, m := range []float64{1, 2, 5, 10} {
		if (hi-lo)/(step*m) <= float64(n) {
			step *= m
			break
		}
	}
	first, last := math.Floor(lo/step), math.Ceil(hi/step)
	a := axis{lo: first * step, hi: last * step}
	for k := first; k <= last; k++ {
		a.ticks = append(a.ticks, k*step)
	}
	return a
}

// within ends the axis at the data, with the ticks that lie there.
func (a axis) within(lo, hi float64) axis {
	if !(hi > lo) {
		return a
	}
	in := axis{lo: lo, hi: hi}
	for _, t := range a.ticks {
		if t >= lo && t <= hi {
			in.ticks = append(in.ticks, t)
		}
	}
	return in
}

func bounds(all []series, pick func(series) []float64) (lo, hi float64, ok bool) {
	lo, hi = math.Inf(1), math.Inf(-1)
	for _, s := range all {
		for _, v := range pick(s) {
			if !math.IsNaN(v) && !math.IsInf(v, 0) {
				lo, hi, ok = math.Min(lo, v), math.Max(hi, v), true
			}
		}
	}
	return lo, hi, ok
}

// lineChart draws the series; unit is written after the title. floor, when not NaN, is included in the y axis.
func lineChart(title string, floor float64, all ...series) template.HTML {
	xlo, xhi, okX := bounds(all, func(s series) []float64 { return s.X })
	ylo, yhi, okY := bounds(all, func(s series) []float64 { return s.Y })
	if !okX || !okY {
		return template.HTML(fmt.Sprintf(`<figure class="chart"><figcaption>%s</figcaption><p class="muted">no data yet</p></figure>`, template.HTMLEscapeString(title)))
	}
	if !math.IsNaN(floor) {
		ylo, yhi = math.Min(ylo, floor), math.Max(yhi, floor)
	}
	x, y := niceAxis(xlo, xhi, 5).within(xlo, xhi), niceAxis(ylo, yhi, 4)
	var b strings.Builder
	fmt.Fprintf(&b, `<figure class="chart"><figcaption>%s</figcaption>`, template.HTMLEscapeString(title))
	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s">`, chartW, chartH, template.HTMLEscapeString(title))
	drawAxes(&b, x, y)
	for i, s := range all {
		drawLine(&b, s, x, y, i)
	}
	b.WriteString(`</svg>`)
	if len(all) > 1 {
		drawLegend(&b, all)
	}
	b.WriteString(`</figure>`)
	return template.HTML(b.String())
}

func (a axis) at(v, from, to float64) float64 { return from + (v-a.lo)/(a.hi-a.lo)*(to-from) }

func drawAxes(b *strings.Builder, x, y axis) {
	for _, t := range y.ticks {
		py := y.at(t, chartH-padB, padT)
		fmt.Fprintf(b, `<line class="grid" x1="%g" x2="%g" y1="%.1f" y2="%.1f"/>`, padL, chartW-padR, py, py)
		fmt.Fprintf(b, `<text class="tick" x="%g" y="%.1f" text-anchor="end">%s</text>`, padL-5, py+3.5, tickLabel(t))
	}
	for _, t := range x.ticks {
		px := x.at(t, padL, chartW-padR)
		fmt.Fprintf(b, `<text class="tick" x="%.1f" y="%g" text-anchor="middle">%s</text>`, px, chartH-8, tickLabel(t))
	}
}

func tickLabel(v float64) string {
	switch a := math.Abs(v); {
	case a < 1e-12:
		return "0"
	case a >= 1e5 || a < 1e-3:
		return fmt.Sprintf("%.0e", v)
	default:
		return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.3f", v), "0"), ".")
	}
}

func drawLine(b *strings.Builder, s series, x, y axis, colour int) {
	var path strings.Builder
	pen := "M"
	points := 0
	for i := range s.X {
		if math.IsNaN(s.Y[i]) || math.IsInf(s.Y[i], 0) {
			pen = "M"
			continue
		}
		fmt.Fprintf(&path, "%s%.1f %.1f", pen, x.at(s.X[i], padL, chartW-padR), y.at(s.Y[i], chartH-padB, padT))
		pen = "L"
		points++
	}
	fmt.Fprintf(b, `<path class="line c%d" d="%s"/>`, colour%6, path.String())
	if points > 60 {
		return // a dot each would hide the line
	}
	for i := range s.X {
		if math.IsNaN(s.Y[i]) || math.IsInf(s.Y[i], 0) {
			continue
		}
		fmt.Fprintf(b, `<circle class="dot c%d" cx="%.1f" cy="%.1f" r="2.2"><title>%s, step %s: %s</title></circle>`, colour%6,
			x.at(s.X[i], padL, chartW-padR), y.at(s.Y[i], chartH-padB, padT), template.HTMLEscapeString(s.Name), tickLabel(s.X[i]), tickLabel(s.Y[i]))
	}
}

func drawLegend(b *strings.Builder, all []series) {
	b.WriteString(`<div class="legend">`)
	for i, s := range all {
		fmt.Fprintf(b, `<span><i class="c%d"></i>%s</span>`, i%6, template.HTMLEscapeString(s.Name))
	}
	b.WriteString(`</div>`)
}
