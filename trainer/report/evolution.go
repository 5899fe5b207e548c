package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"harness-s/router/evolve"
)

// WriteEvolution makes report.html in the folder of an evolution and returns its path.
func WriteEvolution(dir string) (string, error) {
	p, err := evolutionPage(dir)
	if err != nil {
		return "", err
	}
	return writePage(dir, "evolution", p)
}

// isEvolution says whether a folder is that of an evolution.
func isEvolution(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, evolve.LineageName))
	return err == nil
}

// evolution is everything the page of an evolution shows.
type evolution struct {
	Title    string
	Facts    [][2]string
	Tiles    []tile
	Coverage template.HTML
	Tree     template.HTML
	Matrix   template.HTML
	Causes   []causeRow
	Siblings []siblingRow
	Rejected []rejectedRow
}

// causeRow is a cause of failures and what was made against it.
type causeRow struct {
	Cause, Description string
	Failures           []int // labelled training attempts by generation
	Tasks, Solved      int   // validation tasks that H0 never solves from this cause; those that some sibling solves
	Children           []siblingRef
}

type siblingRef struct {
	ID      string
	Repairs int // validation tasks solved that H0 never solves from the cause that the sibling is made against
	Gains   int // validation tasks solved that H0 never solves, from any cause
}

type siblingRow struct {
	ID, Parent, Direction string
	Changes               []string
	Generation            int
	Success               float64
	Solved                int
	Gains, Regressions    []string
	Next                  bool // became a parent
}

type rejectedRow struct {
	Reason  string
	Count   int
	Example string
}

// evolved is the folder as read.
type evolved struct {
	lineage  evolve.Lineage
	matrix   evolve.Matrix
	summary  *evolve.Summary // nil: still at work
	rejected []evolve.Rejected
}

func readEvolution(dir string) (*evolved, error) {
	lineage, err := evolve.ReadLineage(filepath.Join(dir, evolve.LineageName))
	if err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	e := &evolved{lineage: lineage}
	if err := readInto(filepath.Join(dir, evolve.MatrixName), &e.matrix); err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(dir, evolve.SummaryName)); err == nil {
		e.summary = new(evolve.Summary)
		if err := readInto(filepath.Join(dir, evolve.SummaryName), e.summary); err != nil {
			return nil, err
		}
	}
	path := filepath.Join(dir, evolve.RejectedName)
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	for i, line := range bytes.Split(bytes.TrimSpace(raw), []byte("\n")) {
		if len(line) == 0 {
			continue
		}
		var r evolve.Rejected
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, fmt.Errorf("report: %s:%d: %w", path, i+1, err)
		}
		e.rejected = append(e.rejected, r)
	}
	return e, e.check(dir)
}

func readInto(path string, v any) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return fmt.Errorf("report: %s: %w", path, err)
	}
	return nil
}

// check finds files that do not belong together.
func (e *evolved) check(dir string) error {
	if len(e.matrix.Rows) != len(e.lineage.Nodes) {
		return fmt.Errorf("report: %s has %d harnesses in %s and %d in %s", dir, len(e.lineage.Nodes), evolve.LineageName, len(e.matrix.Rows), evolve.MatrixName)
	}
	for i, r := range e.matrix.Rows {
		if r.Harness != e.lineage.Nodes[i].ID || len(r.Wins) != len(e.matrix.Tasks) || len(r.Tries) != len(e.matrix.Tasks) {
			return fmt.Errorf("report: %s: row %d of %s is not that of harness %s", dir, i, evolve.MatrixName, e.lineage.Nodes[i].ID)
		}
	}
	return nil
}

func evolutionPage(dir string) (*evolution, error) {
	e, err := readEvolution(dir)
	if err != nil {
		return nil, err
	}
	p := &evolution{
		Title: "Evolution " + filepath.Base(dir), Facts: e.facts(), Tiles: e.tiles(),
		Coverage: e.coverage(), Tree: drawTree(e.lineage), Matrix: drawMatrix(e.matrix),
		Causes: e.causes(), Siblings: e.siblings(), Rejected: e.refusals(),
	}
	return p, nil
}

func (e *evolved) facts() [][2]string {
	if e.summary == nil {
		return [][2]string{{"state", "at work"}, {"generations so far", strconv.Itoa(len(e.lineage.Generations))}}
	}
	s := e.summary
	facts := [][2]string{
		{"generations", strconv.Itoa(s.Generations)}, {"rollouts", strconv.Itoa(s.Rollouts)}, {"candidates", strconv.Itoa(s.Candidates)},
		{"time", duration(s.WallS)}, {"seed", strconv.FormatInt(s.Seed, 10)},
	}
	if s.Calls > 0 {
		facts = append(facts, [2]string{"model calls", strconv.Itoa(s.Calls)}, [2]string{"model tokens", strconv.Itoa(s.Tokens)})
	}
	return facts
}

