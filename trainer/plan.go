package trainer

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"sort"
	"strings"
	"time"

	"harness-s/kernels"
	"harness-s/model"
	"harness-s/rollout/policy"
)

// Device is what a plan computes for.
type Device struct {
	Name   string
	Memory int64   // bytes
	Rate   float64 // sustained FLOP/s of matrix products
}

// Plan estimates memory and time of a config on one device. It reads the policy's config.json and nothing else.
type Plan struct {
	Device     string           `json:"device"`
	Parameters int              `json:"parameters"`
	Memory     map[string]int64 `json:"memory_bytes"` // by part
	Total      int64            `json:"total_bytes"`
	Available  int64            `json:"available_bytes"`
	Fits       bool             `json:"fits"`
	Steps      int              `json:"steps"`          // at most, when nothing is rescued
	RowTokens  int              `json:"row_tokens"`     // assumed tokens of a rollout
	StepS      float64          `json:"step_s"`         // training side of a step, at the assumed efficiency
	TrainS     float64          `json:"train_s"`        // of all steps
	Efficiency float64          `json:"efficiency"`     // share of Rate that a whole step is assumed to reach
	Mend       []string         `json:"mend,omitempty"` // what would make it fit
}

// planEfficiency is the share of the product rate that a whole step reaches: what `bench step` reaches on a CPU. GPUs are
// assumed to do as well until the device path is there to be measured.
const planEfficiency = 0.5

// NewPlan estimates for rollouts of rowTokens tokens.
func NewPlan(cfg Config, d Device, rowTokens int) (Plan, error) {
	shape, err := model.ReadConfig(cfg.Model.Path)
	if err != nil {
		return Plan{}, fmt.Errorf("plan: model.path: %w", err)
	}
	p := Plan{Device: d.Name, Parameters: shape.NumParams(), Available: d.Memory, RowTokens: rowTokens, Efficiency: planEfficiency}
	p.Memory = planMemory(cfg, &shape)
	for _, n := range p.Memory {
		p.Total += n
	}
	p.Fits = p.Total <= d.Memory
	if !p.Fits {
		p.Mend = planMend(cfg, &shape, d.Memory)
	}
	perStep := cfg.Rollout.Tasks * cfg.Rollout.N
	p.Steps = (cfg.Budget.Rollouts + perStep - 1) / perStep
	if cfg.Budget.Steps > 0 {
		p.Steps = min(p.Steps, cfg.Budget.Steps)
	}
	forward, training := shape.FLOPs(rowTokens / 2)
	flop := float64(perStep*rowTokens) * float64(forward+training*int64(cfg.Optim.Epochs)) // old log-probs, then the updates
	p.StepS = flop / (d.Rate * planEfficiency)
	p.TrainS = p.StepS * float64(p.Steps)
	return p, nil
}

// planMemory is the trainer's memory and, where the policy server is embedded, its own copy and cache.
func planMemory(cfg Config, shape *model.Config) map[string]int64 {
	m := model.Memory(*shape, cfg.Optim.MicrobatchTok, cfg.Model.Recompute)
	if cfg.Rollout.Endpoint == "" {
		m["server weights"] = m["weights"] + m["compute weights"]
		m["server cache"] = policy.DefaultCacheTokens / kernels.ChunkLen * shape.CacheBytes() // when full
	}
	return m
}

// planMend tries what costs least first.
func planMend(cfg Config, shape *model.Config, memory int64) []string {
	var mend []string
	fits := func() bool {
		var total int64
		for _, n := range planMemory(cfg, shape) {
			total += n
		}
		return total <= memory
	}
	if !cfg.Model.Recompute {
		cfg.Model.Recompute = true
		mend = append(mend, "model.recompute=true")
	}
	for !fits() && cfg.Optim.MicrobatchTok > cfg.Rollout.MaxContext {
		cfg.Optim.MicrobatchTok = max(cfg.Optim.MicrobatchTok/2, cfg.Rollout.MaxContext)
	}
	mend = append(mend, fmt.Sprintf("optim.microbatch_tokens=%d", cfg.Optim.MicrobatchTok))
	if !fits() {
		mend = append(mend, "rollout.endpoint=URL (a server on another device)", "a smaller policy or a device with more memory")
	}
	return mend
}

// Write prints the plan for people.
func (p Plan) Write(w io.Writer) {
	fmt.Fprintf(w, "%s, %d parameters\n", p.Device, p.Parameters)
	parts := make([]string, 0, len(p.Memory))
	for name := range p.Memory {
		parts = append(parts, name)
	}
	sort.Slice(parts, func(i, j int) bool { return p.Memory[parts[i]] > p.Memory[parts[j]] })
	for _, name := range parts {
		fmt.Fprintf(w, "  %-18s %10.1f MiB\n", name, float64(p.Memory[name])/(1<<20))
	}
	verdict := "fits"
	if !p.Fits {
		verdict = "does not fit; would: " + strings.Join(p.Mend, ", ")
	}
	fmt.Fprintf(w, "  %-18s %10.1f MiB of %.0f MiB: %s\n", "total", float64(p.Total)/(1<<20), float64(p.Available)/(1<<20), verdict)
	fmt.Fprintf(w, "  at most %d steps; training %.2g s a step, %.3g s in all if every rollout is trained on (%d tokens each, %.0f%% of the device's product rate; sampling not counted)\n",
		p.Steps, p.StepS, p.TrainS, p.RowTokens, 100*p.Efficiency)
}

// ThisMachine measures the CPU's product rate for a moment and reads its memory.
func ThisMachine(threads int) (Device, error) {
	be, err := kernels.NewCPU(threads)
	if err != nil {
		return Device{}, fmt.Errorf("plan: %w", err)
	}
	defer be.Close()
	const n = 512
	x, err1 := be.Alloc("plan", n*n)
	y, err2 := be.Alloc("plan", n*n)
	c, err3 := be.Alloc("plan", be.PackSize(n, n))
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			return Device{}, fmt.Errorf("plan: %w", err)
		}
	}
	w := kernels.Weight{Master: x, Compute: c, Out: n, In: n}
	be.Pack(w)
	be.Linear(y, x, w, n)
	start, runs := time.Now(), 0
	for time.Since(start) < 200*time.Millisecond {
		be.Linear(y, x, w, n)
		runs++
	}
	if threads == 0 {
		threads = runtime.NumCPU()
	}
	d := Device{Name: fmt.Sprintf("this machine's CPU, %d threads", threads), Memory: memoryTotal()}
	d.Rate = float64(runs) * 2 * n * n * n / time.Since(start).Seconds()
	return d, nil
}

// memoryTotal is the machine's memory in bytes, 0 where the system does not say.
func memoryTotal() int64 {
	raw, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	var kib int64
	if _, err := fmt.Sscanf(string(raw), "MemTotal: %d kB", &kib); err != nil {
		return 0
	}
	return kib << 10
}
