package report

import (
	"embed"
	"fmt"
	"html/template"
	"maps"
	"math"
	"slices"

	"harness-s/rollout"
	"harness-s/trainer"
)

//go:embed *.gohtml style.css
var assets embed.FS

var pages = template.Must(template.New("").Funcs(template.FuncMap{
	"pct":   percent,
	"style": func() (template.CSS, error) { b, err := assets.ReadFile("style.css"); return template.CSS(b), err },
	"num":   func(v float64) string { return tickLabel(v) },
	"dur":   duration,
	"heat":  heat,
}).ParseFS(assets, "*.gohtml"))

// percent writes a fraction; NaN (no attempts) is a dash.
func percent(v float64) string {
	if math.IsNaN(v) {
		return "–"
	}
	return fmt.Sprintf("%.1f%%", 100*v)
}

func duration(seconds float64) string {
	s := int(seconds + 0.5)
	if s < 120 {
		return fmt.Sprintf("%d s", s)
	}
	return fmt.Sprintf("%d min %02d s", s/60, s%60)
}

// heat is a cell's opacity in percent for a success share.
func heat(v float64) int {
	if math.IsNaN(v) {
		return 0
	}
	return int(math.Round(v * 100))
}

// page is everything report.html shows.
type page struct {
	Title   string
	Facts   [][2]string // name, value
	Tiles   []tile
	Charts  []template.HTML
	Table   []harnessRow // before and after, from the summary
	Kinds   kindTable
	Samples []sample
	Groups  []taskGroup // of a step's page
	Live    bool        // served by view: links to every rollout
	Steps   []stepLink
}

type tile struct{ Name, Value, Note string }

type harnessRow struct {
	Harness                                    string
	PassBefore, AvgBefore, PassAfter, AvgAfter float64 // NaN where not evaluated
}

// kindTable is success by harness (rows) and task kind (columns), over the last recorded attempts.
type kindTable struct {
	Caption string
	Kinds   []string
	Rows    []kindRow
}

type kindRow struct {
	Harness string
	Cells   []kindCell
}

type kindCell struct {
	Share float64 // NaN without attempts
	N     int
}

// taskGroup is the attempts at one task in a step: base first, then rescue.
type taskGroup struct {
	Task, Kind string
	Replaced   bool
	Samples    []sample
}

// group puts attempts of a task together, in the order in which the tasks come.
func group(records []*rollout.Record, text decoder) []taskGroup {
	var out []taskGroup
	at := map[string]int{}
	for _, r := range records {
		i, known := at[r.Group]
		if !known {
			i = len(out)
			at[r.Group] = i
			out = append(out, taskGroup{Task: r.Task, Kind: r.TaskKind})
		}
		out[i].Replaced = out[i].Replaced || r.Replaced
		out[i].Samples = append(out[i].Samples, newSample(r, text))
	}
	return out
}

type stepLink struct {
	Step     int
	Rollouts int
}

// countKinds fills a kindTable from attempts given as (harness, kind, success).
func countKinds(caption string, attempts []attempt) kindTable {
	type key struct{ harness, kind string }
	won, all := map[key]int{}, map[key]int{}
	kinds, harnesses := map[string]bool{}, map[string]bool{}
	for _, a := range attempts {
		k := key{a.harness, a.kind}
		kinds[a.kind], harnesses[a.harness] = true, true
		all[k]++
		if a.success {
			won[k]++
		}
	}
	t := kindTable{Caption: caption, Kinds: slices.Sorted(maps.Keys(kinds))}
	for _, h := range trainer.SortHarnesses(harnesses) {
		row := kindRow{Harness: h}
		for _, kind := range t.Kinds {
			k := key{h, kind}
			c := kindCell{Share: math.NaN(), N: all[k]}
			if c.N > 0 {
				c.Share = float64(won[k]) / float64(c.N)
			}
			row.Cells = append(row.Cells, c)
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

type attempt struct {
	harness, kind string
	success       bool
}
