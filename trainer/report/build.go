package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"

	"harness-s/internal/atomicfile"
	"harness-s/model/tokenizer"
	"harness-s/rollout"
	"harness-s/trainer"
)

// Bounds on what one page holds.
const (
	maxSamples  = 6
	maxPerStep  = 400 // rollouts on one page of view
	maxLogBytes = 1 << 30
)

// Write makes report.html in a run folder and returns its path.
func Write(dir string) (string, error) {
	p, err := build(dir, false)
	if err != nil {
		return "", err
	}
	return writePage(dir, "report", p)
}

// writePage makes report.html in a folder from a template and its data, and returns its path.
func writePage(dir, template string, data any) (string, error) {
	var b bytes.Buffer
	if err := pages.ExecuteTemplate(&b, template, data); err != nil {
		return "", fmt.Errorf("report of %s: %w", dir, err)
	}
	path := filepath.Join(dir, "report.html")
	if err := atomicfile.Write(path, b.Bytes()); err != nil {
		return "", fmt.Errorf("report of %s: %w", dir, err)
	}
	return path, nil
}

// build reads a run folder. A run still at work is fine: what is not there yet is left out.
func build(dir string, live bool) (*page, error) {
	lines, err := readMetrics(filepath.Join(dir, "metrics.jsonl"))
	if err != nil {
		return nil, err
	}
	sum, err := readSummary(filepath.Join(dir, "summary.json"))
	if err != nil {
		return nil, err
	}
	logs, err := listLogs(dir)
	if err != nil {
		return nil, err
	}
	p := &page{Title: "Run " + filepath.Base(dir), Live: live, Charts: charts(withEnd(lines, sum))}
	p.Facts = facts(sum, lines)
	p.Tiles = tiles(sum, lines)
	p.Table = table(sum)
	if err := p.addRollouts(dir, logs); err != nil {
		return nil, err
	}
	return p, nil
}

// metricsLine is one line of metrics.jsonl by name; missing and null read as NaN.
type metricsLine map[string]float64

func (m metricsLine) get(name string) float64 {
	if v, ok := m[name]; ok {
		return v
	}
	return math.NaN()
}

func readMetrics(path string) ([]metricsLine, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	var out []metricsLine
	raw = raw[:bytes.LastIndexByte(raw, '\n')+1] // a run at work, or one that died, may have left half a line
	for i, text := range bytes.Split(raw, []byte("\n")) {
		if len(text) == 0 {
			continue
		}
		var values map[string]*float64
		if err := json.Unmarshal(text, &values); err != nil {
			return nil, fmt.Errorf("report: %s:%d: %w", path, i+1, err)
		}
		line := metricsLine{}
		for name, v := range values {
			if v != nil {
				line[name] = *v
			}
		}
		out = append(out, line)
	}
	return out, nil
}

// score is one harness's entry of summary.json, whatever k it was taken with.
type score map[string]json.RawMessage

// name is the first name that begins so.
func (s score) name(prefix string) string {
	for _, name := range slices.Sorted(maps.Keys(s)) {
		if strings.HasPrefix(name, prefix) {
			return name
		}
	}
	return prefix
}

// prefixed is the first number whose name begins so ("avg@"); NaN without one.
func (s score) prefixed(prefix string) float64 {
	for _, name := range slices.Sorted(maps.Keys(s)) {
		var v float64
		if strings.HasPrefix(name, prefix) && json.Unmarshal(s[name], &v) == nil {
			return v
		}
	}
	return math.NaN()
}

// summary is what the report reads of summary.json.
type summary struct {
	Before       map[string]score `json:"before"`
	After        map[string]score `json:"after"`
	Steps        float64          `json:"steps"`
	Rollouts     float64          `json:"rollouts"`
	RescueRate   *float64         `json:"rescue_rate"`
	RescuedShare *float64         `json:"rescued_share"`
	WallS        float64          `json:"wall_s"`
	Seed         json.Number      `json:"seed"`
}

// readSummary returns nil where the run has not ended.
func readSummary(path string) (*summary, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	s := new(summary)
	if err := json.Unmarshal(raw, s); err != nil {
		return nil, fmt.Errorf("report: %s: %w", path, err)
	}
	return s, nil
}