func (e *evolved) tiles() []tile {
	h0 := e.matrix.Rows[0]
	best := h0
	for _, r := range e.matrix.Rows {
		if r.Success > best.Success {
			best = r
		}
	}
	of := fmt.Sprintf("of %d validation tasks", len(e.matrix.Tasks))
	joint := 0
	for t := range e.matrix.Tasks {
		if slices.ContainsFunc(e.matrix.Rows, func(r evolve.Row) bool { return r.Wins[t] > 0 }) {
			joint++
		}
	}
	return []tile{
		{"Valid siblings", strconv.Itoa(len(e.matrix.Rows) - 1), "in the pool"},
		{"Solved by any", e.share(joint), of},
		{"Solved by H0", e.share(h0.Solved), of},
		{"Best alone", e.share(best.Solved), best.Harness},
	}
}

func (e *evolved) share(tasks int) string {
	return percent(float64(tasks) / float64(max(1, len(e.matrix.Tasks))))
}

// coverage draws what the pool solves after each generation, and what the best harness alone does.
func (e *evolved) coverage() template.HTML {
	joint, single := series{Name: "any harness"}, series{Name: "best harness alone"}
	tasks := float64(max(1, len(e.matrix.Tasks)))
	for g := range len(e.lineage.Generations) + 1 {
		solved, best := map[int]bool{}, 0
		for _, r := range e.matrix.Rows {
			if r.Generation > g {
				continue
			}
			best = max(best, r.Solved)
			for t, w := range r.Wins {
				if w > 0 {
					solved[t] = true
				}
			}
		}
		joint.X, joint.Y = append(joint.X, float64(g)), append(joint.Y, float64(len(solved))/tasks)
		single.X, single.Y = append(single.X, float64(g)), append(single.Y, float64(best)/tasks)
	}
	return lineChart("Share of validation tasks solved, by generation (0: H0)", 0, joint, single)
}

// causes lists what made attempts fail, the most frequent first, with the siblings made against each.
func (e *evolved) causes() []causeRow {
	rows := map[string]*causeRow{}
	row := func(cause string) *causeRow {
		if rows[cause] == nil {
			rows[cause] = &causeRow{Cause: cause, Failures: make([]int, len(e.lineage.Generations))}
		}
		return rows[cause]
	}
	for g, gen := range e.lineage.Generations {
		for _, byCause := range gen.Causes {
			for cause, n := range byCause {
				row(cause).Failures[g] += n
			}
		}
	}
	for i, n := range e.lineage.Nodes {
		if n.Direction == nil {
			continue
		}
		r := row(n.Direction.ID)
		r.Description = n.Direction.Description
		r.Children = append(r.Children, siblingRef{n.ID, e.repairs(i, n.Direction.ID), len(e.matrix.Rows[i].Gains)})
	}
	for t, task := range e.matrix.Tasks {
		if task.Cause == "" {
			continue
		}
		r := row(task.Cause)
		r.Tasks++
		if slices.ContainsFunc(e.matrix.Rows, func(m evolve.Row) bool { return m.Wins[t] > 0 }) {
			r.Solved++
		}
	}
	out := make([]causeRow, 0, len(rows))
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		out = append(out, *rows[name])
	}
	slices.SortStableFunc(out, func(a, b causeRow) int { return sum(b.Failures) - sum(a.Failures) })
	return out
}

// repairs counts the validation tasks that H0 fails from a cause and a harness solves.
func (e *evolved) repairs(row int, cause string) int {
	n := 0
	for t, task := range e.matrix.Tasks {
		if task.Cause == cause && e.matrix.Rows[row].Wins[t] > 0 {
			n++
		}
	}
	return n
}

func sum(v []int) (total int) {
	for _, x := range v {
		total += x
	}
	return total
}

func (e *evolved) siblings() []siblingRow {
	next := map[string]bool{}
	for _, g := range e.lineage.Generations {
		for _, id := range g.Parents {
			next[id] = true
		}
	}
	var out []siblingRow
	for i, n := range e.lineage.Nodes {
		r := e.matrix.Rows[i]
		row := siblingRow{ID: n.ID, Parent: n.Parent, Generation: n.Generation, Success: r.Success, Solved: r.Solved, Gains: r.Gains, Regressions: r.Regressions, Next: next[n.ID]}
		if n.Direction != nil {
			row.Direction = n.Direction.Description
		}
		if n.Manifest != nil {
			row.Changes = n.Manifest.Changes
		}
		out = append(out, row)
	}
	return out
}

// refusals counts candidates that did not pass, with one example each.
func (e *evolved) refusals() []rejectedRow {
	at := map[string]int{}
	var out []rejectedRow
	for _, r := range e.rejected {
		i, known := at[r.Reason]
		if !known {
			i = len(out)
			at[r.Reason] = i
			out = append(out, rejectedRow{Reason: r.Reason, Example: r.Candidate + ": " + r.Detail})
		}
		out[i].Count++
	}
	slices.SortStableFunc(out, func(a, b rejectedRow) int { return b.Count - a.Count })
	return out
}

// Sizes of the tree and the matrix in SVG units.
const (
	leafH, columnW, boxW, boxH   = 26, 272, 228, 20
	cellSize, labelW, labelCharW = 12, 210, 7
)

