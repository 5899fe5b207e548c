package trainer

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"harness-s/rollout/harness"
)

// clock measures steps. Their times are the only numbers of a run that a repeat does not give again.
type clock struct {
	begun      time.Time
	checkpoint float64 // seconds the last checkpoint took
}

func (c *clock) start() { c.begun = time.Now() }

func (c *clock) lap(out metrics) { out["time/step"] = time.Since(c.begun).Seconds() }

// perf fills in throughput and memory.
func (s *stepRun) perf() {
	if t := s.out["time/step"]; t > 0 && s.n > 0 { // step 0 trains nothing
		s.out["perf/tokens_per_s"] = s.out["tokens/policy"] / t
	}
	if rss := residentBytes(); rss > 0 {
		s.out["perf/rss_bytes"] = float64(rss)
	}
	if s.parts.Learner != nil {
		s.out["perf/device_bytes"] = float64(s.parts.Learner.DeviceBytes())
	}
}

// residentBytes is this process's resident memory, 0 where the system does not say.
func residentBytes() int64 {
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(data))
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}

// progress tells people how far a run is: a line a step that stays, and within a long phase lines in a log, or on a
// terminal one line that is written over.
type progress struct {
	out      io.Writer
	terminal bool
	cfg      Config
	begun    time.Time
	first    int // rollouts done when this process began its first step
	width    int // of the terminal's line that is written over; 0: none
}

func newProgress(out io.Writer, terminal bool) *progress {
	return &progress{out: out, terminal: terminal, begun: time.Now()}
}

// How often a long phase is told of.
const (
	phaseLines    = 10 * time.Second       // lines of a log
	phaseTerminal = 200 * time.Millisecond // the line of a terminal
)

// maxTerminalLine is what every terminal shows in one line.
const maxTerminalLine = 79

// phase says what long thing starts now, and returns what is to be told of each attempt that ends.
func (p *progress) phase(what string, rollouts int) func(ended int) {
	p.show(fmt.Sprintf("%s: %d rollouts", what, rollouts))
	every := phaseLines
	if p.terminal {
		every = phaseTerminal
	}
	begun := time.Now()
	told := begun
	return func(ended int) {
		if time.Since(told) < every {
			return
		}
		told = time.Now()
		left := time.Since(begun).Seconds() * float64(rollouts-ended) / float64(ended)
		p.show(fmt.Sprintf("%s: %d/%d rollouts, %s left", what, ended, rollouts, duration(left)))
	}
}

// begin says that steps follow, from so many rollouts on.
func (p *progress) begin(rollouts int, cfg Config) {
	p.begun, p.first, p.cfg = time.Now(), rollouts, cfg
}

func (p *progress) step(s state, m metrics) {
	if s.Step == 0 {
		return
	}
	line := fmt.Sprintf("step %d  reward %.3f  h0 %.3f  failed %.2f", s.Step, m["reward/mean"], m["success/h0"], m["rescue/rate"])
	if x, ok := m["rescue/success"]; ok { // something was rescued
		line += fmt.Sprintf(" rescued %.2f", x)
	}
	line += fmt.Sprintf("  %.0f tok/s  %d/%d rollouts  %s", m["perf/tokens_per_s"], s.Rollouts, p.cfg.Budget.Rollouts, p.left(s))
	if x, ok := m["policy/entropy"]; ok { // nothing was trained on otherwise
		line += fmt.Sprintf("  entropy %.3f", x)
	}
	if x := m["router/dropped"]; x > 0 { // by an endpoint that is down or answers badly: a run must not rest on fewer voters unseen
		line += fmt.Sprintf("  %.0f of %.0f ballots dropped", x, m["router/ballots"])
	}
	name := fmt.Sprintf("eval/avg@%d/%s", p.cfg.Eval.K, harness.BaseID)
	if x, ok := m[name]; ok {
		line += fmt.Sprintf("  %s %.3f", name, x)
	}
	p.note(line)
}

// left is the time spent and, by the rollout budget, the time to go.
func (p *progress) left(s state) string {
	spent := time.Since(p.begun).Seconds()
	done, all := s.Rollouts-p.first, p.cfg.Budget.Rollouts-p.first
	if done <= 0 {
		return duration(s.WallS) + " elapsed"
	}
	return fmt.Sprintf("%s elapsed, %s left", duration(s.WallS), duration(spent*float64(all-done)/float64(done)))
}

func duration(seconds float64) string {
	return time.Duration(seconds * float64(time.Second)).Round(time.Second).String()
}

func (p *progress) show(line string) {
	if p.out == nil {
		return
	}
	if !p.terminal {
		fmt.Fprintln(p.out, line)
		return
	}
	line = line[:min(len(line), maxTerminalLine)] // a longer one would wrap, and could not be written over
	pad := strings.Repeat(" ", max(0, p.width-len(line)))
	p.width = len(line)
	fmt.Fprint(p.out, "\r"+line+pad)
}

// note is a line that stays.
func (p *progress) note(line string) {
	if p.out != nil {
		p.end()
		fmt.Fprintln(p.out, line)
	}
}

// end finishes the line that is written over.
func (p *progress) end() {
	if p.terminal && p.width > 0 {
		fmt.Fprintln(p.out)
		p.width = 0
	}
}