func facts(s *summary, lines []metricsLine) [][2]string {
	if s == nil {
		return [][2]string{{"state", "at work"}, {"steps so far", strconv.Itoa(max(0, len(lines)-1))}}
	}
	return [][2]string{
		{"steps", tickLabel(s.Steps)}, {"rollouts", tickLabel(s.Rollouts)},
		{"time", duration(s.WallS)}, {"seed", s.Seed.String()},
	}
}

func tiles(s *summary, lines []metricsLine) []tile {
	var out []tile
	if s != nil {
		for _, id := range []string{"h0", "routed"} {
			before, after := s.Before[id].prefixed("avg@"), s.After[id].prefixed("avg@")
			if math.IsNaN(after) {
				continue
			}
			out = append(out, tile{s.After[id].name("avg@") + " under " + id, percent(after), "before: " + percent(before)})
		}
		if s.RescueRate != nil {
			out = append(out, tile{"Rescue rate", percent(*s.RescueRate), "base groups that failed whole"})
		}
		if s.RescuedShare != nil {
			out = append(out, tile{"Rescued share", percent(*s.RescuedShare), "rescued groups with a success"})
		}
	}
	if worst := worstMismatch(lines); !math.IsNaN(worst) {
		out = append(out, tile{"Sampler mismatch", tickLabel(worst), "largest |log-prob difference|"})
	}
	return out
}

func worstMismatch(lines []metricsLine) float64 {
	worst := math.NaN()
	for _, l := range lines {
		if v := l.get("mismatch/max_abs"); !math.IsNaN(v) && !(v <= worst) {
			worst = v
		}
	}
	return worst
}

func table(s *summary) []harnessRow {
	if s == nil {
		return nil
	}
	all := map[string]bool{}
	for id := range s.Before {
		all[id] = true
	}
	for id := range s.After {
		all[id] = true
	}
	var rows []harnessRow
	for _, id := range trainer.SortHarnesses(all) {
		b, a := s.Before[id], s.After[id]
		rows = append(rows, harnessRow{id, b.prefixed("pass@"), b.prefixed("avg@"), a.prefixed("pass@"), a.prefixed("avg@")})
	}
	return rows
}

// chartSpec names the metrics of one chart.
type chartSpec struct {
	title string
	floor float64
	names []string
}

var chartSpecs = []chartSpec{
	{"Reward of retained groups", 0, []string{"reward/mean", "reward/std"}},
	{"H0 success on training tasks", 0, []string{"success/h0"}},
	{"H0 on held-out tasks", 0, []string{"eval/avg@3/h0", "eval/pass@3/h0"}},
	{"Rescue", 0, []string{"rescue/rate", "rescue/success"}},
	{"Groups", 0, []string{"group/contrast", "group/constant"}},
	{"Entropy per policy token (nats)", 0, []string{"policy/entropy"}},
	{"Share of clipped tokens", 0, []string{"policy/clip_low", "policy/clip_high"}},
	{"Gradient norm", 0, []string{"policy/grad_norm"}},
	{"Sampler and trainer log-probs: |difference|", 0, []string{"mismatch/max_abs"}},
	{"Rollout length (tokens)", 0, []string{"length/mean", "length/max"}},
	{"Turns", 0, []string{"turns/mean"}},
	{"Tokens per second", 0, []string{"perf/tokens_per_s"}},
	{"Seconds of a step", 0, []string{"time/rollout", "time/rescue", "time/logprob", "time/update", "time/sync"}},
}

// withEnd adds the evaluation after the last step, which only the summary has.
func withEnd(lines []metricsLine, s *summary) []metricsLine {
	if s == nil {
		return lines
	}
	end := metricsLine{"step": s.Steps}
	for name, raw := range s.After["h0"] {
		var v float64
		if json.Unmarshal(raw, &v) == nil {
			end["eval/"+name+"/h0"] = v
		}
	}
	return append(slices.Clone(lines), end)
}

// charts draws what the metrics hold; a chart without any of its metrics is left out.
func charts(lines []metricsLine) []template.HTML {
	var out []template.HTML
	for _, c := range chartSpecs {
		var all []series
		for _, name := range c.names {
			if s := pickSeries(lines, name); len(s.X) > 0 {
				all = append(all, s)
			}
		}
		if len(all) > 0 {
			out = append(out, lineChart(c.title, c.floor, all...))
		}
	}
	return out
}