// drawTree lays the lineage out with the base on the left, a column a generation.
func drawTree(l evolve.Lineage) template.HTML {
	children := map[string][]evolve.Node{}
	columns := 0
	for _, n := range l.Nodes[1:] {
		children[n.Parent] = append(children[n.Parent], n)
		columns = max(columns, n.Generation)
	}
	parents := map[string]bool{}
	for _, g := range l.Generations {
		for _, id := range g.Parents {
			parents[id] = true
		}
	}
	var lines, boxes strings.Builder
	leaves := 0
	var place func(n evolve.Node) float64
	place = func(n evolve.Node) float64 {
		var ys []float64
		for _, c := range children[n.ID] {
			ys = append(ys, place(c))
		}
		y := float64(leaves*leafH) + leafH/2
		if len(ys) > 0 {
			y = (ys[0] + ys[len(ys)-1]) / 2
		} else {
			leaves++
		}
		x := float64(n.Generation * columnW)
		for i, c := range children[n.ID] {
			cx := float64(c.Generation * columnW)
			fmt.Fprintf(&lines, `<path class="edge" d="M%g %g C%g %g %g %g %g %g"/>`, x+boxW, y, x+boxW+40, y, cx-40, ys[i], cx, ys[i])
		}
		drawNode(&boxes, n, x, y, parents[n.ID])
		return y
	}
	place(l.Nodes[0])
	w, h := columns*columnW+boxW+2, max(1, leaves)*leafH
	return template.HTML(fmt.Sprintf(`<svg class="tree" width="%d" height="%d" viewBox="-1 0 %d %d" role="img" aria-label="lineage">%s%s</svg>`, w, h, w, h, lines.String(), boxes.String()))
}

func drawNode(b *strings.Builder, n evolve.Node, x, y float64, parent bool) {
	class, why := "node", n.ID
	if parent {
		class = "node parent"
	}
	if n.Direction != nil {
		why += ": " + n.Direction.Description
	}
	fmt.Fprintf(b, `<g class="%s"><title>%s</title><rect x="%g" y="%g" width="%d" height="%d" rx="4"/><rect class="fill" x="%g" y="%g" width="%.1f" height="%d" rx="4"/>`,
		class, template.HTMLEscapeString(why), x, y-boxH/2, boxW, boxH, x, y-boxH/2, n.Success*boxW, boxH)
	fmt.Fprintf(b, `<text x="%g" y="%g">%s</text><text x="%g" y="%g" text-anchor="end">%s</text></g>`,
		x+6, y+4, template.HTMLEscapeString(clip(n.ID, 30)), x+boxW-6, y+4, percent(n.Success))
}

// clip shortens a name that would not fit its place.
func clip(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// drawMatrix draws harness x task: the share of attempts that succeeded, tasks put together by kind.
func drawMatrix(m evolve.Matrix) template.HTML {
	order := make([]int, len(m.Tasks))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return strings.Compare(m.Tasks[a].Kind, m.Tasks[b].Kind) })
	var b strings.Builder
	top := 32
	kind, end, line := "", 0, 0 // end: where the label before ends, about; a label that would touch it stands a line lower or higher
	x := func(column int) int { return labelW + column*cellSize }
	for c, t := range order {
		if k := m.Tasks[t].Kind; k != kind {
			kind = k
			if line = 1 - line; x(c) > end {
				line = 0
			}
			end = x(c) + labelCharW*len(k)
			fmt.Fprintf(&b, `<text class="tick" x="%d" y="%d">%s</text><line class="grid" x1="%d" x2="%d" y1="2" y2="%d"/>`, x(c)+2, 12+12*line, template.HTMLEscapeString(k), x(c), x(c), top+len(m.Rows)*cellSize)
		}
	}
	for r, row := range m.Rows {
		y := top + r*cellSize
		fmt.Fprintf(&b, `<text class="tick" x="%d" y="%d" text-anchor="end">%s</text>`, labelW-6, y+cellSize-3, template.HTMLEscapeString(clip(row.Harness, 32)))
		for c, t := range order {
			if row.Tries[t] == 0 {
				continue
			}
			share := float64(row.Wins[t]) / float64(row.Tries[t])
			class := "cell"
			if r > 0 && row.Wins[t] == 0 && m.Rows[0].Wins[t] > 0 {
				class = "cell lost"
			}
			fmt.Fprintf(&b, `<rect class="%s" x="%d" y="%d" width="%d" height="%d" style="fill-opacity:%.2f"><title>%s, %s (%s): %d of %d</title></rect>`,
				class, x(c), y, cellSize-1, cellSize-1, 0.06+0.94*share, template.HTMLEscapeString(row.Harness), template.HTMLEscapeString(m.Tasks[t].ID),
				template.HTMLEscapeString(m.Tasks[t].Kind), row.Wins[t], row.Tries[t])
		}
	}
	w, h := labelW+len(order)*cellSize+40, top+len(m.Rows)*cellSize
	return template.HTML(fmt.Sprintf(`<svg class="matrix" width="%d" height="%d" viewBox="0 0 %d %d" role="img" aria-label="success by harness and task">%s</svg>`, w, h, w, h, b.String()))
}
