package report

import (
	"encoding/xml"
	"io"
	"math"
	"strings"
	"testing"
)

func TestNiceAxisCoversItsData(t *testing.T) {
	for _, c := range [][2]float64{{0, 1}, {0.31, 0.94}, {-3, 4000}, {5, 5}, {0, 0}, {1e-9, 3e-9}} {
		a := niceAxis(c[0], c[1], 5)
		if a.lo > c[0] || a.hi < c[1] || len(a.ticks) < 2 || len(a.ticks) > 8 {
			t.Errorf("%v: axis %+v", c, a)
		}
	}
}

func TestAxisEndsAtTheData(t *testing.T) {
	a := niceAxis(0, 61, 5).within(0, 61)
	if a.lo != 0 || a.hi != 61 || len(a.ticks) != 4 || a.ticks[3] != 60 {
		t.Errorf("axis %+v", a)
	}
}

func TestLineChartIsWellFormedAndSkipsGaps(t *testing.T) {
	svg := string(lineChart("reward <mean>", 0,
		series{"h0", []float64{1, 2, 3, 4}, []float64{0.1, math.NaN(), 0.3, 0.4}},
		series{"routed", []float64{1, 4}, []float64{0.2, math.Inf(1)}}))
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("%v in %s", err, svg)
		}
	}
	if strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
		t.Error("a non-finite value reached the picture")
	}
	if got := strings.Count(svg, "<circle"); got != 4 {
		t.Errorf("%d dots, want 4", got)
	}
}

func TestEmptyChartSaysSo(t *testing.T) {
	if svg := lineChart("x", math.NaN()); !strings.Contains(string(svg), "no data yet") {
		t.Errorf("got %s", svg)
	}
}