func pickSeries(lines []metricsLine, name string) series {
	s := series{Name: name}
	for _, l := range lines {
		if v := l.get(name); !math.IsNaN(v) {
			s.X, s.Y = append(s.X, l.get("step")), append(s.Y, v)
		}
	}
	return s
}

// rolloutLog is one file of rollouts: LABEL_N.jsonl.zst.
type rolloutLog struct {
	path, label string
	step        int
}

func listLogs(dir string) ([]rolloutLog, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "rollouts", "*.jsonl.zst"))
	if err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	var out []rolloutLog
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".jsonl.zst")
		label, number, ok := strings.Cut(name, "_")
		step, err := strconv.Atoi(number)
		if !ok || err != nil {
			continue // not one of ours
		}
		out = append(out, rolloutLog{path, label, step})
	}
	sort.Slice(out, func(i, j int) bool {
		if out[i].step != out[j].step {
			return out[i].step < out[j].step
		}
		return out[i].label < out[j].label
	})
	return out, nil
}

func readLog(path string, limit int) ([]*rollout.Record, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	if info.Size() > maxLogBytes {
		return nil, fmt.Errorf("report: %s has %d bytes, more than a page can hold", path, info.Size())
	}
	var out []*rollout.Record
	_, _, err = rollout.ReadRecords(path, func(r *rollout.Record) error {
		if limit == 0 || len(out) < limit {
			out = append(out, r)
		}
		return nil
	})
	return out, err
}

// addRollouts fills the kind table from the last evaluation and the samples from the training steps.
func (p *page) addRollouts(dir string, logs []rolloutLog) error {
	text := openDecoder(dir)
	var steps []rolloutLog
	var lastEval *rolloutLog
	for i := range logs {
		l := &logs[i]
		if p.Live && l.label == "step" {
			p.Steps = append(p.Steps, stepLink{Step: l.step})
		}
		switch l.label {
		case "step":
			if l.step > 0 {
				steps = append(steps, *l)
			}
		case "before", "eval", "after":
			lastEval = l
		}
	}
	if lastEval != nil {
		records, err := readLog(lastEval.path, 0)
		if err != nil {
			return err
		}
		p.Kinds = countKinds(fmt.Sprintf("held-out attempts, evaluation %q at step %d; the small figure is their number", lastEval.label, lastEval.step), attempts(records))
	}
	if len(steps) == 0 {
		return nil
	}
	picked, err := sampleStep(steps)
	if err != nil {
		return err
	}
	for i, r := range picked {
		s := newSample(r, text)
		s.Open = i == 0
		p.Samples = append(p.Samples, s)
	}
	return nil
}

// lookBack is how many steps the samples may be old: the last one often has no rescue left to show.
const lookBack = 30

// sampleStep picks from the newest step that has a rescued success, or from the newest.
func sampleStep(steps []rolloutLog) ([]*rollout.Record, error) {
	var newest []*rollout.Record
	for i := len(steps) - 1; i >= 0 && i >= len(steps)-lookBack; i-- {
		records, err := readLog(steps[i].path, 0)
		if err != nil {
			return nil, err
		}
		if newest == nil {
			newest = records
		}
		if slices.ContainsFunc(records, func(r *rollout.Record) bool { return r.Phase == "rescue" && r.Success }) {
			return pickSamples(records, maxSamples), nil
		}
	}
	return pickSamples(newest, maxSamples), nil
}

func attempts(records []*rollout.Record) []attempt {
	out := make([]attempt, len(records))
	for i, r := range records {
		out[i] = attempt{r.Harness, r.TaskKind, r.Success}
	}
	return out
}

// openDecoder reads the tokenizer of the newest checkpoint; without one, ids are shown.
func openDecoder(dir string) decoder {
	paths, _ := filepath.Glob(filepath.Join(dir, "checkpoints", "step_*", "tokenizer.json"))
	for i := len(paths) - 1; i >= 0; i-- {
		if t, err := tokenizer.Load(paths[i]); err == nil {
			return func(id int32) string { return t.Decode([]int32{id}) }
		}
	}
	return func(id int32) string { return fmt.Sprintf("[%d]", id) }
}
